"""What a cluster does under losses, cancels and load, with workers that have no model."""

from __future__ import annotations

import gc
import random
import threading
import time
import weakref
from itertools import chain

import pytest
import tiny_parts
from scripted_workers import POISON, SLOW, ScriptedWorker, request, scripted_cluster, tokens_of

from ds41.serving.fairness import FairQueue
from ds41.serving.pools import NoWorkers, PoolPlan, WorkerLost
from ds41.serving.pools.cluster import Cluster
from ds41.serving.pools.pool import Pool

PATIENCE_S = 60


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr("ds41.serving.pools.staff._PAUSE_S", 0.0)


def threads_of_pools() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("ds41 ")]


def joined(targets) -> None:
    threads = [threading.Thread(target=target, daemon=True) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not [thread for thread in threads if thread.is_alive()], "somebody waits for ever"


def until(true) -> None:
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.001)


def test_thousands_of_requests_cancels_and_losses_leave_nothing():
    """Readers, cancels from other threads, listeners that cancel, losses and scaling, all at once."""
    answers, stop = [], threading.Event()
    with scripted_cluster(2, 2, slots=3, attempts=10**6, most_waiting=10**4) as cluster:

        def client(number):
            chance = random.Random(number)
            for turn in range(150):
                one = request(number, turn % 100, *(() if turn % 5 else (SLOW,)), tokens=chance.randrange(1, 9))
                answer = cluster.submit(one)
                answers.append((one, answer))
                match chance.randrange(5):
                    case 0:
                        answer.cancel()
                    case 1:
                        answer.listen(answer.cancel)
                    case 2:
                        answer.on_cancel(answer.cancel)
                        threading.Thread(target=answer.cancel).start()
                    case _:
                        assert list(answer) == tokens_of(one)
                        assert answer.report.finish == "length"
                assert answer.wait(PATIENCE_S)

        def chaos():
            chance = random.Random(99)
            while not stop.wait(0.002):
                pool = chance.choice(("prefill", "decode"))
                if chance.random() < 0.5:
                    cluster.scale(pool, chance.randrange(1, 4))
                elif members := cluster.pool(pool).members():
                    chance.choice(members).worker.close()
                cluster.health()

        killer = threading.Thread(target=chaos, daemon=True)
        killer.start()
        joined([lambda number=number: client(number) for number in range(8)])
        stop.set()
        killer.join(PATIENCE_S)
        assert cluster.health()["requests"] == {"running": 0, "waiting": 0}
        for pool in ("prefill", "decode"):
            status = cluster.pool(pool).status()
            assert (status["running"], status["waiting"]) == (0, 0)
            assert not [member for member in cluster.pool(pool).members() if member.claimed]
        counts = cluster.counters()["cluster"]
        ends = [counts[f"requests_{finish}"] for finish in ("length", "cancelled", "failed")]
        assert (sum(ends), ends[2]) == (1200, 0)
        assert counts["generated_tokens"] == sum(answer.report.generated_tokens for _, answer in answers)
    for one, answer in answers:
        taken = answer.take()
        assert taken == tokens_of(one)[: len(taken)]
        assert not answer._cancellers
    assert not [name for name in threads_of_pools() if name.startswith("ds41 request")]


def test_whoever_sees_the_end_sees_that_it_does_not_run_and_was_counted():
    with scripted_cluster() as cluster:
        for number in range(300):
            list(cluster.submit(request(1, 2, tokens=1)))
            assert cluster.health()["requests"]["running"] == 0
            assert cluster.counters()["cluster"]["requests_length"] == number + 1


def test_a_cancel_before_the_worker_knows_of_the_job_is_not_lost():
    holder, there = [], threading.Event()

    def before(job):
        if hasattr(job, "handover"):
            there.wait(PATIENCE_S)
            holder[0].cancel()

    with scripted_cluster(make=lambda name: ScriptedWorker(name, before)) as cluster:
        answer = cluster.submit(request(1, SLOW, tokens=9000))
        holder.append(answer)
        there.set()
        assert answer.wait(PATIENCE_S)
        assert (answer.report.finish, answer.report.generated_tokens < 5) == ("cancelled", True)


def test_poison_ends_alone():
    """It shares its first workers with others; the last that it may end, with nobody."""
    with scripted_cluster(decode=1, slots=8) as cluster:
        innocent = [request(number, SLOW, tokens=30) for number in range(7)]
        answers = [cluster.submit(one) for one in innocent]
        for answer in answers:
            next(answer)
        poison = cluster.submit(request(1, POISON))
        with pytest.raises(WorkerLost, match="3 workers were lost with this request"):
            list(poison)
        assert [list(answer) for answer in answers] == [tokens_of(one)[1:] for one in innocent]


def test_poison_does_not_end_a_pool():
    with scripted_cluster() as cluster:
        for number in range(5):
            with pytest.raises(WorkerLost):
                list(cluster.submit(request(number, POISON)))
        assert cluster.health()["decode"]["lost"] == 15
        assert list(cluster.submit(request(1, 2))) == tokens_of(request(1, 2))


