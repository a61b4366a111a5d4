"""Workers that are lost, at whatever step: every request ends with the tokens that it has alone."""

from __future__ import annotations

import threading

import pytest
import tiny_parts
from pools_made import Gate, alone, cluster_of, of_one_engine, request

from ds41.cache import PageLayout
from ds41.serving import HostWindowPool, PrefixStore
from ds41.serving.handover import HandoverLost
from ds41.serving.pools import NoWorkers, PoolSizes, WorkerLost
from ds41.serving.pools import local as local_pools


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("pool", "step"), [("prefill", 0), ("prefill", 2), ("decode", 0), ("decode", 1), ("decode", 5)]
)
def test_a_lost_workers_requests_end_with_the_same_tokens(parts, monkeypatch, pool, step, temperature):
    requests = tuple(request(70, seed, 9, temperature=temperature) for seed in range(3))
    expected = of_one_engine(parts, requests)
    gate = Gate(pool, step)
    with cluster_of(parts, PoolSizes(prefill=2, decode=2, rows=3), gate, monkeypatch) as cluster:
        answers = [cluster.submit(one) for one in requests]
        gate.lose()
        assert [list(answer) for answer in answers] == expected
        outcomes = [stage.outcome for answer in answers for stage in answer.report.stages]
        assert outcomes.count("lost") >= 1
        assert cluster.counters()["cluster"]["retries"] == outcomes.count("lost")
        cluster.pool(pool).wait_ready(20)
        assert cluster.health()[pool]["lost"] == 1


def test_a_lost_prompt_is_read_again_from_no_longer_a_hit(parts, tmp_path, monkeypatch):
    """The first reading had stored pages; were they hit, windows would be replayed, and tokens might differ."""
    one, gate = request(390 - 64, 5, 6), Gate("prefill", 6)
    expected = alone(parts, one)
    layout = PageLayout.of(tiny_parts.CONFIG, 16)
    monkeypatch.setattr("ds41.serving.steps._STORED_AT_ONCE", 1)
    with (
        PrefixStore(tmp_path, layout, parts.fingerprint, budget_bytes=10**8) as store,
        cluster_of(parts, PoolSizes(prefill=2, rows=1), gate, monkeypatch, store=store) as cluster,
    ):
        answer = cluster.submit(one)
        gate.lose()
        assert store.usage().tokens >= 96
        assert list(answer) == expected
        assert answer.report.prefill.hit_tokens == 0


def test_a_lost_handover_of_a_short_prompt_is_made_again_from_no_longer_a_hit(parts, tmp_path, monkeypatch):
    """One step had read and stored all of it."""
    one, made, lost = request(30, 5, 6), local_pools.DecodeWorker, []
    expected = alone(parts, one)

    def fetch(chunk):
        if not lost:
            lost.append(chunk)
            raise HandoverLost("gone")
        return chunk

    monkeypatch.setattr(local_pools, "DecodeWorker", lambda name, engine: made(name, engine, fetch))
    layout = PageLayout.of(tiny_parts.CONFIG, 16)
    with (
        PrefixStore(tmp_path, layout, parts.fingerprint, budget_bytes=10**8) as store,
        cluster_of(parts, store=store) as cluster,
    ):
        answer = cluster.submit(one)
        assert list(answer) == expected
        assert store.usage().tokens >= 30
        assert answer.report.prefill.hit_tokens == 0
        assert [stage.outcome for stage in answer.report.stages] == ["done", "failed", "done", "done"]


def test_a_step_that_breaks_down_ends_its_worker_and_nothing_of_it_is_kept(parts, monkeypatch):
    """The engine is in a state that nobody knows."""
    one, pool = request(40, 6, 8), HostWindowPool(10**7)
    expected, make, steps = alone(parts, one), local_pools.DecodeWorker, []

    def breaking(name, engine):
        step = engine.step

        def failing():
            steps.append(name)
            if len(steps) == 4:
                raise KeyError("books that do not add up")
            return step()

        engine.step = failing
        return make(name, engine)

    monkeypatch.setattr(local_pools, "DecodeWorker", breaking)
    with cluster_of(parts, pool=pool) as cluster:
        answer = cluster.submit(one)
        assert list(answer) == expected
        assert [stage.outcome for stage in answer.report.stages] == ["done", "lost", "done"]
        # Those of the whole answer.
        assert pool.counters["puts"] == 1
        assert cluster.health()["decode"]["lost"] == 1


def test_a_request_that_takes_workers_with_it_is_given_up(parts, monkeypatch):
    def deadly(self, job):
        self.close()
        raise WorkerLost(f"{self.name} died of it")
        yield

    with cluster_of(parts, attempts=2) as cluster:
        monkeypatch.setattr(local_pools.PrefillWorker, "run", deadly)
        answer = cluster.submit(request())
        with pytest.raises(WorkerLost, match="2 workers were lost with this request, the last so: prefill-1 died"):
            list(answer)
        monkeypatch.undo()
        assert len(list(cluster.submit(request()))) == 12


def test_a_pool_that_cannot_be_filled_says_why(parts, monkeypatch):
    def broken(*given):
        raise OSError("no such device")

    monkeypatch.setattr(local_pools, "DecodeWorker", broken)
    monkeypatch.setattr("ds41.serving.pools.staff._PAUSE_S", 0.0)
    with cluster_of(parts) as cluster:
        with pytest.raises(NoWorkers, match=r"no worker left after 6 starts .* OSError: no such device"):
            list(cluster.submit(request()))
        with pytest.raises(NoWorkers):
            cluster.wait_ready(5)


def test_many_threads_many_turns_many_losses(parts, monkeypatch):
    """Workers are lost again and again under load; every request ends with the tokens that it has alone."""
    requests = tuple(request(20 + 7 * seed, seed, 6, temperature=seed % 2) for seed in range(12))
    expected = of_one_engine(parts, requests)
    monkeypatch.setattr("ds41.serving.pools.staff._PAUSE_S", 0.0)
    with cluster_of(parts, PoolSizes(prefill=2, decode=2, rows=2), attempts=50) as cluster:
        found, stop = {}, threading.Event()

        def client(numbers):
            for number in numbers:
                found[number] = list(cluster.submit(requests[number]))

        def chaos():
            # As fast as there is progress, however busy the machine.
            counts, turn = cluster.counters()["cluster"], 0
            while not stop.is_set():
                done = counts["requests_length"]
                members = cluster.pool(("prefill", "decode")[turn % 2]).members()
                if members:
                    members[turn % len(members)].worker.close()
                turn += 1
                while counts["requests_length"] == done and not stop.wait(0.01):
                    pass

        clients = [threading.Thread(target=client, args=(range(first, 12, 4),)) for first in range(4)]
        killer = threading.Thread(target=chaos)
        for thread in (*clients, killer):
            thread.start()
        for thread in clients:
            thread.join(120)
        stop.set()
        killer.join()
        assert [found.get(number) for number in range(12)] == expected
        assert cluster.counters()["cluster"]["retries"] > 0
        assert cluster.health()["requests"] == {"running": 0, "waiting": 0}
