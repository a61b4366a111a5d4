"""What pages say of themselves: descriptions, cards, the front door, the page for dead addresses; the server."""

from __future__ import annotations

import gzip
import urllib.error
import urllib.request

import page_cards
import page_meta
import page_server
import pytest
from page_markup import PageError
from PIL import Image
from project import HERE

SITE = page_meta.Site("https://example.org/ds41/", "A book & more", "book/intro.html")


def article(body: str) -> str:
    heading = '<h1>A <em>title</em><a class="headerlink" href="#">#</a></h1>'
    return f'<nav><p>aside</p></nav><article class="bd-article">{heading}{body}</article>'


def test_a_page_is_described_by_its_opening():
    body = (
        '<aside class="margin"><p>a note</p></aside><div class="admonition"><p>a box</p></div>'
        r"<figure><p>a picture</p></figure><p>Short, with \(x^2\) and a source [21].</p>"
        "<p>The second paragraph goes on, until there is enough to read.</p><p>The third is not needed.</p>"
    )
    title, text = page_meta.describe(article(body))
    assert title == "A title"
    assert text == "Short, with and a source. The second paragraph goes on, until there is enough to read."


def test_a_long_opening_is_cut_after_a_sentence_or_a_word():
    sentence = "This sentence has exactly as many letters as it needs to be told apart. "
    assert page_meta.describe(article(f"<p>{sentence * 4}</p>"))[1] == (sentence * 2).strip()
    words = page_meta.describe(article(f"<p>{'word ' * 80}</p>"))[1]
    assert words.endswith("word…")
    assert len(words) <= page_meta.LENGTH


def test_tags_are_escaped_and_absolute():
    tags = page_meta.head_tags(SITE, "book/a.html", 'The "one"', "a < b", page_meta.card_name("book/a.html"))
    assert '<meta name="description" content="a &lt; b" />' in tags
    assert 'property="og:title" content="The &quot;one&quot;"' in tags
    assert 'property="og:url" content="https://example.org/ds41/book/a.html"' in tags
    assert 'property="og:image" content="https://example.org/ds41/_static/cards/book-a.png"' in tags


def test_the_door_leads_on_and_says_what_the_first_page_says():
    first = (
        '<meta name="description" content="words" />\n<meta name="other" />\n<link rel="icon" href="../_static/i.svg"/>'
    )
    door = page_meta.door(SITE, first)
    assert 'content="0; url=book/intro.html"' in door
    assert '<meta name="description" content="words" />' in door
    assert "other" not in door
    assert '<link rel="icon" href="_static/i.svg" />' in door
    assert '<a href="book/intro.html">A book &amp; more</a>' in door
    assert '<html lang="en">' in door


def test_a_page_without_text_is_named(tmp_path):
    with pytest.raises(PageError, match=r"book/a\.html has no text to describe it by"):
        page_meta.add_meta({tmp_path / "book" / "a.html": article("")}, tmp_path, SITE, ["book/a.html"])


def test_a_card_shows_the_bytes_to_scale(tmp_path):
    bar = page_cards.Bar.of((HERE.book / "_static" / "ledger.svg").read_text(encoding="utf-8"))
    assert list(bar.owners.values()) == [178, 178, 178, 356]
    assert (bar.total, bar.main + bar.index) == (890, 890)
    path = tmp_path / "cards" / "a.png"
    page_cards.draw({path: "What does a token of context cost an agent?"}, "A book", bar)
    card = Image.open(path).convert("RGB")
    assert card.size == page_cards.SIZE
    row = [card.getpixel((x, 500)) for x in range(card.width)]
    main, index = (tuple(bytes.fromhex(bar.colours[name][1:])) for name in ("main", "index"))
    assert row.count(main) / row.count(index) == pytest.approx(720 / 170, rel=0.02)
    with pytest.raises(PageError, match=r"ledger\.svg does not name"):
        page_cards.Bar.of("<svg></svg>")


def test_the_server_answers_as_pages_does(tmp_path):
    (tmp_path / "book").mkdir()
    (tmp_path / "book" / "index.html").write_text("x" * 5000)
    (tmp_path / "404.html").write_text("nothing here")
    (tmp_path.parent / "secret.txt").write_text("no")

    def get(address: str):
        request = urllib.request.Request(address, headers={"Accept-Encoding": "gzip"})
        try:
            answer = urllib.request.urlopen(request, timeout=10)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            return answer.status, answer.headers, answer.read()

    with page_server.serve(tmp_path, "/ds41/") as site:
        assert site.endswith("/ds41")
        status, headers, body = get(f"{site}/book/")
        assert (status, headers["Content-Encoding"], headers["Cache-Control"]) == (200, "gzip", "max-age=600")
        assert gzip.decompress(body) == b"x" * 5000
        for address in (f"{site}/gone/deep.html", f"{site}/../../secret.txt", site.removesuffix("/ds41") + "/book/"):
            status, _, body = get(address)
            assert (status, body) == (404, b"nothing here")
