"""Tokenizers, and the map that lets spellings of one word share an Engram entry.

``" The"``, ``"the"`` and ``"THE"`` are three tokens and one compressed id: n-grams are hashed over compressed ids.

Source: report section 2.4.2; the normaliser of the released ``inference/engram.py``.
"""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

BYTE_SPECIALS = (
    "<|begin|>", "<|end|>", "<|pad|>", "<|noise|>", "<|image|>", *(f"<|reserved_{i}|>" for i in range(11)),
)  # fmt: skip
"""The special tokens of the byte vocabulary, ids 0 to 15."""
FIRST_BYTE = len(BYTE_SPECIALS)
"""The id of byte 0; byte b has id ``FIRST_BYTE + b``."""
REPLACEMENT_CHARACTER = "\ufffd"
"""What decoding gives for bytes that are no UTF-8."""
_LONE_SPACE = "\ue000"


def byte_tokenizer() -> Tokenizer:
    """The vocabulary of the nano and mini presets: 16 special tokens, then byte b as id 16 + b; 272 ids."""
    vocabulary = {special: index for index, special in enumerate(BYTE_SPECIALS)}
    vocabulary.update({character: FIRST_BYTE + byte for byte, character in enumerate(_byte_characters())})
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in BYTE_SPECIALS])
    return tokenizer


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Read a ``tokenizer.json``, given itself or the checkpoint folder that holds it.

    Raises:
        FileNotFoundError: there is no such file. ValueError: it is no tokenizer.
    """
    path = Path(path)
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise FileNotFoundError(f"no tokenizer at {file}")
    # The library raises a bare Exception, whatever is wrong.
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:
        raise ValueError(f"{file} is no tokenizer: {error}") from error


def compression_map(tokenizer: Tokenizer, vocab_size: int) -> torch.Tensor:
    """Token id -> compressed id, int64 [vocab_size]: tokens whose normalised text is equal share one.

    Compressed ids are given out in the order of first appearance. A token that is only a part of a character has
    no text and keeps an id of its own. Ids from the tokenizer's size up to ``vocab_size``, which pad the embedding
    and never come out of an encoder, decode to the empty text and so share one id.

    Raises:
        ValueError: the tokenizer has ids of ``vocab_size`` and above, which the model could not embed.
    """
    largest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    if largest >= vocab_size:
        raise ValueError(f"the tokenizer has id {largest}; expected ids below the model's vocab_size {vocab_size}")
    normalizer = _normalizer()
    texts = tokenizer.decode_batch([[token] for token in range(vocab_size)], skip_special_tokens=False)
    compressed: dict[str, int] = {}

    def compressed_id(token: int, text: str) -> int:
        part_of_a_character = REPLACEMENT_CHARACTER in text
        key = tokenizer.id_to_token(token) if part_of_a_character else normalizer.normalize_str(text) or text
        return compressed.setdefault(key, len(compressed))

    ids = [compressed_id(token, text) for token, text in enumerate(texts)]
    return torch.tensor(ids, dtype=torch.int64, device="cpu")


def _normalizer() -> normalizers.Normalizer:
    """Compatibility forms, accents, case and white space away; a text that is one space stays one."""
    return normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
            normalizers.Replace(Regex(r"^ $"), _LONE_SPACE),
            normalizers.Strip(),
            normalizers.Replace(_LONE_SPACE, " "),
        ]
    )


def _byte_characters() -> list[str]:
    """The visible character that stands for each byte in a byte-level vocabulary.

    Printable Latin-1 stands for itself; the other 68 bytes take the code points from 256 up, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    stand_ins = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(stand_ins)) for byte in range(256)]
