"""What must hold of a translation: what is refused, and that good German passes."""

import pytest
import translation_rules as rules
import yaml
from project import HERE
from translation_terms import Terms


@pytest.mark.parametrize(
    ("english", "german"),
    [
        ("22.6 and 1,048,576 bytes", "22,6 und 1.048.576 Byte"),
        (
            "`a.b` of $x = 0.5$ in [chapter 3](03-csa2.ipynb) {cite}`one,two`",
            "[Kapitel 3](03-csa2.ipynb): $x = 0.5$ von `a.b` {cite}`one,two`",
        ),
        ("section 2.4.4 and section 2.3", "Abschnitt 2.4.4 und Abschnitt 2.3"),
        ("V4.1 keeps 890 bytes", "V4.1 behält 890 Byte"),
        ("{1} of {2} <b>bytes</b>", "<b>Byte</b>: {2}, davon {1}"),
        ("For {tokens:,} it gives {got!r}.", "Sie ergibt {got!r} für {tokens:,}."),
        ("{term}`page` and {term}`window`", "{term}`Fenster` und {term}`Seiten <Seite>`"),
        ("about {{ head_dim }} channels", "etwa {{ head_dim }} Kanäle"),
        ("a 4-bit code, 3.5 times", "ein 4-Bit-Code, 3,5-mal"),
        (r"so $x = 2\text{ bytes}$ each", r"also je $x = 2\text{ Byte}$"),
    ],
)
def test_good_translations_pass(english, german):
    assert list(rules.faults(english, german, "")) == []


@pytest.mark.parametrize(
    ("english", "german", "fault"),
    [
        ("22.6 bytes", "22.6 Byte", "22.6"),
        ("1,048,576 tokens", "1,048,576 Token", "1,048,576"),
        ("890.5 bytes", "890 Byte", "890.5"),
        ("two bytes", "2,5 Byte", "2,5"),
        ("see `a.b`", "siehe `a`", "code"),
        ("see [x](a.ipynb)", "siehe [x](b.ipynb)", "link"),
        ("in $x$", "in $y$", "formula"),
        (r"in $x\text{ and }y$", r"in $x\text{ und }z$", "formula"),
        ("{cite}`one` says", "sagt", "citation"),
        ("{1} of {2}", "{1} von allen", "places"),
        ("<b>x</b> y", "x y", "places"),
        ("<1>a</1> and <2>b</2>", "<1>a<2> und </1>b</2>", "order"),
        ("{{ x }} is {value}", "{{ x }} ist {wert}", "places"),
        ("{{ head_dim }} wide", "breit", "substitution"),
        ("word", "Wort ", "white space"),
    ],
)
def test_faults_are_named(english, german, fault):
    assert any(fault in found for found in rules.faults(english, german, ""))


@pytest.fixture(scope="module")
def terms():
    return Terms.of(HERE, "de")


@pytest.mark.parametrize(
    ("english", "german"),
    [
        ("The window ends.", "Das Fenster endet."),
        ("Windows end; two layers.", "Sliding-Windows enden; zwei Schichten."),
        ("`window` in code", "`window` im Code"),
        # The longer term covers the shorter one.
        ("the window pool", "der Fensterpool"),
        ("a page table", "eine Seitentabelle"),
    ],
)
def test_terms_are_kept(terms, english, german):
    assert list(terms.faults(english, german)) == []


@pytest.mark.parametrize(
    ("english", "german", "term"),
    [("The window ends.", "Das Window endet.", "window"), ("index keys", "Schlüssel des Index", "index keys")],
)
def test_other_words_are_refused(terms, english, german, term):
    assert [fault for fault in terms.faults(english, german) if repr(term) in fault]


def test_the_term_list_is_sorted_out():
    listed = yaml.safe_load((HERE.book / "locale" / "de" / "terms.yml").read_text(encoding="utf-8"))
    names = [term["en"] for term in listed]
    assert len(names) == len(set(names))
    assert all(term["de"].strip() for term in listed)
