"""Generation: greedy against the whole-sequence model, seeds, streaming of ids and of characters."""

import golden_io
import golden_model
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ds41.generation import generate, stream_text
from ds41.model import Model
from ds41.tokenizer import byte_tokenizer, load_tokenizer

PROMPT = [5, 300, 17, 42, 8]


@pytest.fixture(scope="module")
def model() -> Model:
    return golden_model.build("tinyC", "fp32_cacheq")


@pytest.mark.parametrize("decoder", ["full", "bounded"])
def test_temperature_zero_takes_the_largest_logit_each_time(model, decoder):
    ids = list(generate(model, PROMPT, 6, temperature=0, stop_ids=(), decoder=decoder))
    assert len(ids) == 6
    with torch.no_grad():
        logits = model(torch.tensor([PROMPT + ids[:-1]]))[0, len(PROMPT) - 1 :]
    assert ids == logits.argmax(-1).tolist()


def test_a_seed_fixes_the_text_and_leaves_other_random_numbers_alone(model):
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    first = list(generate(model, PROMPT, 6, seed=1))
    assert torch.equal(torch.rand(1), expected)
    assert list(generate(model, torch.tensor(PROMPT), 6, seed=1)) == first
    assert list(generate(model, PROMPT, 6, seed=2)) != first
    assert list(generate(model, PROMPT, 6)) != list(generate(model, PROMPT, 6))


def test_ids_come_as_they_are_drawn(model, monkeypatch):
    steps = []
    decode = Model.decode
    monkeypatch.setattr(Model, "decode", lambda *arguments: steps.append(1) or decode(*arguments))
    ids = generate(model, PROMPT, 3, seed=0, stop_ids=())
    for expected in (0, 1, 2):
        next(ids)
        assert len(steps) == expected
    # Behind the last id there is no step for one that nobody asked for.
    assert list(ids) == []
    assert len(steps) == 2
    assert list(generate(model, PROMPT, 0)) == []


def test_stop_ids_end_the_text_and_are_not_part_of_it(model):
    ids = list(generate(model, PROMPT, 5, temperature=0, stop_ids=()))
    place = next(i for i in range(1, 5) if ids[i] not in ids[:i])
    assert list(generate(model, PROMPT, 5, temperature=0, stop_ids={ids[place]})) == ids[:place]


def test_the_end_token_stops_by_default(model, monkeypatch):
    end = model.config.eos_token_id
    monkeypatch.setattr("ds41.generation.sample", lambda *_: end)
    assert list(generate(model, PROMPT, 5)) == []
    assert list(generate(model, PROMPT, 2, stop_ids=())) == [end, end]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -0.1}, r"temperature is -0\.1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"top_p": 0.0}, r"top_p is 0\.0"),
        ({"top_p": 1.1}, r"top_p is 1\.1"),
        ({"top_p": float("nan")}, "top_p is nan"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**64}, "seed is 18446744073709551616"),
        ({"decoder": "half"}, "decoder is 'half'"),
        ({"max_new_tokens": -1}, "max_new_tokens is -1"),
        (
            {"max_new_tokens": 252},
            "prompt of 5 tokens and max_new_tokens 252 are more than the model's 256 positions",
        ),
        ({"prompt_ids": []}, "the prompt is empty"),
        ({"prompt_ids": [[1, 2]]}, r"shape \[1, 2\]"),
        ({"prompt_ids": [1, 512]}, r"prompt_ids\[1\] is 512; expected ids from 0 to 511"),
        ({"prompt_ids": [-1]}, r"prompt_ids\[0\] is -1"),
        ({"prompt_ids": [0.5]}, r"torch\.float32; expected integers"),
        ({"prompt_ids": [2**70]}, "no sequence of token ids"),
        ({"prompt_ids": "text"}, "no sequence of token ids"),
    ],
)
def test_bad_values_are_refused_before_the_first_id(model, options, message):
    with pytest.raises(ValueError, match=message):
        generate(model, **({"prompt_ids": PROMPT, "max_new_tokens": 1} | options))


def test_the_last_position_can_be_reached(model):
    prompt = torch.arange(250) % 500 + 3
    assert len(list(generate(model, prompt, 6, seed=0, stop_ids=()))) == 6


TOKENIZERS = {"bytes": byte_tokenizer(), "reference": load_tokenizer(golden_io.FOLDER / "tinyC")}
by_tokenizer = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS.keys())


@pytest.mark.parametrize("text", ["größer als 漢字", "👩‍🚀🚀 " * 12, "e\u0301", "x" * 60 + "é"])
def test_characters_come_whole_and_at_once(text):
    tokenizer = TOKENIZERS["bytes"]
    ids = tokenizer.encode(text).ids
    shown, given_out = [], 0

    def ids_one_by_one():
        nonlocal given_out
        for token in ids:
            given_out += 1
            yield token

    for piece in stream_text(ids_one_by_one(), tokenizer):
        shown.append(piece)
        # All whole characters among the bytes so far, and nothing of the next one.
        assert "".join(shown) == bytes(token - 16 for token in ids[:given_out]).decode("utf-8", errors="ignore")
    assert "".join(shown) == text


@by_tokenizer
@given(data=st.data())
def test_pieces_make_up_the_text_of_any_ids(tokenizer, data):
    ids = data.draw(st.lists(st.integers(0, tokenizer.get_vocab_size() - 1), max_size=60))
    assert "".join(stream_text(ids, tokenizer)) == tokenizer.decode(ids, skip_special_tokens=False)


def test_half_a_character_at_the_end_is_shown_as_such():
    ids = TOKENIZERS["bytes"].encode("a漢").ids
    assert list(stream_text(ids[:-1], TOKENIZERS["bytes"])) == ["a", "\ufffd"]
