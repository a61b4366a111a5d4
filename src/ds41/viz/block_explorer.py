"""One block on its way into storage: scale, codes, what is read back, and where the block clips.

Source: report section 2.4.4; :mod:`ds41.formats`.
"""

from __future__ import annotations

import random
import struct
from html import escape

import torch

from ds41.formats import INDEX_KEY, MAIN_KV, BlockFormat
from ds41.small_floats import e2m1_values
from ds41.viz.bit_explorer import format_data, show
from ds41.viz.diagram import Diagram, choices, table

FORMATS = {"main": MAIN_KV, "index": INDEX_KEY}
_SCALE_NAMES = {"e4m3": "E4M3, nearest", "e8m0": "E8M0, rounded up"}
_LEVELS = sorted({value + 0.0 for value in e2m1_values()})
# The plot reaches a little beyond the largest of what it shows.
_MARGIN = 1.12


def block_explorer(block_format: str = "main", preset: str = "bell") -> Diagram:
    """A block whose values can be changed one by one, beside what the format makes of them.

    Args:
        block_format: "main" (blocks of 16) or "index" (blocks of 32), shown first.
        preset: "bell", "ties", "outlier", "clipping" or "tiny", shown first.

    Raises:
        ValueError: a format or a preset that is none.
    """
    if block_format not in FORMATS:
        raise ValueError(f"block_format is {block_format!r}; expected one of: {', '.join(FORMATS)}")
    chosen = FORMATS[block_format]
    blocks = presets(chosen.block)
    if preset not in blocks:
        raise ValueError(f"preset is {preset!r}; expected one of: {', '.join(blocks)}")
    values = blocks[preset]["samples"][0]
    stored = Stored(chosen, values)
    return Diagram(
        kind="block",
        title="Every value of a block moves to the nearest of fifteen levels, and its largest value sets their spacing",
        body=_body(block_format, preset, values, stored),
        caption=_caption(chosen, values, stored, channel=0),
        table=_table(values, stored),
        table_title="All channels as a table",
        data={
            "formats": {name: format_data(one) for name, one in FORMATS.items()},
            "scaleNames": _SCALE_NAMES,
            "format": block_format,
            "preset": preset,
            "presets": {name: presets(one.block) for name, one in FORMATS.items()},
            "margin": _MARGIN,
        },
        modules=("codec",),
    )


class Stored:
    """What a format makes of one block: numbers for the picture, computed by the library's own encoder."""

    def __init__(self, block_format: BlockFormat, values: list[float]) -> None:
        block = torch.tensor(values, dtype=torch.float32)
        packed = block_format.encode(block)
        self.amax = block.abs().max().item()
        self.scale_byte = int(packed.scales[0])
        self.scale = block_format.scale_values(packed.scales)[0].item()
        nibbles = torch.stack((packed.codes & 15, packed.codes >> 4), dim=-1)
        self.codes = nibbles.flatten().tolist()
        self.values = block_format.decode(packed, torch.float32).tolist()
        self.clips = bool(block_format.clipped_blocks(block)[0])
        # Shown on the way to the scale; the encoder floors and rounds it.
        self.target = (block.abs().max() / block_format.element_max).item()
        self.top = block_format.element_max * self.scale


