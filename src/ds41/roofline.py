"""The roofline of a decode step: bytes moved, operations done, and the time that neither lets it beat.

Device figures are the vendor's datasheet values, dense rates.

Source: Williams et al. 2009, "Roofline"; the vendors' datasheets, named with each device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ds41 import weights
from ds41.config import ModelConfig
from ds41.reads import attention_flops, index_macs, kv_bytes_read


@dataclass(frozen=True)
class Device:
    """One accelerator, by its vendor's datasheet.

    memory: bytes, the datasheet's GB read as 10^9 (a careful reading: some parts hold that many GiB).
    bandwidth: bytes per second. half_flops: dense BF16 (FP16 on the T4, which has no BF16) with FP32 accumulation.
    fp8_flops: dense, None where the part has no FP8 units. All FLOP/s count a multiply-add as two.
    """

    name: str
    memory: float
    bandwidth: float
    half_flops: float
    fp8_flops: float | None
    source: str

    @property
    def best_flops(self) -> float:
        """FLOPs a second of the fastest format for quantised weights: FP8 where there are such units, else 16 bits."""
        return self.fp8_flops or self.half_flops


# Datasheets print most of these rates with 2:4 sparsity; the dense rate is half of that.
DEVICES = {
    device.name: device
    for device in (
        Device("T4", 16e9, 320e9, 65e12, None, "NVIDIA T4 datasheet"),
        Device("L4", 24e9, 300e9, 242e12 / 2, 485e12 / 2, "NVIDIA L4 datasheet"),
        Device("A100-80", 80e9, 2.039e12, 312e12, None, "NVIDIA A100 80GB SXM datasheet"),
        Device("H100", 80e9, 3.35e12, 1979e12 / 2, 3958e12 / 2, "NVIDIA H100 SXM datasheet"),
        Device("H200", 141e9, 4.8e12, 1979e12 / 2, 3958e12 / 2, "NVIDIA H200 SXM datasheet"),
        Device("B200", 180e9, 8e12, 4500e12 / 2, 9000e12 / 2, "NVIDIA HGX B200 datasheet"),
    )
}
"""Datasheet rates by the name of the device: memory, bandwidth, dense 16-bit and FP8 FLOPs a second."""

# Names that the CUDA driver reports. Variants with other memory (A100 40GB, H100 PCIe, MIG slices) are not presets.
_DRIVER_NAMES = {
    "Tesla T4": "T4",
    "NVIDIA L4": "L4",
    "NVIDIA A100-SXM4-80GB": "A100-80",
    "NVIDIA H100 80GB HBM3": "H100",
    "NVIDIA H200": "H200",
    "NVIDIA B200": "B200",
}


def datasheet(device_name: str) -> Device | None:
    """The preset for a device by the name that ``torch.cuda.get_device_name`` gives; None if it is not one of them."""
    preset = _DRIVER_NAMES.get(device_name)
    return DEVICES[preset] if preset else None


@dataclass(frozen=True)
class DecodeStep:
    """A lower bound on one decode step: it moves its bytes and does its operations at the devices' full rates.

    Several devices share bytes and operations evenly and exchange nothing, so real steps take longer.
    """

    kv_bytes: float
    weight_bytes: float
    bandwidth_seconds: float
    compute_seconds: float

    @property
    def seconds(self) -> float:
        """The least seconds of the step: the longer of moving and computing, which overlap."""
        return max(self.bandwidth_seconds, self.compute_seconds)

    @property
    def bound(self) -> Literal["bandwidth", "compute"]:
        """Which of the two takes longer."""
        return "bandwidth" if self.bandwidth_seconds >= self.compute_seconds else "compute"

    @property
    def kv_share(self) -> float:
        """KV's part of the bytes: by how many percent a bandwidth-bound step shortens per percent of KV saved."""
        return self.kv_bytes / (self.kv_bytes + self.weight_bytes)


def decode_step(config: ModelConfig, tokens: int, device: Device, *, batch: int = 1, devices: int = 1) -> DecodeStep:
    """The bound for ``batch`` sequences of ``tokens`` tokens each, on ``devices`` devices."""
    every = weights.active(config) + weights.head(config)
    scores = 2 * sum(index_macs(config, tokens).values())
    return step(
        kv_bytes=batch * kv_bytes_read(config, tokens),
        weight_bytes=weights.read_per_step(config, batch),
        low_precision_flops=batch * (2 * every.parameters + scores),
        half_flops=batch * attention_flops(config, tokens),
        device=device,
        devices=devices,
    )


def step(
    *,
    kv_bytes: float,
    weight_bytes: float,
    low_precision_flops: float,
    half_flops: float,
    device: Device,
    devices: int = 1,
) -> DecodeStep:
    """The bound from its parts, for any model.

    low_precision_flops may run on FP8 units where there are any; half_flops run in BF16 or FP16.

    Raises:
        ValueError: ``devices`` below 1.
    """
    if devices < 1:
        raise ValueError(f"devices is {devices}; expected 1 or more")
    compute = low_precision_flops / device.best_flops + half_flops / device.half_flops
    moved = (kv_bytes + weight_bytes) / device.bandwidth
    return DecodeStep(kv_bytes, weight_bytes, moved / devices, compute / devices)
