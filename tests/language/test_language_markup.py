"""The texts of HTML: what is one text, what is none, and that nothing else of a page changes."""

import re

import pytest

from ds41 import viz
from ds41.config import ModelConfig
from ds41.language import figure, markup
from ds41.language.catalogue import Catalogue


def asked(html: str) -> list[str]:
    """The messages of a piece of HTML, in their order."""
    found: list[str] = []

    def translate(message: str) -> None:
        found.append(message)

    assert markup.rewrite(html, translate) == markup.rewrite(html, lambda message: None)
    return found


@pytest.mark.parametrize(
    ("html", "messages"),
    [
        ("<p>Two words</p>", ["Two words"]),
        ("<p>All <b>44 layers</b> run</p>", ["All <b>{1} layers</b> run"]),
        ('<p>See <a href="x.html">chapter 3</a> first</p>', ["See <1>chapter {1}</1> first"]),
        # A tag around everything and marks before the words are no part of the text.
        ("<td><b>whole</b></td>", ["whole"]),
        ('<span><i class="ds-swatch"></i>main KV <b>594 B</b></span>', ["main KV"]),
        ("<ul><li>one thing</li><li>another</li></ul>", ["one thing", "another"]),
        ("<p>size of <code>kv_source[0.5]</code> in bytes</p>", ["size of <code>kv_source[0.5]</code> in bytes"]),
        ("<p>It&#x27;s 2 &lt; 3 &quot;here&quot;</p>", ['It\'s {1} &lt; {2} "here"']),
        ('<svg aria-label="A bar of 5 layers"><path d="M 0 1.5"/></svg>', ["A bar of {1} layers"]),
        ('<p title="a hint">text</p>', ["a hint", "text"]),
        ("<style>.a::after{content:'some words'}</style><script>const a = 'some words';</script>", []),
        ("<!-- some words --><td>0.5</td><td>12 B</td>", []),
        ('<span translate="no">def f(self)</span><p>said</p>', ["said"]),
        ('<p>The model says <span translate="no">no <b>or</b> yes</span></p>', ["The model says"]),
        # A name within a text is a place; the name of a worker is no text.
        (
            '<p>Worker <b translate="no">gpu <i>7</i></b>: waited 2 ms, then <b>ran</b></p>',
            ["Worker <1>: waited {1} ms, then <b>ran</b>"],
        ),
        ("<td>prefill-0</td><td>pre-fill 0</td>", ["pre-fill {1}"]),
        ("<code>only_code</code>", []),
    ],
)
def test_texts_of_html(html, messages):
    assert asked(html) == messages


def test_a_translation_is_put_where_the_text_stood():
    known = {
        "All <b>{1} layers</b> run, {2} bytes": "{2} Byte in <b>{1} Schichten</b>",
        "See <1>chapter {1}</1>": "Siehe <1>Kapitel {1}</1>",
    }
    html = '<p> All <b>44 layers</b> run, 1,024.5 bytes</p><p>See <a href="a.html" title="1.5">chapter 3</a></p>'
    assert markup.rewrite(html, known.get) == (
        '<p> 1.024,5 Byte in <b>44 Schichten</b></p><p>Siehe <a href="a.html" title="1,5">Kapitel 3</a></p>'
    )


def test_braces_in_code_are_no_places():
    html = '<p>Use <code>f"{1}"</code> for 3.5 words</p><p>Set {01} here</p>'
    assert markup.rewrite(html, lambda message: message) == html.replace("3.5", "3,5")


def test_an_empty_tag_keeps_nothing_from_translation():
    assert asked('<p><input translate="no" value="x"> words after</p><p>Other words</p>') == [
        "words after",
        "Other words",
    ]


def test_a_name_within_a_text_stays():
    html = '<p>Worker <b translate="no">gpu 0.5</b> waits</p>'
    known = {"Worker <1> waits": "Es wartet <1>"}
    assert markup.rewrite(html, known.get) == '<p>Es wartet <b translate="no">gpu 0.5</b></p>'


def test_the_device_is_a_place_of_a_figures_texts():
    html = '<p title="on RTX 4090">Run on RTX 4090 with 8 GB</p><script type="application/json" class="ds-data">'
    html += '["run on RTX 4090"]</script>'
    texts = {"on {device}": "auf {device}", "Run on {device} with {1} GB": "{1} GB auf {device}"}
    texts["run on {device}"] = "auf {device}"
    known = Catalogue("de", {(text, ""): translated for text, translated in texts.items()})
    said = figure.localise(html, known, ["RTX 4090", "CPU"])
    assert said.startswith('<p title="auf RTX 4090">8 GB auf RTX 4090</p>')
    assert '["auf RTX 4090"]' in said
    assert not known.missed


def test_numbers_without_words_are_written_the_german_way_and_attributes_stay():
    html = '<td style="left:1.5%" data-x="0.5">889.83</td><text x="0.5">1,024</text><code>0.5</code>'
    assert markup.rewrite(html, lambda message: None) == (
        '<td style="left:1.5%" data-x="0.5">889,83</td><text x="0.5">1.024</text><code>0.5</code>'
    )


def test_a_translation_with_a_place_of_no_tag_is_an_error():
    with pytest.raises(ValueError, match="</2>"):
        markup.rewrite('<p>go <a href="x">on</a></p>', {"go <1>on</1>": "<1>weiter</2>"}.get)


def test_the_lines_of_a_label_are_one_text():
    label = (
        '<g id="f-text_3">\n<text style="a" x="1">with a tensor</text>\n<text style="a" x="1">scale of 0.5</text>\n</g>'
    )
    assert asked(label) == ["with a tensor scale of {1}"]
    written = markup.rewrite(label, {"with a tensor scale of {1}": "mit einer Tensorskala von {1}"}.get)
    lines = re.findall(r">([^<>\n]+)<", written)
    assert " ".join(lines) == "mit einer Tensorskala von 0,5"
    assert len(lines) == 2


def test_a_shorter_label_leaves_lines_empty():
    label = '<g id="f-text_3"><text>one</text><text>two</text><text>three</text></g>'
    written = markup.rewrite(label, {"one two three": "kurz"}.get)
    assert written == '<g id="f-text_3"><text>kurz</text><text></text><text></text></g>'


def figures() -> list[str]:
    config = ModelConfig.flash()
    made = [viz.layer_map(config), viz.ledger_explorer(), viz.prefill_map(), viz.inference_stack()]
    return [one._repr_html_() for one in made]


@pytest.mark.parametrize("html", figures(), ids=["layers", "ledger", "prefill", "stack"])
def test_without_translations_a_figure_changes_its_numbers_only(html):
    said = figure.localise(html, Catalogue("de", {}))
    bare = re.sub(r"[\d.,]", "", said.replace("de-DE", "en-US"))
    assert bare == re.sub(r"[\d.,]", "", html.replace("&#x27;", "'")) or bare == re.sub(r"[\d.,]", "", html)


@pytest.mark.parametrize("html", figures(), ids=["layers", "ledger", "prefill", "stack"])
def test_every_text_of_a_figure_is_found_again_once_translated(html):
    """A catalogue that has all texts, each with a mark before it, leaves nothing to ask for."""
    first = Catalogue("de", {})
    figure.localise(html, first)
    assert first.missed
    second = Catalogue("de", {(text, context): f"§{text}" for text, context in first.missed})
    said = figure.localise(html, second)
    assert not second.missed
    # Some stand in several states of the figure.
    assert said.count("§") + said.count("\\u00a7") >= len(first.missed)
