"""The files of pages: each is written once, by one put, and can only lose pages from its end.

One file holds consecutive pages of one path, and a page never outlives the one before it: what is left of a file is
always its beginning, so dropping pages is cutting the file. Names are never used twice.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np

SUFFIX = ".pages"
_FOLDERS = 16
_FLUSH_BYTES = 8 * 2**20


class PageFiles:
    """The files below ``folder``, by number."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        missing = [path for number in range(_FOLDERS) if not (path := self.path(number).parent).is_dir()]
        for path in missing:
            path.mkdir(exist_ok=True)
        if missing:
            _sync_folder(folder)
        stats = os.statvfs(folder)
        self.block = stats.f_frsize or 4096

    def path(self, number: int) -> Path:
        return self.folder / f"{number % _FOLDERS:x}" / f"{number}{SUFFIX}"

    def blocks(self, nbytes: int) -> int:
        """Bytes that a file of ``nbytes`` takes on disk."""
        return -(-nbytes // self.block) * self.block

    def write(self, number: int, parts: Iterable[np.ndarray]) -> None:
        """Write a file and wait until it is on the disk, its name included.

        Raises:
            OSError: the disk is full, or fails.
        """
        path = self.path(number)
        with open(path, "wb", buffering=0) as file, ThreadPoolExecutor(1) as pool:
            waiting, flush = 0, None
            for part in parts:
                left = memoryview(part)
                while len(left):
                    left = left[file.write(left) :]
                waiting += part.nbytes
                # The disk works while the next pages are prepared. A failure is told once, to the call that met it.
                if waiting >= _FLUSH_BYTES and (flush is None or flush.done()):
                    if flush is not None:
                        flush.result()
                    waiting, flush = 0, pool.submit(os.fdatasync, file.fileno())
            if flush is not None:
                flush.result()
            os.fsync(file.fileno())
        _sync_folder(path.parent)

    def cut(self, number: int, size: int) -> None:
        """Leave the first ``size`` bytes of a file, or no file for 0. One that is gone or shorter stays so."""
        path = self.path(number)
        if size <= 0:
            path.unlink(missing_ok=True)
        elif path.exists() and path.stat().st_size > size:
            os.truncate(path, size)

    def numbers(self) -> Iterator[int]:
        """The numbers of all files that there are."""
        for path in self.folder.glob(f"*/*{SUFFIX}"):
            if path.stem.isdigit():
                yield int(path.stem)

    def disk_bytes(self) -> int:
        """Bytes that the files take on the disk now, block by block."""
        total = 0
        for number in self.numbers():
            try:
                total += self.path(number).stat().st_blocks * 512
            except FileNotFoundError:
                continue
        return total

    @contextmanager
    def reader(self) -> Iterator[Reader]:
        """Reads of several pages, which keep the last file open."""
        reader = Reader(self)
        try:
            yield reader
        finally:
            reader.close()


class Reader:
    """Reads parts of files; see :meth:`PageFiles.reader`."""

    def __init__(self, files: PageFiles) -> None:
        self._files = files
        self._number: int | None = None
        self._descriptor = -1

    def read(self, number: int, offset: int, size: int) -> np.ndarray | None:
        """uint8 [size], or None if the file does not have them or cannot be read."""
        data, done = np.empty(size, np.uint8), 0
        if not size:
            return data
        try:
            if number != self._number:
                self.close()
                self._descriptor = os.open(self._files.path(number), os.O_RDONLY | os.O_CLOEXEC)
                self._number = number
            while done < size:
                count = os.preadv(self._descriptor, [memoryview(data)[done:]], offset + done)
                if not count:
                    return None
                done += count
        except (OSError, ValueError, OverflowError):
            return None
        return data

    def close(self) -> None:
        if self._number is not None:
            os.close(self._descriptor)
            self._number = None


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
