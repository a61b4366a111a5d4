"""Keys: equal for equal prefixes of one tenant, model and format, and for nothing else."""

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ds41.serving.keys import PrefixKeys, as_ids, root_key

ROOT = root_key(b"model", "tenant")
IDS = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=24)


def key(ids, root=ROOT, page_tokens=4):
    return PrefixKeys(root, ids, page_tokens).at(len(ids))


def test_the_chain_is_what_it_says():
    ids = list(range(10))
    expected = ROOT
    for part in (ids[:4], ids[4:8], ids[8:]):
        expected = hashlib.sha256(expected + np.array(part, "<i8").tobytes()).digest()
    assert key(ids) == expected


@given(IDS, IDS)
def test_keys_are_equal_when_all_ids_are(a, b):
    assert (key(a) == key(b)) == (a == b)


@given(IDS, st.integers(0, 24), st.lists(st.integers(0, 24), max_size=3))
def test_a_key_does_not_depend_on_how_the_ids_came(ids, n, cuts):
    keys = PrefixKeys(ROOT, [], 4)
    edges = sorted(min(cut, len(ids)) for cut in cuts)
    for start, stop in zip([0, *edges], [*edges, len(ids)], strict=True):
        keys.extend(ids[start:stop])
        keys.at(stop)
    n = min(n, len(ids))
    assert keys.at(n) == key(ids[:n])


def test_ids_with_the_same_31_based_hash_differ():
    a, b = [5, 40, 7, 7], [4, 71, 7, 7]

    def weak(ids):
        value = 0
        for token in ids:
            value = value * 31 + token
        return value

    assert weak(a) == weak(b) == 187619
    assert key(a) != key(b)


def test_the_whole_chain_counts_and_not_its_last_page():
    assert key([1, 2, 3, 4, 9, 9, 9, 9]) != key([5, 6, 7, 8, 9, 9, 9, 9])


def test_tenants_models_and_formats_have_roots_of_their_own():
    roots = [
        root_key(b"fp4 layout 1", "a"),
        root_key(b"fp4 layout 1", "b"),
        root_key(b"fp4 layout 2", "a"),
        root_key(b"fp4 layout 1", None),
        root_key(b"fp4 layout 1", ""),
        # Parts that would run together without their lengths.
        root_key(b"fp4 layout 1a", ""),
        root_key(b"fp4 layout ", "1a"),
    ]
    assert len(set(roots)) == len(roots)
    assert len({key([1, 2, 3], root) for root in roots}) == len(roots)


def test_a_page_and_its_start_differ():
    keys = PrefixKeys(ROOT, range(12), 4)
    assert len({keys.at(n) for n in range(13)}) == 13


@pytest.mark.parametrize(
    "ids",
    [
        [3, 1, 2],
        (3, 1, 2),
        np.array([3, 1, 2], np.uint8),
        np.array([3, 1, 2], ">i4"),
        np.array([3, 9, 1, 9, 2])[::2],
        torch.tensor([3, 1, 2]),
    ],
)
def test_ids_of_any_kind_have_one_key(ids):
    assert key(ids) == key(np.array([3, 1, 2], "<i8"))


def test_a_range_is_ids():
    assert as_ids(range(2, 9, 3)).tolist() == [2, 5, 8]
    assert as_ids([]).dtype == np.int64


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        ([1.5], TypeError, "float64"),
        ([True], TypeError, "bool"),
        (["x"], TypeError, "integers"),
        ([[1, 2]], ValueError, r"\[1, 2\]"),
        ([[1], [2, 3]], TypeError, "no row of integers"),
        (np.array([2**63], np.uint64), ValueError, "9223372036854775808"),
        ([2**64], TypeError, "object"),
    ],
)
def test_what_is_no_row_of_ids_is_refused(ids, error, message):
    with pytest.raises(error, match=message):
        as_ids(ids)


def test_bad_roots_and_places_are_refused():
    with pytest.raises(TypeError, match="expected bytes"):
        root_key("text", None)
    with pytest.raises(ValueError, match="empty"):
        root_key(b"", None)
    with pytest.raises(TypeError, match="tenant is 7"):
        root_key(b"x", 7)
    with pytest.raises(ValueError, match="3 bytes"):
        PrefixKeys(b"abc", [], 4)
    with pytest.raises(ValueError, match="page_tokens is 0"):
        PrefixKeys(ROOT, [], 0)
    with pytest.raises(ValueError, match="n is 4; expected 0 to 3"):
        PrefixKeys(ROOT, [1, 2, 3], 4).at(4)
