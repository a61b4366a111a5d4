"""The handout: each of its numbers is the library's, and its paper is checked."""

import io
import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser

import pytest
import workshop_handout as handout
import workshop_handout_numbers as numbers
import workshop_handout_pictures as pictures
from pypdf import PdfReader, PdfWriter
from pypdf.generic import DictionaryObject, NameObject
from workshop_handout_page import page

from ds41 import ModelConfig, language, ledger
from ds41.report import ledger_report

FLASH = ModelConfig.flash()
# The same plan with other widths: a page whose numbers were written down would not follow.
WIDER = replace(FLASH, head_dim=1024, index_head_dim=256, sliding_window=256)
SOURCE = "https://example.org/book/"


class Cells(HTMLParser):
    """The text of a page, of its tables row by row, and the tags that it is made of."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows, self.text, self.tags, self.attributes, self._in_cell = [], "", [], [], False
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
            self._in_cell = True

    def handle_endtag(self, tag):
        self._in_cell = self._in_cell and tag not in ("td", "th")

    def handle_data(self, data):
        if self.tags[-1:] == ["style"]:
            return
        self.text += data
        if self._in_cell:
            self.rows[-1][-1] += data

    def row(self, name: str) -> list[str]:
        (found,) = (row[1:] for row in self.rows if row[0].startswith(name))
        return found


@pytest.fixture(params=[FLASH, WIDER], ids=["published", "wider"], scope="module")
def case(request):
    return request.param, Cells(page(request.param, SOURCE))


def test_the_sum(case):
    config, found = case
    told = ledger_report(config, "", 0)["bytes_per_token"]
    assert f"{told['total']:,} bytes of context a token" in found.text
    assert "3 encoder sources × 1/2 entry + 1 decoder source × 1 entry = 2.5 entries a token" in found.text
    assert f"= {told['entry']:,} B an entry".replace(",", "") in found.text.replace(",", "")
    assert f"2.5 × {told['entry']} B = {told['total']:,} B a token" in found.text
    for source in ledger_report(config, "", 0)["sources"]:
        assert f"{source['total']:,} B = {source['main']:,} + {source['index']:,}" in found.text


def test_the_published_page_says_890():
    assert page(FLASH, SOURCE).count("890") >= 6
    assert "933,232,640" in page(FLASH, SOURCE)


@pytest.mark.parametrize(("name", "tokens"), [("4K", 4096), ("64K", 65_536), ("1M", 1_048_576)])
def test_tokens_and_bytes(case, name, tokens):
    config, found = case
    sequence = ledger_report(config, "", tokens)["sequence"]
    assert found.row(f"{name} = {tokens:,}") == [f"{sequence['global']:,}", f"{sequence['total']:,}"]
    entry = ledger_report(config, "", 0)["bytes_per_token"]["entry"]
    assert f"Exactly {entry} × (3 × ⌊N/2⌋ + N) bytes" in found.text
    assert entry * (3 * (tokens // 2) + tokens) == sequence["global"]


def test_what_the_sum_leaves_out(case):
    config, found = case
    kept = {row.name: int(row.bytes) for row in ledger.sequence_rows(config, 2**20)}
    assert found.row("windows")[-1] == f"{kept['windows']:,}"
    product = 1
    for factor in found.row("windows")[0].split(" × "):
        product *= int(factor)
    assert product == kept["windows"]
    assert found.row("open groups")[-1] == f"{ledger.open_group_bytes(config):,}"
    assert found.row("Engram")[-1] == f"{kept['Engram history']}"


def test_what_the_article_misses(case):
    config, found = case
    names = ("encoder, keys", "key and value are one", "the decoder's source", "index keys")
    (first, *changes) = [int(found.row(name)[0].replace("−", "-").replace(" ", "").replace(",", "")) for name in names]
    assert f"What the source article's {first:,} misses" in found.text
    assert first + sum(changes) == ledger.bytes_per_token(config)
    assert found.row("what is kept") == [f"{int(ledger.bytes_per_token(config)):,}"]


def test_other_systems(case):
    config, found = case
    systems = {one["name"]: one for one in ledger_report(config, "", 0, compare=True)["comparison"]["systems"]}
    sizes = []
    for system in numbers.compared():
        precision, size, factor = found.row(system.name)
        told = systems[system.name]
        assert (precision, size) == (told["precision"].upper(), f"{told['bytes_per_token']:,.0f}")
        assert factor == f"{told['factor']:,.1f} ×"
        sizes.append(told["bytes_per_token"])
    assert sizes == sorted(sizes, reverse=True)


def test_five_numbers():
    found = Cells(page(FLASH, SOURCE))
    step = numbers.step(FLASH, 2**20)
    assert step.bound.bound == "bandwidth"
    assert found.row(f"{1e3 * step.bound.seconds:.2f} ms")
    assert found.row(f"{step.bound.weight_bytes / 1e9:.1f} GB")
    assert f"of the {ledger.sequence_bytes(FLASH, 2**20) / 1e6:.0f} MB" in found.row(f"{step.kv_bytes / 1e6:.0f} MB")[0]
    assert found.row(f"{numbers.step(FLASH, 4096).flops / 1e9:.1f} → {step.flops / 1e9:.1f} GFLOP")
    assert found.row(f"{numbers.active_parameters(FLASH) / 1e9:.1f} of 551.6 billion")


def test_the_blank_ledger_and_its_answers(case):
    config, found = case
    for name in ("1.", "2.", "3."):
        assert found.row(name) == [""] * 4
    storage = ledger.Storage.published(config)
    entry = storage.main.nbytes + storage.index.nbytes
    sums = [(3, entry), (2, entry), (2.5, storage.window.nbytes + storage.index.nbytes)]
    for place, (entries, size) in enumerate(sums, start=1):
        assert f"{place}. {entries} × {size:,} = {entries * size:,.0f}; {entries * size * 2**20:,.0f}" in found.text


def test_the_layers_are_the_configuration_s():
    picture = pictures.layers(FLASH)
    assert [int(label) for label in re.findall(r'class="soft">(\d+)<', picture)] == list(range(40))
    for mode, mark in pictures.MARKS.items():
        assert picture.count(mark) == sum(plan.mode == mode for plan in FLASH.layers)
    widths = [float(width) for width in re.findall(r'<rect class="main"[^>]* width="([\d.]+)"', picture)]
    assert [round(2 * width / widths[-1], 3) for width in widths] == [1, 1, 1, 2]


def test_lengths_are_to_one_scale():
    picture = pictures.records(FLASH)
    storage = ledger.Storage.published(FLASH)
    width = float(re.search(r'<rect class="main"[^>]* width="([\d.]+)"', picture)[1])
    assert width / pictures.WIDTH == pytest.approx(256 / storage.window.nbytes, abs=1e-3)
    names = re.findall(r'"bold">([^<]+)</tspan> (\d+) B', picture)
    assert [int(size) for _, size in names] == [part.nbytes for part in (storage.main, storage.index, storage.window)]
    formula = r"(\d+) B = (\d+) B: (\d+) channels of (\d) bits \(\w+\) \+ (\d+) B: a scale \(\w+\) for every (\d+)"
    found = re.findall(formula, unescape(picture))
    assert len(found) == 3
    for sizes in found:
        whole, elements, channels, bits, scales, block = map(int, sizes)
        assert (elements, scales) == (channels * bits // 8, channels // block)
        assert whole == elements + scales


def test_the_page_needs_nothing_else_and_is_big_enough():
    html = page(FLASH, SOURCE)
    found = Cells(html)
    assert not {"script", "link", "img", "iframe"} & set(found.tags)
    assert not [value for name, value in found.attributes if name in ("src", "href")]
    sizes = [float(size) for size in re.findall(r"font(?:-size)?: ([\d.]+)pt", html)]
    assert len(sizes) >= 4
    assert min(sizes) >= 0.75 * handout.SMALLEST
    assert html.count('role="img" aria-label="') == 3


def test_a_configuration_that_the_page_does_not_describe():
    halved = replace(FLASH, compress_ratios=tuple(min(2, 2 * ratio) for ratio in FLASH.compress_ratios))
    with pytest.raises(ValueError, match="ratio 1"):
        page(halved, SOURCE)


def test_numbers_in_german(monkeypatch):
    assert numbers.number(1234567.5) == "1,234,567.5"
    monkeypatch.setattr(numbers, "current", lambda: "de")
    assert numbers.number(1234567.5) == "1.234.567,5"
    assert numbers.number(0.344, 2) == "0,34"


def reader(*sizes: tuple[float, float], fonts: dict | None = None) -> PdfReader:
    writer = PdfWriter()
    for width, height in sizes:
        sheet = writer.add_blank_page(width, height)
        if fonts:
            sheet[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): DictionaryObject(fonts)})
    stream = io.BytesIO()
    writer.write(stream)
    return PdfReader(stream)


def test_paper():
    a4 = (594.96, 841.92)
    assert list(handout.faults(reader(a4))) == []
    assert list(handout.faults(reader(a4, a4))) == ["2 pages; expected 1"]
    assert list(handout.faults(reader((612, 792)))) == ["the page is 612 × 792 points; expected 595 × 842"]
    plain = DictionaryObject({NameObject("/Subtype"): NameObject("/Type1")})
    assert list(handout.faults(reader(a4, fonts={NameObject("/F1"): plain}))) == ["font /F1 is not embedded"]


def test_a_language_without_a_catalogue(monkeypatch, capsys):
    monkeypatch.setattr(language, "load", lambda code: (_ for _ in ()).throw(ValueError(f"no catalogue of {code!r}")))
    assert handout.main(["--language", "de"]) == 1
    assert "no catalogue of 'de'" in capsys.readouterr().err
