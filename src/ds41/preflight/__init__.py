"""Is this machine ready for a workshop? Each check says what it found, what it expected and how to mend it.

What could take Python down with it is tried in a Python of its own, so a broken package is a finding. Nothing here
needs a network, and nothing is installed or changed.

Source: ds41's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from ds41.language import say
from ds41.preflight import gpu, jupyter, machine, packages, runs
from ds41.preflight.finding import Finding, probe

__all__ = ["Finding", "preflight", "verdict"]

Check = Callable[[], "Finding | list[Finding]"]

_AT_ONCE = 2


def preflight() -> Iterator[Finding]:
    """Every finding in reading order, each as soon as it and those before it are there."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        torch: Future = pool.submit(probe, "gpu", seconds=90)
        checks: list[Check] = [
            machine.python,
            machine.cores,
            machine.memory,
            machine.disk,
            machine.files,
            machine.loopback,
            packages.packages,
            packages.data,
            lambda: gpu.gpu(torch.result()),
            lambda: gpu.driver(torch.result()),
            lambda: gpu.compiler(torch.result()),
            lambda: gpu.gpu_kernel(torch.result()),
            runs.interpreter,
            runs.model,
            jupyter.interface,
            jupyter.kernelspec,
            jupyter.notebook,
        ]
        for found in pool.map(lambda check: check(), checks):
            yield from found if isinstance(found, list) else [found]


def verdict(findings: list[Finding]) -> str:
    """The last line of the report: "ready", "ready, with 2 remarks", "not ready: 1 to mend"."""
    failed = sum(finding.state == "fail" for finding in findings)
    remarks = sum(finding.state == "warn" for finding in findings)
    if failed:
        return say("not ready: {count} to mend", count=failed)
    if remarks:
        return say("ready, with 1 remark") if remarks == 1 else say("ready, with {count} remarks", count=remarks)
    return say("ready")
