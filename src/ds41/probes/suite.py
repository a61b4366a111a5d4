"""The three probes with the sizes that a command runs them at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ds41.config import ModelConfig
from ds41.model import Model
from ds41.probes.fp4_claims import Claim, probe_fp4, trained_claims
from ds41.probes.main_formats import FormatRow, accuracy_by_length, grown_norm_weights
from ds41.probes.norm_weights import SourceRow, trained_sources
from ds41.probes.replay_inputs import Texts
from ds41.probes.replay_probe import probe_positions
from ds41.probes.selection_context import CLUSTERED, ISOTROPIC
from ds41.probes.selection_synthetic import probe_selection
from ds41.probes.selection_trained import probe_trained
from ds41.probes.trained_rows import needle_rows, questions
from ds41.training.corpus import standard_library

_ENTRIES = 65_536
_LENGTH, _LENGTHS = 384, (192, 384, 768)
_MORE = 4


@dataclass(frozen=True)
class TrainedFP4:
    """Main KV of a trained model: by format and context length, by grown norm weights, and by source."""

    formats: tuple[FormatRow, ...]
    grown: tuple[FormatRow, ...]
    sources: tuple[SourceRow, ...]
    claims: tuple[Claim, ...]


def run_selection(model: Model, seeds: int | None, entries: int | None, rows: int, full: bool) -> dict[str, object]:
    """Published sizes, keys of two laws, in full also at the longest context; then a trained model."""
    config, count = ModelConfig.flash(), 100 if seeds is None else seeds
    size = _ENTRIES if entries is None else entries
    found = {law.name: probe_selection(config, size, count, law, min(count, 4)) for law in (CLUSTERED, ISOTROPIC)}
    if full:
        most = config.max_position_embeddings
        found["longest"] = probe_selection(config, most, count, CLUSTERED, contexts=1, pool_seeds=min(count, 25))
    asked = needle_rows(model.config, standard_library("held-out"), _LENGTH, rows)
    return found | {"trained": probe_trained(model, asked)}


def run_replay(model: Model, seeds: int | None, entries: int | None, rows: int, full: bool) -> dict[str, object]:
    """All hits of one prompt, kinds of text, generated text."""
    count = (8 if seeds is None else seeds) * (_MORE if full else 1)
    return {"replay": probe_positions(model, "the model", Texts.standard_library(), seeds=count)}


def run_fp4(model: Model, seeds: int | None, entries: int | None, rows: int, full: bool) -> dict[str, object]:
    """Random latents of the published sizes; then a trained model."""
    synthetic = probe_fp4(seeds=100 if seeds is None else seeds, heads=None if full else 16)
    return {"synthetic": synthetic, "trained": probe_trained_fp4(model, rows * (_MORE if full else 1))}


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


Probe = Callable[[Model, "int | None", "int | None", int, bool], "dict[str, object]"]
PROBES: dict[str, Probe] = {"selection": run_selection, "replay": run_replay, "fp4": run_fp4}
