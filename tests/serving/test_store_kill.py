"""A writer killed with SIGKILL at random moments: what it had stored is there, and everything that is there is right.

``DS41_KILLS`` sets the number of kills; ``python -m pytest -s tests/serving/test_store_kill.py`` prints the tally.
"""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from store_made import LAYOUT, is_right, made_pages
from store_writer import CONVERSATIONS, LONGEST, TENANTS, conversation, store_in

HERE = Path(__file__).parent
KILLS = int(os.environ.get("DS41_KILLS", "200"))
LATEST_S = 0.05
KILLS_A_FOLDER = 20


@pytest.fixture
def writer():
    paths = [str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    process = subprocess.Popen(
        [sys.executable, str(HERE / "store_writer.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    )
    yield process
    process.stdin.close()
    assert process.wait(30) == 0
    process.stdout.close()


def test_nothing_that_was_stored_is_lost_and_nothing_wrong_is_served(writer, tmp_path):
    random, tally, expected = np.random.default_rng(41), Counter(), {}
    for kill in range(KILLS):
        batch, evicts = divmod(kill // KILLS_A_FOLDER, 2)
        if kill % KILLS_A_FOLDER == 0:
            committed: dict[tuple[str, int], int] = {}
        folder = tmp_path / f"{batch}-{evicts}"
        for tenant, number, tokens in kill_one(writer, folder, kill, evicts, random.uniform(0, LATEST_S)):
            tally["puts"] += 1
            committed[tenant, number] = max(tokens, committed.get((tenant, number), 0))
        tally["kills"] += 1
        tally["puts cut short"] += unfinished(folder)
        check(folder, evicts, committed, expected, tally)
    print("\n" + ", ".join(f"{name} {tally[name]:,}" for name in sorted(tally)), f"wrong {tally['wrong']}")
    assert tally["wrong"] == 0
    assert tally["kills"] == KILLS
    if KILLS >= 100:
        # The kills did come in the middle of things.
        assert tally["puts cut short"] > 0
        assert tally["puts"] > KILLS
        assert tally["pages served"] > 10 * KILLS


def kill_one(writer, folder: Path, seed: int, evicts: int, delay: float) -> list[tuple[str, int, int]]:
    """Start a writer, kill it after ``delay`` seconds, and give the puts it had reported."""
    writer.stdin.write(f"{folder} {seed} {evicts}\n")
    word, pid = writer.stdout.readline().split()
    assert word == "pid"
    # Every fourth while it opens the store, which is when it mends what the one before it left.
    lines = [] if seed % 4 == 0 else [writer.stdout.readline().split()]
    time.sleep(delay)
    os.kill(int(pid), signal.SIGKILL)
    while (line := writer.stdout.readline().split()) != ["end"]:
        lines.append(line)
    assert all(line[0] in ("ready", "put") for line in lines), lines
    return [(tenant, int(number), int(tokens)) for _, tenant, number, tokens in (line for line in lines if line[1:])]


def unfinished(folder: Path) -> int:
    """Files that the killed writer had begun and not entered."""
    try:
        database = sqlite3.connect(f"file:{folder / 'index.db'}?mode=ro", uri=True)
        try:
            return database.execute("SELECT count(*) FROM file WHERE owner IS NOT NULL").fetchone()[0]
        finally:
            database.close()
    except sqlite3.Error:
        return 0


def check(folder: Path, evicts: int, committed: dict, expected: dict, tally: Counter) -> None:
    """Reopen the store and read all conversations of all tenants."""
    with store_in(folder, bool(evicts)) as store:
        for tenant in TENANTS:
            for number in range(CONVERSATIONS):
                ids = conversation(number)
                if number not in expected:
                    expected[number] = made_pages(ids)
                with store.find(tenant, ids) as prefix:
                    found, pages = prefix.tokens, list(prefix.pages())
                    assert prefix.tokens == found
                    for place, page in enumerate(pages):
                        tokens = min(LAYOUT.page_tokens, found - place * LAYOUT.page_tokens)
                        tally["wrong"] += not is_right(page, expected[number][place], tokens)
                tally["pages served"] += len(pages)
                if not evicts:
                    assert LONGEST >= found >= committed.get((tenant, number), 0), (tenant, number, found)
        verified = store.verify()
        assert (verified.damaged, verified.orphans) == (0, 0)
        assert store.counters["damaged_pages"] == 0
        assert store.index.query("SELECT count(*) FROM pin")[0][0] == 0
        usage = store.usage()
        assert usage.file_bytes == store.files.disk_bytes()
        assert usage.held_bytes <= store.budget_bytes
