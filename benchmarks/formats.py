"""Encode and decode of the three block formats beside ml_dtypes, torchao and a plain copy.

    python benchmarks/formats.py [--rows 65536] [--channels 512] [--rounds 7] [--device cpu|cuda] [--json FILE]

All candidates take and give bfloat16 and run in turn. "x copy" is the time over that of a plain copy of the
bfloat16 tensor into fresh memory, which is what decode must write at least. "same bytes" is the share of stored
bytes equal to ds41's: torchao rounds its MX scales up as asked (rceil); its NVFP4 multiplies by the
reciprocal of the scale, which moves exact ties to the wrong side.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
import torch
from origin import origin
from rich.console import Console
from rich.table import Table
from timing import in_turn, machine

from ds41 import ops
from ds41.formats import INDEX_KEY, MAIN_KV, WINDOW_KV, BlockFormat, Packed


@dataclass(frozen=True)
class Candidate:
    """One way to do it: encode gives (codes, scales) in its own containers, decode takes them back."""

    name: str
    encode: Callable[[torch.Tensor], tuple]
    decode: Callable[[tuple], object]


def ds41_candidates(block_format: BlockFormat, device: torch.device) -> list[Candidate]:
    backends = ["torch", "triton"] if device.type == "cuda" else ["torch"]
    return [
        Candidate(
            f"ds41 ({backend})",
            lambda x, b=backend: ops.encode(block_format, x, backend=b),
            lambda packed, b=backend: ops.decode(block_format, packed, backend=b),
        )
        for backend in backends
    ]


def ml_dtypes_candidate(block_format: BlockFormat) -> Candidate:
    """The same recipe in numpy with ml_dtypes' number types."""
    element = ml_dtypes.float4_e2m1fn if block_format.element == "e2m1" else ml_dtypes.float8_e4m3fn
    top = np.float32(block_format.element_max)

    def encode(x: torch.Tensor) -> tuple:
        values = x.view(torch.int16).numpy().view(ml_dtypes.bfloat16).astype(np.float32)
        blocks = values.reshape(-1, block_format.block)
        amax = np.maximum(np.abs(blocks).max(axis=1), np.float32(block_format.amax_floor))
        if block_format.scale == "e4m3":
            stored = np.minimum(amax / top, np.float32(448)).astype(ml_dtypes.float8_e4m3fn)
            scales, scale_bytes = stored.astype(np.float32), stored.view(np.uint8)
        else:
            bits = (amax * np.float32(1 / block_format.element_max)).view(np.int32)
            scale_bytes = ((bits >> 23) + ((bits & 0x7FFFFF) != 0)).astype(np.uint8)
            scales = scale_bytes.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
        codes = np.clip(blocks / scales[:, None], -top, top).astype(element).view(np.uint8)
        if block_format.element == "e2m1":
            codes = codes[:, 0::2] | (codes[:, 1::2] << 4)
        return codes.reshape(x.shape[0], -1), scale_bytes.reshape(x.shape[0], -1)

    def decode(packed: tuple) -> np.ndarray:
        codes, scale_bytes = packed
        if block_format.element == "e2m1":
            codes = np.stack((codes & 15, codes >> 4), axis=-1).reshape(codes.shape[0], -1)
        scale_type = ml_dtypes.float8_e4m3fn if block_format.scale == "e4m3" else ml_dtypes.float8_e8m0fnu
        scales = scale_bytes.view(scale_type).astype(np.float32)
        values = codes.view(element).astype(np.float32).reshape(*scales.shape, block_format.block)
        return (values * scales[..., None]).astype(ml_dtypes.bfloat16).reshape(codes.shape[0], -1)

    return Candidate("ml_dtypes", encode, decode)


