"""Miss rates by rank: what is drawn of a report, and the script against the still picture."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
from dataclasses import asdict

import pytest

from ds41.probes.estimates import estimate_share
from ds41.probes.selection_needles import MissPoint
from ds41.viz.diagram import asset
from ds41.viz.probe_curves import NEEDLES, ROUNDED, context_data, percent, probe_curves, signed

RANKS = {"long": (32, 128, 256, 512, 640, 1536), "short": (64, 500, 513, 1024)}
ENTRIES = {"long": 65_536, "short": 9_000}

# Gives what the script would write for each case.
DRAW = """
const given = JSON.parse(require("fs").readFileSync(0, "utf8"));
const drawn = given.cases.map(([name, rounded, needle, at]) => {
  const context = given.data.contexts[name];
  const rows = context.curves[rounded][needle];
  return [picture(given.data, context, rows, at), overview(given.data, needle, rows, at), tableBody(rows)];
});
process.stdout.write(JSON.stringify(drawn));
"""

# Sets the controls as a reader would and gives the parts of the picture that are not as ``html`` has them.
UNEQUAL = """(cases) => cases.flatMap(([html, fields]) => {
  const form = document.querySelector("form");
  for (const name of ["context", "rounded", "needle"]) form.elements[name].value = fields[name];
  form.elements.at.max = 99;
  form.elements.at.value = fields.at;
  form.elements.at.dispatchEvent(new Event("input", { bubbles: true }));
  const still = new DOMParser().parseFromString(html, "text/html");
  return [".ds-picture", "figcaption", "table"]
    .map((part) => [document, still].map((page) => page.querySelector(part).innerHTML))
    .filter(([live, expected]) => live !== expected)
    .map((pair) => [fields, ...pair]);
})"""


def report(name: str) -> dict:
    """A report as plain values: misses grow with the rank, a little more of them with rounded queries."""
    points = []
    for needle, rounded, rank in itertools.product(NEEDLES, ROUNDED, RANKS[name]):
        hits = min(40, rank // 32 + len(rounded) + 3 * (needle == "planted"))
        shifts = (-rank / 3, rank / 7 - 20, 1.5 * rank + 0.4)
        points.append(MissPoint(needle, rounded, rank, estimate_share(hits, 40), hits / 43, *shifts))
    return {
        "entries": ENTRIES[name],
        "seeds": 40,
        "top_k": 512,
        "misses": [asdict(point) for point in reversed(points)],
    }


@pytest.fixture(scope="module")
def reports():
    return {name: report(name) for name in RANKS}


def every_case():
    for name, rounded, needle in itertools.product(RANKS, ROUNDED, NEEDLES):
        for at in range(len(RANKS[name])):
            yield name, rounded, needle, at


def figure_of(reports, name, rounded, needle, at):
    return probe_curves(reports, name, rounded, needle, RANKS[name][at])


def between(html: str, begin: str, end: str) -> str:
    return html.split(begin, 1)[1].rsplit(end, 1)[0]


def test_the_script_writes_what_the_library_writes(reports):
    node = shutil.which("node")
    if node is None:
        reason = "no node found; install Node.js"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    cases = list(every_case())
    given = json.dumps({"data": probe_curves(reports).data, "cases": cases})
    script = asset("js/words.js") + asset("js/probes.js") + DRAW
    run = subprocess.run([node, "-e", script], input=given, capture_output=True, text=True, check=True)
    for case, (picture, overview, body) in zip(cases, json.loads(run.stdout), strict=True):
        figure = figure_of(reports, *case)
        assert between(figure.body, '<div class="ds-picture">', '</div><ul class="ds-legend">') == picture, case
        assert figure.caption == overview, case
        assert between(figure.table, "<tbody>", "</tbody>") == body, case


@pytest.mark.browser
def test_the_controls_draw_what_the_library_draws(look, reports):
    page = look(probe_curves(reports)._repr_html_())
    cases = []
    for name, rounded, needle, at in every_case():
        figure = figure_of(reports, name, rounded, needle, at)
        html = f"{figure.body}<figcaption>{figure.caption}</figcaption>{figure.table}"
        cases.append((html, {"context": name, "rounded": rounded, "needle": needle, "at": at}))
    assert page.evaluate(UNEQUAL, cases) == []


@pytest.mark.browser
def test_keys_move_the_rank_and_a_shorter_list_keeps_the_slider_inside(look, reports):
    page = look(probe_curves(reports)._repr_html_())
    slider = page.locator("input[name=at]")
    slider.focus()
    page.keyboard.press("End")
    assert page.locator("figcaption").inner_text().startswith("True rank 1,536")
    assert slider.get_attribute("aria-valuetext") == "rank 1,536"
    page.locator("input[name=context][value=short]").check()
    assert page.locator("figcaption").inner_text().startswith("True rank 1,024")
    assert slider.get_attribute("max") == "3"


def test_rows_hold_the_numbers_of_the_report(reports):
    context = context_data(reports["long"])
    rows = context["curves"]["keys"]["planted"]
    assert [row[0] for row in rows] == list(RANKS["long"])
    # The axis is a logarithm: 32 to 128 is as far as 128 to 512, and 32 to 1,536 is all of it.
    places = {row[0]: row[1] for row in rows}
    assert (places[32], places[1536]) == (0, 1000)
    assert abs(places[512] - 2 * places[128]) <= 1
    point = next(
        p for p in reports["long"]["misses"] if (p["needle"], p["rounded"], p["rank"]) == ("planted", "keys", 256)
    )
    row = next(row for row in rows if row[0] == 256)
    shares = (*(point["missed"][name] for name in ("mean", "low", "high")), point["predicted"])
    assert row[2:6] == [round(1000 * share) for share in shares]
    assert row[6:] == [-85, 17, 384]
    assert [rank for rank, _ in context["ticks"]] == [32, 128, 512, 1536]
    assert [rank for rank, _ in context_data(reports["short"])["ticks"]] == [64, 128, 512, 1024]


def test_every_mark_lies_in_the_chart(reports):
    for name in RANKS:
        for curves in context_data(reports[name])["curves"].values():
            for rank, x, missed, low, high, predicted, *_ in itertools.chain(*curves.values()):
                assert 0 <= x <= 1000, rank
                assert 0 <= low <= missed <= high <= 1000, rank
                assert 0 <= predicted <= 1000, rank


def test_the_first_picture_is_of_half_of_top_k(reports):
    figure = probe_curves(reports)
    assert figure.caption.startswith("<b>True rank 256</b>, the entry that has this rank")
    assert figure.body.count('ds-dot ds-chosen" style') == 1


def test_numbers_read_as_people_write_them():
    assert [percent(n) for n in (0, 7, 204, 1000)] == ["0.0 %", "0.7 %", "20.4 %", "100.0 %"]
    assert [signed(n) for n in (-1234, 0, 80)] == ["−1,234", "+0", "+80"]


def test_bad_figures_are_named(reports):
    with pytest.raises(ValueError, match="reports is empty; expected one selection report or more"):
        probe_curves({})
    with pytest.raises(ValueError, match="shown is 'none'; expected one of: long, short"):
        probe_curves(reports, "none")
    with pytest.raises(ValueError, match="rounded is 'all'; expected one of: keys, keys and queries"):
        probe_curves(reports, rounded="all")
    with pytest.raises(ValueError, match="needle is 'lost'; expected one of: found, planted"):
        probe_curves(reports, needle="lost")
    with pytest.raises(ValueError, match="rank is 33; expected one of: 32, 128, 256, 512, 640, 1536"):
        probe_curves(reports, rank=33)
