"""Where the bytes of a page lie, and that they add up to the ledger's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_configs import plans, with_plan

from ds41 import ModelConfig, ledger
from ds41.cache import CacheError, PageLayout
from ds41.cache import layout as layout_module

FLASH = ModelConfig.flash()


@pytest.mark.parametrize("page_tokens", [2, 6, 64, 128])
def test_a_page_of_flash_is_890_bytes_per_token(page_tokens):
    assert PageLayout.of(FLASH, page_tokens).nbytes == 890 * page_tokens


@given(plans(), st.integers(1, 100).map(lambda half: 2 * half))
def test_pages_weigh_what_the_ledger_says(config, page_tokens):
    layout = PageLayout.of(config, page_tokens)
    assert layout.nbytes == ledger.bytes_per_token(config) * page_tokens
    assert layout.nbytes == ledger.global_bytes(config, page_tokens)
    assert [source.layer for source in layout.sources] == list(config.kv_source_layer_ids)


@given(plans(), st.integers(1, 100).map(lambda half: 2 * half))
def test_planes_fill_the_page_without_gap_or_overlap(config, page_tokens):
    layout = PageLayout.of(config, page_tokens)
    end = 0
    for source in layout.sources:
        assert source.entries * source.ratio == page_tokens
        for plane in source.planes:
            assert plane.offset == end
            assert plane.entries == source.entries
            end = plane.end
    assert end == layout.nbytes


def test_the_documented_table_is_the_layout():
    for source in PageLayout.of(FLASH).sources:
        for plane in source.planes:
            assert f"{plane.offset} .. {plane.end - 1}" in layout_module.__doc__
    source = PageLayout.of(FLASH).source(20)
    assert [plane.row_bytes for plane in source.planes] == [256, 32, 64, 4]


@pytest.mark.parametrize(("page_tokens", "alignment"), [(2, 4), (4, 8), (8, 16), (12, 8), (64, 16), (72, 16)])
def test_alignment_of_flash(page_tokens, alignment):
    assert PageLayout.of(FLASH, page_tokens).alignment == alignment


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (1, 1), (63, 1), (64, 1), (65, 2), (2**20, 16384)])
def test_pages_for_tokens(tokens, pages):
    assert PageLayout.of(FLASH).pages_for(tokens) == pages


def test_a_model_of_windows_only_has_empty_pages():
    layout = PageLayout.of(with_plan((0, 0), ()))
    assert (layout.nbytes, layout.sources) == (0, ())


@pytest.mark.parametrize("page_tokens", [63, 1, 0, -2])
def test_a_page_size_at_which_a_pair_straddles_is_refused(page_tokens):
    with pytest.raises(CacheError, match=f"page_tokens is {page_tokens}; expected a positive multiple of 2"):
        PageLayout.of(FLASH, page_tokens)


def test_a_layer_that_borrows_has_no_planes():
    with pytest.raises(CacheError, match="layer 3 owns no global KV; the layers that do: 2, 8, 14, 20"):
        PageLayout.of(FLASH).source(3)