def test_a_worker_that_ended_while_nobody_looked_is_replaced_at_no_requests_cost():
    with scripted_cluster(decode=4, attempts=1) as cluster:
        cluster.wait_ready(PATIENCE_S)
        for member in cluster.pool("decode").members():
            member.worker.close()
        assert list(cluster.submit(request(1, 2))) == tokens_of(request(1, 2))
        for member in cluster.pool("decode").members():
            member.worker.close()
        assert cluster.health()["decode"]["lost"] >= 5
        cluster.pool("decode").wait_ready(PATIENCE_S)
        assert cluster.health()["decode"]["live"] == 4


def test_a_worker_that_leaves_off_in_the_middle_is_lost():
    class Silent(ScriptedWorker):
        def _answer(self, job, cancelled):
            yield from ()

    with (
        scripted_cluster(make=Silent, attempts=2) as cluster,
        pytest.raises(WorkerLost, match=r"2 workers .* left off in the middle"),
    ):
        list(cluster.submit(request(1, 2)))


def test_an_answer_keeps_no_worker_and_no_handover():
    seen = []

    def before(job):
        if hasattr(job, "handover"):
            seen.append(weakref.ref(job.handover))

    def failing(name):
        worker = ScriptedWorker(name, before)
        if name.startswith("decode"):
            worker._answer = raising
        return worker

    def raising(job, cancelled):
        raise ValueError("of this request")
        yield

    for make in (lambda name: ScriptedWorker(name, before), failing):
        with scripted_cluster(make=make) as cluster:
            answer = cluster.submit(request(1, 2))
            answer.wait(PATIENCE_S)
            assert answer.report.finish == ("length" if make is not failing else "failed")
    gc.collect()
    assert len(seen) == 2
    assert [one() for one in seen] == [None, None]


def test_a_listener_that_raises_harms_nobody(caplog):
    with scripted_cluster() as cluster:
        answer, calls = cluster.submit(request(1, SLOW, tokens=50)), []

        def broken():
            calls.append("broken")
            if len(calls) > 1:
                raise RuntimeError("the loop is closed")

        answer.listen(broken)
        woken = threading.Event()
        answer.listen(lambda: woken.set() if answer.ended else None)
        assert list(answer) == tokens_of(answer.request)
        assert woken.wait(PATIENCE_S)
        assert calls.count("broken") == 2
        assert "the loop is closed" in caplog.text
        late = []
        answer.listen(lambda: late.append(1))
        assert late == [1]
        answer.cancel()
        assert answer.report.finish == "length"


def test_several_readers_share_an_answer():
    one = request(1, SLOW, tokens=300)
    with scripted_cluster() as cluster:
        answer, parts = cluster.submit(one), [[], [], []]
        joined([lambda part=part: part.extend(answer) for part in parts])
        assert sorted(chain(*parts)) == sorted(tokens_of(one))


def test_closing_while_all_is_in_motion():
    """Also while workers start; what comes too late is closed."""
    for wait in range(12):
        made, slow = [], threading.Event()

        def make(name, made=made, slow=slow, wait=wait):
            if wait % 3 == 1:
                slow.wait(PATIENCE_S)
            made.append(ScriptedWorker(name))
            return made[-1]

        cluster = scripted_cluster(2, 2, make=make, most_running=3)
        answers = [cluster.submit(request(number, SLOW, tokens=500)) for number in range(8)]
        if wait % 3 == 2:
            next(answers[0])
        joined([cluster.close, cluster.close, answers[1].cancel])
        assert all(answer.ended for answer in answers)
        slow.set()
        for pool in ("prefill", "decode"):
            assert cluster.pool(pool).wait_started(PATIENCE_S)
            with pytest.raises(NoWorkers, match="closed"):
                cluster.pool(pool).wait_ready(0)
        assert not [worker for worker in made if worker.alive]
    with pytest.raises(RuntimeError, match="closed"):
        cluster.submit(request(1))


def test_nothing_is_left_of_a_cluster_that_cannot_be():
    made = []

    def make(name):
        made.append(ScriptedWorker(name))
        return made[-1]

    plans = {"prefill": PoolPlan(make), "decode": PoolPlan(make, workers=0)}
    with pytest.raises(ValueError, match="workers of the decode pool is 0"):
        Cluster(tiny_parts.CONFIG, plans, max_tokens=100)
    for thread in threading.enumerate():
        if thread.name.startswith("ds41 start"):
            thread.join(PATIENCE_S)
    assert not [worker for worker in made if worker.alive]


class Makes:
    """``make`` of a pool: workers, or failures, one after the other; a worker waits to be let through."""

    def __init__(self, *outcomes: object) -> None:
        self._outcomes, self.workers = list(outcomes), []
        self._lock = threading.Lock()

    def __call__(self, name: str) -> ScriptedWorker:
        with self._lock:
            outcome = self._outcomes.pop(0) if self._outcomes else None
        if isinstance(outcome, threading.Event):
            outcome.wait(PATIENCE_S)
        elif outcome is not None:
            raise outcome
        self.workers.append(ScriptedWorker(name))
        return self.workers[-1]


