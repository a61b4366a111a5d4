"""``ds41 serve`` as a process of its own under many clients: nothing may be lost, mixed up, or leak.

    python benchmarks/serve_load.py [--clients 6] [--requests 60] [--tokens 16] [--seed 0] [--json FILE]

Clients in threads of their own use OpenAI's client on the trained nano at temperature 0: whole answers, streams,
streams that are left in the middle, pictures, conversations whose history grows, and keys that are nobody's. Then:

answers    each finished one is asked for again, alone, by a tenant that has stored nothing; conversations turn by turn
tokens     what the clients were told beside what the server has counted at /metrics
memory     the server's resident memory when a quarter, a half, three quarters and all of the requests have ended
hostile    the requests of tests/serving/endpoint/hostile.py, one by one, each with what it got
end        the signal TERM, and the exit status

Exit status 1 if an answer differs, tokens do not add up, a hostile request got what it should not, or the server did
not end with status 0.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from origin import origin
from rich.console import Console
from rich.table import Table
from serve_clients import ALONE, LIMITS, Done, Load, Server, ask, run_client
from timing import machine

from ds41.serving.endpoint.limits import Limits

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "serving" / "endpoint"))

from hostile import Outcome, Target, cases, play


def differences(server: Server, done: Sequence[Done], tokens: int) -> list[tuple[Done, Done]]:
    """The finished answers that are not given again alone, with what is: by a tenant of no history, in order."""
    found = []
    with server.client(server.keys[ALONE]) as client:
        for one in sorted(done, key=lambda one: one.client):
            again = Done(one.kind, one.client, one.messages)
            ask(client, again, tokens, stream=False)
            if (again.text, again.finish, again.completion_tokens) != (one.text, one.finish, one.completion_tokens):
                found.append((one, again))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Load of many clients on ds41 serve, and hostile requests.")
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--requests", type=int, default=60, help="of all clients together")
    parser.add_argument("--tokens", type=int, default=16, help="of an answer at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    if not 1 <= options.clients <= options.requests or options.tokens < 4:
        parser.error("expected at least one client, a request for each, and four tokens")
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder))
        try:
            result, good = measure(server, options)
        except Exception:
            print(f"the server (exit status {server.status()}) wrote: {server.errors()}", file=sys.stderr)
            raise
        finally:
            server.kill()
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0 if good else 1


def measure(server: Server, options: argparse.Namespace) -> tuple[dict, bool]:
    """Everything that the module's text lists, printed; all numbers, and whether all is right."""
    before = server.counted()
    shares = [len(range(number, options.requests, options.clients)) for number in range(options.clients)]
    load = Load(server, options.requests)
    began = time.perf_counter()
    threads = [
        threading.Thread(target=run_client, args=(load, number, share, options.tokens, options.seed))
        for number, share in enumerate(shares)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    counted = server.counted() - before
    finished = [one for one in load.done if not one.error and one.kind != "cancel"]
    told = Counter(
        prompt=sum(one.prompt_tokens for one in finished),
        cached=sum(one.cached_tokens for one in finished),
        completion=sum(one.completion_tokens for one in finished),
    )
    # A stream that its client saw to the end is one of the answers for the server.
    late = [one for one in load.done if one.kind == "cancel" and one.finish != "left" and not one.error]
    for one in late:
        told.update(prompt=one.prompt_tokens, cached=one.cached_tokens, completion=one.completion_tokens)
    different = differences(server, finished, options.tokens)
    errors = Counter((one.kind, one.error) for one in load.done if one.error)
    unexpected = {key: number for key, number in errors.items() if key != ("wrong key", "401")}
    target = Target("127.0.0.1", server.port, server.keys["ann"], server.keys["bob"])
    hostile = [(case, play(case, target)) for case in cases(Limits(**LIMITS))]
    wrong = [(case, outcome) for case, outcome in hostile if outcome.status not in case.expected]
    after = Done("whole", 0, [{"role": "user", "content": "Are you still there?"}])
    with server.client(server.keys[ALONE]) as client:
        ask(client, after, options.tokens, stream=False)
    last_bytes = server.resident_bytes()
    status = server.end()
    stderr = server.errors()
    good = not (different or unexpected or wrong or after.error or status or stderr) and +told == +counted

    console = Console(width=150)
    rows = [
        ("machine", machine(torch.device("cpu"))),
        ("requests, clients, seconds", f"{len(load.done)}, {options.clients}, {seconds:.1f}"),
        ("by kind", ", ".join(f"{kind} {number}" for kind, number in Counter(one.kind for one in load.done).items())),
        ("errors", ", ".join(f"{kind}: {error} x {number}" for (kind, error), number in errors.items()) or "none"),
        ("answers left by their clients", f"{sum(one.finish == 'left' for one in load.done)}"),
        ("tokens told: prompt, cached, answer", _tokens(told)),
        ("tokens counted by the server", _tokens(counted)),
        ("finished answers, different alone", f"{len(finished)}, {len(different)}"),
        ("seconds of an answer, p50 and p95", _percentiles([one.seconds for one in finished])),
        ("to the first piece, p50 and p95", _percentiles([one.first_s for one in finished if one.first_s is not None])),
        ("resident MiB at quarters", ", ".join(f"{one / 2**20:,.0f}" for one in load.quarters)),
        ("resident MiB after all that follows", f"{last_bytes / 2**20:,.0f}"),
        ("exit status, lines on stderr", f"{status}, {len(stderr.splitlines())}"),
    ]  # fmt: skip
    _print(console, "ds41 serve under load", ("", ""), rows)
    _print(
        console,
        f"{len(hostile)} hostile requests, {len(wrong)} with another status than right",
        ("request", "right", "got", "s", "message"),
        [_hostile_row(case.name, case.expected, outcome) for case, outcome in hostile],
    )
    for one, again in different:
        console.print(f"different alone: {one.kind} {one.text!r} and {again.text!r} {again.error}", markup=False)
    if stderr:
        console.print(stderr, markup=False)
    result = {
        **origin("cpu"),
        "options": {name: value for name, value in vars(options).items() if name != "json"},
        "seconds": seconds,
        "kinds": Counter(one.kind for one in load.done),
        "errors": [{"kind": kind, "error": error, "count": number} for (kind, error), number in errors.items()],
        "tokens": {"told": told, "counted": counted},
        "finished": len(finished),
        "different": [{"kind": one.kind, "loaded": one.text, "alone": again.text} for one, again in different],
        "answer_s": [one.seconds for one in finished],
        "first_s": [one.first_s for one in finished if one.first_s is not None],
        "resident_bytes": {"quarters": load.quarters, "last": last_bytes},
        "status": status,
        "hostile": [
            {"name": case.name, "right": case.expected, **{k: v for k, v in asdict(outcome).items() if k != "text"}}
            for case, outcome in hostile
        ],
    }
    return result, good


def _tokens(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[kind]:,}" for kind in ("prompt", "cached", "completion"))


def _percentiles(seconds: Sequence[float]) -> str:
    if len(seconds) < 2:
        return "too few"
    cuts = statistics.quantiles(seconds, n=20, method="inclusive")
    return f"{cuts[9]:.2f}, {cuts[18]:.2f}"


def _hostile_row(name: str, right: tuple[int, ...], outcome: Outcome) -> tuple[str, ...]:
    got = " ".join(map(str, outcome.answers)) or "closed"
    expected = " or ".join(str(status) if status else "closed" for status in right)
    return name, expected, got, f"{outcome.seconds:.2f}", outcome.error.get("message", "")


def _print(console: Console, title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(*headings, title=title, title_justify="left", show_header=any(headings))
    for row in rows:
        table.add_row(*(cell.replace("[", r"\[") for cell in row))
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
