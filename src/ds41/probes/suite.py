"""The three probes with the sizes that a command runs them at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ds41.config import ModelConfig
from ds41.model import Model
from ds41.probes.format_comparison import (
    FormatRow,
    PostTrainingRow,
    accuracy_by_length,
    grown_norm_weights,
    training_against_post_hoc,
)
from ds41.probes.fp4_claims import Claim, probe_fp4, trained_claims
from ds41.probes.norm_weights import SourceRow, trained_sources
from ds41.probes.replay_inputs import Texts
from ds41.probes.replay_probe import Comparison, compare_runs, probe_positions
from ds41.probes.selection_context import CLUSTERED, ISOTROPIC
from ds41.probes.selection_synthetic import probe_selection
from ds41.probes.selection_trained import probe_trained
from ds41.probes.trained_rows import needle_rows, questions
from ds41.training.corpus import standard_library

_ENTRIES = 65_536
_LENGTH, _LENGTHS, _PAIR_LENGTH = 384, (192, 384, 768), 192
_MORE = 4


@dataclass(frozen=True)
class TrainedFP4:
    """Main KV of a trained model: by format and context length, by grown norm weights, and by source."""

    formats: tuple[FormatRow, ...]
    grown: tuple[FormatRow, ...]
    sources: tuple[SourceRow, ...]
    claims: tuple[Claim, ...]


@dataclass(frozen=True)
class ReplayPair:
    """What replay changes in two models on the same prompts, by kind of text."""

    comparisons: tuple[Comparison, ...]


@dataclass(frozen=True)
class FP4Pair:
    """What each format costs a model that was not trained with FP4 (before) and one that was (after)."""

    formats: tuple[PostTrainingRow, ...]


@dataclass(frozen=True)
class Size:
    """How much a probe does. seeds: of what is synthetic, or prompts of each kind; None for the probe's own number.
    entries: of the selection's context. rows: that a trained model is asked with."""

    seeds: int | None = None
    entries: int | None = None
    rows: int = 16
    full: bool = False


def run_selection(model: Model, size: Size, beside: Model | None) -> dict[str, object]:
    """Published sizes, keys of two laws, in full also at the longest context; then a trained model."""
    config, count = ModelConfig.flash(), 100 if size.seeds is None else size.seeds
    entries = _ENTRIES if size.entries is None else size.entries
    found = {law.name: probe_selection(config, entries, count, law, min(count, 4)) for law in (CLUSTERED, ISOTROPIC)}
    if size.full:
        most = config.max_position_embeddings
        found["longest"] = probe_selection(config, most, count, CLUSTERED, contexts=1, pool_seeds=min(count, 25))
    asked = needle_rows(model.config, standard_library("held-out"), _LENGTH, size.rows)
    return found | {"trained": probe_trained(model, asked)}


def run_replay(model: Model, size: Size, beside: Model | None) -> dict[str, object]:
    """All hits of one prompt, kinds of text, generated text; a second model on the same prompts."""
    count = (8 if size.seeds is None else size.seeds) * (_MORE if size.full else 1)
    texts = Texts.standard_library()
    found = {"replay": probe_positions(model, "the model", texts, seeds=count)}
    if beside is not None:
        found["beside"] = probe_positions(beside, "the model beside it", texts, seeds=count)
        found["pair"] = ReplayPair(tuple(compare_runs(found["replay"], found["beside"])))
    return found


def run_fp4(model: Model, size: Size, beside: Model | None) -> dict[str, object]:
    """Random latents of the published sizes; then a trained model, and what training with FP4 was worth."""
    rows = size.rows * (_MORE if size.full else 1)
    found: dict[str, object] = {}
    if beside is None:
        seeds = 100 if size.seeds is None else size.seeds
        found["synthetic"] = probe_fp4(seeds=seeds, heads=None if size.full else 16)
        found["trained"] = probe_trained_fp4(model, rows)
    else:
        asked = questions(model.config, standard_library("held-out"), _PAIR_LENGTH, rows)
        found["pair"] = FP4Pair(training_against_post_hoc(beside, model, asked))
    return found


def probe_trained_fp4(model: Model, rows: int, lengths: tuple[int, ...] = _LENGTHS) -> TrainedFP4:
    """What rounding of main KV costs a trained model at equal selection."""
    corpus = standard_library("held-out")
    asked = {length: questions(model.config, corpus, length, rows) for length in lengths}
    formats = accuracy_by_length(model, asked)
    middle = asked[sorted(lengths)[len(lengths) // 2]]
    return TrainedFP4(
        formats,
        grown_norm_weights(model, middle),
        trained_sources(model, middle.ids[: min(8, rows)]),
        trained_claims(formats),
    )


Probe = Callable[[Model, Size, "Model | None"], "dict[str, object]"]
PROBES: dict[str, Probe] = {"selection": run_selection, "replay": run_replay, "fp4": run_fp4}
