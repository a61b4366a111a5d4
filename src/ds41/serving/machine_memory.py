"""How much memory this process may count on: the machine's, or less where a control group says so."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def memory_bytes(root: Path | str = "/") -> int:
    """Bytes of memory: the smaller of what the machine has and what the process's control groups allow.

    A container sees all of its host in ``/proc/meminfo``; what it may use stands in its control group (either
    version) or one above it. ``root`` is where ``proc`` and ``sys`` are mounted.

    Raises:
        RuntimeError: the system does not say how much memory it has.
    """
    root = Path(root)
    return min([_installed(root), *_limits(root)])


def _installed(root: Path) -> int:
    try:
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError) as error:
        raise RuntimeError("this system does not say how much memory it has; give the bytes explicitly") from error


def _limits(root: Path) -> Iterator[int]:
    try:
        memberships = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for membership in memberships:
        _, controllers, path = membership.split(":", 2)
        if not controllers:
            # Beside version 1 groups, version 2 is mounted one folder down.
            for mount in ("sys/fs/cgroup", "sys/fs/cgroup/unified"):
                yield from _limits_along(root / mount, path, "memory.max")
        elif "memory" in controllers.split(","):
            yield from _limits_along(root / "sys/fs/cgroup/memory", path, "memory.limit_in_bytes")


def _limits_along(mount: Path, path: str, name: str) -> Iterator[int]:
    """The limits of a group and of all above it: each binds, and a container may see only the topmost."""
    folder = mount / path.lstrip("/")
    for group in (folder, *folder.parents):
        if not group.is_relative_to(mount):
            return
        try:
            text = (group / name).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            yield int(text)
