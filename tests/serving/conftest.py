"""A Redis server for each test that asks for one, and a client beside the pool under test; models, and a store."""

from __future__ import annotations

from typing import NamedTuple

import engine_made
import pytest
import redis_server
import tiny_model
import tiny_parts
import torch

from ds41.cache import PageLayout
from ds41.checkpoint import load_checkpoint
from ds41.dspark import Drafter, load_drafter
from ds41.model import Model
from ds41.serving import PrefixStore, model_fingerprint
from ds41.vision import Vision, load_vision


class Parts(NamedTuple):
    """A tiny model over bytes, its vision tower and its drafter, all random."""

    model: Model
    vision: Vision
    drafter: Drafter
    fingerprint: bytes


@pytest.fixture
def server():
    try:
        redis_server.find()
    except redis_server.NoServerError as error:
        pytest.fail(str(error)) if redis_server.required() else pytest.skip(str(error))
    with redis_server.running() as started:
        yield started


@pytest.fixture
def admin(server):
    """A second client, for what a pool cannot do."""
    import redis

    with redis.Redis.from_url(server.url) as client:
        yield client


@pytest.fixture(scope="module")
def model():
    """The model of :mod:`engine_made`."""
    return tiny_model.build()


@pytest.fixture
def store(tmp_path):
    """An empty store for the pages of :mod:`engine_made`."""
    layout = PageLayout.of(engine_made.CONFIG, engine_made.PAGE)
    with PrefixStore(tmp_path / "store", layout, engine_made.FINGERPRINT, budget_bytes=10**8) as store:
        yield store


@pytest.fixture(scope="package")
def parts(tmp_path_factory):
    folder = tiny_parts.save(tmp_path_factory.mktemp("parts"))
    model = load_checkpoint(folder, dtype=torch.float32).requires_grad_(False)
    vision = load_vision(folder, torch.float32).requires_grad_(False)
    drafter = load_drafter(folder, "cache", torch.float32).requires_grad_(False)
    return Parts(model, vision, drafter, model_fingerprint(model))
