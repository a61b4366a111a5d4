"""The article's claims: every verdict follows from a value computed here, and every printed figure is covered."""

import json
import re
from dataclasses import replace
from decimal import ROUND_HALF_EVEN, Decimal
from fractions import Fraction
from pathlib import Path

import pytest
import torch

from ds41 import ModelConfig, errata, ledger
from ds41.errata import Claim
from ds41.errata import page as errata_page
from ds41.errata.pool import measure_recall, pays_from, saves_nothing_up_to, selection_cost
from ds41.formats import INDEX_KEY, MAIN_KV
from ds41.model import Model

BOOK = Path(__file__).resolve().parents[1] / "book"
FLASH = ModelConfig.flash()
CLAIMS = errata.claims()
BY_KEY = {claim.key: claim for claim in CLAIMS}

# The numbers that the article's cells print, by cell and line of text, as they stand there. Names such as E2M1, FP4 or
# (L/2) are left out.
PRINTED = {
    1: [
        "512 288", "576", "3 288 864", "864 890 +3.0", "1 1440 -38.2", "1 512 1152 -22.7", "32 128 2304", "1152",
        "864 3 288 3.0 890", "26", "890",
    ],
    2: [
        "40 128 5,120", "128 40", "20 128 2,560 128 20", "",
        "1,000 12.800 512.00", "8,000 1.600 64.00", "65,536 0.195 7.81", "524,288 0.024 0.98", "1,048,576 0.012 0.49",
        "1 890 1,048,576 933,232,640 933 890.0", "4 3733 3560.0",
        "80 80 92.0", "80 60 69.0", "80 40 46.0",
    ],
    3: [
        "448 6 2688", "1 512 22.627", "22.627", "118.8", "10 268.8", "4.5 8 1.78", "512 288.0 512", "576.0 1024 1.78",
    ],
    4: [
        "32 128 1,048,576 4,294,967,296", "32 128 16,384 67,108,864", "1.56", "64.0", "1,048,576 4,294,967,296",
    ],
}  # fmt: skip
LINES = [(cell, line, text.split()) for cell, lines in PRINTED.items() for line, text in enumerate(lines, start=1)]

# What is known to be wrong in the article, found without this library.
MISTAKES = {
    "4.e2m1": 6,
    "4.e4m3": 448,
    "4.k-and-v": 288,
    "4.underdetermined": 0,
    "2.projections": 1,
    "2.gates": 0,
    "2.exact-tail": 2414,
    "3.reindex": 20,
    "3.constant": 0.25,
    "7.poisons": 4,
    "4.mxfp4": False,
    "6.mhc": False,
    "8.derivable": False,
}


def rounded(printed: str, value: object) -> bool:
    """Whether the value prints so, by decimal arithmetic."""
    plain = Decimal(printed.replace(",", ""))
    exact = Fraction(value)
    found = (Decimal(exact.numerator) / Decimal(exact.denominator)).quantize(plain, rounding=ROUND_HALF_EVEN)
    return found == plain


@pytest.mark.parametrize("key", [claim.key for claim in CLAIMS if claim.article_value is not None])
def test_a_number_is_right_if_and_only_if_it_prints_so(key):
    claim = BY_KEY[key]
    assert (claim.verdict == "right") == rounded(claim.article_value, claim.value), claim.value
    if claim.verdict == "imprecise":
        assert abs(float(claim.article_value.replace(",", "")) / float(claim.value) - 1) <= 0.05
    assert claim.verdict != "not decidable"
    assert claim.verdict in claim.supported


def test_a_claim_in_words_is_right_if_and_only_if_the_library_says_yes():
    answered = [claim for claim in CLAIMS if isinstance(claim.value, bool)]
    assert len(answered) > 40
    assert [claim.key for claim in answered if (claim.verdict == "right") != claim.value] == []
    assert all(claim.verdict in claim.supported for claim in CLAIMS)


def test_the_article_reckons_right_from_what_it_assumes():
    redone = [claim for claim in CLAIMS if claim.redone is not None]
    assert {claim.cell for claim in redone} == {1, 2, 3, 4}
    assert [claim.key for claim in redone if not rounded(claim.article_value, claim.redone_value)] == []


