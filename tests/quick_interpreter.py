"""Triton's interpreter without work that it repeats: it spent more than half of its time on the two things below.

What a kernel computes stays the same: every function that runs is Triton's own.
"""

from __future__ import annotations

import inspect
from functools import lru_cache

import triton.language as tl
from triton.runtime import interpreter

PLAIN = {name: getattr(interpreter, name) for name in ("_patch_lang", "_patch_builtin", "_get_np_dtype")}


def install() -> None:
    """Replace what is slow in this process; kernels that were launched before are served as well."""
    interpreter._patch_lang = _patch_lang
    interpreter._patch_builtin = _patch_builtin
    interpreter._get_np_dtype = _get_np_dtype


def uninstall() -> None:
    """Put Triton's own functions back."""
    for name, function in PLAIN.items():
        setattr(interpreter, name, function)


def _patch_lang(fn):
    """Triton patches its language at every call from one device function to another; the launch has done so before."""
    languages = [value for value in fn.__globals__.values() if value is tl or value is tl.core]
    patched = not any(tl.core.is_builtin(language.load) for language in languages)
    if languages and patched and not tl.core.is_builtin(tl.tensor.__add__):
        return interpreter._LangPatchScope()
    return PLAIN["_patch_lang"](fn)


def _patch_builtin(package, builder, scope) -> None:
    """Triton sorts and tests every member of a package at every launch; which ones are its builtins never changes."""
    for name in _builtin_names(package):
        member = getattr(package, name)
        if tl.core.is_builtin(member):
            interpreter._patch_attr(package, name, member, builder, scope)


@lru_cache
def _builtin_names(package) -> tuple[str, ...]:
    return tuple(name for name, member in inspect.getmembers(package) if tl.core.is_builtin(member))


def _get_np_dtype(dtype):
    """Triton builds the table of all types for every look-up."""
    element = dtype.element_ty if isinstance(dtype, tl.block_type) else dtype
    return PLAIN["_get_np_dtype"](element) if isinstance(element, tl.pointer_type) else _np_dtype_of_scalar(element)


@lru_cache
def _np_dtype_of_scalar(dtype):
    return PLAIN["_get_np_dtype"](dtype)
