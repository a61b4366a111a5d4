"""Contexts that agree: the bound by divisibility, and the search against trying all pairs."""

import itertools
from collections import defaultdict

import pytest
import torch

from ds41 import ModelConfig
from ds41.engram import Hasher, hash_constants
from ds41.engram.collisions import equal_hashes, heads_that_may_agree, search_classes

FLASH = ModelConfig.flash()


def all_pairs(first, second, vocabulary):
    grams = defaultdict(list)
    for newest, before in itertools.product(range(vocabulary), repeat=2):
        grams[newest * first ^ before * second].append((newest, before))
    return sorted(pair for same in grams.values() for pair in itertools.combinations(same, 2))


@pytest.mark.parametrize(("first", "second", "vocabulary"), [(5, 3, 40), (1, 1, 9), (37, 101, 33), (12345, 777, 64)])
def test_the_search_finds_what_trying_all_finds(first, second, vocabulary):
    classes = search_classes(vocabulary)
    assert classes // 2 < vocabulary <= classes
    found = [pair for one in range(classes) for pair in equal_hashes((first, second), vocabulary, one)]
    assert sorted(found) == all_pairs(first, second, vocabulary)
    assert len(found) > 0


def test_distinct_hashes_agree_in_two_heads_at_most():
    for order in hash_constants(FLASH).primes.reshape(-1, 8).tolist():
        assert heads_that_may_agree(order) == 2
    # 2^63 - 1 and 1 differ by a number below 2^63, so the bound is reached by a multiple of both.
    first, second = hash_constants(FLASH).primes[0, 0, :2].tolist()
    one, other = 5, 5 + first * second
    assert other < 2**63
    assert (one % first, one % second) == (other % first, other % second)
    # Tables of 4,000 rows have two heads an order, and both may agree.
    assert heads_that_may_agree(hash_constants(ModelConfig.nano()).primes[0, 0].tolist()) == 2
    assert heads_that_may_agree([2**40, 2**41]) == 1
    assert heads_that_may_agree([]) == 0


@pytest.mark.parametrize("search_class", [78_156, 95_537, 106_148, 118_610, 123_794])
def test_the_released_layer_1_has_contexts_with_the_same_rows(search_class):
    token_map = torch.arange(FLASH.vocab_size) % FLASH.engram_compressed_vocab_size
    found = equal_hashes(hash_constants(FLASH).multipliers[0, :2], FLASH.engram_compressed_vocab_size, search_class)
    assert len(found) == 2
    for one, other in found:
        assert one != other
        rows = Hasher(FLASH, token_map).rows(torch.tensor([[*one, 5, 7], [*other, 5, 7]]))
        assert torch.equal(rows[1][0], rows[1][1])
        assert int((rows[14][0] == rows[14][1]).sum()) <= 6


def test_bad_searches_are_named():
    with pytest.raises(ValueError, match="search_class is 64; expected 0 to 63"):
        equal_hashes((5, 3), 64, 64)
    with pytest.raises(ValueError, match="multiplier 4 is even"):
        equal_hashes((4, 3), 64, 0)
    with pytest.raises(ValueError, match="too large for 64 ids"):
        equal_hashes((2**60 + 1, 3), 64, 0)
