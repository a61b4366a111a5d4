"""The errors of the cache.

Source: ds41's own.
"""


class CacheError(ValueError):
    """The cache cannot do what it was asked; the message names the thing, its value and what was expected."""


class OutOfPages(CacheError):
    """The pool has fewer free pages than were asked for. Nothing has been allocated."""
