"""Explorers that compute in the running kernel. The result stands on the page first; sliders come on top of it.

Source: ds41's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from ds41.formats import INDEX_KEY, MAIN_KV, WINDOW_KV, BlockFormat
from ds41.viz.bit_explorer import show
from ds41.viz.diagram import Diagram, table
from ds41.viz.live_schedule import Schedule, ScheduleLedger, explore_schedule, plan_schedule
from ds41.viz.live_selection import example_text, explore_selection, select_entries
from ds41.viz.live_selection_picture import LayerChoice, SelectionReport
from ds41.viz.live_widgets import explore

__all__ = [
    "FormatReport",
    "LayerChoice",
    "Schedule",
    "ScheduleLedger",
    "SelectionReport",
    "example_text",
    "explore_format",
    "explore_schedule",
    "explore_selection",
    "measure_format",
    "plan_schedule",
    "select_entries",
]

_FORMATS = {one.name: one for one in (MAIN_KV, INDEX_KEY, WINDOW_KV)}


@dataclass(frozen=True)
class FormatReport:
    """What one format did to Gaussian rows of one deviation.

    relative_error: root mean square of the error over that of the values. clipped: share of blocks that clip.
    zeroed: share of values that read back as zero. floored: share of blocks whose scale is the smallest there is.
    """

    block_format: BlockFormat
    deviation: float
    rows: int
    channels: int
    relative_error: float
    clipped: float
    zeroed: float
    floored: float

    def diagram(self) -> Diagram:
        """The report as a figure with a table."""
        name = self.block_format.name
        rows = [
            ("error, relative RMS", f"{100 * self.relative_error:.2f} %"),
            ("blocks that clip", f"{100 * self.clipped:.1f} %"),
            ("values read back as zero", f"{100 * self.zeroed:.1f} %"),
            ("blocks at the smallest scale", f"{100 * self.floored:.1f} %"),
            ("bytes of a row", f"{self.block_format.bytes_per_row(self.channels):,}"),
        ]
        return Diagram(
            kind="report",
            title=f"{name[0].upper()}{name[1:]} stores values of deviation {show(self.deviation)} with "
            f"{100 * self.relative_error:.1f} % error",
            body=table(("measured", name), rows, numeric=(1,)),
            caption=f"{self.rows:,} Gaussian rows of {self.channels} channels.",
        )

    def _repr_html_(self) -> str:
        return self.diagram()._repr_html_()


def measure_format(
    block_format: BlockFormat, deviation: float = 1.0, rows: int = 512, channels: int = 512, seed: int = 0
) -> FormatReport:
    """Encode and decode ``rows`` Gaussian rows and measure what is lost.

    Raises:
        ValueError: ``deviation`` is not above zero.
    """
    if deviation <= 0:
        raise ValueError(f"deviation is {deviation}; expected a number above zero")
    values = torch.randn(rows, channels, generator=torch.Generator().manual_seed(seed)) * deviation
    packed = block_format.encode(values)
    read = block_format.decode(packed, torch.float32)
    zero = block_format.encode(torch.zeros(block_format.block)).scales
    return FormatReport(
        block_format=block_format,
        deviation=deviation,
        rows=rows,
        channels=channels,
        relative_error=((read - values).square().mean() / values.square().mean()).sqrt().item(),
        clipped=block_format.clipped_blocks(values).float().mean().item(),
        zeroed=(read == 0).float().mean().item(),
        floored=(packed.scales == zero).float().mean().item(),
    )


def explore_format(block_format: BlockFormat = MAIN_KV, deviation: float = 1.0) -> None:
    """Show :func:`measure_format`, and under it sliders that measure again.

    Works with ipywidgets 7 and 8; without ipywidgets the first result stands alone.
    """
    style = {"description_width": "5rem"}

    def controls(widgets: ModuleType) -> dict[str, dict[str, Any]]:
        return {
            "": {
                "name": widgets.Dropdown(
                    options=list(_FORMATS), value=block_format.name, description="format", style=style
                ),
                "power": widgets.FloatSlider(
                    value=0.0,
                    min=-4.0,
                    max=4.0,
                    step=0.25,
                    description="10 to the",
                    continuous_update=False,
                    style=style,
                ),
                "seed": widgets.IntSlider(
                    value=0, min=0, max=20, description="seed", continuous_update=False, style=style
                ),
            }
        }

    explore(
        measure_format(block_format, deviation),
        controls,
        lambda name, power, seed: measure_format(_FORMATS[name], deviation * 10**power, seed=seed).diagram(),
        prompt="Choose a format or move a slider: what is lost then will stand here.",
        reset="Back to the first measurement",
        refused="This cannot be measured",
    )
