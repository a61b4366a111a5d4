"""Who uses a store: processes by their id and the moment they started, so that a number used again is another one."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

_PROC = Path("/proc")
_START_FIELD = 19  # of /proc/PID/stat, counted after the name in brackets
_DEAD_STATES = "ZX"


def boot_id() -> str:
    """This start of this machine, or "" where it has no name."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def process_name(pid: int | None = None) -> str:
    """``boot/namespace/pid/start`` of a process, by default this one."""
    pid = os.getpid() if pid is None else pid
    return "/".join([boot_id(), _namespace(), str(pid), _started(pid) or ""])


def is_alive(name: str) -> bool:
    """Whether the process of that name still runs; one that cannot be judged from here does."""
    try:
        boot, namespace, pid, started = name.split("/")
        number = int(pid)
    except ValueError:
        return False
    if boot != boot_id():
        return False
    if namespace != _namespace():
        return True
    if started:
        return _started(number) == started
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def register(database: sqlite3.Connection) -> int:
    """Enter this process as an owner of pins and files being written; gives its number."""
    return database.execute("INSERT INTO owner (process) VALUES (?)", [process_name()]).lastrowid


def release(database: sqlite3.Connection, owner: int) -> None:
    """Drop an owner and its pins, and mark the files it had begun for removal."""
    database.execute("DELETE FROM pin WHERE owner = ?", [owner])
    database.execute("UPDATE file SET owner = NULL, size = 0 WHERE owner = ?", [owner])
    database.execute("DELETE FROM owner WHERE id = ?", [owner])


def release_dead(database: sqlite3.Connection) -> None:
    """Drop the owners whose process is gone."""
    for owner, name in database.execute("SELECT id, process FROM owner").fetchall():
        if not is_alive(name):
            release(database, owner)


def _namespace() -> str:
    try:
        return os.readlink(_PROC / "self/ns/pid").strip("pid:[]")
    except OSError:
        return ""


def _started(pid: int) -> str | None:
    """When a process started, in ticks since the machine did; None if it is gone or waits to be buried."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in _DEAD_STATES else fields[_START_FIELD]
