"""A process without a network: a network namespace of its own, in which only the loopback device is up. Linux only."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence

# From linux/sockios.h and linux/if.h.
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1
# Of the addresses that documentation uses, which no machine has.
_ELSEWHERE = ("192.0.2.1", 9)


class OfflineError(Exception):
    """The network cannot be cut off here, or is still there."""


def command(arguments: Sequence[str]) -> list[str]:
    """The command that runs this Python with `arguments` in a network namespace of its own.

    Raises:
        OfflineError: there is no unshare, or the system refuses the namespace.
    """
    unshare = shutil.which("unshare")
    if unshare is None:
        raise OfflineError("no unshare on the PATH (util-linux, on Linux): the network cannot be cut off here")
    # Other users than root become root of a user namespace, so that they may raise its loopback device.
    start = [unshare, "--net"] if os.geteuid() == 0 else [unshare, "--map-root-user", "--net"]
    refused = subprocess.run([*start, "true"], capture_output=True, text=True)
    if refused.returncode:
        raise OfflineError(f"{' '.join(start)} is refused here: {refused.stderr.strip()}")
    return [*start, sys.executable, *arguments]


def raise_loopback() -> None:
    """Switch the loopback device on, which a new namespace has off; kernels are spoken to over it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        fcntl.ioctl(handle, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP))


def check() -> None:
    """Make sure that no other machine can be reached.

    Raises:
        OfflineError: one could be.
    """
    others = [name for _, name in socket.if_nameindex() if name != "lo" and _is_up(name)]
    if others:
        raise OfflineError(f"the network is still there: interface {', '.join(others)} is up")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        try:
            # Sends nothing: it only asks for a route.
            handle.connect(_ELSEWHERE)
        except OSError:
            return
    raise OfflineError(f"the network is still there: it has a route to {_ELSEWHERE[0]}")


def _is_up(interface: str) -> bool:
    with open(f"/sys/class/net/{interface}/flags", encoding="ascii") as file:
        return bool(int(file.read(), 16) & _IFF_UP)
