"""What a session's turns cost over the tiers: time to the first token, the store's speed, and bytes that persist.

    python benchmarks/sessions.py [--contexts 1024 4096 8192] [--new 256] [--rounds 5] [--folder DIR] [--json FILE]

First token: one turn of a coding agent's session over Python's standard library, in bytes, on the nano preset with
random weights (times do not depend on their values). The same turn is served cold, with pages from the store and
windows from the pool, with pages and a replay, and from a live row; all in turn, medians, over one store. "work" is
what torch's counter would see of what is fed, over that of the cold turn.

Store: pages of the published layout with random content, beside a plain copy of the same bytes with an fsync to each
file, by benchmarks/store_engines.py.

Persisted: the prefix of each context (nano), and a session of each kind of the simulated agent (published layout,
one put at the end of every turn), in file sizes and in blocks of the disk, beside the ledger. What V4-Flash's two
checkpoints of all windows a turn would have added to the same turns is computed, from ds41.window_persistence.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from first_tokens import LIVE_TAIL, FirstToken, first_tokens
from origin import origin
from page_engines import NBYTES, Ours, page_bytes
from rich.console import Console
from rich.table import Table
from store_engines import GOAL_OVERHEAD, GOAL_RATIO, bytes_on_disk, measure
from timing import machine

from ds41 import ModelConfig, agent_workload, ledger, window_persistence
from ds41.agent_workload import KINDS, TurnTokens
from ds41.agent_workspace import Workspace
from ds41.model import Model

STORE_ENGINE = "ds41 PrefixStore"
_SPEEDS = ("write", "read", "write_ratio", "read_ratio", "overhead")
# Headings of columns of words.
_WORDS = ("served", "store")


@dataclass(frozen=True)
class Persisted:
    """What lies on disk after ``tokens`` tokens in ``turns`` turns; ``ledger_bytes`` is exact for those tokens."""

    what: str
    tokens: int
    turns: int
    ledger_bytes: int
    page_file_bytes: int
    all_file_bytes: int
    disk_bytes: int

    @property
    def overhead(self) -> float:
        """Index and all, in file sizes, over the ledger."""
        return self.all_file_bytes / self.ledger_bytes - 1


def file_bytes(folder: Path, pattern: str = "*") -> int:
    """Sizes of the files that match, anywhere below the folder."""
    return sum(path.stat().st_size for path in folder.rglob(pattern) if path.is_file())


def persisted(what: str, folder: Path, config: ModelConfig, lengths: Sequence[int], turns: int) -> Persisted:
    """Add up a closed store's folder, in which prefixes of ``lengths`` tokens persist."""
    expected = sum(ledger.global_bytes(config, length) for length in lengths)
    sizes = file_bytes(folder, "*.pages"), file_bytes(folder), bytes_on_disk(folder)
    return Persisted(what, sum(lengths), turns, expected, *sizes)


def persist_turns(what: str, turns: Sequence[TurnTokens], folder: Path) -> Persisted:
    """A session in the published layout: random pages, one put at the end of every turn, as an engine does."""
    ours = Ours(folder)
    tokens_a_page = ours.store.layout.page_tokens
    for turn in turns:
        end = turn.history + turn.new
        first = turn.history // tokens_a_page
        pages = [page_bytes(number) for number in range(first, ours.store.layout.pages_for(end))]
        ours.store.put(what, range(end), pages, first_page=first)
    ours.close()
    return persisted(what, folder, ModelConfig.flash(), [turns[-1].history + turns[-1].new], len(turns))


def agent_turns(count: int) -> dict[str, list[TurnTokens]]:
    """A session of ``count`` turns of each kind, in tokens of a vocabulary learnt on the same files."""
    workspace = Workspace.standard_library()
    vocabulary = agent_workload.vocabulary(workspace)

    def tokens(text: str) -> int:
        return len(vocabulary.encode(text).ids)

    return {kind: agent_workload.tokens(agent_workload.session(workspace, kind, count), tokens) for kind in KINDS}