@pytest.mark.parametrize(("key", "value"), MISTAKES.items())
def test_known_mistakes_are_named(key, value):
    assert BY_KEY[key].verdict == "wrong"
    assert BY_KEY[key].value == value


def test_the_slip_of_the_pen():
    below = [claim for claim in errata.of_cell(1) if claim.article_value == "3.0"]
    assert [claim.verdict for claim in below] == ["imprecise"]
    assert below[0].value == pytest.approx(100 * 26 / 890)


@pytest.mark.parametrize(("cell", "line", "numbers"), LINES)
def test_every_printed_figure_is_covered(cell, line, numbers):
    claims = [claim for claim in errata.of_cell(cell) if claim.line == line]
    left = list(numbers)
    for claim in claims:
        assert claim.article_value in left, f"{claim.key}: {claim.article_value} is not printed there"
        left.remove(claim.article_value)
    words = {number for claim in claims for number in re.findall(r"(?<![\w.,])[\d,.]+(?![\w.,])", claim.says)}
    assert set(left) <= words, f"cell {cell}, line {line}: {left} not covered"


def test_no_claim_stands_at_a_line_that_is_not_printed():
    lines = {(cell, line) for cell, line, numbers in LINES if numbers}
    assert {(claim.cell, claim.line) for claim in CLAIMS if claim.cell} == lines


@pytest.mark.parametrize("chapter", sorted({claim.chapter for claim in CLAIMS}))
def test_every_place_exists(chapter):
    cells = {cell["id"] for cell in json.loads((BOOK / f"{chapter}.ipynb").read_text(encoding="utf-8"))["cells"]}
    assert {claim.anchor for claim in CLAIMS if claim.chapter == chapter} - cells == set()


def test_each_verdict_has_a_reason():
    assert [claim.key for claim in CLAIMS if claim.verdict != "right" and not claim.because] == []
    # What nothing was computed for names its source or its reason.
    assert [claim.key for claim in CLAIMS if claim.computed is None and not claim.because] == []


def test_the_tally_counts_all_and_each_once():
    counts = errata.tally(CLAIMS)
    assert list(counts) == list(errata.SECTIONS)
    assert sum(sum(found.values()) for found in counts.values()) == len(CLAIMS)
    assert counts["4"]["wrong"] == sum(claim.section == "4" and claim.verdict == "wrong" for claim in CLAIMS)
    shown = [claim.key for row in errata_page.strips().values() for claim in row]
    assert sorted(shown) == sorted(BY_KEY)


@pytest.mark.parametrize(
    ("printed", "value", "shown"),
    [
        ("5,120", 5080, "5,080"),
        ("-38.2", 61.798, "+61.8"),
        ("12.800", Fraction(25, 2), "12.500"),
        ("933", 933.23, "933"),
    ],
)
def test_values_are_shown_as_the_article_prints(printed, value, shown):
    assert errata.as_printed(printed, value) == shown


@pytest.mark.parametrize(
    ("printed", "value", "verdicts"),
    [
        ("3.0", 2.9501, ("right",)),
        ("3.0", 2.9499, ("imprecise", "wrong")),
        ("105", 100, ("imprecise", "wrong")),
        ("106", 100, ("wrong",)),
        ("-5", 5, ("wrong",)),
        ("26", 0, ("wrong",)),
    ],
)
def test_verdicts_that_a_number_leaves_open(printed, value, verdicts):
    assert errata.numeric_verdicts(printed, value) == verdicts


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"verdict": "maybe"}, "verdict is 'maybe'; expected one of right"),
        ({"section": "12"}, "section is '12'; expected one of 0"),
        ({"article_value": "about 5"}, "article_value is 'about 5'; expected a printed number"),
        ({"article_value": "5"}, "nothing computed to compare with"),
    ],
)
def test_a_claim_that_says_nothing_is_refused(changes, message):
    claim = Claim("1.x", "1", "x", "right", "", "05-ledger", "predict-sum")
    with pytest.raises(ValueError, match=message):
        replace(claim, **changes)


