"""Other models' bytes per token, each against its own arithmetic, and figure 1b."""

from fractions import Fraction

import pytest
from small_configs import with_plan

from ds41 import ModelConfig
from ds41.systems import PRECISIONS, from_config, generations, system, systems

# Worked by hand from each system's layers, heads and widths.
EXPECTED = {
    "deepseek-llm-67b": 2 * 95 * 8 * 128 * 2,
    "deepseek-llm-7b": 2 * 30 * 32 * 128 * 2,
    "deepseek-v2": 60 * 576 * 2,
    "deepseek-v3": 61 * 576 * 2,
    "deepseek-v3.2": 61 * ((512 + 4 * 4 + 64 * 2) + (128 + 4)),
    "deepseek-v4-pro": 30 * Fraction(584 + 68, 4) + 31 * Fraction(584, 128),
    "deepseek-v4-flash": 21 * Fraction(584 + 68, 4) + 20 * Fraction(584, 128),
    "deepseek-v4.1-flash": Fraction(5, 2) * 356,
    "llama-70b": 2 * 80 * 8 * 128 * 2,
    "llama-3.1-405b": 2 * 126 * 8 * 128 * 2,
    "llama-3.1-8b": 2 * 32 * 8 * 128 * 2,
    "gpt-3-175b": 2 * 96 * 96 * 128 * 2,
    "qwen3-8b": 2 * 36 * 8 * 128 * 2,
    "qwen3-235b-a22b": 2 * 94 * 4 * 128 * 2,
    "qwen3.8-27b": 2 * 16 * 4 * 256 * 2,
    "qwen3-next-80b": 2 * 12 * 2 * 256 * 2,
    "qwen3.6-35b-a3b": 2 * 10 * 2 * 256 * 2,
    "nemotron-3-nano": 2 * 6 * 2 * 128 * 2,
    "glm-4.6": 2 * 92 * 8 * 128 * 2,
    "glm-5.2": 78 * 656 + 21 * 132,
    "glm-5.2-mtp": 79 * 656 + 22 * 132,
    "kimi-k2": 61 * 576 * 2,
    "kimi-linear-48b": 7 * 576 * 2,
    "kimi-k3": 24 * 576 * 2,
    "minimax-m2": 2 * 62 * 8 * 128 * 2,
    "gpt-oss-120b": 2 * 18 * 8 * 64 * 2,
}
# The same figures as printed by their sources, where the arithmetic above could share a slip.
PRINTED = {
    "deepseek-llm-67b": 389_120,
    "deepseek-v3.2": 48_068,
    "deepseek-v3": 70_272,
    "qwen3-8b": 147_456,
    "qwen3.8-27b": 65_536,
    "qwen3.6-35b-a3b": 20_480,
    "nemotron-3-nano": 6_144,
    "glm-5.2-mtp": 54_728,
}


@pytest.mark.parametrize("key", EXPECTED)
def test_bytes_per_token(key):
    assert system(key).bytes_per_token == EXPECTED[key]


def test_nothing_is_left_unchecked():
    assert set(systems()) == set(EXPECTED)
    assert {key: system(key).bytes_per_token for key in PRINTED} == PRINTED


def test_figure_1b():
    bars = generations()
    assert [int(bar.system.bytes_per_token) for bar in bars] == [389_120, 48_068, 3_514, 890]
    assert bars[2].system.bytes_per_token == Fraction(351_425, 100)
    assert [f"{float(bar.step):.1f}" for bar in bars[1:]] == ["8.1", "13.7", "3.9"]
    assert f"{float(bars[-1].overall):.1f}" == "437.2"
    assert {bar.system.status for bar in bars} == {"published"}


def test_437_at_equal_precision_is_about_123():
    bars = generations("fp4")
    assert bars[0].system.bytes_per_token == 2 * 95 * 8 * 128 * Fraction(9, 16) == 109_440
    assert float(bars[-1].overall) == pytest.approx(122.97, abs=0.01)


