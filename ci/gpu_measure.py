"""What the GPU check measures: formats beside a copy, kernels beside their floors and torch, launches, a graph."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpu_check import Check

# The largest relative difference between a kernel and the float32 reference, in 16-bit types and in float32.
TOLERANCE = {"half": 2e-2, "float32": 1e-4}
_ROWS, _CHANNELS = 65536, 512


@dataclass(frozen=True)
class FormatRow:
    """One kernel on one input type. Times are medians; of_copy is its bytes a second over those of a copy."""

    kernel: str
    dtype: str
    differing_bytes: int
    milliseconds: float | None
    gigabytes_per_second: float | None
    of_copy: float | None


class Measurements:
    """Each method is one part; it gives what goes into the report and adds its lines and problems to the check."""

    def __init__(self, check: Check) -> None:
        import torch

        self.check, self.rehearsal = check, check.options.rehearse
        self.device = torch.device("cpu" if self.rehearsal else "cuda")
        self.dtype = torch.float32
        if not self.rehearsal:
            self.dtype = torch.bfloat16 if torch.cuda.get_device_capability() >= (8, 0) else torch.float16

    def formats(self) -> list[dict]:
        """Encode and decode of each format for each input type: the same bytes as the reference, and how fast."""
        import torch

        from ds41 import ops
        from ds41.formats import INDEX_KEY, MAIN_KV, WINDOW_KV

        rows = []
        self.check.say(f"{'format':<24}{'type':<10}{'differing bytes':>16}{'ms':>9}{'GB/s':>9}{'of copy':>9}")
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            x = inputs(8 if self.rehearsal else _ROWS, _CHANNELS, dtype, self.device)
            copy = self._rate(2 * x.nbytes, x.clone)
            for block_format in (MAIN_KV, INDEX_KEY, WINDOW_KV):
                differences = compare(block_format, x)
                packed = ops.encode(block_format, x, backend="triton")
                operations = {
                    # Checking the input for NaN waits for the device, so it is left out of the time.
                    "encode": lambda f=block_format, x=x: ops.encode(f, x, validate=False, backend="triton"),
                    "decode": lambda f=block_format, p=packed, d=dtype: ops.decode(f, p, dtype=d, backend="triton"),
                }
                for (operation, function), differing in zip(operations.items(), differences, strict=True):
                    rate = self._rate(x.nbytes + packed.nbytes, function)
                    row = FormatRow(
                        f"{operation} {block_format.name}",
                        str(dtype).removeprefix("torch."),
                        differing,
                        None if rate is None else (x.nbytes + packed.nbytes) / rate / 1e6,
                        rate,
                        None if rate is None else rate / copy,
                    )
                    rows.append(row)
                    self.check.say(
                        f"{row.kernel:<24}{row.dtype:<10}{row.differing_bytes:>16,}{_number(row.milliseconds, 9, 3)}"
                        f"{_number(row.gigabytes_per_second, 9, 0)}{_number(row.of_copy, 9, 2)}"
                    )
                    if differing:
                        self.check.problems.append(f"{row.kernel}, {row.dtype}: {differing:,} bytes differ")
        return [asdict(row) for row in rows]

    def kernels(self) -> dict:
        """Every kernel of a decode step: its difference from the reference, its time beside its floor and torch's.

        The step's tokens, sequences and type go into the report as its shape.
        """
        import torch
        from kernel_cases import cases, differences

        from ds41 import ModelConfig
        from ds41.kernel_floors import kernel_floors

        limit = TOLERANCE["float32" if self.dtype == torch.float32 else "half"]
        if self.rehearsal:
            config, tokens, batch = replace(ModelConfig.nano(), hc_sinkhorn_iters=2), 200, 2
            with torch.no_grad():
                found = {c.name: differences(c) for c in cases(config, tokens, batch, self.device, self.dtype)}
            rows = [{"kernel": name, "difference": difference} for name, difference in found.items()]
        else:
            from kernels import measure

            # 128K tokens of 64 sequences are 7.5 GB of pages; a smaller device gets fewer sequences.
            batch = 64 if torch.cuda.get_device_properties(0).total_memory > 60e9 else 8
            config, tokens = ModelConfig.flash(), 131072
            rows = [asdict(row) for row in measure(config, tokens, batch, self.device, self.dtype)]
        dtype = str(self.dtype).removeprefix("torch.")
        self.check.report["shape"] = {"tokens": tokens, "sequences": batch, "dtype": dtype}
        expected = {floor.name for floor in kernel_floors(config, 131072)}
        for name in sorted(expected - {row["kernel"] for row in rows}):
            self.check.leave_out(name, "its tensors do not fit the device")
        if not rows:
            self.check.problems.append("kernels: not one fits the device")
        self.check.say(f"{'kernel':<30}{'difference':>11}{'ms':>10}{'of floor':>9}{'torch, ms':>11}")
        for row in rows:
            self.check.say(
                f"{row['kernel']:<30}{row['difference']:>11.1e}{_number(row.get('milliseconds'), 10, 4)}"
                f"{_number(row.get('of_floor'), 9, 2)}{_number(row.get('torch_milliseconds'), 11, 3)}"
            )
            if not row["difference"] <= limit:
                self.check.problems.append(
                    f"{row['kernel']} differs from the reference by {row['difference']:.1e}; the limit is {limit}"
                )
        return rows

    def launches(self) -> list[dict]:
        """Launches of a layer of each mode, in prefill and decode."""
        import gpu_layers

        rows = gpu_layers.launches_by_layer(gpu_layers.small_config(), self.device, self.dtype)
        self.check.say(f"{'layer mode':<22}{'phase':<10}{'kernels':>8}{'torch':>7}{'seen on the device':>20}")
        for row in rows:
            seen = "-" if row.device is None else row.device
            self.check.say(f"{row.mode:<22}{row.phase:<10}{row.kernels:>8}{row.torch:>7}{seen:>20}")
        return [asdict(row) for row in rows]

    def graph(self) -> dict | None:
        """A decode step of a Reuse layer of the published sizes, captured and replayed."""
        import gpu_layers

        if self.rehearsal:
            return self.check.leave_out("a layer as a CUDA graph", "there is no CUDA device")
        times = gpu_layers.layer_as_graph(gpu_layers.wide_config(), self.device, self.dtype)
        self.check.say(
            f"Reuse layer, one token: {times.eager_milliseconds:.3f} ms, as a CUDA graph "
            f"{times.graph_milliseconds:.3f} ms, same bits: {times.same}"
        )
        if not times.same:
            self.check.problems.append("the replayed graph of a Reuse layer gives other bits than the layer itself")
        return asdict(times)

    def _rate(self, nbytes: int, function) -> float | None:
        """GB/s; None in a rehearsal, where a time means nothing."""
        if self.rehearsal:
            return None
        from triton.testing import do_bench

        return nbytes / do_bench(function, warmup=50, rep=200, return_mode="median") / 1e6


def inputs(rows: int, channels: int, dtype, device):
    """Values whose rows differ in magnitude (2^-12 to 2^12), zeros of both signs among them: [rows, channels]."""
    import torch

    generator = torch.Generator().manual_seed(41)
    magnitude = torch.exp2(torch.randint(-12, 13, (rows, 1), generator=generator))
    x = torch.randn(rows, channels, generator=generator) * magnitude
    x[:, 3::29] = 0.0
    x[:, 5::31] = -0.0
    return x.to(dtype).to(device)


def differing_bytes(one, other) -> int:
    """How many bytes of two tensors of one shape and type differ, on whatever devices they lie."""
    import torch

    pair = [tensor.cpu().contiguous().view(torch.uint8) for tensor in (one, other)]
    return int((pair[0] != pair[1]).sum())


def compare(block_format, x) -> tuple[int, int]:
    """Bytes in which encode and decode of the kernels differ from the torch reference, run on the CPU."""
    from ds41 import ops

    packed = ops.encode(block_format, x, backend="triton")
    expected = block_format.encode(x.cpu())
    encoded = sum(differing_bytes(got, wanted) for got, wanted in zip(packed, expected, strict=True))
    values = ops.decode(block_format, packed, dtype=x.dtype, backend="triton")
    return encoded, differing_bytes(values, block_format.decode(expected, dtype=x.dtype))


def _number(value: float | None, width: int, digits: int) -> str:
    return f"{'-' if value is None else format(value, f',.{digits}f'):>{width}}"
