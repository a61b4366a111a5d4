"""Jupyter: a program to open notebooks in, the kernel that it starts, and whether that computes.

Source: ds41's own.
"""

from __future__ import annotations

import os
import shutil
import sys
from importlib.util import find_spec

from ds41 import __version__
from ds41.language import say
from ds41.preflight.finding import Finding, install, probe, this_python

KERNEL = "python3"
"""The kernel that every notebook of the book names."""


def interface() -> Finding:
    """Whether there is something to open notebooks in."""
    there = [name for name, module in (("JupyterLab", "jupyterlab"), ("Notebook", "notebook")) if find_spec(module)]
    there += ["VS Code"] if shutil.which("code") else []
    found = ", ".join(there) or say("none in this Python, and no VS Code on the path")
    return Finding(
        "interface",
        say("notebook program"),
        "ok" if there else "warn",
        found,
        say("JupyterLab, Notebook, or VS Code with its Jupyter extension"),
        "" if there else install("jupyterlab"),
    )


def kernelspec() -> Finding:
    """Whether the notebooks' kernel is this Python and not another one that happens to be installed."""

    def finding(state, found, mend=""):
        expected = say("the kernel {kernel} is the Python in {prefix}", kernel=KERNEL, prefix=sys.prefix)
        return Finding("kernelspec", say("Jupyter's kernel"), state, found, expected, mend)

    register = f"{this_python()} -m ipykernel install --sys-prefix --name {KERNEL}"
    outcome = probe("kernelspec", KERNEL, seconds=60)
    told = outcome.answer
    if not told:
        return finding("fail", outcome.trouble, register)
    if not _same_folder(told["prefix"], sys.prefix):
        found = say("it is {command}, the Python in {prefix}", command=told["command"], prefix=told["prefix"])
        return finding("fail", found, register)
    return finding("ok", say("it is {command}", command=told["command"]))


def notebook() -> Finding:
    """Whether a kernel starts, computes ``1+1`` and has this ds41."""

    def finding(state, found, mend=""):
        return Finding("notebook", say("a notebook's cell"), state, found,
                       say("1+1 is 2, and ds41 {version} is there", version=__version__), mend)  # fmt: skip

    outcome = probe("notebook", KERNEL, seconds=150)
    told = outcome.answer
    if not told:
        return finding("fail", outcome.trouble, install("--force-reinstall", "ipykernel", "jupyter_client"))
    if told["status"] != "ok" or told["results"] != ["2"]:
        results = ", ".join(told["results"]) or say("nothing")
        found = say("1+1 gave {results}", results=results)
        return finding("fail", found, install("--force-reinstall", "ipykernel", "jupyter_client"))
    version = told["told"].get("version")
    if version != __version__:
        found = say("1+1 is 2; ds41 in the kernel: {version}", version=version)
        return finding("fail", found, say("Install ds41 into the kernel's Python, in {prefix}.",
                                          prefix=told["told"].get("prefix")))  # fmt: skip
    return finding("ok", say("1+1 is 2, ds41 {version}", version=version))


def _same_folder(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)
