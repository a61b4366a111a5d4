"""What must hold of a chapter's notebook, before it runs and after. Each rule yields faults as sentences."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import notebook_form
from nbformat import NotebookNode
from notebook_form import CELL_ID, KERNELSPEC, NotebookError, tags
from project import Project, ProjectError

MAX_CODE_LINES = 40
MAX_FRAGMENTS = 5
# Calls of `viz` whose result is what the reader sees.
SHOWN = {"show", "summary_row", "table", "byte_bars", "generation_bars"}
PARAMETER_DEFAULTS = {"SCALE": "full", "DEVICE": "auto"}
NUMBERED = re.compile(r"[0-9]{2}-")
MARKDOWN_IMAGE = re.compile(r"!\[([^\]]*)\]\(")
HTML_IMAGE = re.compile(r"<img\b[^>]*>", re.IGNORECASE)
DIRECTIVE_IMAGE = re.compile(r"^(`{3,}|:{3,})\{(?:figure|image)\}.*?^\1", re.MULTILINE | re.DOTALL)
IMAGE_TYPES = {"image/png", "image/jpeg", "image/svg+xml", "image/gif"}
WIDGET_TYPE = "application/vnd.jupyter.widget-view+json"
OBJECT_ADDRESS = re.compile(r"\bat 0x[0-9a-f]{6,}\b")


def strays(project: Project) -> list[str]:
    """Pages that `_toc.yml` names and the folder lacks, and the reverse."""
    faults, named = [], set()
    for name in project.page_names:
        try:
            named.add(project.page(name))
        except ProjectError as error:
            faults.append(str(error))
    present = {path for path in project.book.rglob("*") if path.suffix in (".ipynb", ".md")}
    present = {path for path in present if not any(part[0] in "._" for part in path.relative_to(project.root).parts)}
    return faults + [f"{path.relative_to(project.root)} is not in _toc.yml" for path in sorted(present - named)]


def source_faults(path: Path, project: Project) -> list[str]:
    """Faults of a chapter as it is stored."""
    try:
        notebook = notebook_form.read(path)
    except NotebookError as error:
        return [str(error)]
    if (notebook.nbformat, notebook.nbformat_minor) != (4, 5):
        return [f"is in notebook format {notebook.nbformat}.{notebook.nbformat_minor}, not 4.5"]
    faults = [
        *_output_faults(notebook),
        *_id_faults(notebook),
        *_kernel_faults(notebook),
        *_opening_faults(notebook, project),
        *_parameter_faults(notebook),
        *_image_faults(notebook),
        *_length_faults(notebook),
        *_lost_figure_faults(notebook),
    ]
    if NUMBERED.match(path.stem):
        faults += _summary_faults(notebook)
    stored = path.read_text(encoding="utf-8")
    if not faults and stored != notebook_form.dumps(notebook_form.normalise(notebook, project)):
        faults.append("is not in the stored form: run `python ci/notebooks.py sync`")
    return faults


def executed_faults(notebook: NotebookNode) -> list[str]:
    """Faults of an executed chapter that its page would show."""
    return [
        *_kernel_faults(notebook),
        *(fault for cell in notebook.cells if cell.cell_type == "code" for fault in _result_faults(cell)),
    ]


def _output_faults(notebook: NotebookNode) -> Iterator[str]:
    for cell in notebook.cells:
        if cell.cell_type == "code" and (cell.outputs or cell.execution_count is not None):
            yield f"cell {cell.id!r} holds outputs or an execution count"


def _id_faults(notebook: NotebookNode) -> Iterator[str]:
    ids = Counter(cell.get("id") for cell in notebook.cells)
    for cell_id, count in ids.items():
        if count > 1:
            yield f"{count} cells have the id {cell_id!r}"
        if not cell_id or not CELL_ID.fullmatch(cell_id):
            yield f"the cell id {cell_id!r} is not lower-case words and digits joined by '-'"
        elif re.fullmatch(r"(?=.*[0-9])[0-9a-f]{8}(-[0-9a-f-]+)?", cell_id):
            yield f"the cell id {cell_id!r} was made by a machine: give it a name that a person can read"


def _kernel_faults(notebook: NotebookNode) -> Iterator[str]:
    kernelspec = notebook.metadata.get("kernelspec", {})
    if kernelspec != KERNELSPEC:
        yield f"its kernelspec is {dict(kernelspec)}, not {KERNELSPEC}"


def _opening_faults(notebook: NotebookNode, project: Project) -> Iterator[str]:
    first = notebook.cells[0] if notebook.cells else None
    if first is None or first.cell_type != "markdown" or not re.match(r"# +\S", first.source):
        yield "does not open with a markdown cell that holds its title, '# ...'"
    for cell in notebook.cells[1:]:
        if cell.cell_type == "markdown" and re.search(r"^# +\S", _without_code(cell.source), re.MULTILINE):
            yield f"cell {cell.id!r} holds a second title, '# ...'; sections start with '##'"
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if not code or code[0].id != "colab" or code[0].source != notebook_form.colab_source(project):
        yield "its first code cell is not the one that readies Colab: run `python ci/notebooks.py sync`"


def _parameter_faults(notebook: NotebookNode) -> Iterator[str]:
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    tagged = [cell for cell in code if "parameters" in tags(cell)]
    if len(tagged) != 1:
        yield f"notebook has {len(tagged) or 'no'} cells tagged 'parameters'; it needs exactly one"
        return
    cell = tagged[0]
    if cell.id != "parameters" or cell is not code[min(1, len(code) - 1)]:
        yield "the cell tagged 'parameters' is not the second code cell with the id 'parameters'"
    try:
        values = parameters(cell.source)
    except NotebookError as error:
        yield str(error)
        return
    for name, default in PARAMETER_DEFAULTS.items():
        if values.get(name) != default:
            yield f"the parameters cell does not set {name} = {default!r}"


def parameters(source: str) -> dict[str, object]:
    """Names and defaults of a parameters cell: literals assigned to names, each with a comment as help."""
    try:
        tree = ast.parse(source)
        commented = {
            token.start[0]
            for token in tokenize.generate_tokens(io.StringIO(source).readline)
            if token.type == tokenize.COMMENT
        }
    except (SyntaxError, tokenize.TokenError) as error:
        raise NotebookError(f"the parameters cell is not Python: {error}") from error
    values = {}
    for statement in tree.body:
        line = source.splitlines()[statement.lineno - 1]
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                pass
            case _:
                raise NotebookError(f"the parameters cell may only assign names: {line!r}")
        try:
            values[name] = ast.literal_eval(value)
        except ValueError:
            raise NotebookError(f"the parameter {name} is not a literal: {line!r}") from None
        if statement.end_lineno not in commented:
            raise NotebookError(f"the parameter {name} has no trailing comment that explains it")
    return values


def _image_faults(notebook: NotebookNode) -> Iterator[str]:
    for cell in notebook.cells:
        if cell.cell_type != "markdown":
            continue
        text = _without_code(cell.source)
        bare = [match for match in MARKDOWN_IMAGE.findall(text) if not match.strip()]
        bare += [tag for tag in HTML_IMAGE.findall(text) if not re.search(r"""\balt=(["'])\s*(?!\1)\S""", tag)]
        bare += [m[0] for m in DIRECTIVE_IMAGE.finditer(cell.source) if not re.search(r"^:alt: *\S", m[0], re.M)]
        if bare:
            yield f"cell {cell.id!r} shows {len(bare)} image(s) without alt text"


