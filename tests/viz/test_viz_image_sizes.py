"""The arithmetic of image sizes in the browser against the library's, number by number and picture by picture."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import re
import shutil
import subprocess

import pytest

from ds41 import ledger
from ds41.config import ModelConfig
from ds41.records import exact
from ds41.vision.sizes import ImageError, plan_image
from ds41.viz.diagram import asset
from ds41.viz.image_sizes import EXAMPLES, before_patches, image_sizes, overview, picture

FLASH = ModelConfig.flash()


def with_vision(config=FLASH, **changes):
    return dataclasses.replace(config, vision=dataclasses.replace(config.vision, **changes))


CONFIGS = {
    "flash": FLASH,
    "nano": ModelConfig.nano(),
    "capped": with_vision(max_wh_ratio=2.0),
    "odd cap": with_vision(max_wh_ratio=1 / 3, min_pixels=0),
    "one pixel a token": with_vision(patch_size=1, downsample_ratio=1, max_image_tokens=37, min_pixels=5),
    "shortest span": with_vision(max_image_tokens=4),
}
REPLY = """
const { data, sizes } = JSON.parse(require("fs").readFileSync(0, "utf8"));
const reply = sizes.map(([width, height]) => {
  const plan = planImage(data.vision, width, height);
  return plan.refused ? { refused: plan.refused } : { ...plan, html: picture(data, plan), words: overview(data, plan) };
});
process.stdout.write(JSON.stringify(reply));
"""


def sizes():
    """Sides around every threshold, ordinary pictures, thin strips, and the longest sides that are taken."""
    generator = random.Random("image sizes")
    around = [1, 2, 3, 13, 14, 15, 41, 42, 43, 84, 543, 544, 545, 1302, 1303, 20000, 2**31 - 1]
    found = [(width, height) for width in around for height in around]
    found += [(generator.randint(1, 5000), generator.randint(1, 5000)) for _ in range(200)]
    found += [
        (round(2 ** generator.uniform(0, 31)) or 1, round(2 ** generator.uniform(0, 31)) or 1) for _ in range(200)
    ]
    found += [(min(width, 2**31 - 1), min(height, 2**31 - 1)) for width, height in EXAMPLES]
    return [(min(width, 2**31 - 1), min(height, 2**31 - 1)) for width, height in found]


@pytest.fixture(scope="module")
def node():
    found = shutil.which("node")
    if found is None:
        reason = "no node found; install Node.js"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    return found


def answers(node, config, given):
    text = json.dumps({"data": image_sizes(config, examples=[(64, 64)], width=64, height=64).data, "sizes": given})
    script = asset("js/words.js") + asset("js/sizes.js") + REPLY
    run = subprocess.run([node, "-e", script], input=text, capture_output=True, text=True, check=True)
    return json.loads(run.stdout)


# The script against the library


def expected(config, width, height):
    vision, per_token = config.vision, exact(ledger.bytes_per_token(config))
    try:
        plan = plan_image(width, height, vision)
    except ImageError as error:
        return {"refused": str(error)}
    return {
        "given": [width, height],
        "enough": list(before_patches(plan, vision)),
        "fitted": [plan.resized_width, plan.resized_height],
        "patches": [plan.patches_across, plan.patches_down],
        "tokens": [plan.tokens_across, plan.tokens_down],
        "span": plan.span_tokens,
        "enlarged": plan.enlarged,
        "reduced": plan.reduced,
        "capped": plan.capped,
        "html": picture(plan, vision, per_token),
        "words": overview(plan, vision),
    }


@pytest.mark.parametrize("name", CONFIGS)
def test_the_script_plans_what_the_library_plans(node, name):
    refused = 0
    for size, answer in zip(sizes(), answers(node, CONFIGS[name], sizes()), strict=True):
        assert answer == expected(CONFIGS[name], *size), size
        refused += "refused" in answer
    assert 0 < refused < len(sizes()) / 2


def test_what_is_no_size_is_refused_in_the_same_words(node):
    given = [(0, 5), (5, 0), (-1, 5), (5, 2**31), (1.5, 5)]
    for size, answer in zip(given, answers(node, FLASH, given), strict=True):
        with pytest.raises(ImageError) as caught:
            plan_image(*size, FLASH.vision)
        assert answer == {"refused": str(caught.value)}, size


# The picture


@pytest.mark.parametrize("name", CONFIGS)
def test_a_size_before_patches_leads_to_the_plan(name):
    vision = CONFIGS[name].vision
    checked = 0
    for width, height in sizes():
        try:
            plan = plan_image(width, height, vision)
        except ImageError:
            continue
        across, down = before_patches(plan, vision)
        if not plan.reduced:
            assert plan.patches_across == -(-across // vision.patch_size)
            assert plan.patches_down == -(-down // vision.patch_size)
            checked += 1
        if not (plan.capped or plan.enlarged):
            assert (across, down) == (width, height)
    assert checked or name == "shortest span"


def test_the_picture_counts_the_tokens():
    figure = image_sizes()
    assert figure.title == "Whatever its size, an image takes no more than 1,024 tokens of the prompt"
    assert '<svg class="ds-tokens" viewBox="0 0 44 23"' in figure.body
    lines = re.search(r'<path d="([^"]*)"', figure.body).group(1)
    assert (lines.count("V"), lines.count("H")) == (40, 22)
    assert "<b>968</b> of 1,024 tokens: 943 of the image, 23 newlines, 2 delimiters" in figure.body
    assert "861,520 B" in figure.body
    assert "968 × 890 B" in figure.body
    assert figure.caption.endswith("Rounded up, its span would exceed 1,024 tokens, so it shrinks.")
    # Lines closer than they are wide would hide the tokens.
    assert '<path d="">' in image_sizes(width=20000, height=200).body
    assert "is enlarged" in image_sizes(width=336, height=448).caption
    assert "1 row of " in image_sizes(width=20000, height=1).caption


def test_the_examples_are_in_the_table():
    rows = re.findall(r'<th scope="row"[^>]*>([^<]*)</th>(.*?)</tr>', image_sizes().table)
    spans = {given: re.findall(r">([^<>]+)</td>", cells)[-2:] for given, cells in rows}
    assert spans["544 × 544"] == ["184", "163,760"]
    assert spans["640 × 480"] == ["206", "183,340"]
    assert spans["1,344 × 1,344"] == ["994", "884,660"]
    assert len(spans) == len(EXAMPLES)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"config": dataclasses.replace(FLASH, vision=None)}, ValueError, "vision is None"),
        ({"examples": []}, ValueError, "examples is empty"),
        ({"examples": [(64, 0)]}, ImageError, "height is 0; expected an integer from 1"),
        ({"width": 1, "height": 2**31 - 1}, ImageError, "its short side would be 0"),
    ],
)
def test_bad_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=re.escape(message)):
        image_sizes(**arguments)


# What a reader can do


@pytest.fixture
def sizes_page(look):
    return look(image_sizes()._repr_html_())


def caption(page):
    return page.locator("figcaption").inner_text()


@pytest.mark.browser
def test_examples_fill_the_fields(sizes_page):
    sizes_page.get_by_role("button", name="640 × 480").press("Enter")
    assert sizes_page.locator("input[name=width]").input_value() == "640"
    assert sizes_page.locator("input[name=height]").input_value() == "480"
    assert caption(sizes_page).startswith("An image of 640 × 480 pixels takes 206 tokens, 12 rows of 16")
    sizes_page.locator("input[name=height]").fill("960")
    assert caption(sizes_page).startswith("An image of 640 × 960 pixels")


@pytest.mark.browser
def test_what_cannot_be_taken_is_told_and_not_drawn(sizes_page):
    sizes_page.locator("input[name=height]").fill("")
    assert "height is 0; expected an integer" in caption(sizes_page)
    assert not sizes_page.locator(".ds-picture").is_visible()
    sizes_page.locator("input[name=height]").fill("1")
    sizes_page.locator("input[name=width]").fill("2147483647")
    assert "its short side would be 0" in caption(sizes_page)
    sizes_page.locator("input[name=width]").fill("900")
    assert sizes_page.locator(".ds-picture").is_visible()


@pytest.mark.browser
@pytest.mark.parametrize("width", [375, 760])
@pytest.mark.parametrize("size", [(1920, 1080), (400, 2000), (30, 20000), (20000, 30)])
def test_pictures_keep_their_proportions_and_the_page_s_width(look, size, width):
    page = look(image_sizes(width=size[0], height=size[1])._repr_html_(), width=width)
    plan = plan_image(*size, FLASH.vision)
    box = page.locator("rect.ds-image").bounding_box()
    # The box includes a hairline around the tokens.
    assert abs((box["width"] - 1) * plan.tokens_down - (box["height"] - 1) * plan.tokens_across) <= 2 * max(
        plan.tokens_across, plan.tokens_down
    )
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.browser
def test_the_examples_can_be_read_without_a_script(look):
    page = look(image_sizes()._repr_html_(), script=False)
    assert page.locator("rect.ds-image").is_visible()
    assert not page.locator("form").is_visible()
    page.locator("summary").click()
    assert page.locator("tbody tr").count() == len(EXAMPLES)
