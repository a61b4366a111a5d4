"""Sizes as they are written on the command line: 64K tokens, 2G bytes."""

from __future__ import annotations

import argparse
import re

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parse_bytes(text: str) -> int:
    """A size such as 500M or 2G, in powers of 1024, not zero; for argparse."""
    found = _number(text.strip(), r"([KMGT]?)(?:i?B)?")
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; expected for example 500M or 2G")
    return found


def parse_tokens(text: str) -> int:
    """A number of tokens such as 4096, 65,536 or 64K, not zero; for argparse."""
    found = _number(_plain(text), "([KM]?)")
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of tokens; expected for example 4096 or 64K")
    return found


def parse_length(text: str) -> int:
    """The length of a context such as 4096, 65,536, 64K or 1M, perhaps zero; for argparse."""
    found = _number(_plain(text), "([KM]?)")
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a context length; expected for example 4096, 64K or 1M")
    return found


def _plain(text: str) -> str:
    """Digits without what groups them."""
    return text.strip().replace("_", "").replace(",", "")


def _number(text: str, unit: str) -> int | None:
    """Digits times their unit, or None; unit: the pattern of what follows the digits."""
    match = re.fullmatch(rf"(\d{{1,15}}){unit}", text, re.ASCII | re.IGNORECASE)
    return None if match is None else int(match[1]) * _UNITS[match[2].upper()]