def _without_code(source: str) -> str:
    """Markdown without fenced blocks and code spans, whose '#' and '![' mean nothing."""
    fenced = re.sub(r"^(`{3,}|~{3,}).*?^\1", "", source, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "", fenced)


def _length_faults(notebook: NotebookNode) -> Iterator[str]:
    for cell in notebook.cells:
        lines = cell.source.count("\n") + 1
        if cell.cell_type == "code" and lines > MAX_CODE_LINES:
            yield f"cell {cell.id!r} has {lines} lines, over {MAX_CODE_LINES}: its readers must scroll"


def _lost_figure_faults(notebook: NotebookNode) -> Iterator[str]:
    """A cell shows its last expression alone, so a figure that a statement follows is drawn for nobody."""
    for cell in notebook.cells:
        if cell.cell_type != "code" or cell.source.lstrip().startswith(("%", "!")):
            continue
        try:
            statements = ast.parse(cell.source).body
        except SyntaxError:
            continue
        for statement in statements[:-1]:
            match statement:
                case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="viz"), attr=name))):
                    if name in SHOWN:
                        yield f"cell {cell.id!r} has viz.{name}(...) before its last statement: nobody sees it"


def _summary_faults(notebook: NotebookNode) -> Iterator[str]:
    ids = [cell.get("id") for cell in notebook.cells]
    if "summary" not in ids:
        yield "has no cell with the id 'summary', the running summary that closes a chapter"
        return
    start = ids.index("summary")
    if not notebook.cells[start].source.startswith("## "):
        yield "the cell 'summary' does not open a section, '## ...'"
    for cell in notebook.cells[start + 1 :]:
        if cell.cell_type == "markdown" and re.search(r"^## ", _without_code(cell.source), re.MULTILINE):
            yield f"cell {cell.id!r} opens a section after the summary, which must be the last"


def _result_faults(cell: NotebookNode) -> Iterator[str]:
    where = f"cell {cell.id!r}"
    streams = [output for output in cell.outputs if output.output_type == "stream"]
    if any(output.name == "stderr" for output in streams):
        text = "".join(output.text for output in streams if output.name == "stderr")
        yield f"{where} writes to stderr: {text.strip()[:200]!r}"
    fragments = len(streams) + sum(output.text.count("\r") for output in streams)
    if fragments > MAX_FRAGMENTS:
        yield f"{where} prints in {fragments} fragments, over {MAX_FRAGMENTS}: a progress bar floods the page"
    bundles = [output.data for output in cell.outputs if "data" in output]
    # A page prefers HTML, which brings its own alternative text; the image beside it is for other readers.
    if any(IMAGE_TYPES & set(data) and "text/html" not in data for data in bundles):
        alt = cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")
        if not alt.strip():
            yield f'{where} shows an image without alt text: add mystnb={{"image": {{"alt": "..."}}}}'
    for output in cell.outputs:
        if output.output_type == "error":
            yield f"{where} raised {output.ename}: {output.evalue}"
        shown = output.get("text", "") or output.get("data", {}).get("text/plain", "")
        if OBJECT_ADDRESS.search(shown) and not (set(output.get("data", {})) - {"text/plain"}):
            yield f"{where} prints an object's address, which differs in every run: {shown.strip()[:80]!r}"
    has_widget = any(WIDGET_TYPE in data for data in bundles)
    if has_widget and not any(set(data) - {WIDGET_TYPE, "text/plain"} for data in bundles) and not streams:
        yield f"{where} shows only a widget, blank without a kernel: print or draw a static result too"
