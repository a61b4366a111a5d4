"""Hygiene and editing of notebooks: each rule can fail, and a trip through text changes nothing."""

from __future__ import annotations

import nbformat
import notebook_form
import notebook_rules
import notebook_text
import notebooks
import pytest
import tiny_book
from notebook_form import NotebookError

PARAMETERS = tiny_book.PARAMETERS


@pytest.fixture
def project(tmp_path):
    return tiny_book.make(tmp_path / "project", {"01-first": ["x = 1"], "intro": []})


def faults_after(project, change) -> list[str]:
    """The faults of a chapter in order once `change` was done to its notebook."""
    path = project.chapter("01-first")
    notebook = notebook_form.read(path)
    assert notebook_rules.source_faults(path, project) == []
    change(notebook)
    path.write_text(nbformat.v4.writes(notebook) + "\n", encoding="utf-8")
    return notebook_rules.source_faults(path, project)


def cell(notebook, cell_id):
    return next(cell for cell in notebook.cells if cell.id == cell_id)


def set_source(cell_id, source):
    return lambda notebook: cell(notebook, cell_id).__setitem__("source", source)


def insert(at, new):
    return lambda notebook: notebook.cells.insert(at, new)


markdown, code = nbformat.v4.new_markdown_cell, nbformat.v4.new_code_cell


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda n: cell(n, "step-1").__setitem__("execution_count", 3), "'step-1' holds outputs"),
        (lambda n: cell(n, "step-1").outputs.append(nbformat.v4.new_output("stream", text="x")), "holds outputs"),
        (lambda n: cell(n, "step-1").__setitem__("id", "Step_1"), "'Step_1' is not lower-case"),
        (lambda n: cell(n, "step-1").__setitem__("id", "3f2a9c1b"), "'3f2a9c1b' was made by a machine"),
        (insert(3, markdown("x", id="step-1")), "2 cells have the id 'step-1'"),
        (lambda n: n.metadata.kernelspec.__setitem__("name", "conda-env-foo-py"), "conda-env-foo-py"),
        (lambda n: n.metadata.language_info.__setitem__("version", "3.11.7"), "not in the stored form"),
        (lambda n: n.metadata.pop("accelerator"), "not in the stored form"),
        (lambda n: n.metadata.__setitem__("x", 1), "not in the stored form"),
        (set_source("title", "no heading"), "does not open with a markdown cell that holds its title"),
        (insert(3, markdown("# Again", id="again")), "'again' holds a second title"),
        (set_source("colab", "import sys"), "not the one that readies Colab"),
        (lambda n: n.cells.insert(1, code("1", id="early")), "not the one that readies Colab"),
        (lambda n: cell(n, "parameters").metadata.pop("tags"), "notebook has no cells tagged 'parameters'"),
        (insert(3, code("A = 1  # a", id="more", metadata={"tags": ["parameters"]})), "has 2 cells tagged"),
        (lambda n: n.cells.insert(2, code("1", id="early")), "not the second code cell"),
        (set_source("parameters", 'SCALE = "full"  # s'), "does not set DEVICE = 'auto'"),
        (set_source("parameters", PARAMETERS.replace("full", "small")), "does not set SCALE = 'full'"),
        (set_source("parameters", f"{PARAMETERS}\nROWS = 3"), "ROWS has no trailing comment"),
        (set_source("parameters", f"{PARAMETERS}\nROWS = len([])  # r"), "ROWS is not a literal"),
        (set_source("parameters", f"{PARAMETERS}\nprint(1)  # p"), "may only assign names"),
        (set_source("parameters", "SCALE ="), "is not Python"),
        (insert(3, markdown("![](plot.png)", id="picture")), "'picture' shows 1 image(s) without alt text"),
        (insert(3, markdown('<img src="a.png" alt="">', id="picture")), "without alt text"),
        (insert(3, markdown("```{figure} a.png\n:width: 3\nCaption\n```", id="picture")), "without alt text"),
        (set_source("step-1", "x = 1\n" * 41), "'step-1' has 42 lines, over 40"),
        (set_source("step-1", "viz.table('a', (), ())\nx = 1"), "viz.table(...) before its last statement"),
        (lambda n: cell(n, "summary").__setitem__("id", "end"), "has no cell with the id 'summary'"),
        (set_source("summary", "text"), "'summary' does not open a section"),
        (lambda n: n.cells.append(markdown("## More", id="more")), "'more' opens a section after the summary"),
    ],
)  # fmt: skip
def test_each_rule_finds_its_fault(project, change, fault):
    assert any(fault in found for found in faults_after(project, change))


