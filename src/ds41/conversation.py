"""The file that keeps a conversation: token ids of all its turns, and whose they are."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

_FORMAT = "ds41 conversation 1"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}", re.ASCII)


class ConversationError(ValueError):
    """A saved conversation that cannot be used; the message says what to do."""


@dataclass(frozen=True)
class Owner:
    """Whose a saved conversation is: its ids mean nothing to another model or tokenizer.

    model: its fingerprint. tokenizer: SHA-256 of it. tenant: who may go on with it.
    """

    model: str
    tokenizer: str
    tenant: str

    @classmethod
    def of(cls, fingerprint: bytes, tokenizer: Tokenizer, tenant: str) -> Owner:
        return cls(fingerprint.hex(), hashlib.sha256(tokenizer.to_str().encode()).hexdigest(), tenant)


@dataclass(frozen=True)
class Saving:
    """Where conversations are kept, and whose they are; vocab_size: of the model."""

    folder: Path
    owner: Owner
    vocab_size: int

    def open(self, name: str) -> SavedConversation:
        """The conversation of that name, new if there is none; errors as of :class:`SavedConversation`."""
        return SavedConversation(self.folder, name, self.owner, self.vocab_size)


class SavedConversation:
    """The file ``NAME.json`` of one conversation, held by this process until it is closed.

    ids: token ids of all turns so far. turns: how many. Both are empty where there is no such file yet.

    Raises:
        ConversationError: the name is none, another process has the conversation open, the file is damaged or cannot
            be read, or it belongs to another model, tokenizer or tenant.
    """

    def __init__(self, folder: Path, name: str, owner: Owner, vocab_size: int) -> None:
        if not _NAME.fullmatch(name):
            raise ConversationError(
                f"session {name!r} is no name; expected up to 64 letters, digits, points, dashes and underscores, "
                "with a letter, digit or underscore first"
            )
        self.name, self._owner = name, owner
        self.path = folder / f"{name}.json"
        self.ids: list[int] = []
        self.turns = 0
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = self._locked()
        except OSError as error:
            raise ConversationError(f"{folder} cannot keep sessions: {error.strerror or error}") from error
        try:
            self._read(vocab_size)
        except BaseException:
            self.close()
            raise

    def save(self, ids: list[int], turns: int) -> None:
        """Put the conversation in place of what the file held; after a crash it holds one or the other, whole.

        Raises:
            ConversationError: it could not be written; the file is as it was.
        """
        self.ids, self.turns = list(ids), turns
        content = {"format": _FORMAT, **vars(self._owner), "turns": turns, "ids": self.ids}
        try:
            self._replace(json.dumps(content).encode())
        except OSError as error:
            raise ConversationError(f"{self.path} cannot be written: {error.strerror or error}") from error

    def close(self) -> None:
        """Let another process have it; a second time does nothing."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> SavedConversation:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _locked(self) -> int:
        # The file itself is replaced at every turn, so the lock is on another, which stays.
        lock = os.open(self.path.with_name(f".{self.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise ConversationError(
                f"session {self.name} is open in another process; end that one, or choose another name"
            ) from None
        return lock

    def _replace(self, content: bytes) -> None:
        folder = self.path.parent
        descriptor, temporary = tempfile.mkstemp(prefix=f".{self.name}.", suffix=".new", dir=folder)
        try:
            with open(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        listing = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(listing)
        finally:
            os.close(listing)

    def _read(self, vocab_size: int) -> None:
        try:
            content = json.loads(self.path.read_bytes().decode("utf-8"))
        except FileNotFoundError:
            return
        except OSError as error:
            raise ConversationError(f"{self.path} cannot be read: {error.strerror or error}") from error
        except (ValueError, RecursionError) as error:
            raise self._damaged(f"it is not JSON: {error}") from error
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise self._damaged(f"it does not say that its format is {_FORMAT!r}")
        for name, meaning in (("model", "weights, configuration or types"), ("tokenizer", "a tokenizer")):
            if content.get(name) != getattr(self._owner, name):
                raise ConversationError(
                    f"session {self.name} in {self.path.parent} was begun with {meaning} other than the ones given "
                    f"now; give that {name}, or another --session"
                )
        if content.get("tenant") != self._owner.tenant:
            raise ConversationError(
                f"session {self.name} in {self.path.parent} belongs to tenant {content.get('tenant')!r}, not to "
                f"{self._owner.tenant!r}; give that --tenant, or another --session"
            )
        ids, turns = content.get("ids"), content.get("turns")
        if not isinstance(ids, list) or not all(type(one) is int and 0 <= one < vocab_size for one in ids):
            raise self._damaged(f"its ids are not token ids from 0 to {vocab_size - 1}")
        if type(turns) is not int or turns < 0:
            raise self._damaged(f"its number of turns is {turns!r}")
        self.ids, self.turns = ids, turns

    def _damaged(self, why: str) -> ConversationError:
        return ConversationError(f"{self.path} is no saved conversation ({why}); remove it, or give another --session")
