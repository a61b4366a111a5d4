"""The kernels as torch operators, ``torch.ops.ds41.<name>``: eager calls, torch.compile and CUDA graphs take them.

An operator has the signature of the wrapper of its name in :mod:`ds41.kernels`. Registering imports Triton, so it
happens at the first use and not with the package.

Source: ds41's own; ``torch.library`` for registration.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

import torch

Shapes = Callable[..., "torch.Tensor | tuple[torch.Tensor, ...] | None"]


@dataclass(frozen=True)
class Operator:
    """wrapper: the file of ``kernels`` that has it, or the function itself. shapes: the results without their values,
    for tracing. mutates: the arguments that it writes to."""

    wrapper: str | Callable
    shapes: Shapes
    mutates: tuple[str, ...] = ()


def _nothing(*arguments, **named) -> None:
    return None


def _encode(
    x: torch.Tensor, element: str, scale: str, block: int, amax_floor: float
) -> tuple[torch.Tensor, torch.Tensor]:
    from ds41.kernels.encode import encode_blocks

    layout = {"element": element, "scale": scale, "block": block, "amax_floor": amax_floor}
    codes, scales, _ = encode_blocks(x, **layout, check=False)
    return codes, scales


def _decode(
    codes: torch.Tensor, scales: torch.Tensor, element: str, scale: str, block: int, dtype: torch.dtype
) -> torch.Tensor:
    from ds41.kernels.decode import decode_blocks

    return decode_blocks(codes, scales, element=element, scale=scale, block=block, dtype=dtype)


def _encoded(x, element, scale, block, amax_floor):
    bits = 4 if element == "e2m1" else 8
    leading, channels = x.shape[:-1], x.shape[-1]
    codes = x.new_empty((*leading, channels * bits // 8), dtype=torch.uint8)
    return codes, x.new_empty((*leading, channels // block), dtype=torch.uint8)


def _decoded(codes, scales, element, scale, block, dtype):
    bits = 4 if element == "e2m1" else 8
    return codes.new_empty((*codes.shape[:-1], codes.shape[-1] * 8 // bits), dtype=dtype)


def _rows_like(x, *rest, **named):
    return x.new_empty(x.shape)


def _attended(query, *rest, **named):
    return query.new_empty(query.shape)


def _scores(query_codes, query_scales, weight, key_codes, key_scales, page_table, sequence, visible, entries,
            one_sequence=False):  # fmt: skip
    return weight.new_empty(weight.shape[0], entries)


def _pool_scores(query_codes, query_scales, weight, key_codes, key_scales, page_table, sequence, visible, candidates,
                 block):  # fmt: skip
    return weight.new_empty(weight.shape[0], candidates.shape[1] * block)


def _top(scores, count):
    return scores.new_empty((scores.shape[0], min(count, scores.shape[1])), dtype=torch.int64)


def _blocks(scores, visible, block, budget):
    return scores.new_empty((scores.shape[0], min(budget, -(-scores.shape[1] // block))), dtype=torch.int64)


def _routed(logits, bias, bias_vl, image_mask, top_k, renormalize, scaling):
    shape = (logits.shape[0], top_k)
    return logits.new_empty(shape, dtype=torch.int64), logits.new_empty(shape)


def _summed(
    x, indices, weights, w1_codes, w1_scales, w3_codes, w3_scales, w2_codes, w2_scales, limit, round_inputs, shared=None
):
    return x.new_empty(x.shape, dtype=torch.float32 if shared is None else shared.dtype)


def _site(streams, y, post, comb, pre, *rest, **named):
    rows, n, width = streams.shape
    coefficients = (pre.new_empty(rows, n), pre.new_empty(rows, n), pre.new_empty(rows, n, n))
    return streams.new_empty(rows, width), streams.new_empty(streams.shape), *coefficients


def _collapsed(streams, *rest, **named):
    return streams.new_empty(streams.shape[0], streams.shape[2])


def _hashed(windows, multipliers, primes, offsets, pad_id):
    return windows.new_empty(offsets.shape[0], windows.shape[0], offsets.shape[1])


def _looked_up(codes, scales, row_ids, dtype=torch.bfloat16):
    return codes.new_empty((row_ids.shape[0], row_ids.shape[1] * codes.shape[1]), dtype=dtype)


OPERATORS = {
    "encode_blocks": Operator(_encode, _encoded),
    "decode_blocks": Operator(_decode, _decoded),
    "rms_norm_rows": Operator("norm", _rows_like),
    "swiglu_rows": Operator("swiglu", _rows_like),
    "write_rows": Operator("cache_write", _nothing, ("codes", "scales", "latent")),
    "write_pooled": Operator("pooled_write", _nothing, ("codes", "scales", "latent")),
    "sparse_attention_packed": Operator("sparse_attention", _attended),
    "index_scores_packed": Operator("index_scores", _scores),
    "index_scores_of_pool_packed": Operator("index_scores", _pool_scores),
    "select_top": Operator("selection", _top),
    "select_blocks": Operator("selection", _blocks),
    "hyper_connection_site": Operator("hyper_connections", _site),
    "hyper_collapse": Operator("hyper_connections", _collapsed),
    "hash_rows": Operator("engram", _hashed),
    "engram_rows": Operator("engram", _looked_up),
    "engram_write": Operator("engram_write", _rows_like),
    "route_tokens": Operator("router", _routed),
    "experts_packed": Operator("grouped_experts", _summed),
}
"""What is registered with torch: name, wrapper, shapes of results, arguments written to."""


class _Operators:
    """``torch.ops.ds41``, where an operator is registered when it is first asked for."""

    def __getattr__(self, name: str):
        if name not in OPERATORS:
            raise AttributeError(f"there is no operator {name!r}; there are {', '.join(OPERATORS)}")
        operator = OPERATORS[name]
        wrapper = operator.wrapper
        if isinstance(wrapper, str):
            wrapper = getattr(import_module(f"ds41.kernels.{wrapper}"), name)
        registered = torch.library.custom_op(f"ds41::{name}", wrapper, mutates_args=operator.mutates)
        registered.register_fake(operator.shapes)
        found = getattr(torch.ops.ds41, name)
        setattr(self, name, found)
        return found


operators = _Operators()
"""The operators as attributes; one is registered when it is first asked for."""
