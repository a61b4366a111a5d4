"""A Redis server for each test that asks for one, and a client beside the pool under test."""

from __future__ import annotations

import pytest
import redis_server


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
