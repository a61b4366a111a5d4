"""ci/workshop_slides_check.py: it finds text that nobody in the room can read, and plots have room for their labels."""

from __future__ import annotations

from pathlib import Path

import browser
import pytest
import workshop_slides as slides
import workshop_slides_check as check
from project import HERE
from workshop_slide import Chapter, Part, Slide

pytestmark = pytest.mark.browser

CHAPTER = Chapter("04-fp4", "https://example.org/book/04-fp4.html", lambda target: target)
TITLE = Slide("title", "How few bits?", parts=[Part("answer", "Four and a half.")], below=False)
NARROW = (
    '<figure class="ds-fig"><div class="ds-body">'
    '<p style="width:5rem; overflow:hidden; white-space:nowrap">A box too narrow for its words</p>'
    "</div></figure>"
)
PLOT = """
<figure class="ds-fig ds-plots"><style>.ds-plots svg {{ display: block; width: 100%; height: auto; }}</style>
<div class="ds-body"><svg class="ds-wide" viewBox="0 0 460.8 200" style="font-size: 9px">
<text x="{start}" y="50" text-anchor="end">a name before it</text>
<text x="{end}" y="90">a label behind it</text>
</svg></div></figure>
"""


@pytest.fixture(scope="module")
def chromium():
    try:
        browser.find()
    except browser.NoBrowserError as error:
        pytest.fail(str(error)) if browser.required() else pytest.skip(str(error))
    with browser.chromium() as running:
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("slides")
    slides.vendor(HERE, made)
    return made


def faults(chromium, folder: Path, *made: Slide) -> list[str]:
    path = folder / "04-fp4.html"
    path.write_text(slides.render([TITLE, *made], CHAPTER, "en"), encoding="utf-8")
    with check.Walk(chromium, path, "light") as walk:
        assert walk.slides() == 1 + len(made)
        return walk.faults


def figure(html: str) -> Slide:
    return Slide("figure", "A figure", parts=[Part("figure", html)], below=False)


def test_a_slide_without_content_is_a_fault(chromium, folder):
    assert faults(chromium, folder, Slide("note", "A note", below=False)) == ["2.1 note: nothing under its heading"]


def test_a_section_may_be_its_heading_alone(chromium, folder):
    assert faults(chromium, folder, Slide("section", "A section", below=False)) == []


def test_text_that_is_cut_off_is_a_fault(chromium, folder):
    (fault,) = faults(chromium, folder, figure(NARROW))
    assert fault.startswith('2.1 figure: "A box too narrow for its words" is cut off by')


def test_text_under_an_arrow_is_a_fault(chromium, folder):
    below = Part("text", '<p style="position:absolute; left:600px; top:680px">Words at the edge</p>')
    made = Slide("section", "A section", parts=[below], below=False), Slide("section", "More", below=True)
    assert '2.1 section: "Words at the edge" lies under an arrow or the number' in faults(chromium, folder, *made)


@pytest.mark.parametrize(("start", "end"), [(80, 300), (80, 440), (20, 300), (20, 440)])
def test_a_plot_has_room_for_labels_that_reach_beyond_it(chromium, folder, start, end):
    assert faults(chromium, folder, figure(PLOT.format(start=start, end=end))) == []
