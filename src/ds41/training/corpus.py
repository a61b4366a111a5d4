"""Text to train on: the source files of Python's own standard library, read as an agent reads a repository.

Every machine has them. A tenth of the files, chosen by the hash of their names, is held out for validation.

Source: ds41's own.
"""

from __future__ import annotations

import hashlib
import os
import random
import sysconfig
from bisect import bisect
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Literal, get_args

Split = Literal["train", "held-out"]
"""Files to train on, and files kept for evaluation."""
# The first byte of a name's hash decides: 26 of 256.
_HELD_OUT = 26
# Test suites and tables of characters teach little.
_SKIPPED = ("test", "tests", "idlelib", "lib2to3", "encodings", "site-packages", "dist-packages", "__pycache__")


class Corpus:
    """Files by name, as bytes, in the order of their names.

    Args:
        files: name -> content. Empty ones are left out.

    Raises:
        ValueError: no file has any content.
    """

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = {name: files[name] for name in sorted(files) if files[name]}
        if not self.files:
            raise ValueError("files has no content; expected at least one file that is not empty")
        self._names = list(self.files)
        self._ends = list(accumulate(len(content) for content in self.files.values()))

    @property
    def nbytes(self) -> int:
        """Bytes of all files together."""
        return self._ends[-1]

    @property
    def digest(self) -> str:
        """SHA-256 of names and contents: two machines with the same digest read the same text."""
        found = hashlib.sha256()
        for name, content in self.files.items():
            found.update(f"{name}\0{len(content)}\0".encode())
            found.update(content)
        return found.hexdigest()

    def read(self, generator: random.Random, length: int) -> bytes:
        """``length`` bytes: a file's name, its text from some line on, then the next file drawn.

        Files are drawn by their size, so every byte of the corpus is as likely as another.
        """
        found = bytearray()
        while len(found) < length:
            name = self._names[bisect(self._ends, generator.randrange(self.nbytes))]
            content = self.files[name]
            start = content.rfind(b"\n", 0, generator.randrange(len(content)) + 1) + 1
            found += f"# {name}\n".encode() + content[start : start + length]
            found += b"" if found.endswith(b"\n") else b"\n"
        return bytes(found[:length])


def standard_library(split: Split, folder: str | Path | None = None) -> Corpus:
    """The ``*.py`` files of the running Python's standard library, tests left out.

    Args:
        folder: another folder to read in its place.

    Raises:
        ValueError: an unknown split, or a folder without such files.
    """
    if split not in get_args(Split):
        raise ValueError(f"split is {split!r}; expected one of {', '.join(map(repr, get_args(Split)))}")
    root = Path(sysconfig.get_path("stdlib") if folder is None else folder)
    if not root.is_dir():
        raise ValueError(f"{root} is not a folder; expected one with Python files")
    files = {}
    for place, folders, found in os.walk(root):
        # Not entered at all: site-packages may hold a hundred thousand files.
        folders[:] = [name for name in folders if name not in _SKIPPED]
        for path in (Path(place, name) for name in found if name.endswith(".py")):
            name = path.relative_to(root).as_posix()
            # A link may lead nowhere.
            if path.is_file() and is_held_out(name) == (split == "held-out"):
                files[name] = path.read_bytes()
    if not files:
        raise ValueError(f"{root} has no Python files of the split {split!r}; expected those of a standard library")
    return Corpus(files)


def is_held_out(name: str) -> bool:
    """Whether the file of this name is for validation."""
    return hashlib.sha256(name.encode()).digest()[0] < _HELD_OUT
