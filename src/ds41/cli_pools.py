"""The pools behind ``ds41 serve``: workers, and the tiers beneath them, as its options say."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ds41.cli_draft import load_drafting, untimed_policy
from ds41.cli_model import checkpoint_folder, described, dtype_name, load_model, part_folder
from ds41.cli_tiers import context_tokens, open_store, opened_pool, store_folder

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from ds41.dspark import Drafting
    from ds41.environment import Environment
    from ds41.model import Model
    from ds41.serving.pools.cluster import Cluster
    from ds41.serving.pools.local import EngineOptions, PoolSizes
    from ds41.vision import Vision

# Workers load their weights in this time.
_START_S = 1800.0


@contextmanager
def build_backend(options: argparse.Namespace, found: Environment) -> Iterator[tuple[Cluster, Tokenizer]]:
    """The pools that the options describe, ready, and the model's tokenizer; closed with all beneath them at the end.

    Raises:
        ValueError, StoreError, WindowPoolError: something cannot be used.
    """
    from ds41.serving.pools.local import PoolSizes
    from ds41.serving.pools.requests import NoWorkers

    sizes = PoolSizes(options.vision_workers or 0, options.prefill_workers, options.decode_workers, options.rows)
    build = _ray_backend if options.ray else _local_backend
    with build(options, found, sizes) as (cluster, tokenizer):
        try:
            cluster.wait_ready(_START_S)
        except (NoWorkers, TimeoutError) as error:
            raise ValueError(f"the workers did not start: {error}") from error
        yield cluster, tokenizer


@contextmanager
def _local_backend(
    options: argparse.Namespace, found: Environment, sizes: PoolSizes
) -> Iterator[tuple[Cluster, Tokenizer]]:
    """Workers as threads of this process."""
    from dataclasses import replace

    from ds41.cache import PageLayout
    from ds41.serving import model_fingerprint
    from ds41.serving.pools.local import local_cluster

    model, tokenizer = load_model(options, options.folder, found)
    model.requires_grad_(False)
    fingerprint = model_fingerprint(model)
    drafting = load_drafting(options, options.folder, model)
    vision = _load_vision(options, model)
    with ExitStack() as stack:
        store = None
        if not options.no_store:
            layout = PageLayout.of(model.config)
            store = stack.enter_context(open_store(options, store_folder(options, layout), layout, fingerprint))
        pool = stack.enter_context(opened_pool(options))
        cluster = local_cluster(
            model,
            _engine_options(options, model.config.max_position_embeddings),
            replace(sizes, vision=options.vision_workers or 1),
            vision=vision,
            store=store,
            pool=pool,
            drafting=None if drafting is None else lambda: _another(drafting),
            fingerprint=fingerprint,
            most_waiting=options.waiting,
        )
        stack.enter_context(cluster)
        if options.verbose:
            print(f"ds41: {found.report()}\n{described(model)}; {cluster.max_tokens:,} tokens", file=sys.stderr)
        yield cluster, tokenizer


@contextmanager
def _ray_backend(
    options: argparse.Namespace, found: Environment, sizes: PoolSizes
) -> Iterator[tuple[Cluster, Tokenizer]]:
    """Workers as Ray actors, each with weights of its own."""
    from ds41.cache import PageLayout
    from ds41.config import ModelConfig
    from ds41.tokenizer import load_tokenizer

    try:
        from ds41.serving.pools.ray_workers import RayCluster
    except ImportError as error:
        raise ValueError(str(error)) from error
    from ds41.serving.pools.recipe import StorePlace, WorkerRecipe

    folder = str(Path(part_folder(options, options.folder, "weights that every worker could read")).resolve())
    config = ModelConfig.from_json(f"{folder}/config.json")
    if options.pool == "host":
        # The memory of one process is none of the others'.
        print("ds41: with --ray windows are replayed every turn; --pool redis://... keeps them", file=sys.stderr)
    store = None
    if not options.no_store:
        store = StorePlace(str(store_folder(options, PageLayout.of(config)).resolve()), options.store_budget)
    recipe = WorkerRecipe(
        folder,
        _engine_options(options, config.max_position_embeddings),
        quantization=options.quantization,
        dtype=dtype_name(options, found),
        device=str(found.device),
        store=store,
        windows_url=None if options.pool in ("host", "none") else options.pool,
        draft=untimed_policy(options, config.dspark_block_size),
    )
    with RayCluster(recipe, sizes, most_waiting=options.waiting) as cluster:
        yield cluster, load_tokenizer(folder)


def _engine_options(options: argparse.Namespace, positions: int) -> EngineOptions:
    from ds41.serving.pools.local import EngineOptions

    return EngineOptions(
        max_tokens=context_tokens(options, positions),
        decoder=options.decoder,
        short_hits=options.short_hits,
        windows=options.windows,
    )


def _load_vision(options: argparse.Namespace, model: Model) -> Vision | None:
    """The checkpoint's vision part; None where there is none, unless the options ask for its workers."""
    from ds41.checkpoint import CheckpointError
    from ds41.vision import load_vision

    if options.vision_workers == 0:
        return None
    asked = options.vision_workers is not None
    if not asked and (model.config.vision is None or checkpoint_folder(options, options.folder) is None):
        return None
    try:
        folder = part_folder(options, options.folder, "vision part")
        return load_vision(folder, model.dtype, model.device).requires_grad_(False)
    except CheckpointError as error:
        if asked:
            raise
        print(f"ds41: pictures are refused: {error}", file=sys.stderr)
        return None


def _another(drafting: Drafting) -> Drafting:
    """The same way of drafting with counts of its own, for another engine."""
    from ds41.dspark import Drafting

    return Drafting(drafting.drafter, drafting.policy, drafting.calibration)
