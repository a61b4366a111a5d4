"""A Redis or Valkey server of a check's own, and what to do on a machine that has none."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NAMES = ("redis-server", "valkey-server")
# In memory only, reached through a socket in its own folder: it cannot meet a server that runs here anyway.
OPTIONS = ("--port", "0", "--save", "", "--appendonly", "no", "--daemonize", "no")
START_S = 30.0
HOW_TO_GET = (
    "no Redis or Valkey server found. Install one (Debian and Ubuntu: `apt-get install redis-server`), or set "
    "REDIS_SERVER to the path of a redis-server or valkey-server that is installed already"
)


class NoServerError(Exception):
    """There is no Redis or Valkey server on this machine."""


def find() -> str:
    """The path of a server program: the one that REDIS_SERVER names, or the first of the usual names on the PATH."""
    named = os.environ.get("REDIS_SERVER")
    if named:
        if not shutil.which(named):
            raise NoServerError(f"REDIS_SERVER is {named!r}, which is not a program")
        return named
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        raise NoServerError(HOW_TO_GET)
    return found


def required() -> bool:
    """In CI a check that needs a server may not be left out."""
    return bool(os.environ.get("CI"))


class Server:
    """One server process and the socket it listens on, in ``folder``."""

    def __init__(self, program: str, folder: Path) -> None:
        self._command = [program, *OPTIONS, "--dir", str(folder), "--unixsocket", str(folder / "socket")]
        self._socket = folder / "socket"
        self._log = folder / "log"
        self._process: subprocess.Popen | None = None

    @property
    def url(self) -> str:
        return f"unix://{self._socket}"

    def start(self) -> None:
        """Start it, empty, and wait until it answers."""
        self._socket.unlink(missing_ok=True)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"{self._command[0]} did not start: {self._log.read_text(errors='replace')}")
            time.sleep(0.01)

    def kill(self) -> None:
        """End it with SIGKILL, as a crash or the kernel would; what it held is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def hang(self) -> None:
        """Stop it without closing anything, as an overloaded machine or a broken network looks to its clients."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on after :meth:`hang`."""
        self._process.send_signal(signal.SIGCONT)

    def _answers(self) -> bool:
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(1.0)
                connection.connect(str(self._socket))
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False


@contextmanager
def running() -> Iterator[Server]:
    """A server that answers, ended and forgotten afterwards."""
    # Not below the folder of the tests: the path of a socket has room for about 100 bytes.
    with tempfile.TemporaryDirectory(prefix="ds41-redis-") as folder:
        server = Server(find(), Path(folder))
        try:
            server.start()
            yield server
        finally:
            server.kill()
