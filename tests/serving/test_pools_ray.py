"""Pools on Ray actors: the tokens of one process, with processes that are killed in the middle."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest
import tiny_parts
from pools_made import OPTIONS, alone, ids_of, picture, request

from ds41.serving.pools import PoolSizes, Request, local_cluster

ray_workers = pytest.importorskip("ds41.serving.pools.ray_workers")

IMAGE = tiny_parts.CONFIG.image_token_id


@pytest.fixture(scope="module")
def cluster(parts, tmp_path_factory):
    from ds41.serving.pools.recipe import StorePlace, WorkerRecipe

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    folder = tmp_path_factory.mktemp("ray")
    recipe = WorkerRecipe(
        tiny_parts.save(folder / "model"),
        OPTIONS,
        store=StorePlace(str(folder / "store"), 10**8, page_tokens=16),
        fingerprint=parts.fingerprint,
        threads=1,
    )
    # Actors that wait for each other's slots would need as many cores.
    resources = ray_workers.Resources(num_cpus=0)
    with ray_workers.RayCluster(recipe, PoolSizes(vision=1, prefill=1, decode=2, rows=3), resources) as running:
        running.wait_ready(120)
        yield running


def kill(cluster, name: str) -> None:
    (worker,) = [
        member.worker
        for pool in ("vision", "prefill", "decode")
        for member in cluster.pool(pool).members()
        if member.name == name
    ]
    os.kill(worker.process_id, signal.SIGKILL)


def test_tokens_are_those_of_one_process(cluster, parts):
    one = Request("pictures", (0, IMAGE, 40, 41, IMAGE, 42), (picture(0), picture(1)), 8, stop_ids=frozenset())
    requests = [one, *(request(count, seed, temperature=seed % 2) for seed, count in enumerate((1, 64, 130, 33)))]
    with local_cluster(parts.model, OPTIONS, vision=parts.vision, fingerprint=parts.fingerprint) as local:
        expected = [list(local.submit(one)) for one in requests]
    answers = [cluster.submit(one) for one in requests]
    assert [list(answer) for answer in answers] == expected
    assert [stage.pool for stage in answers[0].report.stages] == ["vision", "prefill", "decode"]
    assert answers[0].report.handed_bytes > answers[0].report.window_bytes > 0


def test_the_next_turn_finds_what_another_process_has_stored(cluster):
    ids = ids_of(100, 7)
    first = cluster.submit(Request("turns", ids, max_new_tokens=9, stop_ids=frozenset()))
    ids = (*ids, *first, *ids_of(20, 8))
    second = cluster.submit(Request("turns", ids, max_new_tokens=4, stop_ids=frozenset()))
    assert len(list(second)) == 4
    assert second.report.prefill.hit_tokens == 108
    assert second.report.prefill.windows == "replayed"


def test_a_decode_process_is_killed_in_the_middle(cluster, parts):
    requests = [request(40, seed, 60, tenant="decode", temperature=seed % 2) for seed in range(4)]
    expected = [alone(parts, one) for one in requests]
    answers = [cluster.submit(one) for one in requests]
    begun = [[next(answer) for _ in range(5)] for answer in answers]
    cluster_member = max(cluster.pool("decode").members(), key=lambda member: member.running)
    kill(cluster, cluster_member.name)
    assert [start + list(answer) for start, answer in zip(begun, answers, strict=True)] == expected
    outcomes = [stage.outcome for answer in answers for stage in answer.report.stages]
    assert "lost" in outcomes


def test_a_prefill_process_is_killed_in_the_middle(cluster, parts):
    one = request(300, 5, 6, tenant="prefill")
    expected = alone(parts, one)
    cluster.pool("prefill").wait_ready(60)
    answer = cluster.submit(one)
    while not cluster.pool("prefill").status()["running"]:
        time.sleep(0.001)
    kill(cluster, cluster.pool("prefill").members()[0].name)
    assert list(answer) == expected
    assert [stage.outcome for stage in answer.report.stages][-2:] == ["done", "done"]


def test_errors_come_through(cluster):
    from ds41.vision import ImageError

    with pytest.raises(ImageError):
        list(cluster.submit(Request("a", (IMAGE, 2), (b"no picture",))))
    with pytest.raises(ValueError, match="there is room for 400"):
        list(cluster.submit(Request("a", (IMAGE,) * 12, (picture(3),) * 12, max_new_tokens=380)))


def read_until_lost(reference) -> None:
    """That an owner has ended is noticed after a while."""
    import ray

    while True:
        ray.get(reference)


def test_pages_that_are_gone_are_read_again(cluster, parts, monkeypatch):
    """The pages of the first reading belong to a process that has ended."""
    import ray

    from ds41.serving.pools.ray_workers import RayWorker

    class Owner:
        def put(self, array):
            return [ray.put(array)]

    owner = ray.remote(Owner).options(num_cpus=0).remote()
    gather, lost = RayWorker._references, []

    def losing(stream, count):
        references = gather(stream, count)
        if not lost:
            # Large enough to lie in shared memory.
            lost.extend(ray.get(owner.put.remote(np.zeros((64, 2**14), np.uint8))))
            ray.kill(owner)
            with pytest.raises(ray.exceptions.ObjectLostError):
                read_until_lost(lost[0])
            return tuple(lost)
        return references

    monkeypatch.setattr(RayWorker, "_references", staticmethod(losing))
    one = request(90, 11, 6, tenant="gone")
    answer = cluster.submit(one)
    assert list(answer) == alone(parts, one)
    assert lost
    assert [(stage.pool, stage.outcome) for stage in answer.report.stages] == [
        ("prefill", "done"),
        ("decode", "failed"),
        ("prefill", "done"),
        ("decode", "done"),
    ]


class Unportable(ValueError):
    """Cannot be made again from what it was made of."""

    def __init__(self, place: int, what: str) -> None:
        super().__init__(f"{what} at {place}")


def test_errors_that_cannot_travel_say_the_same():
    error = ValueError("as it is")
    assert ray_workers._portable(error) is error
    assert ray_workers._portable(None) is None
    assert repr(ray_workers._portable(Unportable(3, "a fault"))) == "RuntimeError('Unportable: a fault at 3')"