def checkpoints(turns: dict[str, list[TurnTokens]]) -> dict[str, float]:
    """What V4-Flash would have stored of the same turns, in bytes a new token, and how many times more."""
    total = window_persistence.stored(ModelConfig.flash(), [turn for one in turns.values() for turn in one])
    return {
        "new_tokens": int(total.new_tokens),
        "turns": sum(map(len, turns.values())),
        "v4_global": float(total.baseline_global / total.new_tokens),
        "v4_windows": float(total.baseline_windows / total.new_tokens),
        "ours": float(total.ours / total.new_tokens),
        "times": float(total.ratio),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--contexts", type=int, nargs="+", default=[1024, 4096, 8192])
    parser.add_argument("--new", type=int, default=256, help="tokens that the turn brings")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pages", type=int, default=1000, help="of the published layout, for the store's speed")
    parser.add_argument("--turns", type=int, default=20, help="of each of the agent's sessions")
    parser.add_argument("--folder", type=Path, default=Path("build"), help="on the disk to be measured")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if min(options.contexts) < 2 * LIVE_TAIL:
        parser.error(f"--contexts has {min(options.contexts)}; expected {2 * LIVE_TAIL} or more")
    options.folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    model = Model(ModelConfig.nano(), "cache", torch.float32)
    console = Console(width=130)
    console.print(machine(torch.device("cpu")))
    rows, kept = [], []
    with tempfile.TemporaryDirectory(dir=options.folder) as work:
        for context in options.contexts:
            folder = Path(work) / f"nano-{context}"
            rows += first_tokens(model, context, options.new, options.rounds, folder)
            kept.append(persisted(f"nano, {context:,} tokens", folder, model.config, [context], 1))
        _print_first_tokens(console, rows, options.new)
        # Damage is another benchmark's business.
        skipped = {STORE_ENGINE: {"not tried": ""}}
        speeds = {}
        for batch in (32, options.pages):
            measured, copy = measure([STORE_ENGINE], options.pages, batch, 3, Path(work), skipped)
            speeds[batch] = (measured[0], copy)
        _print_speeds(console, speeds, options.pages)
        turns = agent_turns(options.turns)
        kept += [persist_turns(f"published, {kind!r}", one, Path(work) / kind) for kind, one in turns.items()]
    _print_persisted(console, kept)
    v4 = checkpoints(turns)
    console.print(
        f"V4-Flash would have stored {v4['v4_global']:,.0f} bytes a new token of global KV for the same "
        f"{v4['turns']} turns, and {v4['v4_windows']:,.0f} more for two checkpoints of its windows a turn: "
        f"{v4['times']:.1f} times the {v4['ours']:,.1f} bytes here, which hold no window at all."
    )
    if options.json:
        result = {
            **origin("cpu"),
            "first_token": [asdict(row) for row in rows],
            "store": [
                {"pages_a_put": batch, "copy_MB_s": copy} | {name: getattr(row, name) for name in _SPEEDS}
                for batch, (row, copy) in speeds.items()
            ],
            "persisted": [asdict(one) | {"overhead": one.overhead} for one in kept],
            "v4_checkpoints": v4,
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in _WORDS else "right")
    return table


def _print_first_tokens(console: Console, rows: list[FirstToken], new: int) -> None:
    table = _table(
        f"Time to the first token of a turn that brings {new:,} tokens, nano preset",
        "context", "served", "hit", "replayed", "fed", "M operations", "work", "ms", "time",
    )  # fmt: skip
    for context in dict.fromkeys(row.context for row in rows):
        group = [row for row in rows if row.context == context]
        cold = group[0]
        for row in group:
            table.add_row(
                f"{context:,}",
                row.way,
                f"{row.hit:,}",
                f"{row.replayed:,}",
                f"{row.fed:,}",
                f"{row.operations / 1e6:,.0f}",
                f"{row.operations / cold.operations:.3f}",
                f"{row.seconds * 1e3:,.0f}",
                f"{row.seconds / cold.seconds:.3f}",
            )
        table.add_section()
    console.print(table)
    console.print('A live row has fed all but the last token of the answer before; "work" and "time" are over cold.')


def _print_speeds(console: Console, speeds: dict, pages: int) -> None:
    table = _table(
        f"Prefix store, {pages:,} pages of {NBYTES:,} bytes; ratios are medians of 3 rounds (aim: {GOAL_RATIO})",
        "pages a put", "copy MB/s", "write MB/s", "read MB/s", "write / copy", "read / copy", "bytes a token on disk",
    )  # fmt: skip
    per_token = ledger.bytes_per_token(ModelConfig.flash())
    for batch, (row, copy) in speeds.items():
        table.add_row(
            f"{batch:,}",
            f"{copy:,.0f}",
            f"{row.write:,.0f}",
            f"{row.read:,.0f}",
            f"{row.write_ratio:.2f}",
            f"{row.read_ratio:.2f}",
            f"{float(per_token) * (1 + row.overhead):.1f} (+{row.overhead:.2%})",
        )
    console.print(table)


def _print_persisted(console: Console, kept: list[Persisted]) -> None:
    table = _table(
        f"Bytes that persist, a token (aim for the published layout: under +{GOAL_OVERHEAD:.0%})",
        "store", "tokens", "turns", "ledger", "page files", "all files", "over ledger", "blocks on disk",
    )  # fmt: skip
    for one in kept:
        table.add_row(
            one.what,
            f"{one.tokens:,}",
            f"{one.turns:,}",
            *(f"{size / one.tokens:.1f}" for size in (one.ledger_bytes, one.page_file_bytes, one.all_file_bytes)),
            f"+{one.overhead:.2%}",
            f"{one.disk_bytes / one.tokens:.1f}",
        )
    console.print(table)
    console.print("All files are pages and index. An empty index has about 50 KB, which a nano page hardly dilutes.")


if __name__ == "__main__":
    sys.exit(main())
