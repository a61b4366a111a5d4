"""The ledger against printed sizes: recorded logs that hold, others that do not, a synthetic one of each storage."""

import json
from dataclasses import replace
from importlib import resources

import pytest

from ds41 import ModelConfig
from ds41.engine_check import check_log, fit_requests, system_of
from ds41.engine_logs import EngineLog, LogError, Sizes, read_lines
from ds41.engine_storages import NAMES, stored_ways
from ds41.systems import systems

RECORDED = {
    log["key"]: log
    for log in json.loads(resources.files("ds41").joinpath("data/engine_logs.json").read_text("utf-8"))["logs"]
}
GIB = 2**30


def recorded(key, **known):
    log = replace(read_lines(RECORDED[key]["lines"]), **known)
    return check_log(log, systems()[RECORDED[key]["model"]])


@pytest.mark.parametrize(
    ("key", "rate", "storage"),
    [
        ("llama-8b-sglang", 131_072, "bf16"),
        ("llama-8b-vllm-v0", 131_072, "bf16"),
        ("qwen3-235b-sglang", 48_128, "bf16"),
        ("qwen3-235b-vllm", 48_128, "bf16"),
    ],
)
def test_the_ledger_holds_for_models_without_windows(key, rate, storage):
    check = recorded(key)
    assert check.holds
    assert check.explained
    assert check.expected.bytes_per_token == rate
    assert check.best.stored.name == storage
    assert {one.stored.name for one in check.excluded} <= {"bf16"}


def test_the_closest_of_them_are_within_rounding():
    for key in ("llama-8b-sglang", "qwen3-235b-sglang"):
        check = recorded(key)
        assert check.expected.low <= check.printed_tokens <= check.expected.high


def test_a_real_v41_log_does_not_hold_and_says_why():
    check = recorded("v41-h100-tp8")
    assert check.why == "named by the log"
    assert check.expected.bytes_per_token == 1_790
    assert check.gpus == 8
    assert not check.holds
    assert not check.explained
    # 34.68 requests of 262,144 tokens in 29.14 GiB.
    assert check.request_bytes == pytest.approx(29.14 * GIB / 34.68, rel=1e-3)
    assert check.unexplained_bytes == pytest.approx(0.400 * GIB, rel=0.01)
    assert any("whole on each of 8 GPUs: a token takes 14,320 bytes" in note for note in check.notes)
    assert any("8,192 tokens in every window" in note for note in check.notes)


def test_recurrent_states_are_no_part_of_the_ledger():
    check = recorded("qwen3.6-35b-vllm")
    assert check.expected.stored.name == "fp8"
    assert not check.holds
    assert check.unexplained_bytes > 0.1 * GIB
    assert [one.stored.name for one in check.excluded] == ["bf16"]


def test_where_nothing_is_named_and_nothing_fits_the_models_own_counts():
    check = recorded("v41-spark-1m")
    assert check.expected.stored.name == "published"
    assert check.expected.bytes_per_token == 890
    assert "none gives the printed size" in check.why


@pytest.mark.parametrize(
    ("key", "missing"),
    [("v41-rtx-pro-tp4", "Available KV cache memory"), ("deepseek-v3-sglang", "KV Cache is allocated")],
)
def test_what_a_log_lacks_is_named(key, missing):
    with pytest.raises(LogError, match=missing) as caught:
        recorded(key)
    assert f"{read_lines(RECORDED[key]['lines']).tokens.smallest:,.0f}" in str(caught.value)


def synthetic(way, gib=52.35, length=None, engine="vllm", **known):
    """A log as an engine would print it that stores ``way`` and charges nothing else."""
    if length is None:
        tokens = int(gib * GIB / way.bytes_per_token)
    else:
        tokens = int(length * gib * GIB / (way.nbytes(length) + way.window_bytes))
    printed = Sizes(gib * GIB, gib * GIB, 1, 0.01 * GIB)
    return EngineLog(engine=engine, available=printed, tokens=Sizes(tokens, tokens, 1), request_tokens=length, **known)


def _weight(way, length):
    return way.bytes_per_token if length is None else way.nbytes(length) + way.window_bytes


@pytest.mark.parametrize("length", [None, 4096, 131_072, 2**20])
@pytest.mark.parametrize("way", stored_ways(ModelConfig.flash()), ids=lambda way: way.name)
def test_every_storage_of_v41_is_recognised(way, length):
    check = check_log(synthetic(way, length=length), ModelConfig.flash())
    assert check.best.stored.name == way.name
    assert check.holds
    assert abs(check.expected.error) < 1e-4
    weight = _weight(way, length)
    heavier = {one.name for one in stored_ways(ModelConfig.flash()) if _weight(one, length) > 1.02 * weight}
    assert {prediction.stored.name for prediction in check.excluded} == heavier