@pytest.mark.parametrize(
    "change",
    [
        insert(3, markdown('![a plot](a.png)\n<img src="a" alt="b">', id="picture")),
        insert(3, markdown("```{figure} a.png\n:alt: a plot\nCaption\n```", id="picture")),
        insert(3, markdown("```md\n# not a title\n![](not an image)\n```\nand `![](code)`", id="code-in-text")),
        lambda n: n.cells.append(code("print(1)", id="summary-row")),
        set_source("parameters", f"{PARAMETERS}\nROWS: int = 4096  # rows"),
    ],
)
def test_what_is_in_order_passes(project, change):
    assert faults_after(project, change) == []


def test_only_numbered_chapters_need_a_summary(project):
    path = project.chapter("intro")
    notebook = notebook_form.read(path)
    notebook.cells.pop()
    notebook_form.write(notebook, path)
    assert notebook_rules.source_faults(path, project) == []


def test_strays_and_missing_pages(project):
    assert notebook_rules.strays(project) == []
    (project.book / "draft.md").write_text("# Draft\n")
    project.chapter("intro").unlink()
    found = notebook_rules.strays(project)
    assert "book/draft.md is not in _toc.yml" in found
    assert any("'book/intro', which has no .ipynb or .md file" in fault for fault in found)


RESULTS = {
    "stderr": nbformat.v4.new_output("stream", name="stderr", text="warned"),
    "image": nbformat.v4.new_output("display_data", {"image/png": "aaaa", "text/plain": "<Figure>"}),
    "address": nbformat.v4.new_output("execute_result", {"text/plain": "<object at 0x7f3a2b1c4d50>"}),
    "widget": nbformat.v4.new_output(
        "display_data", {"application/vnd.jupyter.widget-view+json": {}, "text/plain": "IntSlider(value=3)"}
    ),
    "error": nbformat.v4.new_output("error", ename="ValueError", evalue="no", traceback=[]),
}


def executed(outputs, metadata=None):
    notebook = nbformat.v4.new_notebook(metadata={"kernelspec": notebook_form.KERNELSPEC})
    notebook.cells = [code("1", id="shows", outputs=outputs, metadata=metadata or {})]
    return notebook_rules.executed_faults(notebook)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("stderr", "'shows' writes to stderr"),
        ("image", "'shows' shows an image without alt text"),
        ("address", "prints an object's address"),
        ("widget", "shows only a widget"),
        ("error", "raised ValueError: no"),
    ],
)
def test_results_unfit_to_print(name, fault):
    assert any(fault in found for found in executed([RESULTS[name]]))


def test_results_fit_to_print():
    assert executed([nbformat.v4.new_output("stream", text="a\nb\n")]) == []
    assert executed([RESULTS["image"]], {"mystnb": {"image": {"alt": "A plot"}}}) == []


@pytest.mark.parametrize("updates", [6, 101])
def test_a_flood_of_progress_is_found_however_it_arrives(updates):
    """Case e_progress: 101 updates end as 101 fragments on the page."""
    pieces = [nbformat.v4.new_output("stream", text=f"{n}%") for n in range(updates)]
    returns = [nbformat.v4.new_output("stream", text="\r".join("%" * (updates + 1)))]
    for outputs in (pieces, returns):
        assert any("a progress bar floods the page" in fault for fault in executed(outputs))


TEXT = '''\
# %% [markdown] id="title"
# # Four bits
#
# A `# %%` within a line, $x^2$, and:
#
# ```python
# %time f()
# ```

# %% id="parameters" tags=["parameters"]
SCALE = "full"  # how much to compute
DEVICE = "auto"  # where

# %% [markdown] id="magic"
# ## Magic

# %% id="commands" tags=["hide-input"] mystnb={"image": {"alt": "A \\"plot\\" [µ]"}}
# %matplotlib inline
text = """
# not a comment
"""
# a comment

# %% id="answer" tags=["solution"]
y = 1


def f():
    return y

# %% [markdown] id="summary"
# ## Summary
'''


