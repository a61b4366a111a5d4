"""The catalogues: that those of the book are in order, and what becomes of them when the English changes."""

from types import SimpleNamespace

import catalogues
import pytest
import tiny_book
import translation_sources
from project import HERE


def test_the_translations_are_in_order():
    assert catalogues.check(HERE, "de") == []


def test_hints_and_remarks_are_all_translated():
    """What an exercise may say does not depend on what was executed, so it can be known here."""
    folder = catalogues.figures_folder(HERE, "de")
    for chapter, texts in translation_sources.exercise_texts(HERE).items():
        known = {message.id for message in catalogues.read(folder / f"exercises-{chapter}.po", "de") if message.string}
        assert [text for text in texts if text not in known] == []


@pytest.mark.parametrize(
    ("source", "texts"),
    [
        ('say("one"); language.say("two {x}", x=1)', ["one", "two {x}"]),
        ("say(name)", []),
        ('def f():\n    return "no message"', []),
    ],
)
def test_messages_of_python(source, texts, tmp_path):
    assert list(translation_sources.said(source, tmp_path / "module.py")) == texts


def test_messages_of_exercises(tmp_path):
    source = '''
@exercise("01.1", level="easy", minutes=1, hints=("Look.", "Look " "closer."))
def judge(answer):
    """No message."""
    if answer:
        return "A remark."
    return "One." if answer is None else say("Another {x}.", x=1)
'''
    path = tmp_path / "exercises" / "chapter_01.py"
    assert sorted(translation_sources.said(source, path)) == [
        "A remark.",
        "Another {x}.",
        "Look closer.",
        "Look.",
        "One.",
    ]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A tiny book whose catalogues hold its prose alone."""
    project = tiny_book.make(tmp_path / "project", {"intro": ["1"]})
    prose = catalogues.prose_folder(project, "de") / "intro.po"

    def wanted(project, language):
        return {prose: [(text, "") for text in translation_sources.page_texts(project.chapter("intro"))]}

    monkeypatch.setattr(catalogues, "wanted", wanted)
    return SimpleNamespace(book=project, path=prose)


def write(project, *texts: str) -> None:
    page = project.book.chapter("intro")
    tiny_book.write_chapter(project.book, "intro", [])
    import nbformat
    import notebook_form

    notebook = notebook_form.read(page)
    for number, text in enumerate(texts):
        notebook.cells.insert(-1, nbformat.v4.new_markdown_cell(text, id=f"text-{number}"))
    notebook_form.write(notebook, page)


def translate(project, text: str, translation: str) -> None:
    catalogue = catalogues.read(project.path, "de")
    catalogue.get(text).string = translation
    catalogues.write(catalogue, project.path)


def test_a_changed_text_keeps_its_old_translation_as_a_draft(project):
    before = "The window of a layer holds the last 128 tokens of the text."
    after = "The window of a layer holds the last 256 tokens of the text."
    write(project, before, "Another sentence.")
    catalogues.update(project.book, "de")
    translate(project, before, "Das Fenster einer Schicht hält die letzten 128 Token des Textes.")
    translate(project, "Another sentence.", "Ein anderer Satz.")
    write(project, after, "Another sentence.")
    catalogues.update(project.book, "de")
    catalogue = catalogues.read(project.path, "de")
    assert catalogue.get(after).fuzzy
    # Babel writes the old English for people; an update keeps it until somebody has looked.
    assert f'#| msgid "{before}"' in project.path.read_text(encoding="utf-8")
    catalogues.update(project.book, "de")
    assert f'#| msgid "{before}"' in project.path.read_text(encoding="utf-8")
    assert catalogues.read(project.path, "de").get(after).user_comments == []
    assert catalogue.get("Another sentence.").string == "Ein anderer Satz."
    assert not catalogue.get("Another sentence.").fuzzy


def test_a_text_that_is_gone_is_kept_apart(project):
    write(project, "One sentence.", "Another, quite different from it.")
    catalogues.update(project.book, "de")
    translate(project, "One sentence.", "Ein Satz.")
    write(project, "Another, quite different from it.")
    catalogues.update(project.book, "de")
    catalogue = catalogues.read(project.path, "de")
    assert catalogue.get("One sentence.") is None
    assert [message.string for message in catalogue.obsolete.values()] == ["Ein Satz."]


def test_an_update_without_a_change_writes_equal_files(project):
    write(project, "One sentence, {cite}`with` a role.", "100 % of it.")
    catalogues.update(project.book, "de")
    first = project.path.read_bytes()
    catalogues.update(project.book, "de")
    assert project.path.read_bytes() == first
    assert b"Date" not in first
    assert b"fuzzy" not in first


def test_a_text_that_comes_back_has_its_translation_again(project):
    both = ("One sentence.", "Another, quite different from it.")
    write(project, *both)
    catalogues.update(project.book, "de")
    translate(project, "One sentence.", "Ein Satz.")
    for texts in (both[1:], both, both[1:], both):
        write(project, *texts)
        catalogues.update(project.book, "de")
    assert catalogues.read(project.path, "de").get("One sentence.").string == "Ein Satz."


def test_the_english_that_a_translation_was_made_for_survives_further_changes(project):
    first = "The window of a layer holds the last tokens of the text."
    write(project, first)
    catalogues.update(project.book, "de")
    translate(project, first, "Das Fenster einer Schicht hält die letzten Token des Textes.")
    for text in (f"{first[:-1]} again.", f"{first[:-1]} again and again."):
        write(project, text)
        catalogues.update(project.book, "de")
        message = catalogues.read(project.path, "de").get(text)
        assert message.fuzzy
        assert message.previous_id == [first]
    write(project, first)
    catalogues.update(project.book, "de")
    message = catalogues.read(project.path, "de").get(first)
    assert (message.fuzzy, message.previous_id) == (False, [])


def test_a_catalogue_is_written_whole_or_not_at_all(project, monkeypatch):
    write(project, "One sentence.")
    catalogues.update(project.book, "de")
    before = project.path.read_bytes()

    def full(path, content):
        path.open("wb").write(content[:10])
        raise OSError("no space left")

    monkeypatch.setattr(type(project.path), "write_bytes", full)
    with pytest.raises(OSError, match="no space"):
        catalogues.write(catalogues.read(project.path, "de"), project.path)
    assert project.path.read_bytes() == before
    assert not list(project.path.parent.glob("*.partial"))


def test_a_broken_catalogue_is_named(project, capsys):
    project.path.parent.mkdir(parents=True, exist_ok=True)
    project.path.write_text('msgid "one"\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"intro\.po is not a gettext catalogue"):
        catalogues.read(project.path, "de")
