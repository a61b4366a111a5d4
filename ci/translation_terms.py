"""The term list of a language, and whether a translation keeps to it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import yaml
from glossary_links import forms
from project import Project


@dataclass(frozen=True)
class Terms:
    """The terms that are checked, the longest first, each with the pattern that a translation must match."""

    patterns: tuple[tuple[str, re.Pattern], ...]
    english: re.Pattern

    @classmethod
    def of(cls, project: Project, language: str) -> Terms:
        """The list in book/locale/LANGUAGE/terms.yml; terms without a stem only cover shorter ones."""
        path = project.book / "locale" / language / "terms.yml"
        try:
            listed = yaml.safe_load(path.read_text(encoding="utf-8"))
        except yaml.YAMLError as error:
            raise ValueError(f"{path} is no YAML: {error}") from error
        # What stands in brackets tells terms apart that English says alike; such are for people.
        listed = [term for term in listed if "(" not in term["en"]]
        by_form = {form: term for term in listed for form in forms(term["en"])}
        words = "|".join(re.escape(form) for form in sorted(by_form, key=len, reverse=True))
        stems = {form: term["stem"] for form, term in by_form.items() if "stem" in term}
        patterns = tuple((form, re.compile(stem, re.IGNORECASE)) for form, stem in stems.items())
        return cls(patterns, re.compile(rf"(?<![\w`/-])(?:{words})(?![\w`/-])"))

    def faults(self, text: str, translation: str) -> Iterator[str]:
        """The terms of an English text that its translation does not have."""
        patterns = dict(self.patterns)
        bare = re.sub(r"`[^`]*`|\]\([^)]*\)|<code>.*?</code>", " ", text)
        for word in dict.fromkeys(self.english.findall(bare)):
            if word in patterns and not patterns[word].search(translation):
                yield f"has no {patterns[word].pattern!r} for the term {word!r}"