@pytest.mark.parametrize(
    ("printed", "value", "error"), [("many", 5, ValueError), ("5", "5", TypeError), ("1", True, TypeError)]
)
def test_what_is_no_number_is_refused(printed, value, error):
    with pytest.raises(error, match="expected a number"):
        errata.agrees(printed, value)


@pytest.mark.parametrize("tokens", [4096, 16_384, 65_536, 2**20])
def test_cost_of_the_fifth_cell(tokens):
    cost = selection_cost(FLASH, tokens)
    assert cost.with_pool == 4096 * (tokens + 4 * min(tokens, 16_384))
    assert cost.average_without_pool == 4096 * tokens
    assert cost.comparisons == tokens
    assert cost.keys_without_pool == 5 * tokens * INDEX_KEY.bytes_per_row(128)


def test_where_the_pool_begins_to_pay():
    assert saves_nothing_up_to(FLASH) == 16_384
    first = pays_from(FLASH)
    spared = [4 * 4096 * (tokens - 16_384) - tokens for tokens in (first - 1, first)]
    assert spared[0] <= 0 < spared[1]
    assert selection_cost(FLASH, 400).saving == 1
    with pytest.raises(ValueError, match="no pool"):
        selection_cost(replace(FLASH, candidate_source_layer_id=-1), 4096)


def test_recall_is_the_overlap_with_a_run_that_has_no_pool():
    torch.manual_seed(0)
    nano = replace(ModelConfig.nano(), engram_layer_ids=(), engram_num_embeddings=(), n_routed_experts=4)
    model = Model(nano).requires_grad_(False)
    free = Model(replace(nano, candidate_source_layer_id=-1)).requires_grad_(False)
    free.load_state_dict(model.state_dict())
    ids = torch.randint(16, 272, (2, 200))
    at = torch.tensor([[150, 199], [140, 180]])
    pools, wanted = {}, {}
    layer = next(plan.index for plan in nano.layers if plan.mode == "reindex")
    model.layers[layer].attn.indexer.register_forward_hook(lambda _, given, made: pools.update(blocks=given[-1]))
    free.layers[layer].attn.indexer.register_forward_hook(lambda _, given, made: wanted.update(entries=made.entries))
    found = measure_recall(model, ids, at)[0]
    free(ids)
    shares = []
    for row, places in enumerate(at.tolist()):
        for place in places:
            blocks = set(pools["blocks"][200 * row + place].tolist())
            best = wanted["entries"][200 * row + place].tolist()
            shares.append(sum(entry // nano.candidate_block_size in blocks for entry in best) / len(best))
    assert (found.layer, found.queries) == (layer, 4)
    assert found.recall == pytest.approx(sum(shares) / 4)
    assert found.worst == pytest.approx(min(shares))
    assert 0 < found.worst < 1
    assert 128 / 200 < found.chance < 128 / 140
    with pytest.raises(ValueError, match="queries it hides entries from"):
        measure_recall(model, ids[:, :100])


def test_tables_name_verdicts_and_lead_to_places():
    page = errata_page.section_tables("The ledger", "4", cells=(1,))._repr_html_()
    assert page.count("<tr>") == len(errata.of_section("4")) + len(errata.of_cell(1)) + 2
    assert 'href="05-ledger.html#the-hunt-and-its-wrong-turns"' in page
    strip = errata_page.strip_figure("All", {"cell 1": "#here"})._repr_html_()
    assert strip.count("✖") == sum(claim.verdict == "wrong" for claim in CLAIMS) + 1
    assert '<a href="#here">cell 1</a>' in strip


def test_words_for_values():
    assert errata_page.value_of(BY_KEY["4.k-and-v"]) == "288 B"
    assert errata_page.value_of(BY_KEY["6.mhc"]) == "no"
    assert errata_page.value_of(BY_KEY["5.depends"]) == "–"
    assert errata_page.value_of(BY_KEY["1.nearly-half"]) == "1,829 tokens"


def test_the_format_that_the_article_names_would_weigh_less():
    assert MAIN_KV.bytes_per_row(512) - INDEX_KEY.bytes_per_row(512) == 16
    assert "272 bytes" in BY_KEY["4.mxfp4"].because
    assert ledger.bytes_per_token(FLASH) == 890
