"""The map of the layers with its bytes as one SVG file, for places without scripts such as the README.

Source: ds41's own.
"""

from __future__ import annotations

from html import escape

from ds41.config import LayerPlan, ModelConfig
from ds41.viz.layer_map import MARKS, MODE_MEANINGS, MODE_NAMES, Owner, bytes_per_strip, halves, owners_of
from ds41.viz.palette import css_variables

WIDTH = 760
_MARGIN = 20
_CELL_HEIGHT = 36
_BAR_HEIGHT = 20
_GROUP_GAP = 4
_STRIP_HEIGHT = 132
_HEAD = 104
_LEGEND = 62


def landing_svg(config: ModelConfig | None = None) -> str:
    """The picture for ``config`` (default: the published one). It follows the reader's light or dark setting."""
    config = config or ModelConfig.flash()
    owners = owners_of(config)
    total = sum(owner.total for owner in owners)
    main, index = sum(owner.main for owner in owners), sum(owner.index for owner in owners)
    strips = halves(config)
    height = _HEAD + _STRIP_HEIGHT * len(strips) + _LEGEND
    sum_of_owners = " + ".join(f"{owner.total:g}" for owner in owners)
    headline = f"{total:g} bytes keep one token of context"
    columns = max(len(plans) for _, plans in strips)
    rows = "".join(
        _strip(name, plans, owners, columns, bytes_per_strip(config), _HEAD + i * _STRIP_HEIGHT)
        for i, (name, plans) in enumerate(strips)
    )
    description = (
        f"{len(owners)} of {config.num_hidden_layers} layers own keys: {sum_of_owners} bytes, of which {main:g} are "
        f"main KV and {index:g} index keys. The other layers borrow them or see only a window."
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="t d">\n'
        f'<title id="t">{escape(headline)}</title>\n<desc id="d">{escape(description)}</desc>\n'
        f"<style>{_style()}</style>\n"
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="var(--ds-page)"/>\n'
        f'<text x="{_MARGIN}" y="48" class="head">{escape(headline)}</text>\n'
        f'<text x="{_MARGIN}" y="76" class="soft">{sum_of_owners} = '
        f'<tspan class="main">{main:g} of main KV</tspan> + <tspan class="index">{index:g} of index keys</tspan>, '
        "bars to one scale</text>\n"
        f"{rows}{_legend(config, height - _LEGEND + 20)}</svg>\n"
    )


def _style() -> str:
    return (
        f"svg{{{css_variables('light')}font:15px system-ui,-apple-system,Segoe UI,Roboto,Helvetica,Arial,sans-serif}}"
        f"@media (prefers-color-scheme:dark){{svg{{{css_variables('dark')}}}}}"
        "text{fill:var(--ds-ink)}.head{font-size:26px;font-weight:600}.key text{font-size:14px}"
        ".soft{fill:var(--ds-neutral)}"
        ".bold{font-weight:600}.main{fill:var(--ds-main)}.index{fill:var(--ds-index)}"
        ".cell{fill:var(--ds-page);stroke:var(--ds-neutral)}.mark{color:var(--ds-ink)}"
    )


def _strip(half: str, plans: list[LayerPlan], owners: list[Owner], columns: int, scale: float, top: int) -> str:
    width = (WIDTH - 2 * _MARGIN) / columns
    first = plans[0].index
    cells = bars = ""
    y = top + 20
    for column, plan in enumerate(plans):
        gap = _GROUP_GAP if plan.owns_selection and column else 0
        x = _MARGIN + column * width + gap
        middle = x + (width - gap) / 2
        cells += (
            f'<rect class="cell" x="{x:g}" y="{y}" width="{width - gap:g}" height="{_CELL_HEIGHT}"/>'
            f'<svg class="mark" x="{middle - 9:g}" y="{y + _CELL_HEIGHT / 2 - 9:g}" width="18" height="18" '
            f'viewBox="0 0 16 16">{MARKS[plan.mode]}</svg>'
        )
    y += _CELL_HEIGHT + 6
    for owner in owners:
        if first <= owner.layer <= plans[-1].index:
            gap = _GROUP_GAP if owner.layer > first else 0
            bars += _bar(owner, _MARGIN + (owner.layer - first) * width + gap, y, (WIDTH - 2 * _MARGIN) / scale)
    label = f"{half}, layers {first}–{plans[-1].index}"
    return f'<text x="{_MARGIN}" y="{top + 10}" class="soft">{label}</text>\n{cells}\n{bars}\n'


def _bar(owner: Owner, x: float, y: float, pixels_per_byte: float) -> str:
    main, index = owner.main * pixels_per_byte, owner.index * pixels_per_byte
    return (
        f'<rect class="main" x="{x:.2f}" y="{y:g}" width="{main:.2f}" height="{_BAR_HEIGHT}"/>'
        f'<path class="index" d="{_notched(x + main, y, index)}"/>'
        f'<text x="{x:.2f}" y="{y + _BAR_HEIGHT + 18:g}"><tspan class="bold">{owner.total:g} B</tspan>'
        f'<tspan class="soft" dx="6">layer {owner.layer}</tspan></text>'
    )


def _notched(x: float, y: float, width: float) -> str:
    """The outline of an index key's block: a bar whose upper edge has battlements."""
    teeth = max(1, round(width / 8))
    step = width / (2 * teeth)
    edge = f"M{x:.2f} {y + _BAR_HEIGHT:g}V{y:g}"
    for tooth in range(teeth):
        right = x + (2 * tooth + 1) * step
        edge += f"H{right:.2f}V{y + 5:g}H{right + step:.2f}"
        edge += f"V{y:g}" if tooth < teeth - 1 else f"V{y + _BAR_HEIGHT:g}Z"
    return edge


def _legend(config: ModelConfig, y: float) -> str:
    modes = [mode for mode in MODE_MEANINGS if any(plan.mode == mode for plan in config.layers)]
    parts = ""
    for place, mode in enumerate(modes):
        x, top = _MARGIN + place % 2 * 380, y + place // 2 * 24
        parts += (
            f'<svg class="mark" x="{x}" y="{top - 13:g}" width="16" height="16" viewBox="0 0 16 16">{MARKS[mode]}</svg>'
            f'<text x="{x + 24}" y="{top:g}"><tspan class="bold">{MODE_NAMES[mode]}</tspan>'
            f'<tspan class="soft" dx="6">{MODE_MEANINGS[mode]}</tspan></text>'
        )
    return f'<g class="key">{parts}</g>\n'