def test_text_and_notebook_are_one_thing(project, tmp_path):
    text = tmp_path / "01-first.py"
    text.write_text(TEXT)
    assert notebooks.main(["--root", str(project.root), "from-text", str(text)]) == 0
    notebook = notebook_form.read(project.chapter("01-first"))
    assert cell(notebook, "commands").source.startswith("%matplotlib inline\n")
    answer = cell(notebook, "answer")
    assert answer.metadata.tags == ["solution", "hide-cell"]
    assert answer.metadata.jupyter == {"source_hidden": True}
    assert answer.metadata.cellView == "form"
    assert [c.id for c in notebook.cells][:3] == ["title", "colab", "parameters"]

    before = project.chapter("01-first").read_bytes()
    back = tmp_path / "back.py"
    assert notebooks.main(["--root", str(project.root), "to-text", "01-first", str(back)]) == 0
    assert back.read_text() == TEXT
    assert notebooks.main(["--root", str(project.root), "from-text", str(back), "01-first"]) == 0
    assert project.chapter("01-first").read_bytes() == before


def test_ids_are_given_once_and_kept(project, tmp_path, capsys):
    text = tmp_path / "01-first.py"
    text.write_text(TEXT.replace(' id="magic"', "").replace(' id="commands"', "").replace(' id="answer"', ""))
    arguments = ["--root", str(project.root), "from-text", str(text)]
    assert notebooks.main(arguments) == 0
    assert "rewritten with the ids" in capsys.readouterr().out
    ids = [c.id for c in notebook_form.read(project.chapter("01-first")).cells]
    assert ids == ["title", "colab", "parameters", "magic", "magic-code", "magic-code-2", "summary"]
    before = text.read_text()
    assert 'id="magic-code-2" tags=["solution"]' in before
    assert notebooks.main(arguments) == 0
    assert text.read_text() == before


def test_two_cells_with_one_id_are_refused(project, tmp_path, capsys):
    text = tmp_path / "01-first.py"
    text.write_text(TEXT.replace('id="magic"', 'id="answer"'))
    assert notebooks.main(["--root", str(project.root), "from-text", str(text)]) == 2
    assert "more than one cell has the id answer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('# %% Set up id="a"\nx = 1\n', "has the words 'Set up' in its header"),
        ('# %% id="a" slideshow={"slide_type": "skip"}\nx = 1\n', r"unknown header entries \['slideshow'\]"),
        ('# %% id="a" tags="parameters"\nx = 1\n', "'parameters' is not of type 'array'"),
        ('# %% id="a" mystnb="x" tags=["solution"]\nx = 1\n', "cell 1 has mystnb='x': write mystnb="),
        ("# %% id=3\nx = 1\n", "cell 1 has id=3: write id="),
    ],
)
def test_headers_that_mean_nothing_are_refused(text, message):
    with pytest.raises(NotebookError, match=message):
        notebook_text.from_text(text)


def test_a_text_in_another_encoding_is_an_error_not_a_traceback(project, tmp_path, capsys):
    text = tmp_path / "01-first.py"
    text.write_bytes('# %% [markdown] id="a"\n# # Grüße\n'.encode("latin-1"))
    assert notebooks.main(["--root", str(project.root), "from-text", str(text)]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_a_cell_that_text_cannot_carry_is_refused(project):
    path = tiny_book.write_chapter(project, "01-first", ["x = 1\n# %% not a header\ny = 2"])
    with pytest.raises(NotebookError, match="'step-1' holds a line that starts with '# %%'"):
        notebook_text.to_text(notebook_form.read(path))


def test_sync_restores_the_stored_form(project):
    path = project.chapter("01-first")
    good = path.read_bytes()
    notebook = notebook_form.read(path)
    notebook.metadata = {"kernelspec": {"name": "foo", "display_name": "Foo"}}
    cell(notebook, "colab").source = "old"
    cell(notebook, "step-1").update(execution_count=7, outputs=[nbformat.v4.new_output("stream", text="x")])
    cell(notebook, "step-1").metadata.update(papermill={"status": "completed"}, collapsed=True)
    nbformat.write(notebook, path)
    assert notebooks.main(["--root", str(project.root), "check"]) == 1
    assert notebooks.main(["--root", str(project.root), "sync"]) == 0
    assert path.read_bytes() == good
    assert notebooks.main(["--root", str(project.root), "check"]) == 0
