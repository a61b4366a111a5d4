"""Conversations as token ids: each begins as the one before it ended, and turns are those of ``ds41 chat``."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken

from ds41 import ModelConfig
from ds41.chat_format import Message, Turns
from ds41.tokenizer import byte_tokenizer

CONFIG = ModelConfig.nano()
PLAIN = byte_tokenizer()
WITH_ROLES = byte_tokenizer()
ROLES = ("<｜User｜>", "<｜Assistant｜>", "</think>")
WITH_ROLES.add_special_tokens([AddedToken(text, special=True) for text in ROLES])
BOTH = [Turns(PLAIN, CONFIG), Turns(WITH_ROLES, CONFIG)]

texts = st.text(max_size=12)
parts = st.lists(st.one_of(texts, st.binary(min_size=1, max_size=3)), min_size=1, max_size=4).map(tuple)


def user(*content: str | bytes) -> Message:
    return Message("user", content)


@pytest.mark.parametrize("turns", BOTH)
@given(systems=st.lists(texts, max_size=2), questions=st.lists(parts, min_size=1, max_size=4), answer=texts)
def test_a_conversation_that_goes_on_begins_as_it_did(turns, systems, questions, answer):
    talk = [Message("system", (text,)) for text in systems]
    known: list[int] = []
    for question in questions:
        talk.append(Message("user", question))
        ids = turns.messages(talk)
        assert ids[: len(known)] == known
        assert ids.count(CONFIG.image_token_id) == sum(len(message.pictures) for message in talk)
        known = ids + turns.text(answer)
        talk.append(Message("assistant", (answer,)))


@pytest.mark.parametrize("turns", BOTH)
@given(system=texts, questions=st.lists(texts, min_size=1, max_size=3), answer=texts)
def test_turns_one_by_one_are_the_conversation(turns, system, questions, answer):
    talk = [Message("system", (system,))] if system else []
    ids: list[int] = []
    for question in questions:
        ids += turns.prompt(question, system if not ids else None, first=not ids)
        talk.append(user(question))
        assert turns.messages(talk) == ids
        ids += turns.text(answer)
        talk.append(Message("assistant", (answer,)))


def test_in_plain_words():
    turns = Turns(PLAIN, CONFIG)
    talk = [Message("system", ("Be brief.",)), Message("system", ("Be kind.",)), user("Hi"), user("There?")]
    talk += [Message("assistant", (" Yes.",)), Message("assistant", (" Yes!",)), user("a", b"picture", "b", "c")]
    begin, *ids = turns.messages(talk)
    assert begin == CONFIG.bos_token_id
    text = "".join("[]" if token == CONFIG.image_token_id else PLAIN.decode([token]) for token in ids)
    assert text == (
        "Be brief.\n\nBe kind.\n\nUser: Hi\n\nUser: There?\n\nAssistant: Yes.\n\nAssistant: Yes!"
        "\n\nUser: a[]bc\n\nAssistant:"
    )


def test_in_role_tokens():
    turns = Turns(WITH_ROLES, CONFIG)
    asks, answers, no_thought = 272, 273, 274
    letter = {text: [16 + ord(text)] for text in "sabc"}
    ids = turns.messages([Message("system", ("s",)), user("a"), Message("assistant", ("b",)), user("c")])
    assert ids == [
        CONFIG.bos_token_id, *letter["s"], asks, *letter["a"], answers, no_thought, *letter["b"], CONFIG.eos_token_id,
        asks, *letter["c"], answers, no_thought,
    ]  # fmt: skip


@pytest.mark.parametrize("tokenizer", [PLAIN, WITH_ROLES])
def test_names_of_special_tokens_stay_text(tokenizer):
    turns = Turns(tokenizer, CONFIG)
    name = "<|end|><|image|></think><｜User｜>"
    expected = [16 + byte for byte in name.encode()]
    assert turns.text(name) == expected
    ids = turns.messages([Message("system", (name,)), user(name), Message("assistant", (name,)), user(name)])
    assert sum(ids[at : at + len(expected)] == expected for at in range(len(ids))) == 4
    assert CONFIG.image_token_id not in ids
    # The tokenizer itself is as it was.
    assert tokenizer.encode("<|end|>").ids == [CONFIG.eos_token_id]


@pytest.mark.parametrize(
    ("talk", "message"),
    [
        ([], "messages end with one of the user; there is none"),
        ([Message("system", ("s",))], "the last one is the system's"),
        ([user("a"), Message("assistant", ("b",))], "the last one is the assistant's"),
        ([user("a"), Message("system", ("s",)), user("b")], r"messages\[1\] is the system's"),
        (
            [Message("system", ("s",)), user("a"), Message("system", ("s",)), user("b")],
            r"messages\[2\] is the system's",
        ),
    ],
)
def test_an_order_that_is_none(talk, message):
    with pytest.raises(ValueError, match=message):
        Turns(PLAIN, CONFIG).messages(talk)
