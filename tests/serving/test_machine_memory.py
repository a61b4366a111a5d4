"""The memory a process may count on: the least of the machine's and of every control group's above it."""

from __future__ import annotations

import pytest

from ds41.serving import machine_memory
from ds41.serving.machine_memory import memory_bytes

GIB = 2**30


def machine(root, files):
    for path, text in {"proc/meminfo": f"MemFree: 5 kB\nMemTotal:   {16 * GIB // 1024} kB\n", **files}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return memory_bytes(root)


GROUPS = {
    "none": ({}, 16),
    "version 2, unlimited": ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, 16),
    "version 2, in a container": ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": f"{4 * GIB}\n"}, 4),
    "version 2, a group above": (
        {
            "proc/self/cgroup": "0::/a.slice/b.scope\n",
            "sys/fs/cgroup/a.slice/memory.max": f"{3 * GIB}\n",
            "sys/fs/cgroup/a.slice/b.scope/memory.max": "max\n",
        },
        3,
    ),
    "version 2 beside version 1": (
        {"proc/self/cgroup": "0::/b\n", "sys/fs/cgroup/unified/b/memory.max": f"{2 * GIB}\n"},
        2,
    ),
    "version 1": (
        {
            "proc/self/cgroup": "5:cpu,cpuacct:/a\n4:memory:/a:b\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/a:b/memory.limit_in_bytes": f"{5 * GIB}\n",
        },
        5,
    ),
    "version 1, the group out of sight": (
        {"proc/self/cgroup": "4:memory:/docker/x\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{6 * GIB}\n"},
        6,
    ),
    "more than the machine has": ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": f"{64 * GIB}\n"}, 16),
}


@pytest.mark.parametrize("name", GROUPS)
def test_the_tightest_limit_counts(tmp_path, name):
    files, gib = GROUPS[name]
    assert machine(tmp_path, files) == gib * GIB


def test_this_machine_has_memory():
    assert memory_bytes() > 2**26


def test_a_system_that_does_not_say_is_an_error(tmp_path, monkeypatch):
    monkeypatch.delattr(machine_memory.os, "sysconf", raising=False)
    with pytest.raises(RuntimeError, match="does not say how much memory"):
        memory_bytes(tmp_path)