def torchao_candidate(block_format: BlockFormat) -> Candidate:
    """torchao's own NVFP4 routine for main KV, its MX routines (scale rounded up) for the other two."""
    # torchao announces missing optional extensions at import; they are not what is compared.
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    from torchao.prototype.mx_formats import config, mx_tensor, nvfp4_tensor

    if block_format.scale == "e4m3":
        wrapped = nvfp4_tensor.NVFP4Tensor
        return Candidate(
            "torchao NVFP4",
            lambda x: nvfp4_tensor.nvfp4_quantize(x)[::-1],
            lambda packed: wrapped(packed[0], packed[1], 16, torch.bfloat16).dequantize(torch.bfloat16),
        )
    element = torch.float4_e2m1fn_x2 if block_format.element == "e2m1" else torch.float8_e4m3fn
    round_up = config.ScaleCalculationMode.RCEIL
    return Candidate(
        "torchao MXFP4" if block_format.element == "e2m1" else "torchao MXFP8",
        lambda x: mx_tensor.to_mx(x, element, block_format.block, round_up)[::-1],
        lambda packed: mx_tensor.to_dtype(packed[0], packed[1], element, block_format.block, torch.bfloat16),
    )


def as_bytes(container: object) -> np.ndarray:
    if isinstance(container, torch.Tensor):
        container = container.contiguous().view(torch.uint8).cpu().numpy()
    return np.asarray(container).reshape(-1)


def same_bytes(ours: Packed, theirs: tuple) -> float:
    """Share of equal bytes, codes and scales together."""
    pairs = [(as_bytes(a), as_bytes(b)) for a, b in zip(ours, theirs, strict=True)]
    return sum(int((a == b).sum()) for a, b in pairs) / sum(len(a) for a, _ in pairs)


def compare(x: torch.Tensor, rounds: int) -> list[dict]:
    rows = []
    into = torch.empty_like(x)
    copies = in_turn({"copy": x.clone, "copy into": lambda: into.copy_(x)}, rounds, x.device)
    for name, timing in copies.items():
        rows.append({"format": "", "candidate": f"plain {name}", "decode_ms": timing.best * 1e3, "x_copy": 1.0})
    rows[1]["x_copy"] = rows[1]["decode_ms"] / rows[0]["decode_ms"]
    for block_format in (MAIN_KV, INDEX_KEY, WINDOW_KV):
        candidates = ds41_candidates(block_format, x.device)
        if x.device.type == "cpu":
            candidates.append(ml_dtypes_candidate(block_format))
        candidates.append(torchao_candidate(block_format))
        reference = block_format.encode(x)
        stored = {c.name: c.encode(x) for c in candidates}
        # The copy runs in the same turns, so that the ratio is of one run.
        encode = in_turn({c.name: (lambda c=c: c.encode(x)) for c in candidates}, rounds, x.device)
        decode_calls = {c.name: (lambda c=c, packed=stored[c.name]: c.decode(packed)) for c in candidates}
        decode = in_turn({"copy": x.clone, **decode_calls}, rounds, x.device)
        for candidate in candidates:
            seconds = decode[candidate.name]
            rows.append(
                {
                    "format": block_format.name,
                    "candidate": candidate.name,
                    "encode_ms": encode[candidate.name].best * 1e3,
                    "decode_ms": seconds.best * 1e3,
                    "x_copy": seconds.best / decode["copy"].best,
                    "same_bytes": same_bytes(reference, stored[candidate.name]),
                }
            )
    return rows


def print_table(rows: list[dict], title: str) -> None:
    table = Table(title=title, title_justify="left")
    table.add_column("format")
    table.add_column("candidate")
    for column in ("encode ms", "decode ms", "x copy", "same bytes"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row["format"],
            row["candidate"],
            f"{row['encode_ms']:.1f}" if "encode_ms" in row else "",
            f"{row['decode_ms']:.1f}",
            f"{row['x_copy']:.2f}",
            f"{row['same_bytes']:.2%}" if "same_bytes" in row else "",
        )
    Console(width=110).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=65536)
    parser.add_argument("--channels", type=int, default=512, help="a multiple of 32")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--json", type=Path, help="also write the rows here")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.manual_seed(0)
    x = torch.randn(arguments.rows, arguments.channels).to(device, torch.bfloat16)
    rows = compare(x, arguments.rounds)
    print_table(rows, f"[{arguments.rows}, {arguments.channels}] bfloat16 on {machine(device)}")
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps({**origin(device), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
