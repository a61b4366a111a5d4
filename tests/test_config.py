"""The configuration: both published forms, the plan of 40 layers, and every refusal."""

import copy
import dataclasses
import json
from collections import Counter
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given
from small_configs import plans, with_plan

from ds41 import ConfigError, ModelConfig

FLAT_FILE = Path(__file__).parent / "golden" / "flash_inference_config.json"


def nested() -> dict:
    return json.loads(resources.files("ds41").joinpath("data/flash_config.json").read_text(encoding="utf-8"))


def flat() -> dict:
    return json.loads(FLAT_FILE.read_text(encoding="utf-8"))


def nested_with(**text) -> dict:
    data = nested()
    data["text_config"] |= text
    return data


def test_both_published_forms_say_the_same():
    config = ModelConfig.flash()
    assert ModelConfig.from_json(FLAT_FILE) == config
    assert config.vision is not None
    assert config.vision.num_hidden_layers == 32


def test_published_values():
    config = ModelConfig.flash()
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (5120, 40, 64)
    assert (config.head_dim, config.qk_rope_head_dim, config.sliding_window) == (512, 64, 128)
    assert (config.index_n_heads, config.index_head_dim, config.index_topk) == (32, 128, 512)
    assert (config.candidate_topk_blocks, config.candidate_block_size) == (2048, 8)
    assert config.compress_ratios == (0,) * 2 + (2,) * 18 + (1,) * 20 + (0,) * 3
    assert config.rms_norm_eps == 1e-20
    assert (config.rope_factor, config.rope_beta_fast, config.rope_beta_slow) == (16.0, 32.0, 1.0)
    assert config.original_max_position_embeddings == 65536
    assert config.weight_block_size == (32, 32)


def test_plan_of_the_forty_layers():
    layers = ModelConfig.flash().layers
    assert [layer.index for layer in layers] == list(range(40))
    assert Counter(layer.mode for layer in layers) == {"window": 2, "full": 4, "reindex": 4, "reuse": 30}
    assert [layer.index for layer in layers if layer.mode == "full"] == [2, 8, 14, 20]
    assert [layer.index for layer in layers if layer.mode == "reindex"] == [24, 28, 32, 36]
    assert [layer.half for layer in layers] == ["encoder"] * 20 + ["decoder"] * 20
    assert [layer.ratio for layer in layers] == [0] * 2 + [2] * 18 + [1] * 20
    kv_source = [None] * 2 + [2] * 6 + [8] * 6 + [14] * 6 + [20] * 20
    index_source = kv_source[:20] + [20] * 4 + [24] * 4 + [28] * 4 + [32] * 4 + [36] * 4
    assert [layer.kv_source for layer in layers] == kv_source
    assert [layer.index_source for layer in layers] == index_source
    # Layer 20 publishes the pool beside its own selection; only layers that select anew, or borrow from them, use it.
    assert [layer.candidate_source for layer in layers] == [None] * 24 + [20] * 16
    assert [layer.owns_kv for layer in layers].count(True) == 4
    assert [layer.owns_selection for layer in layers].count(True) == 8


@given(plans())
def test_every_layer_borrows_from_below_and_at_its_own_ratio(config):
    for layer in config.layers:
        if layer.mode == "window":
            assert (layer.ratio, layer.kv_source, layer.index_source) == (0, None, None)
            continue
        assert layer.kv_source <= layer.index_source <= layer.index
        assert config.layers[layer.kv_source].owns_kv
        assert config.layers[layer.index_source].owns_selection
        assert config.layers[layer.kv_source].ratio == layer.ratio
        assert layer.owns_kv == (layer.kv_source == layer.index)
        if layer.candidate_source is not None:
            assert layer.candidate_source == config.candidate_source_layer_id == layer.kv_source
            assert layer.index_source != layer.candidate_source