def presets(block: int) -> dict[str, dict]:
    """Blocks worth looking at, each a name and samples of ``block`` float32 values."""

    def bell(seed: int, deviation: float = 1.0) -> list[float]:
        generator = random.Random(seed)
        return [_float32(generator.gauss(0, deviation)) for _ in range(block)]

    ties = [6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, -0.25, -0.75, -1.25, -1.75, -2.5, -3.5, -5, -6]
    outlier = bell(5, 0.35)
    outlier[block // 2] = 9.0
    # 17/16 lies halfway between two E4M3 scales and goes down to the even one: the worst that rounding can do.
    clipping = [_float32(x / max(map(abs, bell(8))) * 6.375) for x in bell(8)]
    return {
        "bell": {"name": "Bell curve", "samples": [bell(seed) for seed in range(1, 7)]},
        "ties": {"name": "Ties", "samples": [[float(x) for x in ties] * (block // 16)]},
        "outlier": {"name": "One outlier", "samples": [outlier]},
        "clipping": {"name": "Clipping", "samples": [clipping]},
        "tiny": {"name": "Tiny values", "samples": [bell(3, 0.004)]},
    }


def _float32(x: float) -> float:
    return struct.unpack("f", struct.pack("f", round(x, 3 if abs(x) > 0.05 else 5)))[0]


def _body(name: str, preset: str, values: list[float], stored: Stored) -> str:
    formats = [("main", "Main KV", "E2M1, E4M3 per 16"), ("index", "Index key", "E2M1, E8M0 per 32")]
    blocks = presets(FORMATS[name].block)
    samples = [(key, one["name"], "") for key, one in blocks.items()]
    reach = f"{_MARGIN * max(stored.amax, stored.top):.6g}"
    return (
        f'<div class="ds-steps"><dl>{_steps(FORMATS[name], stored)}</dl></div>'
        f'<div class="ds-plot">{_plot(values, stored)}</div>'
        '<p class="ds-key" aria-hidden="true"><span><i class="ds-given"></i>value</span>'
        '<span><i class="ds-read"></i>read back</span><span><i class="ds-levels"></i>levels</span></p>'
        '<form class="ds-controls">'
        + choices("format", "Stored as", formats, name)
        + choices("preset", "Block", samples, preset)
        # The columns are narrow on a phone; the slider is as wide as the figure.
        + '<label class="ds-field"><span>Channel</span>'
        f'<input type="range" name="channel" min="0" max="{len(values) - 1}" value="0"></label>'
        '<label class="ds-field"><span data-out="which">Value of channel 0</span>'
        f'<input type="range" name="slider" min="-{reach}" max="{reach}" step="any" value="{values[0]:.6g}"></label>'
        '<label class="ds-field"><span>Value, exactly</span>'
        f'<input type="number" name="value" step="any" value="{values[0]:.6g}"></label>'
        '<div class="ds-act"><button type="button" class="ds-button" data-act="sample">Another sample</button></div>'
        "</form>"
    )


def _steps(chosen: BlockFormat, stored: Stored) -> str:
    steps = (
        ("largest value", show(stored.amax)),
        ("÷ 6", show(stored.target)),
        (f"scale, {_SCALE_NAMES[chosen.scale]}", f"{show(stored.scale, 6)} <small>0x{stored.scale_byte:02X}</small>"),
        ("largest level, 6 × scale", show(stored.top)),
    )
    return "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in steps)


def _plot(values: list[float], stored: Stored) -> str:
    limit = _MARGIN * max(stored.amax, stored.top)

    def at(value: float) -> str:
        return f"{50 + 50 * value / limit:.3f}%"

    levels = "".join(f'<i class="ds-level" style="bottom:{at(level * stored.scale)}"></i>' for level in _LEVELS)
    labels = "".join(
        f'<span class="ds-level-name" style="bottom:{at(level * stored.scale)}">{show(level * stored.scale, 3)}</span>'
        for level in (-6, -3, 0, 3, 6)
    )
    columns = ""
    for channel, (x, read, code) in enumerate(zip(values, stored.values, stored.codes, strict=True)):
        low, high = sorted((x, read))
        clipped = abs(x) > stored.top
        # The stem is the error.
        columns += (
            f'<button type="button" class="ds-channel" data-channel="{channel}" '
            f'aria-pressed="{"true" if channel == 0 else "false"}" tabindex="{0 if channel == 0 else -1}" '
            f'aria-label="{escape(_spoken(channel, x, read, code))}">'
            f'<i class="ds-stem" style="bottom:{at(low)};height:{50 * (high - low) / limit:.3f}%"></i>'
            f'<i class="ds-given{" ds-clipped" if clipped else ""}" style="bottom:{at(x)}"></i>'
            f'<i class="ds-read" style="bottom:{at(read)}"></i></button>'
        )
    return (
        f'<div class="ds-axis">{labels}</div><div class="ds-columns" role="group" aria-label="Channels">'
        f"{levels}{columns}</div>"
    )


def _spoken(channel: int, x: float, read: float, code: int) -> str:
    return f"Channel {channel}: {show(x)}, code {code:04b}, read back {show(read)}"


def _caption(chosen: BlockFormat, values: list[float], stored: Stored, channel: int) -> str:
    x, read, code = values[channel], stored.values[channel], stored.codes[channel]
    quotient = (torch.tensor(x) / stored.scale).item()
    miss = "exact" if read == x else f"{show(abs(read - x), 2)} off"
    text = (
        f"<b>Channel {channel}</b>: {show(x)} ÷ {show(stored.scale, 6)} = {show(quotient)}, nearest level "
        f"{show(e2m1_values()[code])}, code <code>{code:04b}</code>; read back as <b>{show(read)}</b>, {miss}."
    )
    if stored.clips:
        loss = 100 * (1 - stored.top / stored.amax)
        why = "the scale was rounded down" if stored.top < 2688 else "no scale is larger"
        return f"{text} <b>This block clips</b>: {why}, and its largest value loses {loss:.1f} %."
    return text


def _table(values: list[float], stored: Stored) -> str:
    rows = [
        (channel, show(x), f"{code:04b}", show(read), show(read - x, 2))
        for channel, (x, read, code) in enumerate(zip(values, stored.values, stored.codes, strict=True))
    ]
    return table(("channel", "value", "code", "read back", "error"), rows, numeric=(1, 2, 3, 4))
