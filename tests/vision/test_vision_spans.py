"""Spans: roles of their positions, and prompts that make room for them."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_vision import FLASH, TINY

from ds41.vision import ImageError, Role, expand_images, plan_image, span_roles

IMAGE = 129264


def plan_of(tokens_across: int, tokens_down: int):
    plan = plan_image(300, 300, FLASH)
    return dataclasses.replace(plan, tokens_across=tokens_across, tokens_down=tokens_down)


def test_roles_by_hand():
    start, image, newline, end = Role.START, Role.IMAGE, Role.NEWLINE, Role.END
    expected = [start, image, image, image, newline, image, image, image, newline, end]
    assert span_roles(plan_of(3, 2)).tolist() == expected


@given(st.integers(1, 3000), st.integers(1, 3000))
def test_roles_fill_the_span(width, height):
    plan = plan_image(width, height, FLASH)
    roles = span_roles(plan).tolist()
    assert len(roles) == plan.span_tokens
    assert roles.count(Role.IMAGE) == plan.image_tokens
    assert roles.count(Role.NEWLINE) == plan.tokens_down


def test_expansion_by_hand():
    ids, mask, spans = expand_images([0, IMAGE, 7, 8, IMAGE], [plan_of(1, 1), plan_of(2, 1)], IMAGE)
    assert ids == [0, *[IMAGE] * 4, 7, 8, *[IMAGE] * 5]
    assert mask == [False, *[True] * 4, False, False, *[True] * 5]
    assert spans == [range(1, 5), range(7, 12)]


def test_neighbouring_images_keep_their_own_spans():
    plans = [plan_image(100, 200, TINY), plan_image(200, 100, TINY)]
    ids, mask, spans = expand_images([IMAGE, IMAGE], plans, IMAGE)
    first = plans[0].span_tokens
    assert spans == [range(first), range(first, first + plans[1].span_tokens)]
    assert all(mask)
    assert len(ids) == len(mask) == spans[1].stop


def test_text_alone_stays_as_it_is():
    assert expand_images([3, 1, 2], [], IMAGE) == ([3, 1, 2], [False] * 3, [])


@pytest.mark.parametrize(("placeholders", "images"), [(0, 1), (1, 0), (2, 1), (1, 3)])
def test_each_placeholder_needs_its_image(placeholders, images):
    with pytest.raises(ImageError, match=f"has {placeholders} image placeholders .*expected {images},"):
        expand_images([5, *[IMAGE] * placeholders], [plan_of(1, 1)] * images, IMAGE)