@pytest.mark.parametrize("key", sorted(systems()))
def test_every_system_has_storages_with_names(key):
    ways = stored_ways(systems()[key])
    assert len({way.name for way in ways}) == len(ways) >= 3
    assert {way.name for way in ways} <= set(NAMES)
    own = systems()[key].bytes_per_token
    assert own in {way.bytes_per_token for way in ways}
    for way in ways:
        assert check_log(synthetic(way), systems()[key]).best.bytes_per_token == way.bytes_per_token


def test_rates_of_the_published_configuration():
    rates = {way.name: float(way.bytes_per_token) for way in stored_ways(ModelConfig.flash())}
    assert rates == {
        "published": 890,
        "fp4-fp8keys": 1050,
        "mxfp8": 1490,
        "mxfp8-fp8keys": 1650,
        "v4": 1630,
        "v4-fp8keys": 1790,
        "bf16": 3200,
    }


def test_windows_matter_for_short_requests_only():
    way = stored_ways(ModelConfig.flash())[0]
    short, long = (synthetic(way, length=length).tokens.smallest for length in (1024, 2**20))
    assert way.window_bytes == 2_703_360
    assert short < long / 3
    assert check_log(synthetic(way, length=1024), ModelConfig.flash()).holds


def test_draft_layers_add_windows():
    plain, drafting = (stored_ways(ModelConfig.flash(), drafts=drafts)[0].window_bytes for drafts in (False, True))
    assert drafting - plain == 3 * 128 * 528


def test_heads_are_split_and_latents_are_not():
    qwen, v3 = systems()["qwen3-235b-a22b"], systems()["deepseek-v3"]
    assert [float(stored_ways(qwen, tp)[0].bytes_per_token) for tp in (1, 4, 8)] == [192_512, 48_128, 48_128]
    assert {stored_ways(v3, tp)[2].bytes_per_token for tp in (1, 4, 8)} == {70_272}
    assert stored_ways(qwen, 1, pipeline_parallel=4)[0].bytes_per_token == 24 * 2_048


def test_context_parallelism_splits_the_tokens():
    way = stored_ways(ModelConfig.flash())[0]
    log = synthetic(way)
    four = replace(log, context_parallel=4, tokens=Sizes(4 * log.tokens.smallest, 4 * log.tokens.smallest, 1))
    assert check_log(four, ModelConfig.flash(), storage="published").holds


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("deepseek-ai/DeepSeek-V4.1-Flash", "deepseek-v4.1-flash"),
        ("/models/DeepSeek-V4.1-Flash-EXL3-Pollard-Abliterated/", "deepseek-v4.1-flash"),
        ("deepseek-ai/DeepSeek-V4-Flash-0731", "deepseek-v4-flash"),
        ("deepseek-ai/DeepSeek-V3.2", "deepseek-v3.2"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("Qwen/Qwen3-8B", "qwen3-8b"),
        ("~/.cache/huggingface/qwen3.6-35b-a3b-nvfp4", "qwen3.6-35b-a3b"),
    ],
)
def test_model_names_find_their_system(name, key):
    assert system_of(name).key == key


@pytest.mark.parametrize("name", ["deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "Qwen/Qwen3-8", "mistral-7b", "", None])
def test_other_models_are_refused(name):
    with pytest.raises(LogError):
        system_of(name)


def test_arguments_are_checked():
    log = synthetic(stored_ways(ModelConfig.flash())[0])
    with pytest.raises(ValueError, match="storage is 'int3'; this model's are bf16, fp4-fp8keys"):
        check_log(log, ModelConfig.flash(), storage="int3")
    with pytest.raises(ValueError, match="tolerance is 0"):
        check_log(log, ModelConfig.flash(), tolerance=0)
    with pytest.raises(ValueError, match="pipeline_parallel is 0"):
        stored_ways(ModelConfig.flash(), 1, 0)
    none = replace(log, available=Sizes(-23.55 * GIB, -23.55 * GIB, 1))
    with pytest.raises(LogError, match=r"-23\.55 GiB"):
        check_log(none, ModelConfig.flash())


def test_two_starts_give_a_rate_and_a_constant():
    cost = fit_requests([(300_000, 7_000 * 300_000 + 5e8), (1_048_576, 7_000 * 1_048_576 + 5e8)])
    assert cost.rate == pytest.approx(7_000)
    assert cost.fixed == pytest.approx(5e8, rel=1e-6)
    with pytest.raises(ValueError, match="2 points with one length"):
        fit_requests([(5, 1.0), (5, 2.0)])


def test_the_recorded_pair_of_starts():
    checks = [recorded(key) for key in ("v41-spark-300k", "v41-spark-1m")]
    cost = fit_requests((check.log.request_tokens, check.request_bytes) for check in checks)
    # Four times what V4's rows weigh, for a reason that the logs do not tell.
    assert 6_900 < cost.rate < 7_200
    assert 0.4e9 < cost.fixed < 0.7e9