def test_other_cadences():
    config = with_plan([2, 2, 1, 1, 2], [0, 2, 4], [0, 1, 2, 4])
    assert [layer.mode for layer in config.layers] == ["full", "reindex", "full", "reuse", "full"]
    assert config.decoder_start == 4
    windows_only = with_plan([0, 0, 0], [])
    assert {layer.mode for layer in windows_only.layers} == {"window"}
    assert {layer.half for layer in windows_only.layers} == {"encoder"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 0}, "hidden_size is 0"),
        ({"head_dim": 500}, "head_dim is 500; expected a multiple of 32"),
        ({"index_head_dim": 100}, "index_head_dim is 100; expected a multiple of 32"),
        ({"qk_rope_head_dim": 63}, "qk_rope_head_dim is 63; expected an even number from 2 to 128"),
        ({"qk_rope_head_dim": 130}, "qk_rope_head_dim is 130"),
        ({"num_attention_heads": 60}, "num_attention_heads 60 does not divide into o_groups 8"),
        ({"num_experts_per_tok": 385}, "num_experts_per_tok is 385; there are only 384"),
        ({"engram_num_embeddings": (1,)}, "engram_num_embeddings has 1 entries for 2"),
        ({"engram_max_ngram_size": 1}, "engram_max_ngram_size is 1"),
        ({"engram_layer_ids": (1, 40)}, "engram_layer_ids names layer 40"),
        ({"dspark_target_layer_ids": (39, 38)}, "dspark_target_layer_ids is [39, 38]; expected ascending"),
        ({"weight_block_size": (32,)}, "weight_block_size is [32]"),
        ({"num_nextn_predict_layers": -3}, "num_nextn_predict_layers is -3"),
        ({"rope_theta": 0.0}, "rope_theta is 0.0"),
        ({"candidate_topk_blocks": 63}, "guarantees only 497 candidates; index_topk needs 512"),
        ({"candidate_topk_blocks": -100, "candidate_block_size": -8}, "candidate_topk_blocks is -100"),
        ({"candidate_source_layer_id": 21}, "candidate_source_layer_id is 21; expected one of the KV sources"),
        ({"num_hidden_layers": 39}, "compress_ratios has 43 entries; expected 39 layers, or 42"),
        ({"kv_source_layer_ids": (2, 8, 20, 14)}, "kv_source_layer_ids is [2, 8, 20, 14]; expected ascending"),
        ({"kv_source_layer_ids": (2, 8, 8, 14, 20)}, "none twice"),
        ({"index_source_layer_ids": (2, 8, 14, 20, 40)}, "index_source_layer_ids names layer 40"),
        ({"kv_source_layer_ids": (1, 2, 8, 14, 20)}, "names layer 1, whose ratio is 0"),
        ({"index_source_layer_ids": (2, 8, 20)}, "names layer 14, index_source_layer_ids does not"),
        (
            {"kv_source_layer_ids": (8, 14, 20), "index_source_layer_ids": (8, 14, 20)},
            "layer 2 has ratio 2 and no KV source",
        ),
        ({"kv_source_layer_ids": (2, 8, 14)}, "layer 20 reads at ratio 1, its KV source 14 writes at ratio 2"),
    ],
)
def test_what_no_model_can_be_built_from(changes, message):
    with pytest.raises(ConfigError) as error:
        dataclasses.replace(ModelConfig.flash(), **changes)
    assert message in str(error.value)


@pytest.mark.parametrize("ratio", [3, 4, -1])
def test_ratios_other_than_one_and_two(ratio):
    with pytest.raises(ConfigError, match=rf"compress_ratios\[3\] is {ratio}; expected 0, 1 or 2"):
        with_plan([0, 0, 2, ratio], [2])


def test_draft_layers_have_windows_only():
    ratios = (0,) * 2 + (2,) * 18 + (1,) * 20 + (0, 1, 0)
    with pytest.raises(ConfigError, match=r"compress_ratios\[41\] is 1; draft layers have a window only"):
        dataclasses.replace(ModelConfig.flash(), compress_ratios=ratios)


def test_pool_of_the_least_size():
    config = dataclasses.replace(ModelConfig.flash(), candidate_topk_blocks=65)
    assert config.candidate_topk_blocks * 8 - 7 == 513 > config.index_topk
    without = dataclasses.replace(ModelConfig.flash(), candidate_topk_blocks=1, candidate_source_layer_id=-1)
    assert all(layer.candidate_source is None for layer in without.layers)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nested_with(head_dim="512"), "head_dim is '512'; expected an integer"),
        (lambda: nested_with(head_dim=True), "head_dim is True; expected an integer"),
        (lambda: nested_with(head_dim=512.0), "head_dim is 512.0; expected an integer"),
        (lambda: nested_with(compress_ratios=2), "compress_ratios is 2; expected a list of integers"),
        (lambda: nested_with(compress_ratios=[2.0]), "expected a list of integers"),
        (lambda: nested_with(swiglu_limit="10"), "swiglu_limit is '10'; expected a number"),
        (lambda: nested_with(swiglu_limit=float("nan")), "swiglu_limit is nan; expected a finite number"),
        (lambda: nested_with(swiglu_limit=10**400), "expected a finite number"),
        (lambda: nested_with(scoring_func=1), "scoring_func is 1; expected a string"),
        (lambda: nested_with(norm_topk_prob=1), "norm_topk_prob is 1; expected true or false"),
        (lambda: nested_with(num_key_value_heads=8), "num_key_value_heads is 8; this family has 1"),
        (lambda: nested_with(rope_scaling=None), "rope_scaling.rope_type is None; expected 'yarn'"),
        (lambda: nested_with(rope_scaling=[16]), "rope_scaling is [16]; expected an object"),
        (lambda: nested_with(rope_scaling={"rope_type": "yarn"}), "lacks rope_scaling.beta_fast, rope_scaling.beta"),
        (lambda: nested() | {"text_config": 7}, "text_config is 7; expected an object"),
        (lambda: nested() | {"vision_config": ["x"]}, "vision_config is ['x']; expected an object"),
        (lambda: nested() | {"quantization_config": ["expert_dtype"]}, "quantization_config is"),
        (lambda: [1], "holds a list; expected an object"),
        (lambda: {"hidden_size": 4096}, "neither text_config (nested form) nor dim (flat form)"),
        (lambda: flat() | {"n_heads": None}, "n_heads is None; expected an integer"),
    ],
)
def test_malformed_values_are_named(make, message):
    with pytest.raises(ConfigError) as error:
        ModelConfig.from_dict(make(), origin="x.json")
    assert message in str(error.value)
    assert str(error.value).startswith("x.json")


