"""Which texts of a script are messages, and what those of the figures keep to."""

from __future__ import annotations

import re
from importlib import resources

import pytest
from script_messages import messages

SCRIPTS = {
    file.name: file.read_text(encoding="utf-8")
    for file in resources.files("ds41.viz").joinpath("js").iterdir()
    if file.name.endswith(".js")
}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("say`one`", ["one"]),
        ("say `one`; say/* here */\n`two`", ["one", "two"]),
        ("say`All ${whole(count)} of ${inTokens(tokens)}.`", ["All {1} of {2}."]),
        ("const x = { a: say`one`, b: [say`two`] };", ["one", "two"]),
        # Inside one another: in the order in which they begin, whatever stands around them.
        ("say`${one ? say`a ${b}` : `plain ${say`c`}`} and ${d}`", ["{1} and {2}", "a {1}", "c"]),
        ("`<p>${say`one`}</p>${`${say`two`}`}`", ["one", "two"]),
        ("say`${{ a: { b: 1 } }.a.b}, ${() => { return say`in`; }}`", ["{1}, {2}", "in"]),
        # Other tags, and names that only end like this one.
        ("`none` + tag`none` + essay`none` + this.say`none` + say(`none`) + [...say`one`]", ["one"]),
        # What is no code has no messages.
        ("// say`none`\n/* say`none\n */ say`one`", ["one"]),
        ('"say`none`" + \'say`none`\' + "\\"say`none`" + \'\\\\\' + say`one`', ["one"]),
        ('`say\\`none\\`` + say`it\'s "one" // two`', ['it\'s "one" // two']),
        ("text.replace(/[`\"'/]/g, say`one`).split(/\\/`/)", ["one"]),
        ("const half = (a + b) / 2; say`one`; const ratio = a[0] / b / c;", ["one"]),
        ("say`${a / b} of ${(c) / d}`", ["{1} of {2}"]),
        ("`${a}/${b}` + say`one`", ["one"]),
        ("say`a \\`quoted\\` \\\\ \\${word} $5 {x}`", ["a `quoted` \\ ${word} $5 {x}"]),
        ("", []),
    ],
)
def test_messages_are_found_in_code_and_nowhere_else(source, expected):
    assert messages(source) == expected


@pytest.mark.parametrize(
    ("source", "line"),
    [("say`one", 1), ("const a = 1;\nsay`one ${a}", 2), ("\n\n`${say`one`}", 3), ("say`one`\n`${a", 2), ("`${a`", 1)],
)
def test_a_template_that_is_not_closed_is_named_by_its_line(source, line):
    with pytest.raises(ValueError, match=rf"line {line}: a template is not closed"):
        messages(source)


def test_a_brace_that_was_not_opened_is_an_error():
    with pytest.raises(ValueError, match="line 2: a brace closes what was not opened"):
        messages("say`one`;\n}\nsay`two`;")


def test_the_figures_messages_are_texts():
    found = {name: messages(source) for name, source in SCRIPTS.items()}
    assert "Runs on the last {1} of {2}." in found["prefill.js"]
    for name, texts in found.items():
        for text in texts:
            assert not re.search(r"\n|\s{2}|(class|style)=|^\s*$|^(\{\d+\})?$", text), (name, text)


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_script_decides_on_a_language(name):
    assert 'toLocaleString("en-US"' not in SCRIPTS[name]
    assert name == "words.js" or "toLocaleString" not in SCRIPTS[name]
