"""Weights, bytes read and operations of a decode step, and the time that they cannot beat."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_configs import plans, with_plan

from ds41 import ConfigError, ModelConfig, weights
from ds41.ledger import Storage
from ds41.reads import attention_flops, decode_reads, index_macs, kv_bytes_read
from ds41.roofline import DEVICES, datasheet, decode_step, step
from ds41.systems import system

FLASH = ModelConfig.flash()


def test_parameters_of_the_release():
    assert weights.backbone(FLASH).parameters == 551_566_180_464
    assert weights.engram(FLASH).parameters == 196_928_504_320
    assert weights.expert(FLASH) == weights.Weights(35_389_440, 18_800_640)
    plain_layer = next(layer for layer in FLASH.layers if layer.mode == "reuse")
    assert weights.attention(FLASH, plain_layer).parameters == 126_617_408
    assert sum(weights.attention(FLASH, layer).parameters for layer in FLASH.layers) == 5_126_564_864
    assert weights.hyper_connections(FLASH).parameters == 983_094 + 2 * 5120


def test_active_parameters():
    assert weights.active(FLASH, "encoder").parameters / 1e9 == pytest.approx(7.893, abs=5e-4)
    assert weights.active(FLASH, "decoder").parameters / 1e9 == pytest.approx(7.576, abs=5e-4)
    both = weights.active(FLASH)
    assert both == weights.active(FLASH, "encoder") + weights.active(FLASH, "decoder")
    assert both.parameters / 1e9 == pytest.approx(15.469, abs=5e-4)
    assert (both + weights.head(FLASH)).parameters / 1e9 == pytest.approx(16.131, abs=5e-4)
    with pytest.raises(ValueError, match="half is 'prefill'"):
        weights.active(FLASH, "prefill")


def test_stored_bytes():
    assert 40 * 384 * weights.expert(FLASH).nbytes / 1e9 == pytest.approx(288.8, abs=0.05)
    assert weights.engram(FLASH).nbytes / 1e9 == pytest.approx(203.07, abs=0.005)
    assert weights.backbone(FLASH).nbytes / 1e9 == pytest.approx(288.8 + 6.88 + 2.65, abs=0.05)
    assert weights.engram_row_bytes(FLASH) == 2 * 24 * 264


def test_expert_formats():
    eight = dataclasses.replace(FLASH, expert_dtype="fp8")
    assert weights.expert(eight) == weights.shared_expert(eight)
    assert weights.expert(eight).nbytes == 35_389_440 + 3 * 160 * 72
    with pytest.raises(ConfigError, match="expert_dtype is 'int3'"):
        weights.expert(dataclasses.replace(FLASH, expert_dtype="int3"))


def test_weights_read_by_a_step_lie_between_active_and_all():
    one = weights.read_per_step(FLASH)
    active = weights.active(FLASH) + weights.head(FLASH) + weights.plain(FLASH.hidden_size)
    assert one == pytest.approx(active.nbytes)
    reads = [weights.read_per_step(FLASH, batch) for batch in (1, 2, 16, 256, 10**6)]
    assert reads == sorted(reads)
    embedding = weights.head(FLASH).nbytes
    projections = 2 * weights.engram_projection(FLASH).nbytes
    assert reads[-1] == pytest.approx(weights.backbone(FLASH).nbytes - embedding + projections)
    # Two tokens pick 12 of 384 experts, of which they share 6 * 6 / 384 in expectation.
    second = 40 * (6 - 36 / 384) * 18_800_640
    assert reads[1] - reads[0] == pytest.approx(second)
    with pytest.raises(ValueError, match="batch is 0"):
        weights.read_per_step(FLASH, 0)


def naive_reads(tokens: int) -> int:
    """KV bytes of one decode step of the published model, from the roles of its layers as they are printed."""
    total = 0
    for layer in range(40):
        total += min(tokens, 128) * 528
        if layer < 2:
            continue
        entries = tokens if layer >= 20 else tokens // 2
        total += min(entries, 512) * 288
        if entries > 512:
            if layer in (2, 8, 14, 20):
                total += entries * 68
            elif layer in (24, 28, 32, 36):
                total += min(entries, 16_384) * 68
    return total


@pytest.mark.parametrize("tokens", [0, 1, 2, 127, 128, 129, 512, 513, 1024, 1025, 1026, 16_384, 16_385, 65_537, 2**20])
def test_bytes_read_by_layer_mode(tokens):
    assert kv_bytes_read(FLASH, tokens) == naive_reads(tokens)
    assert system("deepseek-v4.1-flash").bytes_read(tokens) == naive_reads(tokens)


def test_bytes_read_at_a_million_tokens():
    reads = {read.layer: read for read in decode_reads(FLASH, 2**20)}
    assert reads[2].index == reads[8].index == reads[14].index == 68 * 2**19
    assert reads[20].index == 68 * 2**20
    assert reads[24].index == 68 * 16_384
    assert reads[21].index == reads[0].index == reads[0].main == 0
    assert {read.main for read in reads.values() if read.layer >= 2} == {512 * 288}
    assert {read.window for read in reads.values()} == {128 * 528}
    assert kv_bytes_read(FLASH, 2**20) == 191_021_056
    assert {read.layer: read.mode for read in reads.values()} == {x.index: x.mode for x in FLASH.layers}


def test_a_step_reads_a_fifth_of_what_is_kept():
    kept = system("deepseek-v4.1-flash").nbytes(2**20)
    assert kv_bytes_read(FLASH, 2**20) / kept == pytest.approx(0.205, abs=0.001)


def test_reads_in_another_storage():
    plain = decode_reads(FLASH, 4096, Storage.bf16(FLASH))
    assert plain[20].main == 512 * 1024
    assert plain[20].index == 4096 * 256
    assert system("deepseek-v4.1-flash", "bf16").bytes_read(4096) == sum(read.total for read in plain)


@given(plans(), st.integers(0, 10**6), st.integers(1, 1000))
def test_reads_grow_with_the_context_and_never_exceed_what_every_layer_could_see(config, tokens, more):
    assert kv_bytes_read(config, tokens) <= kv_bytes_read(config, tokens + more)
    storage = Storage.published(config)
    for read, layer in zip(decode_reads(config, tokens), config.layers, strict=True):
        entries = tokens // layer.ratio if layer.ratio else 0
        assert read.main <= entries * storage.main.nbytes
        assert read.index <= entries * storage.index.nbytes
        assert read.index == 0 or layer.owns_selection


def test_index_scores_against_the_articles_cell():
    macs = index_macs(FLASH, 2**20)
    assert macs[20] == 4_294_967_296
    assert macs[24] == macs[28] == macs[32] == macs[36] == 67_108_864
    assert macs[20] / macs[24] == 64
    # The article leaves out the encoder's three full-range scans, each over half as many entries.
    assert macs[2] == macs[8] == macs[14] == macs[20] // 2
    assert set(macs) == {2, 8, 14, 20, 24, 28, 32, 36}


def test_pool_costs_the_same_at_any_context():
    assert index_macs(FLASH, 2**16)[24] == index_macs(FLASH, 2**20)[24]
    assert index_macs(FLASH, 2**14)[24] == index_macs(FLASH, 2**14)[20]
    without = dataclasses.replace(FLASH, candidate_source_layer_id=-1)
    assert index_macs(without, 2**20)[24] == index_macs(without, 2**20)[20]


def test_attention_operations():
    keys = 40 * 128 + 38 * 512
    assert attention_flops(FLASH, 2**20) == 4 * 64 * 512 * keys
    assert attention_flops(FLASH, 1) == 4 * 64 * 512 * (40 + 20)
    assert attention_flops(with_plan([0], []), 10**6) == 4 * 64 * 512 * 128


def test_devices_are_dense_rates():
    assert DEVICES["H100"].half_flops == pytest.approx(989.5e12)
    assert DEVICES["H100"].fp8_flops == 2 * DEVICES["H100"].half_flops
    assert DEVICES["H200"].bandwidth == 4.8e12
    assert DEVICES["A100-80"].fp8_flops is DEVICES["T4"].fp8_flops is None
    assert DEVICES["A100-80"].best_flops == DEVICES["A100-80"].half_flops
    assert all("datasheet" in device.source for device in DEVICES.values())


def test_presets_by_the_name_that_the_driver_reports():
    assert datasheet("Tesla T4") is DEVICES["T4"]
    assert datasheet("NVIDIA H200") is DEVICES["H200"]
    for other in ("NVIDIA A100-SXM4-40GB", "NVIDIA H100 PCIe", "NVIDIA H200 MIG 1g.18gb", "AMD EPYC", ""):
        assert datasheet(other) is None


def test_the_bound_is_the_slower_of_two_rates():
    device = DEVICES["L4"]
    moved = step(kv_bytes=200e9, weight_bytes=100e9, low_precision_flops=0, half_flops=0, device=device)
    assert moved.seconds == pytest.approx(1.0)
    assert moved.bound == "bandwidth"
    assert moved.kv_share == pytest.approx(2 / 3)
    flops = device.half_flops * 3
    worked = step(kv_bytes=1, weight_bytes=1, low_precision_flops=0, half_flops=flops, device=device, devices=2)
    assert worked.seconds == pytest.approx(1.5)
    assert worked.bound == "compute"
    hopper = DEVICES["H100"]
    flops = hopper.half_flops * 3
    both = step(kv_bytes=0, weight_bytes=0, low_precision_flops=flops, half_flops=flops, device=hopper)
    assert both.compute_seconds == pytest.approx(3 / 2 + 3)
    with pytest.raises(ValueError, match="devices is 0"):
        step(kv_bytes=1, weight_bytes=1, low_precision_flops=0, half_flops=0, device=device, devices=0)


def test_at_batch_one_the_weights_and_not_the_cache_set_the_time():
    short, long = (decode_step(FLASH, n, DEVICES["H100"], devices=8) for n in (4096, 2**20))
    assert short.bound == long.bound == "bandwidth"
    assert long.kv_share < 0.02
    assert long.seconds / short.seconds < 1.02
    expected = (13.035e9 + 191_021_056) / (8 * 3.35e12)
    assert long.seconds == pytest.approx(expected, rel=1e-3)


def test_operations_of_a_step():
    found = decode_step(FLASH, 2**20, DEVICES["T4"], batch=3)
    macs = 16.131e9 + 2.5 * 4_294_967_296 + 4 * 67_108_864
    flops = 2 * macs + attention_flops(FLASH, 2**20)
    assert found.compute_seconds == pytest.approx(3 * flops / 65e12, rel=1e-4)


def test_a_dense_cache_does_set_the_time():
    v1 = system("deepseek-llm-67b")
    dense = step(
        kv_bytes=v1.bytes_read(2**20),
        weight_bytes=2 * v1.active_parameters,
        low_precision_flops=0,
        half_flops=2 * v1.active_parameters,
        device=DEVICES["H100"],
        devices=8,
    )
    assert dense.kv_share > 0.75


@settings(max_examples=30)
@given(st.integers(0, 2**21), st.integers(1, 512), st.integers(1, 64), st.sampled_from(sorted(DEVICES)))
def test_bounds_are_monotone(tokens, batch, devices, name):
    device = DEVICES[name]
    here = decode_step(FLASH, tokens, device, batch=batch, devices=devices)
    assert here.seconds > 0
    assert here.seconds <= decode_step(FLASH, tokens, device, batch=batch + 1, devices=devices).seconds
    assert here.seconds <= decode_step(FLASH, 2 * tokens, device, batch=batch, devices=devices).seconds
    assert here.seconds >= decode_step(FLASH, tokens, device, batch=batch, devices=devices + 1).seconds