@pytest.mark.parametrize("section", ["text_config", "vision_config"])
def test_every_missing_key_is_named_as_the_file_spells_it(section):
    optional = {
        "rms_norm_eps", "initializer_range", "max_position_embeddings", "norm_topk_prob", "num_key_value_heads",
        "hidden_act", "attention_bias", "attention_dropout", "use_cache", "tie_word_embeddings", "topk_method",
        "model_type", "max_wh_ratio", "rope_scaling",
    }  # fmt: skip
    for key in set(nested()[section]) - optional:
        data = nested()
        del data[section][key]
        with pytest.raises(ConfigError, match=f"lacks .*{key}"):
            ModelConfig.from_dict(data)


def test_missing_flat_keys_are_named_as_the_file_spells_them():
    for key in ("n_layers", "n_heads", "kv_source_layers", "beta_fast", "vision_patch_size", "window_size"):
        data = flat()
        del data[key]
        with pytest.raises(ConfigError, match=f"lacks {key}$"):
            ModelConfig.from_dict(data)


def test_unknown_keys_are_warned_of_and_ignored():
    with pytest.warns(UserWarning, match="keys without a meaning here, ignored: attention_sink"):
        config = ModelConfig.from_dict(nested_with(attention_sink=True))
    assert config == ModelConfig.flash()


def test_vision_may_be_absent():
    data = nested()
    del data["vision_config"]
    assert ModelConfig.from_dict(data) == dataclasses.replace(ModelConfig.flash(), vision=None)


def test_reading_changes_nothing_in_the_parsed_file():
    data = nested()
    before = copy.deepcopy(data)
    ModelConfig.from_dict(data)
    assert data == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"text_config": {', "is not JSON: .* \\(line 1, column"),
        (b"", "is not JSON: Expecting value"),
        (b"\xff\xfe{}", "is not a JSON text: byte 0 is not UTF-8"),
        (b"[" * 200_000, "cannot read configuration"),
        (b'{"dim": ' + b"9" * 5000 + b"}", "cannot read configuration"),
        (b'"text_config"', "holds a str; expected an object"),
    ],
)
def test_malformed_files(tmp_path, content, message):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as error:
        ModelConfig.from_json(path)
    assert str(path) in str(error.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        ModelConfig.from_json(tmp_path / "absent.json")
    with pytest.raises(ConfigError, match="cannot read configuration"):
        ModelConfig.from_json(tmp_path)


def test_configurations_are_values():
    config = ModelConfig.flash()
    assert config == ModelConfig.flash()
    assert hash(config) == hash(ModelConfig.flash())
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.head_dim = 1


def test_an_unbuildable_file_is_named_with_its_own_key(tmp_path):
    """The rules speak of ModelConfig names; the reader of a flat file knows others."""
    flat = json.loads(FLAT_FILE.read_text(encoding="utf-8"))
    path = tmp_path / "config.json"
    for key, value in (("window_size", -1), ("n_layers", -3)):
        path.write_text(json.dumps(flat | {key: value}), encoding="utf-8")
        with pytest.raises(ConfigError, match=rf"config\.json: {key} is {value}; expected a positive number"):
            ModelConfig.from_json(path)


def test_numbers_beyond_64_bits_and_endless_files_are_refused(tmp_path):
    flat = json.loads(FLAT_FILE.read_text(encoding="utf-8"))
    with pytest.raises(ConfigError, match=r"window_size is .*; expected an integer below 2\^63"):
        ModelConfig.from_dict(flat | {"window_size": 2**1100})
    path = tmp_path / "weights.bin"
    with path.open("wb") as file:
        file.truncate(17 * 2**20)
    with pytest.raises(ConfigError, match=r"weights\.bin has more than 16,777,216 bytes"):
        ModelConfig.from_json(path)


def test_long_values_and_strange_keys_do_not_flood_the_message():
    flat = json.loads(FLAT_FILE.read_text(encoding="utf-8"))
    with pytest.raises(ConfigError) as error:
        ModelConfig.from_dict(flat | {"compress_ratios": ["x"] * 100_000})
    assert len(str(error.value)) < 300
    with pytest.warns(UserWarning, match="and 2990 more") as caught:
        ModelConfig.from_dict(flat | {f"k{i}\n\x1b[31m": 1 for i in range(3000)})
    assert "\x1b" not in str(caught[0].message)