def test_a_pool_of_which_some_cannot_start_says_so():
    pool = Pool("decode", Makes(None, *[OSError("no room")] * 6), workers=2)
    with pytest.raises(NoWorkers, match=r"1 worker left after 6 starts in a row that failed, .* no room"):
        pool.wait_ready(PATIENCE_S)
    with pool.lease() as member:
        assert member.worker.alive
    pool.scale(2)
    pool.wait_ready(PATIENCE_S)
    pool.close()


def test_a_start_that_does_not_end_in_an_ordinary_way_is_a_failed_one():
    pool = Pool("decode", Makes(SystemExit(3), None))
    pool.wait_ready(PATIENCE_S)
    pool.close()


def test_scaling_down_keeps_those_that_are_there():
    slow = threading.Event()
    makes = Makes(None, slow, slow)
    pool = Pool("decode", makes)
    pool.wait_ready(PATIENCE_S)
    pool.scale(3)
    pool.scale(1)
    (member,) = pool.members()
    assert member.worker is makes.workers[0]
    slow.set()
    assert pool.wait_started(PATIENCE_S)
    assert [one.worker for one in pool.members()] == makes.workers[:1]
    pool.close()
    assert not makes.workers[0].alive


def test_a_worker_that_was_to_leave_stays_if_it_is_wanted_again():
    makes = Makes()
    pool = Pool("decode", makes, workers=2)
    pool.wait_ready(PATIENCE_S)
    with pool.lease() as first, pool.lease() as second:
        assert first is not second
        pool.scale(1)
        pool.scale(2)
        assert len(makes.workers) == 2
    assert pool.status()["live"] == 2
    pool.close()


def test_losses_without_end():
    makes = Makes()
    pool = Pool("decode", makes)
    for _ in range(1100):
        with pool.lease() as member:
            pool.lost(member, "again")
    pool.wait_ready(PATIENCE_S)
    assert pool.status()["lost"] == 1100
    pool.close()


def test_a_claimed_worker_that_was_to_leave_takes_jobs_again():
    pool, had = Pool("decode", Makes(), workers=2), []
    pool.wait_ready(PATIENCE_S)

    def alone():
        with pool.lease(alone=True) as member:
            had.append(member)

    with pool.lease() as first:
        with pool.lease() as second:
            waiting = threading.Thread(target=alone, daemon=True)
            waiting.start()
            until(lambda: first.claimed)
            # The claim goes to the other worker, and the first is wanted again.
            pool.scale(1)
            until(lambda: second.claimed)
            pool.scale(2)
        waiting.join(PATIENCE_S)
    assert had == [second]
    with pool.lease(prefer=first.name) as member:
        assert member is first
    pool.close()


def test_slots_go_to_whoever_came_first_and_a_worker_to_one_alone():
    pool, order = Pool("decode", Makes(), slots=2), []
    pool.wait_ready(PATIENCE_S)

    def job(number, alone=False):
        with pool.lease(alone=alone) as member:
            order.append(number)
            if alone:
                assert member.running == 1

    threads = []
    with pool.lease():
        with pool.lease():
            for number in range(6):
                threads.append(threading.Thread(target=job, args=(number, number == 3), daemon=True))
                threads[-1].start()
                while pool.status()["waiting"] <= number:
                    pass
        # Claimed: the others wait until one has had it alone.
        assert order == []
    for thread in threads:
        thread.join(PATIENCE_S)
    assert order == [3, 0, 1, 2, 4, 5] or (order[0] == 3 and sorted(order) == [0, 1, 2, 3, 4, 5])
    assert not pool.members()[0].claimed
    pool.close()


def test_who_gives_up_waiting_leaves_no_claim_and_no_place():
    pool = Pool("decode", Makes(), slots=1)
    pool.wait_ready(PATIENCE_S)
    for alone in (True, False):
        given_up, found = threading.Event(), []

        def wait(alone=alone, given_up=given_up, found=found):
            with pool.lease(None, given_up.is_set, alone) as member:
                found.append(member)

        with pool.lease():
            thread = threading.Thread(target=wait, daemon=True)
            thread.start()
            while not pool.status()["waiting"]:
                pass
            given_up.set()
            pool.wake()
            thread.join(PATIENCE_S)
            assert found == [None]
        with pool.lease() as member:
            assert not member.claimed
    pool.close()


def test_a_tenant_that_takes_back_a_request_keeps_its_place():
    class Waiting:
        def __init__(self, tenant):
            self.tenant = tenant

    queue = FairQueue()
    first, second, third, other = Waiting("a"), Waiting("a"), Waiting("a"), Waiting("b")
    for one in (first, second, third, other):
        queue.put(one)
    queue.remove(second)
    assert queue.head() is first
    queue.remove(first)
    assert queue.head() is other
    queue.remove(third)
    assert list(queue) == [other]
