"""The messages of a script: what its templates tagged `say` look up in a catalogue.

The message of say`All ${count} layers run.` is "All {1} layers run.": a value's place instead of its expression. To
find them, the source is read as far as it takes to know what is code: comments, strings and regular expressions are
passed over whole, and so are templates, except for the expressions in them.
"""

from __future__ import annotations

import re

# One thing of the source. A word brings its dot along, because a method of that name is no tag.
_TOKEN = re.compile(
    r"""(?P<blank>\s+|//[^\n]*|/\*.*?\*/)|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|\.{3}|\.?[\w$]+|.""", re.DOTALL
)
_REGEX = re.compile(r"/(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\[\n])+/\w*")
# After these a slash begins a regular expression; after anything else it divides.
_BEFORE_REGEX = {*"(,=:[!&|?{};+-*%<>~^", "", "return", "typeof", "case", "of", "in"}
_TEXT = re.compile(r"(?:\\.|\$(?!\{)|[^`\\$])*", re.DOTALL)


def messages(source: str) -> list[str]:
    """The messages of all templates tagged `say`, in the order in which they begin, those inside others included.

    Raises:
        ValueError: a template is not closed, or a brace not opened.
    """
    reader = _Reader(source)
    reader.read_code()
    if reader.at < len(source):
        raise ValueError(f"{reader.place(reader.at)}: a brace closes what was not opened")
    return reader.found


class _Reader:
    """The source, how far it has been read, and the messages found so far."""

    def __init__(self, source: str) -> None:
        self.source, self.at = source, 0
        self.found: list[str] = []

    def read_code(self) -> None:
        """Read on to the brace that closes more than was opened, or to the end."""
        before, depth = "", 0
        while self.at < len(self.source):
            token = (before in _BEFORE_REGEX and _REGEX.match(self.source, self.at)) or self._token()
            if token[0] == "`":
                self._read_template(tagged=before == "say")
                before = "`"
                continue
            if token[0] == "}" and depth == 0:
                return
            self.at = token.end()
            depth += {"{": 1, "}": -1}.get(token[0], 0)
            # Nothing between a tag and its template counts.
            before = before if token.lastgroup == "blank" else token[0]

    def place(self, at: int) -> str:
        line = self.source.count("\n", 0, at) + 1
        return f"line {line}"

    def _token(self) -> re.Match[str]:
        token = _TOKEN.match(self.source, self.at)
        assert token is not None, "any character is a token"
        return token

    def _read_template(self, tagged: bool) -> None:
        start, place = self.at, len(self.found)
        text, values = "", 0
        if tagged:
            self.found.append(text)
        self.at += 1
        while True:
            part = _TEXT.match(self.source, self.at)
            text, self.at = text + part[0], part.end()
            if self.source.startswith("${", self.at):
                self.at, values = self.at + 2, values + 1
                text += f"{{{values}}}"
                self.read_code()
                if self.source.startswith("}", self.at):
                    self.at += 1
                    continue
            if not self.source.startswith("`", self.at):
                raise ValueError(f"{self.place(start)}: a template is not closed")
            break
        self.at += 1
        if tagged:
            self.found[place] = re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)
