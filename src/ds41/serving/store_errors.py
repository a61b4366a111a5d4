"""What can go wrong with a prefix store.

Source: ds41's own.
"""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

# A damaged schema can come back in a message that is no text.
DATABASE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class StoreError(RuntimeError):
    """The store cannot do what it was asked to; it stays whole, and what it holds can be computed again."""


class StoreFull(StoreError):
    """There is no room: the disk is full, or every page is younger than the guarantee or in use."""


class MissingPrefix(StoreError):
    """Pages were put after a prefix that is no longer stored; ``tokens`` of it are. Put them from there on."""

    def __init__(self, message: str, tokens: int) -> None:
        super().__init__(message)
        self.tokens = tokens


def from_os_error(error: OSError, path: Path) -> StoreError:
    """A full disk or any other failure of a file."""
    if error.errno in _NO_SPACE:
        return StoreFull(f"no room on the disk for {path} ({error.strerror}); free some, or give a smaller budget")
    return StoreError(f"{path} cannot be used: {error.strerror or error}")


def from_database_error(error: Exception, folder: Path) -> StoreError:
    """What an error of the database means and what to do about it."""
    message = str(error)
    if "full" in message:
        return StoreFull(f"no room on the disk for the index of {folder} ({message}); free some")
    if "locked" in message or "busy" in message:
        return StoreError(f"another process holds the index of {folder} for too long ({message}); try again")
    if isinstance(error, sqlite3.OperationalError) and "no such" not in message:
        return StoreError(f"the index of {folder} cannot be used ({message}); look to its permissions and its disk")
    return damaged_index(message, folder)


def damaged_index(message: str, folder: Path) -> StoreError:
    """The database itself is damaged."""
    return StoreError(
        f"the index of {folder} is damaged ({message}). Everything in it can be computed again: close all processes "
        "that use the folder, delete it, and open the store anew"
    )
