"""Messages of Python in the language that is spoken, and the catalogues behind them."""

import os
import subprocess
import sys

import pytest

from ds41 import exercises, language
from ds41.language import catalogue


@pytest.fixture
def german():
    language.use("de")
    yield language.translations()
    language.use("en")


@pytest.fixture
def told(monkeypatch):
    """German with two messages of this test alone."""
    texts = {
        ("{count:,} of {total:.1f}: {what!r}", "say"): "{total:.1f} und {count:,}: {what!r}",
        ("braces {as they are}", "say"): "Klammern {wie sie sind}",
    }
    monkeypatch.setattr(language, "load", lambda code: catalogue.Catalogue(code, texts))
    language.use("de")
    yield
    language.use("en")


def test_english_is_what_stands_in_the_code():
    assert language.current() == "en"
    assert language.translations() is None
    assert language.say("{count:,} of {total:.1f}", count=1_048_576, total=0.5) == "1,048,576 of 0.5"
    assert language.say("braces {as they are}") == "braces {as they are}"


@pytest.mark.usefixtures("told")
def test_german_numbers_have_a_comma_and_code_stays():
    said = language.say("{count:,} of {total:.1f}: {what!r}", count=1_048_576, total=0.5, what=0.5)
    assert said == "0,5 und 1.048.576: 0.5"
    assert language.say("braces {as they are}") == "Klammern {wie sie sind}"


@pytest.mark.usefixtures("told")
def test_what_has_no_translation_stays_english_as_a_whole():
    assert language.say("{count:,} others", count=1_048_576) == "1,048,576 others"


def test_exercises_speak_german(german):
    assert "Aufgabe 04.1" in repr(exercises.check("04.1", ...))
    assert "Hinweis 1" in repr(exercises.hint("04.1"))
    assert not german.missed


def test_an_unknown_language_is_an_error():
    with pytest.raises(ValueError, match="'fr'"):
        language.use("fr")
    assert language.current() == "en"


def test_a_file_that_is_no_catalogue_is_an_error(tmp_path):
    path = tmp_path / "broken.po"
    path.write_text("no catalogue at all\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"broken\.po"):
        catalogue.read(path)


def test_fuzzy_and_empty_entries_are_no_translations(tmp_path):
    path = tmp_path / "some.po"
    path.write_text(
        'msgid "one"\nmsgstr "eins"\n\n#, fuzzy\nmsgid "two"\nmsgstr "drei"\n\nmsgid "three"\nmsgstr ""\n\n'
        'msgctxt "say"\nmsgid "one"\nmsgstr "einer"\n',
        encoding="utf-8",
    )
    assert catalogue.read(path) == {("one", ""): "eins", ("one", "say"): "einer"}


def test_the_environment_chooses_the_language():
    program = "from ds41 import language; print(language.current())"
    environment = os.environ | {"DS41_LANGUAGE": "de"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "de\n"


def test_without_babel_english_works_and_german_says_what_is_missing():
    program = """
import sys
sys.modules["babel"] = None
from ds41 import language
print(language.say("as it is"))
try:
    language.use("de")
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "as it is\nanother language than English needs Babel: pip install babel\n"
