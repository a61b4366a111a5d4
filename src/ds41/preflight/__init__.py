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
        checks: dict[str, Check] = {
            "python": machine.python,
            "cores": machine.cores,
            "memory": machine.memory,
            "disk": machine.disk,
            "files": machine.files,
            "loopback": machine.loopback,
            "packages": packages.packages,
            "data": packages.data,
            "gpu": lambda: gpu.gpu(torch.result()),
            "driver": lambda: gpu.driver(torch.result()),
            "compiler": lambda: gpu.compiler(torch.result()),
            "gpu_kernel": lambda: gpu.gpu_kernel(torch.result()),
            "interpreter": runs.interpreter,
            "model": runs.model,
            "interface": jupyter.interface,
            "kernelspec": jupyter.kernelspec,
            "notebook": jupyter.notebook,
        }
        for found in pool.map(_findings, checks, checks.values()):
            yield from found


def verdict(findings: list[Finding]) -> str:
    """The last line of the report: "ready", "ready, with 2 remarks", "not ready: 1 to mend"."""
    failed = sum(finding.state == "fail" for finding in findings)
    remarks = sum(finding.state == "warn" for finding in findings)
    if failed:
        return say("not ready: {count} to mend", count=failed)
    if remarks:
        return say("ready, with 1 remark") if remarks == 1 else say("ready, with {count} remarks", count=remarks)
    return say("ready")


def _findings(name: str, check: Check) -> list[Finding]:
    try:
        found = check()
    except Exception as error:
        # On a machine that is broken enough anything may fail; the other checks still have to be heard.
        trouble = f"{type(error).__name__}: {error}"
        return [Finding(name, name, "fail", trouble, say("the check comes to its end"), say("Mend what it says."))]
    return found if isinstance(found, list) else [found]
