"""What the chapters do, once and small: a Triton kernel on the processor, the shipped model on a prompt.

Source: ds41's own.
"""

from __future__ import annotations

import platform

from ds41.language import say
from ds41.preflight.finding import Finding, install, probe, reinstall

KERNEL_ERROR = 1e-5
"""Largest relative error of a float32 kernel."""
CACHE_ERROR = 1e-3
"""Largest relative difference of the logits with and without a cache: both round to FP4, in other sums."""


def interpreter() -> Finding:
    """Whether Triton's interpreter runs a kernel on the processor, rightly."""
    name, expected = say("Triton on the processor"), say("a kernel runs in Triton's interpreter and is right")
    if platform.system() != "Linux":
        mend = say("Run chapter 12 on Linux, in WSL or on Colab; the other chapters need no triton.")
        found = say("no triton for {system}", system=platform.system())
        return Finding("interpreter", name, "warn", found, expected, mend)
    outcome = probe("kernel", "cpu", seconds=120, environment={"TRITON_INTERPRET": "1"})
    error = outcome.answer.get("error")
    if error is not None and error < KERNEL_ERROR:
        return Finding("interpreter", name, "ok", say("a kernel is right to {error:.0e}", error=error), expected)
    found = outcome.trouble or say("a kernel is wrong by {error:.0e}", error=error)
    return Finding(
        "interpreter", name, "fail", found, expected, install("--force-reinstall", "torch", "triton", "numpy")
    )


def model() -> Finding:
    """Whether the shipped model computes, and says the same with its cache as without."""

    def finding(state, found, mend=""):
        expected = say("finite logits; with a cache the same next token, and logits within {error:g}",
                       error=CACHE_ERROR)  # fmt: skip
        return Finding("model", say("the small model"), state, found, expected, mend)

    mend = reinstall()
    outcome = probe("model", seconds=120)
    told = outcome.answer
    if not told:
        return finding("fail", outcome.trouble, mend)
    if not told["finite"]:
        return finding("fail", say("logits that are not finite"), mend)
    cached, whole = told["next"]
    found = say("{tokens} tokens read; logits differ by {difference:.0e}", tokens=told["tokens"],
                difference=told["difference"])  # fmt: skip
    if cached != whole or not told["difference"] < CACHE_ERROR:
        return finding("fail", say("{found}; next token {cached} with a cache, {whole} without", found=found,
                                   cached=cached, whole=whole), mend)  # fmt: skip
    return finding("ok", say("{found}; the next token is {token} both ways", found=found, token=whole))
