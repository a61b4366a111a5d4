"""The ledger: 890 bytes per token and everything that it leaves out, counted again token by token."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_configs import plans, with_plan

from ds41 import ModelConfig, ledger
from ds41.ledger import Storage
from ds41.records import Part, Plane, Record, exact, fp8_index_key, mla_fp8_entry, sum_formula, v4_entry

FLASH = ModelConfig.flash()


def walk(config: ModelConfig, tokens: int) -> dict[str, int]:
    """What a cache holds after reading ``tokens`` tokens one by one: a naive account, in bytes."""
    main = config.head_dim // 2 + config.head_dim // 16
    index = config.index_head_dim // 2 + config.index_head_dim // 32
    window = config.head_dim + config.head_dim // 32
    kept = {"main": 0, "index": 0, "open": 0}
    waiting = dict.fromkeys(config.kv_source_layer_ids, 0)
    rings = [0] * config.num_hidden_layers
    for _ in range(tokens):
        rings = [min(ring + 1, config.sliding_window) for ring in rings]
        for source in waiting:
            waiting[source] += 1
            if waiting[source] == config.compress_ratios[source]:
                waiting[source] = 0
                kept["main"] += main
                kept["index"] += index
    kept["open"] = sum(waiting.values()) * 2 * config.head_dim * 4
    kept["window"] = sum(rings) * window
    return kept


def test_890_bytes_per_token():
    size = ledger.bytes_per_token(FLASH)
    assert size == 890
    assert isinstance(size, Fraction)
    assert ledger.entries_per_token(FLASH) == Fraction(5, 2)
    assert ledger.entry_bytes(FLASH) == 356


def test_records_of_the_published_sizes():
    storage = Storage.published(FLASH)
    assert (storage.main.nbytes, storage.index.nbytes, storage.window.nbytes) == (288, 68, 528)
    assert storage.main.formula == "256 B E2M1 + 32 B E4M3 scale"
    assert storage.window.formula == "512 B E4M3 + 16 B E8M0 scale"


def test_rows_by_layer_and_by_component():
    assert [(row.name, row.bytes) for row in ledger.by_source(FLASH)] == [
        ("layer 2", 178),
        ("layer 8", 178),
        ("layer 14", 178),
        ("layer 20", 356),
    ]
    assert [(row.name, row.bytes) for row in ledger.by_component(FLASH)] == [
        ("main KV", 720),
        ("index keys", 170),
    ]
    assert [row.formula for row in ledger.by_component(FLASH)] == ["3 × 288 / 2 + 288", "3 × 68 / 2 + 68"]
    assert {row.source for row in ledger.by_source(FLASH)} == {"derived"}


@pytest.mark.parametrize("tokens", [0, 1, 2, 3, 127, 128, 129, 4096, 65535, 2**20, 2**20 + 1, 10**12 + 1])
def test_global_bytes_after_n_tokens(tokens):
    assert ledger.global_bytes(FLASH, tokens) == 356 * (3 * (tokens // 2) + tokens)


def test_a_million_tokens():
    assert ledger.global_bytes(FLASH, 2**20) == 890 * 2**20 == 933_232_640


def test_an_odd_token_waits_for_its_partner():
    assert ledger.global_bytes(FLASH, 1) == 356
    assert ledger.global_bytes(FLASH, 2) - ledger.global_bytes(FLASH, 1) == 4 * 356


def test_windows():
    assert ledger.window_bytes(FLASH) == 40 * 128 * 528 == 2_703_360
    assert ledger.window_bytes(FLASH, draft=True) - ledger.window_bytes(FLASH) == 202_752
    assert float(ledger.window_equivalent_tokens(FLASH)) == pytest.approx(3037.48, abs=0.01)


def test_open_groups():
    assert ledger.open_group_bytes(FLASH) == 3 * 1024 * 4 == 12 * 1024
    assert [ledger.open_group_bytes(FLASH, n) for n in (0, 1, 2, 3, 2**20)] == [0, 12288, 0, 12288, 0]


def test_engram_history():
    assert ledger.engram_history_bytes(FLASH) == 3 * 8
    assert ledger.engram_history_bytes(with_plan([0, 1], [1])) == 0


def test_a_live_sequence_in_all():
    rows = {row.name: row.bytes for row in ledger.sequence_rows(FLASH, 2**20 + 1)}
    assert rows == {
        "main KV": 720 * 2**20 + 288,
        "index keys": 170 * 2**20 + 68,
        "windows": 2_703_360,
        "open groups": 12_288,
        "Engram history": 24,
    }
    assert ledger.sequence_bytes(FLASH, 2**20 + 1) == sum(rows.values())
    draft = ledger.sequence_bytes(FLASH, 7, draft=True)
    assert draft - ledger.sequence_bytes(FLASH, 7) == 202_752


@given(plans(), st.integers(0, 300))
def test_the_ledger_equals_a_walk_over_the_tokens(config, tokens):
    kept = walk(config, tokens)
    rows = {row.name: row.bytes for row in ledger.sequence_rows(config, tokens)}
    assert rows["main KV"] == kept["main"]
    assert rows["index keys"] == kept["index"]
    assert rows["open groups"] == kept["open"] == ledger.open_group_bytes(config, tokens)
    assert ledger.global_bytes(config, tokens) == kept["main"] + kept["index"]
    if tokens >= config.sliding_window:
        assert ledger.window_bytes(config) == kept["window"]


@given(plans(), st.integers(0, 10**9), st.integers(0, 10**9))
def test_global_bytes_grow_additively_over_closed_groups(config, a, b):
    both, first = ledger.global_bytes(config, 2 * a + b), ledger.global_bytes(config, 2 * a)
    assert both - first == ledger.global_bytes(config, b)
    assert first == 2 * a * ledger.bytes_per_token(config)
    assert ledger.global_bytes(config, a + 1) >= ledger.global_bytes(config, a)


@given(plans(), st.integers(0, 10**6))
def test_components_and_sources_each_add_up(config, tokens):
    size = ledger.bytes_per_token(config)
    assert sum(row.bytes for row in ledger.by_component(config)) == size
    assert sum(row.bytes for row in ledger.by_source(config)) == size
    assert len(ledger.by_source(config)) == len(config.kv_source_layer_ids)
    assert ledger.entries_per_token(config) * ledger.entry_bytes(config) == size
    assert 0 <= ledger.open_group_bytes(config, tokens) <= ledger.open_group_bytes(config)


@given(plans())
def test_every_axis_saves_or_costs_nothing(config):
    size = ledger.bytes_per_token(config)
    assert ledger.bytes_per_token(config, shared=False) >= size
    assert ledger.bytes_per_token(config, compressed=False) >= size
    for storage in (Storage.v4, Storage.mxfp8, Storage.bf16):
        assert ledger.bytes_per_token(config, storage(config)) > size


def test_axes_of_the_published_configuration():
    def size(**choice):
        return ledger.bytes_per_token(FLASH, **choice)

    assert size(shared=False) == 356 * (18 * Fraction(1, 2) + 20) == 10_324
    assert size(compressed=False) == 4 * 356
    assert size(shared=False, compressed=False) == 38 * 356
    assert size(storage=Storage.v4(FLASH)) == Fraction(5, 2) * (584 + 68) == 1_630
    assert size(storage=Storage.mxfp8(FLASH)) == Fraction(5, 2) * (528 + 68) == 1_490
    assert size(storage=Storage.bf16(FLASH)) == Fraction(5, 2) * (1024 + 256) == 3_200
    unshared = ledger.global_bytes(FLASH, 1001, shared=False)
    assert unshared == 356 * (18 * 500 + 20 * 1001)


def test_a_plan_without_global_layers_keeps_windows_only():
    config = with_plan([0, 0], [])
    assert ledger.bytes_per_token(config) == 0
    assert ledger.global_bytes(config, 999) == 0
    assert ledger.sequence_bytes(config, 999) == ledger.window_bytes(config) == 2 * 128 * 528
    with pytest.raises(ValueError, match="keeps no global KV"):
        ledger.window_equivalent_tokens(config)


def test_bad_token_counts_are_refused():
    with pytest.raises(ValueError, match="tokens is -1; expected zero or more"):
        ledger.global_bytes(FLASH, -1)
    for bad in (1.5, "7", None):
        with pytest.raises(TypeError, match="expected a whole number"):
            ledger.sequence_rows(FLASH, bad)
    assert ledger.global_bytes(FLASH, np.int32(2**20)) == 933_232_640
    assert type(ledger.global_bytes(FLASH, np.int32(2**30))) is int


def test_records_of_other_systems():
    v4 = v4_entry(512, 64)
    assert v4.nbytes == 584
    assert [part.nbytes for part in v4.parts] == [448, 128, 7, 1]
    assert v4.formula == "448 B E4M3 + 128 B BF16 rotary + 7 B E8M0 scale + 1 B padding"
    assert mla_fp8_entry(512, 64).nbytes == 512 + 4 * 4 + 64 * 2 == 656
    assert fp8_index_key(128).nbytes == 132


def test_records_must_be_whole_bytes_and_whole_blocks():
    with pytest.raises(ValueError, match="expected a whole number"):
        Record("odd", (Part("E2M1", 3, 4),))
    with pytest.raises(ValueError, match="do not divide into"):
        Record.packed(ledger.MAIN_KV, 100)


@given(st.integers(1, 64).map(lambda n: 32 * n))
def test_packed_records_agree_with_the_formats(channels):
    for block_format in (ledger.MAIN_KV, ledger.INDEX_KEY, ledger.WINDOW_KV):
        assert Record.packed(block_format, channels).nbytes == block_format.bytes_per_row(channels)


def test_formulas_evaluate_to_their_bytes():
    for storage in (Storage.published, Storage.v4, Storage.bf16):
        for shared in (True, False):
            kept = ledger.planes(FLASH, storage(FLASH), shared=shared)
            value = eval(sum_formula(kept).replace("×", "*"))
            assert value == ledger.bytes_per_token(FLASH, storage(FLASH), shared=shared)
    assert sum_formula(()) == "0"


def test_exact_numbers_for_json():
    assert exact(Fraction(890)) == 890
    assert type(exact(Fraction(890))) is int
    assert exact(Fraction(14057, 4)) == 3514.25
    with pytest.raises(ValueError, match="exactly"):
        exact(Fraction(1, 3))


def test_a_plane_reads_no_more_than_its_limit():
    plane = Plane("x", "main", 3, 4, Record.plain("BF16", 16, 8), read_limit=10)
    assert [plane.bytes_read(n) for n in (0, 3, 4, 39, 40, 4000)] == [0, 0, 48, 432, 480, 480]
    assert plane.nbytes(4000) == 3 * 1000 * 16
