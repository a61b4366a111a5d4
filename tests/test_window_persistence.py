"""Stored windows and dependency cones: the counts against enumeration and against the report's numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import pytest
from small_configs import with_plan

from ds41 import economics, flops, window_cone, window_persistence
from ds41.config import ModelConfig

FLASH = ModelConfig.flash()
SMALL = with_plan((0, 2, 2, 1, 1), (1, 3), (1, 3), sliding_window=5, max_position_embeddings=5000)


@dataclass(frozen=True)
class Turn:
    history: int
    prompt: int
    answer: int


def test_one_long_turn_is_the_formula():
    turns = [Turn(2**18 + n * 2**12, 2**11, 2**11) for n in range(8)]
    found = window_persistence.stored(FLASH, turns)
    expected = economics.persistence(FLASH, 2**12)
    assert (found.new_tokens, found.ours) == (8 * expected.new_tokens, 8 * expected.ours)
    assert found.baseline_windows == 8 * expected.baseline_windows == 8 * 2 * 43 * 128 * 584
    assert found.ratio == expected.ratio


def test_floors_and_short_windows_are_counted():
    found = window_persistence.stored(FLASH, [Turn(0, 100, 3), Turn(103, 1, 0)])
    # 43 layers, rows of 584 bytes, at 100, 103, 104 and 104 tokens; 21 CSA planes of ratio 4, none of ratio 128 yet.
    assert found.baseline_windows == 43 * 584 * (100 + 103 + 104 + 104)
    assert found.baseline_global == 21 * 652 * 26
    assert found.ours == 356 * (3 * 52 + 104)


def test_only_the_mean_turn_counts():
    even = window_persistence.stored(FLASH, [Turn(2**18, 1024, 1024), Turn(2**18 + 2048, 1024, 1024)])
    uneven = window_persistence.stored(FLASH, [Turn(2**18, 3840, 128), Turn(2**18 + 3968, 64, 64)])
    assert even.ratio == uneven.ratio


def test_no_turns_are_refused():
    with pytest.raises(ValueError, match="there is no turn"):
        window_persistence.stored(FLASH, [])
    with pytest.raises(ValueError, match="a turn after 10 tokens adds 0"):
        window_persistence.stored(FLASH, [Turn(10, 0, 0)])


def test_the_pool_in_sessions():
    assert window_persistence.pool_sessions(FLASH, 2**40) == 2**40 // 10 // 2_703_360 == 40_672
    assert window_persistence.pool_sessions(FLASH, 2_703_360, Fraction(1)) == 1
    assert window_persistence.pool_turns_per_second(FLASH, 2**40, 600) == pytest.approx(40_672 / 600)
    with pytest.raises(ValueError, match="lifetime_s is 0"):
        window_persistence.pool_turns_per_second(FLASH, 2**40, 0)
    with pytest.raises(ValueError, match="host_bytes is -1"):
        window_persistence.pool_sessions(FLASH, -1)


@pytest.mark.parametrize("share", [0.45, 0.48, 0.5])
def test_a_share_and_its_turn(share):
    turn = window_persistence.turn_for_share(share)
    assert float(economics.persistence(FLASH, Fraction(turn)).window_share) == pytest.approx(share)
    with pytest.raises(ValueError, match="share is 1"):
        window_persistence.turn_for_share(1)


def needed(config, hit, layers):
    """Window rows that are needed, layer by layer, found by following every row to those that made it."""
    reach = config.sliding_window
    rows = [set() for _ in range(layers)]
    for layer in reversed(range(layers)):
        wanted = rows[layer + 1] if layer + 1 < layers else set()
        # The state of a row of the layer above attended, in this layer, to a window that ends at its own position.
        rows[layer] |= {p for row in wanted for p in range(row - reach + 1, row + 1)}
        rows[layer] |= set(range(hit - reach + 1, hit))
    return [{row for row in found if row >= 0} for found in rows]


@pytest.mark.parametrize("hit", [1, 3, 12, 17, 100])
@pytest.mark.parametrize("layers", [1, 3, 5])
def test_a_cone_is_what_following_rows_finds(hit, layers):
    cone = window_cone.exact(SMALL, hit, layers)
    for begin, rows in zip(cone.begins, needed(SMALL, hit, layers), strict=True):
        assert set(range(begin, hit)) == rows
    assert cone.rows == sum(map(len, needed(SMALL, hit, layers)))


def test_the_published_cone():
    cone = window_cone.exact(FLASH, 10**5)
    assert cone.tokens == 40 * 127 == 5_080
    assert cone.tokens <= 40 * 128
    assert window_cone.exact(FLASH, 10**5, FLASH.decoder_start + 1).tokens == 21 * 127
    assert window_cone.bounded(FLASH, 10**5).tokens == 128
    assert window_cone.bounded(FLASH, 10**5).rows == 40 * 128
    assert window_cone.exact(FLASH, 1000).tokens == 1000
    assert window_cone.bounded(FLASH, 5).begins == (0,) * 40
    assert window_cone.exact(FLASH, 0).tokens == 0
    # The decoder's part of the cone is the tail of an exact prefill; its last token is the one at the hit.
    tail = flops.attention_begins(FLASH, 10**5 + 1, "exact")
    assert cone.begins[21:] == tail[20:39]


def test_layers_are_right_from_the_bottom_up():
    assert window_cone.right_layers(FLASH, 10**5, 128) == 1
    assert window_cone.right_layers(FLASH, 10**5, 126) == 0
    assert window_cone.right_layers(FLASH, 10**5, 5_079) == 39
    assert window_cone.right_layers(FLASH, 10**5, 5_080) == 40
    assert window_cone.right_layers(FLASH, 1000, 1000) == 40
    narrow = replace(SMALL, sliding_window=5)
    for replayed in range(25):
        right = window_cone.right_layers(narrow, 100, replayed)
        assert right == sum(100 - replayed <= window_cone.exact(narrow, 100, n).begins[0] for n in range(1, 6))


def test_outlines_have_two_points_a_layer():
    back, edges = window_cone.outline(window_cone.exact(SMALL, 100))
    assert list(back) == [20, 20, 16, 16, 12, 12, 8, 8, 4, 4]
    assert list(edges) == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5]


def test_cones_that_cannot_be_are_named():
    with pytest.raises(ValueError, match="layers is 41; expected 1 to 40"):
        window_cone.exact(FLASH, 10, 41)
    with pytest.raises(ValueError, match="tokens is -1"):
        window_cone.bounded(FLASH, -1)
