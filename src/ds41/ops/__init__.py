"""Each hot operation once as plain torch and once as a Triton kernel; one place decides which of the two runs."""

from ds41.ops.backend import Backend, BackendUnavailable, choose_backend
from ds41.ops.block_formats import decode, encode

__all__ = ["Backend", "BackendUnavailable", "choose_backend", "decode", "encode"]
