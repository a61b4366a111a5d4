"""The handout as one HTML page: the ledger's sum, its layers and records, tables, and a ledger to fill in."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

import workshop_handout_numbers as numbers
import workshop_handout_pictures as pictures
from workshop_handout_numbers import number

from ds41 import ledger, weights
from ds41.candidates import candidates
from ds41.config import ModelConfig
from ds41.language import current, say
from ds41.viz.palette import css_variables

# Nothing is smaller than 9 pt; the page is read on paper, so there is no dark form of it.
_STYLE = """
@page { size: A4; margin: 0 }
* { box-sizing: border-box }
html { background: #fff }
body { margin: 0 auto; width: 210mm; height: 297mm; padding: 9mm 10mm 8mm; display: flex; flex-direction: column;
  gap: 5.5px; overflow: hidden; font: 9pt/1.26 "DejaVu Sans Condensed", system-ui, "Helvetica Neue", Arial, sans-serif;
  color: var(--ds-ink); font-variant-numeric: tabular-nums; print-color-adjust: exact;
  -webkit-print-color-adjust: exact }
h1 { font-size: 17pt; line-height: 1.15; margin: 0; white-space: nowrap }
header p { text-align: right }
h2 { font-size: 10pt; line-height: 1.2; margin: 0 0 3px; padding-top: 3px; border-top: 1.5px solid var(--ds-ink) }
p { margin: 0 }
header { display: flex; justify-content: space-between; align-items: end; gap: 8mm }
svg { display: block; overflow: visible }
svg text { font-size: 9pt; fill: var(--ds-ink) }
svg text.soft { fill: var(--ds-neutral) }
.bold, b { font-weight: 700 }
.main { fill: var(--ds-main) } .index { fill: var(--ds-index) }
.hollow { fill: #fff; stroke-width: 1.5 }
.main-line { stroke: var(--ds-main) } .index-line { stroke: var(--ds-index) } .window-line { stroke: var(--ds-window) }
.neutral-line { stroke: var(--ds-neutral); stroke-width: 1 }
.sum { font-size: 10.5pt; line-height: 1.35; margin-bottom: 3px }
.legend { display: grid; grid-template-columns: 1fr 1fr; gap: 0 8mm; list-style: none; margin: 2px 0 0; padding: 0 }
.legend svg { display: inline-block; vertical-align: -2px }
.columns { display: grid; grid-template-columns: 1fr 1fr; gap: 0 8mm }
table { border-collapse: collapse; width: 100% }
th, td { padding: 0.5px 0; text-align: left; font-weight: 400; vertical-align: baseline }
thead th { color: var(--ds-neutral) }
.number { text-align: right; padding-left: 3mm; white-space: nowrap }
.five th { white-space: nowrap; padding-right: 4mm }
tr.last > * { font-weight: 700; border-top: 1px solid var(--ds-ink) }
.blank :is(th, td) { vertical-align: middle }
.blank :is(.published, .open) td { border: 1px solid var(--ds-neutral); height: 20px }
.blank thead th { text-align: center } .blank .published td { text-align: center; height: auto }
.notes { flex: 1; display: flex; flex-direction: column; min-height: 40px }
.notes i { flex: 1; border-bottom: 1px solid var(--ds-grid) }
footer { color: var(--ds-neutral); text-align: center; transform: rotate(180deg) }
@media screen { html { background: var(--ds-grid) } body { background: #fff } }
"""


def page(config: ModelConfig, source: str) -> str:
    """The whole page for ``config``; ``source`` is where the reader finds the book.

    Raises:
        ValueError: a configuration with other sources than the page speaks of.
    """
    title = say("{bytes} bytes of context a token", bytes=number(ledger.bytes_per_token(config)))
    subtitle = say("DeepSeek-V4.1-Flash on one page")
    parts = (
        f"<header><h1>{escape(title)}</h1><p>{escape(subtitle)}<br>{escape(source)}</p></header>",
        _section(say("The sum"), _sum(config)),
        _section(say("Who owns keys, and who borrows them"), pictures.layers(config) + pictures.legend(config)),
        _section(say("What is stored"), pictures.records(config)),
        _columns(
            _section(say("Tokens and bytes of one sequence"), _tokens(config)),
            _section(say("What {bytes} leaves out", bytes=_per_token(config)), _left_out(config)),
        ),
        _columns(
            _section(say("What the source article's {bytes} misses", bytes=_candidate(config)), _misses(config)),
            _section(say("Bytes a token elsewhere"), _elsewhere(config)),
        ),
        _section(say("Five numbers to know"), _five(config)),
        _section(say("Your ledger: fill it in"), _blank(config)),
        f'<section class="notes"><h2>{escape(say("Your notes"))}</h2><i></i><i></i><i></i></section>',
        _answers(config),
    )
    return (
        f'<!doctype html>\n<html lang="{current()}"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<style>html{{{css_variables('light')}}}{_STYLE}</style></head>\n<body>\n{chr(10).join(parts)}\n</body></html>\n"
    )


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>"


def _columns(*sections: str) -> str:
    return f'<div class="columns">{"".join(sections)}</div>'


def _table(header: Iterable[str], rows: Iterable[Iterable[str]], last: bool = False) -> str:
    """Names left, numbers right; ``last`` marks the last row as the sum."""
    head = "".join(
        f'<th scope="col"{_right(i)}>{escape(cell)}</th>' if cell else "<td></td>" for i, cell in enumerate(header)
    )
    lines, body = [list(row) for row in rows], ""
    for place, row in enumerate(lines):
        cells = "".join(f"<td{_right(i)}>{escape(cell)}</td>" for i, cell in enumerate(row) if i)
        sums = ' class="last"' if last and place == len(lines) - 1 else ""
        body += f'<tr{sums}><th scope="row">{escape(row[0])}</th>{cells}</tr>'
    return f"<table>{f'<thead><tr>{head}</tr></thead>' if head else ''}<tbody>{body}</tbody></table>"


def _right(column: int) -> str:
    return ' class="number"' if column else ""


def _per_token(config: ModelConfig) -> str:
    return number(ledger.bytes_per_token(config))


def _sources(config: ModelConfig) -> dict[str, list[int]]:
    """The ratios of the owners in each half."""
    return {
        half: [plan.ratio for plan in config.layers if plan.owns_kv and plan.half == half]
        for half in ("encoder", "decoder")
    }


def _sum(config: ModelConfig) -> str:
    storage, sources = ledger.Storage.published(config), _sources(config)
    entries = say(
        "{encoder} encoder sources × {half} entry + {decoder} decoder source × {whole} entry "
        "= {entries} entries a token",
        encoder=len(sources["encoder"]),
        half=numbers.ratio_words(sources["encoder"][0]),
        decoder=len(sources["decoder"]),
        whole=numbers.ratio_words(sources["decoder"][0]),
        entries=number(ledger.entries_per_token(config)),
    )
    entry = say(
        "main KV {main} B + index key {index} B = {entry} B an entry",
        main=storage.main.nbytes,
        index=storage.index.nbytes,
        entry=ledger.entry_bytes(config),
    )
    product = say(
        "{entries} × {entry} B = {bytes} B a token",
        entries=number(ledger.entries_per_token(config)),
        entry=ledger.entry_bytes(config),
        bytes=_per_token(config),
    )
    return (
        f'<p class="sum">{escape(entries)}<br>{escape(entry)} &nbsp;→&nbsp; <b>{escape(product)}</b></p>'
        f"{pictures.owner_bar(config)}"
    )


def _tokens(config: ModelConfig) -> str:
    rows = [
        (
            f"{name} = {number(tokens)}",
            number(ledger.global_bytes(config, tokens)),
            number(ledger.sequence_bytes(config, tokens)),
        )
        for name, tokens in numbers.CONTEXTS.items()
    ]
    sources = _sources(config)
    formula = say(
        "Exactly {entry} × ({encoder} × ⌊N/{ratio}⌋ + N) bytes of global KV: an entry is written when its group of "
        "{ratio} tokens closes.",
        entry=ledger.entry_bytes(config),
        encoder=len(sources["encoder"]),
        ratio=sources["encoder"][0],
    )
    return (
        f"{_table((say('tokens N'), say('global KV, B'), say('all that it keeps, B')), rows)}<p>{escape(formula)}</p>"
    )


def _left_out(config: ModelConfig) -> str:
    window = ledger.Storage.published(config).window
    rows = (
        (
            say("windows"),
            f"{config.num_hidden_layers} × {config.sliding_window} × {window.nbytes}",
            number(ledger.window_bytes(config)),
        ),
        (say("open groups, at most"), "", number(ledger.open_group_bytes(config))),
        (say("Engram's last token ids"), "", number(ledger.engram_history_bytes(config))),
    )
    words = say(
        "Once a sequence, whatever its length; the windows weigh as much as {tokens} tokens.",
        tokens=number(round(ledger.window_equivalent_tokens(config))),
    )
    return f"{_table((say('constant'), '', say('B')), rows)}<p>{escape(words)}</p>"


def _candidate(config: ModelConfig) -> str:
    return number(candidates(config)[0].row.bytes)


def _misses(config: ModelConfig) -> str:
    tried = candidates(config)[0]
    names = (say("key and value are one latent"), say("the decoder's source"), say("index keys"))
    rows = [(say("encoder, keys and values counted apart"), number(tried.row.bytes))]
    rows += [
        (name, f"{'−' if row.bytes < 0 else '+'} {number(abs(row.bytes))}")
        for name, row in zip(names, tried.corrections, strict=True)
    ]
    rows.append((say("what is kept"), number(tried.exact)))
    return _table((), rows, last=True)


def _elsewhere(config: ModelConfig) -> str:
    own = ledger.bytes_per_token(config)
    rows = [
        (one.name, one.precision.upper(), number(one.bytes_per_token, 0), f"{number(one.bytes_per_token / own, 1)} ×")
        for one in numbers.compared()
    ]
    return _table((), rows)


def _five(config: ModelConfig) -> str:
    short, long = (numbers.step(config, numbers.CONTEXTS[name]) for name in ("4K", "1M"))
    active, every = numbers.active_parameters(config), weights.backbone(config).parameters
    kept = ledger.sequence_bytes(config, long.tokens)
    facts = (
        (
            say("{active} of {every} billion", active=number(active / 1e9, 1), every=number(every / 1e9, 1)),
            say("parameters of the backbone work for one token"),
        ),
        (
            say("{short} → {long} GFLOP", short=number(short.flops / 1e9, 1), long=number(long.flops / 1e9, 1)),
            say("for the next token, at 4K and at 1M tokens of context"),
        ),
        (
            say("{size} GB of weights", size=number(long.bound.weight_bytes / 1e9, 1)),
            say("are read for one step of one sequence"),
        ),
        (
            say("{size} MB of KV", size=number(long.kv_bytes / 1e6, 0)),
            say(
                "are read with them at 1M tokens, of the {kept} MB that the sequence keeps", kept=number(kept / 1e6, 0)
            ),
        ),
        (
            say("{time} ms", time=number(1e3 * long.bound.seconds, 2)),
            say(
                "is the least that this step takes on {count} {device}, by bytes alone",
                count=numbers.DEVICES_TOGETHER,
                device=numbers.DEVICE,
            ),
        ),
    )
    items = "".join(f'<tr><th scope="row"><b>{escape(value)}</b></th><td>{escape(of)}</td></tr>' for value, of in facts)
    return f'<table class="five"><tbody>{items}</tbody></table>'


def _blank(config: ModelConfig) -> str:
    longest = numbers.CONTEXTS["1M"]
    header = ("", say("entries a token"), say("B an entry"), say("B a token"), say("B at 1M tokens"))
    published = (
        say("as published"),
        number(ledger.entries_per_token(config)),
        number(ledger.entry_bytes(config)),
        _per_token(config),
        number(ledger.global_bytes(config, longest)),
    )
    window = ledger.Storage.published(config).window.nbytes
    asked = (
        say("1. one encoder source more"),
        say("2. the decoder's source halved too"),
        say("3. main KV of {bytes} B, as in windows", bytes=window),
    )
    head = "".join(f'<th scope="col">{escape(cell)}</th>' if cell else "<td></td>" for cell in header)
    first = "".join(f"<td>{escape(cell)}</td>" for cell in published[1:])
    rows = "".join(
        f'<tr class="open"><th scope="row">{escape(name)}</th>{"<td></td>" * (len(header) - 1)}</tr>' for name in asked
    )
    return (
        f'<table class="blank"><thead><tr>{head}</tr></thead><tbody><tr class="published">'
        f'<th scope="row">{escape(published[0])}</th>{first}</tr>{rows}</tbody></table>'
    )


def _answers(config: ModelConfig) -> str:
    longest = numbers.CONTEXTS["1M"]
    answers = (
        f"{place}. {number(one.entries)} × {number(one.entry)} = {number(one.per_token)}; "
        f"{number(one.per_token * longest)}"
        for place, one in enumerate(numbers.variations(config), start=1)
    )
    return f"<footer>{' · '.join(answers)}</footer>"
