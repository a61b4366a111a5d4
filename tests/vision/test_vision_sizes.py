"""Plans of images: published examples, an exact recomputation in integers, and every kind of size."""

from __future__ import annotations

import dataclasses
from math import ceil, isqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_vision import FLASH, TINY

from ds41.config import ConfigError, VisionConfig
from ds41.vision import ImageError, ImagePlan, plan_image

SIDES = st.integers(1, 20000)


@pytest.mark.parametrize(
    ("width", "height", "resized", "tokens", "span"),
    [
        (544, 544, (546, 546), (13, 13), 184),
        (640, 480, (644, 490), (16, 12), 206),
        (1920, 1080, (1708, 966), (41, 23), 968),
        (448, 336, (630, 476), (15, 12), 194),
        (1344, 1344, (1302, 1302), (31, 31), 994),
    ],
)
def test_published_sizes(width, height, resized, tokens, span):
    plan = plan_image(width, height, FLASH)
    assert (plan.resized_width, plan.resized_height) == resized
    assert (plan.tokens_across, plan.tokens_down) == tokens
    assert plan.image_tokens == tokens[0] * tokens[1]
    assert plan.span_tokens == span


def test_flags_say_what_acted():
    def flags(width, height, vision=FLASH):
        plan = plan_image(width, height, vision)
        return plan.enlarged, plan.reduced, plan.capped

    capped = dataclasses.replace(FLASH, max_wh_ratio=2.0)
    assert flags(544, 544) == (False, False, False)
    assert flags(543, 544) == (True, False, False)
    assert flags(1344, 1344) == (False, True, False)
    assert flags(1, 20000) == (True, True, False)
    assert flags(1600, 800, capped) == (False, False, False)
    assert flags(1601, 800, capped) == (False, False, True)


def test_cap_cuts_the_width_only():
    capped = dataclasses.replace(FLASH, max_wh_ratio=2.0)
    wide, tall = plan_image(3000, 600, capped), plan_image(600, 3000, capped)
    assert (wide.width, wide.resized_width, wide.resized_height) == (3000, 1204, 602)
    assert tall == plan_image(600, 3000, FLASH)


def test_strips_become_one_column_or_one_row():
    column, row = plan_image(1, 20000, FLASH), plan_image(20000, 1, FLASH)
    assert (column.tokens_across, column.tokens_down, column.span_tokens) == (1, 511, 1024)
    assert (column.resized_width, column.resized_height) == (42, 511 * 42)
    assert (row.tokens_across, row.tokens_down, row.span_tokens) == (1021, 1, 1024)
    assert (row.resized_width, row.resized_height) == (1021 * 42, 42)