@pytest.mark.parametrize(
    ("key", "precision", "expected"),
    [
        ("llama-70b", "fp8", 163_840),
        ("kimi-k3", "fp8", 15_744),
        ("deepseek-v3.2", "bf16", 61 * (1152 + 256)),
        ("deepseek-v4-flash", "fp4", 1_914),
        ("deepseek-v4.1-flash", "fp8", 1_490),
        ("deepseek-v4.1-flash", "bf16", 3_200),
    ],
)
def test_precisions(key, precision, expected):
    assert system(key, precision).bytes_per_token == expected
    assert system(key, precision).precision == precision


def test_an_independent_tally_in_bf16_at_a_million_tokens():
    gib = {key: system(key, "bf16").nbytes(2**20) / 2**30 for key in systems()}
    assert gib["deepseek-v3.2"] == pytest.approx(83.88, abs=0.01)
    assert gib["deepseek-v4-pro"] == pytest.approx(9.62, abs=0.01)
    assert gib["deepseek-v4-flash"] == pytest.approx(6.72, abs=0.01)


def test_million_token_totals():
    gib = {key: system(key).nbytes(2**20) / 2**30 for key in systems()}
    assert gib["deepseek-v4.1-flash"] == pytest.approx(0.87, abs=0.005)
    assert gib["deepseek-v4-flash"] == pytest.approx(3.43, abs=0.005)
    assert gib["deepseek-v4-pro"] == pytest.approx(4.91, abs=0.005)
    assert gib["deepseek-v3.2"] == pytest.approx(46.9, abs=0.05)
    assert gib["deepseek-llm-67b"] == 380


def test_windows():
    assert system("deepseek-v4-flash").window_bytes == 43 * 128 * 584 == 3_214_336
    assert system("deepseek-v4-pro").window_bytes == 61 * 128 * 584
    assert system("deepseek-v4.1-flash").window_bytes == 40 * 128 * 528
    assert system("deepseek-v4-flash", "fp4").window_bytes == 43 * 128 * 528
    assert system("llama-70b").window_bytes == 0


def test_open_groups_have_written_nothing():
    v4 = system("deepseek-v4-flash")
    assert v4.nbytes(3) == 0
    assert v4.nbytes(127) == 21 * 31 * (584 + 68)
    assert v4.nbytes(128) == 21 * 32 * (584 + 68) + 20 * 584


def test_bytes_read_by_a_decode_step():
    tokens = 2**20
    assert system("llama-70b").bytes_read(tokens) == system("llama-70b").nbytes(tokens)
    assert system("deepseek-v3.2").bytes_read(tokens) == 61 * (2048 * 656 + tokens * 132)
    csa = 21 * (512 * 584 + tokens // 4 * 68)
    hca = 20 * (tokens // 128) * 584
    assert system("deepseek-v4-flash").bytes_read(tokens) == csa + hca + 43 * 128 * 584
    assert system("deepseek-v4-flash").bytes_read(5) == 21 * (584 + 68) + 43 * 5 * 584


@pytest.mark.parametrize("precision", PRECISIONS)
def test_formulas_evaluate_to_their_bytes(precision):
    for key in systems():
        found = system(key, precision)
        assert eval(found.formula.replace("×", "*")) == float(found.bytes_per_token), key


def test_rows_say_where_they_come_from():
    assert system("deepseek-v3.2").row().source == "published"
    assert system("glm-4.6").row().source == "derived"
    assert {found.status for found in systems().values()} == {
        "published", "cross-checked", "calculated", "from memory",
    }  # fmt: skip


def test_a_configuration_as_a_system():
    config = with_plan([0, 2, 2, 1], [1, 3])
    found = from_config(config, "small")
    assert found.bytes_per_token == Fraction(356, 2) + 356
    assert found.window_bytes == 4 * 128 * 528
    assert found.stored_as("bf16").bytes_per_token == Fraction(3, 2) * 1280
    assert from_config(ModelConfig.flash()).nbytes(999) == system("deepseek-v4.1-flash").nbytes(999)


def test_unknown_names_are_refused():
    with pytest.raises(KeyError, match="no system 'gpt-5'"):
        system("gpt-5")
    with pytest.raises(ValueError, match="precision is 'int3'; expected one of bf16, fp8, fp4"):
        system("llama-70b", "int3")
    with pytest.raises(ValueError, match="tokens is -1"):
        system("llama-70b").nbytes(-1)
