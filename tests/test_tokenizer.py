"""The byte tokenizer and the compression map, against the reference's map and the rule worked by hand."""

import golden_io
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from ds41 import ModelConfig
from ds41.tokenizer import byte_tokenizer, compression_map, load_tokenizer


def word_tokenizer(*words: str) -> Tokenizer:
    """One id a word, in order; decoding gives the word back unchanged."""
    return Tokenizer(models.WordLevel(vocab={word: index for index, word in enumerate(words)}, unk_token=words[0]))


@given(st.text(alphabet=st.characters(exclude_categories=("Cs",))).filter(lambda text: "<|" not in text))
def test_a_byte_is_16_plus_its_value(text):
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode(text).ids
    assert ids == [16 + byte for byte in text.encode()]
    assert tokenizer.decode(ids) == text


def test_byte_specials():
    tokenizer = byte_tokenizer()
    assert tokenizer.get_vocab_size() == 272 == ModelConfig.nano().vocab_size == ModelConfig.mini().vocab_size
    names = ["<|begin|>", "<|end|>", "<|pad|>", "<|noise|>", "<|image|>", "<|reserved_0|>", "<|reserved_10|>"]
    assert [tokenizer.token_to_id(name) for name in names] == [0, 1, 2, 3, 4, 5, 15]
    assert tokenizer.encode("<|begin|>a<|end|>").ids == [0, 16 + ord("a"), 1]
    assert tokenizer.decode([0, 16 + ord("a"), 1]) == "a"
    config = ModelConfig.nano()
    named = (config.bos_token_id, config.eos_token_id, config.pad_token_id, config.dspark_noise_token_id)
    assert (*named, config.image_token_id) == (0, 1, 2, 3, 4)


def test_a_byte_tokenizer_survives_its_file(tmp_path):
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    for path in (tmp_path, tmp_path / "tokenizer.json", str(tmp_path)):
        loaded = load_tokenizer(path)
        assert loaded.encode("é<|end|>").ids == [16 + 0xC3, 16 + 0xA9, 1]
        assert torch.equal(compression_map(loaded, 272), compression_map(byte_tokenizer(), 272))


@pytest.mark.parametrize("model", golden_io.MODELS)
def test_the_reference_map_is_reproduced(model):
    config = ModelConfig.from_json(golden_io.FOLDER / model / "config.json")
    token_map = compression_map(load_tokenizer(golden_io.FOLDER / model), config.vocab_size)
    assert token_map.dtype == torch.int64
    assert torch.equal(token_map, golden_io.load(model, "fp32")["engram.token_map"])
    assert int(token_map.max()) + 1 == config.engram_compressed_vocab_size == 340


@pytest.mark.parametrize("config", [ModelConfig.nano(), ModelConfig.mini()], ids=["nano", "mini"])
def test_bytes_compress_to_243(config):
    token_map = compression_map(byte_tokenizer(), config.vocab_size)
    assert int(token_map.max()) + 1 == config.engram_compressed_vocab_size == 243
    byte = {text: int(token_map[16 + ord(text)]) for text in "aAzZ \t\n\r\v"}
    assert byte["a"] == byte["A"] != byte["z"] == byte["Z"]
    assert byte[" "] == byte["\t"] == byte["\n"] == byte["\r"] != byte["\v"]
    # Bytes that are no character on their own keep an id each.
    assert token_map[16 + 0x80 :].unique().numel() == 128


def test_spellings_share_an_id():
    words = [
        "<unk>",
        " The",
        "the",
        "THE",
        "\tthe\n",
        "Café",
        "cafe",
        "①",
        "1",
        " ",
        "\r\n \t",
        "",
        "the cat",
        "the\n cat",
    ]
    token_map = compression_map(word_tokenizer(*words), len(words)).tolist()
    assert token_map == [0, 1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 6, 6]


def test_a_text_that_normalises_to_nothing_keeps_itself():
    # U+0085 and U+2028 are white space to strip, yet not among the four that become a space.
    assert compression_map(word_tokenizer("a", "\u2028", "\u0085", "\u0301"), 4).tolist() == [0, 1, 2, 3]


def test_partial_characters_go_by_their_vocabulary_string():
    words = ["\ufffdA", "\ufffda", "a", "A"]
    assert compression_map(word_tokenizer(*words), 4).tolist() == [0, 1, 2, 2]


def test_padding_ids_of_the_vocabulary_share_one_id():
    token_map = compression_map(word_tokenizer("a", "b"), 5)
    assert token_map.tolist() == [0, 1, 2, 2, 2]


def test_a_tokenizer_larger_than_the_model_is_refused():
    with pytest.raises(ValueError, match="the tokenizer has id 271; expected ids below the model's vocab_size 271"):
        compression_map(byte_tokenizer(), 271)


def test_what_is_no_tokenizer_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no tokenizer at .*tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer\.json is no tokenizer"):
        load_tokenizer(tmp_path)