def exact_plan(width: int, height: int, vision: VisionConfig) -> tuple[int, int, bool]:
    """Patches across and down and whether the limit acted, in integers: what the doubles stand for."""
    room, unit, patch = vision.max_image_tokens - 2, vision.patch_size * vision.downsample_ratio, vision.patch_size
    if width * height < vision.min_pixels:
        width, height = isqrt(width * vision.min_pixels // height), isqrt(height * vision.min_pixels // width)
    if ceil(height / unit) * (ceil(width / unit) + 1) <= room:
        return ceil(width / patch), ceil(height / patch), False
    columns = 0
    while height * (columns + 1) * (columns + 2) <= room * width:
        columns += 1
    rows = 0
    while (rows + 1) * ((rows + 1) * width + height) <= room * height:
        rows += 1
    if columns == 0:
        return vision.downsample_ratio, room // 2 * vision.downsample_ratio, True
    if rows == 0:
        return (room - 1) * vision.downsample_ratio, vision.downsample_ratio, True
    number, divisor = (columns * unit, width) if columns * height <= rows * width else (rows * unit, height)
    return width * number // divisor // patch, height * number // divisor // patch, True


@given(SIDES, SIDES, st.sampled_from([FLASH, TINY]))
def test_doubles_cost_at_most_one_patch(width, height, vision):
    try:
        plan = plan_image(width, height, vision)
    except ImageError:
        return
    columns, rows, reduced = exact_plan(width, height, vision)
    assert plan.reduced == reduced
    lost = columns - plan.patches_across, rows - plan.patches_down
    assert lost == (0, 0) or (reduced and set(lost) <= {0, 1})


def check(plan: ImagePlan, vision: VisionConfig) -> None:
    patch, ratio = vision.patch_size, vision.downsample_ratio
    assert plan.span_tokens <= vision.max_image_tokens
    assert plan.span_tokens == plan.image_tokens + plan.tokens_down + 2
    assert (plan.resized_width, plan.resized_height) == (plan.patches_across * patch, plan.patches_down * patch)
    assert min(plan.patches_across, plan.patches_down) >= 1
    assert plan.tokens_across == ceil(plan.patches_across / ratio)
    assert plan.tokens_down == ceil(plan.patches_down / ratio)
    # What is left of the image when it is fitted into the grid.
    assert min(plan.resized_width, plan.resized_height * plan.width / plan.height) >= 0.5
    assert min(plan.resized_height, plan.resized_width * plan.height / plan.width) >= 0.5


@given(SIDES, SIDES, st.integers(4, 1100), st.integers(1, 20), st.integers(1, 4), st.integers(0, 400000))
def test_every_size_fits_or_is_refused(width, height, limit, patch, ratio, least):
    vision = dataclasses.replace(
        FLASH, max_image_tokens=limit, patch_size=patch, downsample_ratio=ratio, min_pixels=least
    )
    try:
        plan = plan_image(width, height, vision)
    except ImageError:
        # Half a pixel at most is left of the short side, and the long one has at least a patch.
        assert max(width, height) / min(width, height) >= 2 * patch
        return
    check(plan, vision)


def test_one_patch_a_token_leaves_no_side_empty():
    vision = dataclasses.replace(FLASH, downsample_ratio=1, max_image_tokens=5, min_pixels=0)
    plan = plan_image(1500, 1000, vision)
    assert (plan.patches_across, plan.patches_down, plan.span_tokens) == (1, 1, 4)


@pytest.mark.parametrize("other", [1, 2, 13, 544, 1302, 20000])
def test_no_size_up_to_20000_is_refused_at_the_published_limit(other):
    for side in range(1, 20001, 7):
        check(plan_image(side, other, FLASH), FLASH)
        check(plan_image(other, side, FLASH), FLASH)


@given(st.integers(200, 20000), st.integers(200, 20000))
def test_aspect_is_kept_to_the_rounding(width, height):
    plan = plan_image(width, height, FLASH)
    # One factor must explain both sides: rounded down to a patch where the limit acted, up where not.
    low, high = (0, 14 + 14) if plan.reduced else (-14, 1)
    factors = [
        ((resized + low) / side, (resized + high) / side)
        for resized, side in ((plan.resized_width, width), (plan.resized_height, height))
    ]
    assert max(first for first, _ in factors) <= min(last for _, last in factors)


@pytest.mark.parametrize(
    ("width", "height", "named"),
    [
        (0, 5, "width is 0"),
        (5, 0, "height is 0"),
        (-3, 5, "width is -3"),
        (2.5, 5, "width is 2.5"),
        (True, 5, "width is True"),
        (5, 2**31, "height is 2147483648"),
        (10**400, 1, "expected an integer from 1 to 2147483647"),
    ],
)
def test_sizes_that_are_none(width, height, named):
    with pytest.raises(ImageError, match=named):
        plan_image(width, height, FLASH)


@pytest.mark.parametrize(("width", "height"), [(1, 1_000_000), (1_000_000, 1), (1, 2**31 - 1), (2**31 - 1, 1)])
def test_strips_of_which_nothing_would_be_left(width, height):
    with pytest.raises(ImageError, match=f"width {width} and height {height}: .* its short side would be 0"):
        plan_image(width, height, FLASH)


def test_a_capped_strip_is_squeezed_and_not_refused():
    assert plan_image(1_000_000, 1, dataclasses.replace(FLASH, max_wh_ratio=3.0)).capped


@pytest.mark.parametrize(
    ("name", "value"),
    [("patch_size", 0), ("downsample_ratio", -1), ("max_image_tokens", 3), ("max_wh_ratio", 0.0)],
)
def test_sizes_of_the_model_without_a_grid(name, value):
    with pytest.raises(ConfigError, match=f"vision.{name} is {value}"):
        plan_image(100, 100, dataclasses.replace(FLASH, **{name: value}))
