"""Encode and decode of the block formats, on the backend that suits the tensors.

Source: ds41's own.
"""

from __future__ import annotations

import torch

from ds41.formats import BlockFormat, Packed, not_finite_error
from ds41.ops.backend import BackendName, choose_backend


def encode(fmt: BlockFormat, x: torch.Tensor, validate: bool = True, backend: BackendName | None = None) -> Packed:
    """Quantise the last dimension of ``x`` [..., C] in blocks; all backends give the same bits.

    Args:
        fmt: MAIN_KV, INDEX_KEY or WINDOW_KV of :mod:`ds41.formats`.
        x: float32, bfloat16 or float16; C a multiple of ``fmt.block``.
        validate: refuse NaN and infinity, for which no code exists; on a GPU this waits for the device.
        backend: "torch" or "triton"; None leaves it to :func:`choose_backend`.

    Raises:
        TypeError, ValueError: an input that ``fmt`` cannot hold; the message says what and where.
    """
    if choose_backend(x.device, backend).name == "torch":
        return fmt.encode(x, validate=validate)
    from ds41.kernels.encode import encode_blocks

    codes, scales, finite = encode_blocks(x, **fmt.layout, check=validate)
    if not finite:
        raise not_finite_error(x)
    return Packed(codes, scales)


def decode(
    fmt: BlockFormat, packed: Packed, dtype: torch.dtype = torch.bfloat16, backend: BackendName | None = None
) -> torch.Tensor:
    """``packed`` bytes -> values [..., C] of ``dtype``, saturated to its finite range; all backends give the same bits.

    Raises:
        TypeError, ValueError: codes and scales that do not belong together, or a type that is none of the three.
    """
    codes, scales = packed
    if choose_backend(codes.device, backend).name == "torch":
        return fmt.decode(packed, dtype=dtype)
    from ds41.kernels.decode import decode_blocks

    return decode_blocks(codes, scales, element=fmt.element, scale=fmt.scale, block=fmt.block, dtype=dtype)
