"""Another schedule of layers and its ledger: who owns keys, how often, in which format, computed in the kernel.

A schedule is what a reader would change of a configuration: two halves of equal groups, and records. It becomes a real
configuration, which the library checks as it checks any other, and the ledger counts that.

Source: ds41's own; :mod:`ds41.ledger`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from types import ModuleType
from typing import Any, Literal, get_args

from ds41 import ledger, reads
from ds41.config import LayerPlan, ModelConfig
from ds41.ledger import Storage
from ds41.records import Record, bf16, fp8_index_key
from ds41.viz.ledger_explorer import main_records
from ds41.viz.live_schedule_picture import schedule_diagram
from ds41.viz.live_widgets import explore

# "every": each group's first layer owns keys; "first": that of the first group, and the others Reindex; "none": all
# groups Reindex over the keys of whatever lies below.
Owning = Literal["every", "first", "none"]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A plan of equal groups: window-only layers, then an encoder, then a decoder. The last group may be shorter.

    ratio: tokens per entry, 0 for layers that have a window alone. owning: which groups own keys. pool: the decoder's
    first layer makes a candidate pool. window: tokens. main, index, window_format: keys of :meth:`storage`.
    """

    window_layers: int
    encoder_layers: int
    encoder_group: int
    encoder_ratio: int
    encoder_owning: Owning
    decoder_layers: int
    decoder_group: int
    decoder_ratio: int
    decoder_owning: Owning
    pool: bool
    top_k: int
    window: int
    main: str = "fp4"
    index: str = "mxfp4"
    window_format: str = "mxfp8"

    @classmethod
    def of(cls, config: ModelConfig) -> Schedule:
        """The schedule that ``config`` follows.

        Raises:
            ValueError: it follows none: its groups are not equal, or its owners are others.
        """
        layers, start = config.layers, config.decoder_start
        windows = next((plan.index for plan in layers if plan.ratio), len(layers))
        encoder = layers[windows:start]
        decoder = layers[start:]
        schedule = cls(
            window_layers=windows,
            encoder_layers=len(encoder),
            encoder_group=_group(encoder),
            encoder_ratio=encoder[0].ratio if encoder else 0,
            encoder_owning=_owning(encoder),
            decoder_layers=len(decoder),
            decoder_group=_group(decoder),
            decoder_ratio=decoder[0].ratio if decoder else 0,
            decoder_owning=_owning(decoder),
            pool=config.candidate_source_layer_id >= 0,
            top_k=config.index_topk,
            window=config.sliding_window,
        )
        if schedule.configuration(config).layers != layers:
            raise ValueError(
                f"kv_source_layer_ids {list(config.kv_source_layer_ids)} and index_source_layer_ids "
                f"{list(config.index_source_layer_ids)} follow no schedule; expected an encoder and a decoder of "
                "equal groups"
            )
        return schedule

    def configuration(self, base: ModelConfig) -> ModelConfig:
        """``base`` with this schedule; Engram and drafter keep those of their layers that still exist.

        Raises:
            ValueError: a negative count or an empty group. ConfigError: no model can be built from it.
        """
        for name in ("window_layers", "encoder_layers", "decoder_layers"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; expected 0 or more")
        start = self.window_layers + self.encoder_layers
        layers = start + self.decoder_layers
        kv, index = [], []
        for half, first, count in (
            ("encoder", self.window_layers, self.encoder_layers),
            ("decoder", start, self.decoder_layers),
        ):
            owners, choosers = self._sources(half, first, count)
            kv += owners
            index += choosers
        runs = (
            (self.window_layers, 0),
            (self.encoder_layers, self.encoder_ratio),
            (self.decoder_layers, self.decoder_ratio),
            (base.num_nextn_predict_layers, 0),
        )
        engrams = [
            (layer, rows)
            for layer, rows in zip(base.engram_layer_ids, base.engram_num_embeddings, strict=True)
            if layer < layers
        ]
        return replace(
            base,
            num_hidden_layers=layers,
            compress_ratios=tuple(ratio for count, ratio in runs for _ in range(count)),
            kv_source_layer_ids=tuple(kv),
            index_source_layer_ids=tuple(index),
            candidate_source_layer_id=start if self.pool else -1,
            index_topk=self.top_k,
            sliding_window=self.window,
            engram_layer_ids=tuple(layer for layer, _ in engrams),
            engram_num_embeddings=tuple(rows for _, rows in engrams),
            dspark_target_layer_ids=tuple(layer for layer in base.dspark_target_layer_ids if layer < layers),
        )

    def storage(self, config: ModelConfig) -> Storage:
        """The records that the schedule names.

        main: "fp4", "fp8", "v4" or "bf16". index: "mxfp4", "fp8" or "bf16". window_format: "mxfp8", "v4" or "bf16".

        Raises:
            ValueError: another format.
        """
        main = {name: one.main for name, one in main_records(config).items()}
        windows = {"mxfp8": Storage.published(config), "v4": Storage.v4(config), "bf16": Storage.bf16(config)}
        channels = config.index_head_dim
        keys = {
            "mxfp4": Storage.published(config).index,
            "fp8": fp8_index_key(channels),
            "bf16": bf16(channels),
        }
        return Storage(
            "as chosen",
            _chosen("main", self.main, main),
            _chosen("index", self.index, keys),
            _chosen("window_format", self.window_format, {name: one.window for name, one in windows.items()}),
        )

    def _sources(self, half: str, first: int, count: int) -> tuple[list[int], list[int]]:
        """The layers of one half that own keys, and those that own a selection."""
        group, ratio, owning = (getattr(self, f"{half}_{part}") for part in ("group", "ratio", "owning"))
        if group < 1:
            raise ValueError(f"{half}_group is {group}; expected 1 or more layers")
        if owning not in get_args(Owning):
            raise ValueError(f"{half}_owning is {owning!r}; expected one of {', '.join(map(repr, get_args(Owning)))}")
        if ratio == 0:
            return [], []
        choosers = list(range(first, first + count, group))
        return {"every": choosers, "first": choosers[:1], "none": []}[owning], choosers


@dataclass(frozen=True)
class ScheduleLedger:
    """What a schedule keeps and reads. tokens: the longest context, which all totals are for.

    per_token: bytes of global KV. kept: the same for ``tokens`` tokens. windows: bytes, once a sequence. read: KV bytes
    of one decode step. macs: multiply-adds of the index scores of one query.
    """

    schedule: Schedule
    config: ModelConfig
    storage: Storage
    tokens: int
    per_token: Fraction
    kept: int
    windows: int
    read: int
    macs: int


def plan_schedule(schedule: Schedule, base: ModelConfig | None = None) -> ScheduleLedger:
    """Build the configuration of ``schedule`` from ``base`` (default: the published one) and count its bytes.

    Raises:
        ValueError: an impossible schedule, in the library's own words.
    """
    base = base or ModelConfig.flash()
    config = schedule.configuration(base)
    storage, tokens = schedule.storage(config), config.max_position_embeddings
    return ScheduleLedger(
        schedule=schedule,
        config=config,
        storage=storage,
        tokens=tokens,
        per_token=ledger.bytes_per_token(config, storage),
        kept=ledger.global_bytes(config, tokens, storage),
        windows=config.num_hidden_layers * config.sliding_window * storage.window.nbytes,
        read=reads.kv_bytes_read(config, tokens, storage),
        macs=sum(reads.index_macs(config, tokens).values()),
    )


def explore_schedule(config: ModelConfig | None = None) -> None:
    """Show the ledger of ``config`` (default: the published one), and under it controls for another schedule.

    Works with ipywidgets 7 and 8; without ipywidgets the first result stands alone.

    Raises:
        ValueError: ``config`` follows no schedule of equal groups.
    """
    config = config or ModelConfig.flash()
    schedule = Schedule.of(config)
    given = plan_schedule(schedule, config)
    known = "published" if config == ModelConfig.flash() else "given"
    explore(
        schedule_diagram(given, given, known),
        lambda widgets: _controls(widgets, schedule),
        lambda **values: schedule_diagram(plan_schedule(Schedule(**values), config), given, known),
        prompt=f"Change the schedule: its ledger will stand here, beside the {known} one.",
        reset=f"Back to the {known} schedule",
        refused="No model can be built from this schedule",
    )


def _controls(widgets: ModuleType, schedule: Schedule) -> dict[str, dict[str, Any]]:
    style = {"description_width": "11rem"}

    def slider(name: str, label: str, low: int, high: int) -> Any:
        value = getattr(schedule, name)
        return widgets.IntSlider(
            value=value, min=low, max=max(high, value), description=label, continuous_update=False, style=style
        )

    def choice(name: str, label: str, options: list[tuple[str, object]]) -> Any:
        return widgets.Dropdown(options=options, value=getattr(schedule, name), description=label, style=style)

    def half(name: str) -> dict[str, Any]:
        ratios = [("0: window only", 0), *((str(ratio), ratio) for ratio in (1, 2, 4))]
        owning = [("every group", "every"), ("the first group", "first"), ("none", "none")]
        return {
            f"{name}_layers": slider(f"{name}_layers", f"{name}: layers", 0, 30),
            f"{name}_group": slider(f"{name}_group", f"{name}: layers a group", 1, 30),
            f"{name}_ratio": choice(f"{name}_ratio", f"{name}: tokens per entry", ratios),
            f"{name}_owning": choice(f"{name}_owning", f"{name}: keys owned by", owning),
        }

    powers = sorted({schedule.top_k, *(2**power for power in range(5, 16))})
    windows = sorted({schedule.window, *(2**power for power in range(4, 11))})
    return {
        "Windows": {
            "window_layers": slider("window_layers", "window-only layers", 0, 8),
            "window": choice("window", "tokens of a window", [(f"{size:,}", size) for size in windows]),
        },
        "Encoder": half("encoder"),
        "Decoder": half("decoder"),
        "Selection": {
            "pool": choice("pool", "candidate pool", [("yes", True), ("no", False)]),
            "top_k": choice("top_k", "entries selected", [(f"{size:,}", size) for size in powers]),
        },
        "Formats": {
            "main": choice("main", "main KV", [("FP4", "fp4"), ("FP8", "fp8"), ("as V4", "v4"), ("BF16", "bf16")]),
            "index": choice("index", "index keys", [("MXFP4", "mxfp4"), ("FP8", "fp8"), ("BF16", "bf16")]),
            "window_format": choice("window_format", "window", [("MXFP8", "mxfp8"), ("as V4", "v4"), ("BF16", "bf16")]),
        },
    }


def _group(half: Sequence[LayerPlan]) -> int:
    choosers = [plan.index for plan in half if plan.owns_selection]
    return choosers[1] - choosers[0] if len(choosers) > 1 else max(1, len(half))


def _owning(half: Sequence[LayerPlan]) -> Owning:
    owners = sum(plan.owns_kv for plan in half)
    choosers = sum(plan.owns_selection for plan in half)
    return "none" if owners == 0 else "every" if owners == choosers else "first"


def _chosen(name: str, key: str, records: dict[str, Record]) -> Record:
    if key not in records:
        raise ValueError(f"{name} is {key!r}; expected one of {', '.join(map(repr, records))}")
    return records[key]
