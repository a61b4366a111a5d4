"""Pools in one process: the tokens of one engine, from however many workers."""

from __future__ import annotations

import dataclasses
import gc
import threading
import time
import weakref

import pytest
import tiny_parts
import torch
from pools_made import IMAGE, Gate, alone, cluster_of, ids_of, of_one_engine, picture, request

from ds41.cache import PageLayout
from ds41.dspark import Always, Drafting
from ds41.serving import HostWindowPool, PrefixStore
from ds41.serving.pools import Overloaded, PoolSizes, Request
from ds41.serving.pools import local as local_pools
from ds41.vision import ImageError


@pytest.mark.parametrize("sizes", [PoolSizes(rows=1), PoolSizes(prefill=2, decode=3, rows=2)])
def test_tokens_of_pools_are_those_of_one_engine(parts, sizes):
    counts = (1, 64, 7, 130, 33, 90, 5)
    requests = tuple(request(count, seed, 7, temperature=seed % 2) for seed, count in enumerate(counts))
    expected = of_one_engine(parts, requests)
    with cluster_of(parts, sizes) as cluster:
        answers = [cluster.submit(one) for one in requests]
        assert [list(answer) for answer in answers] == expected
        reports = [answer.report for answer in answers]
    assert {report.finish for report in reports} == {"length"}
    for one, report in zip(requests, reports, strict=True):
        assert (report.prompt_tokens, report.generated_tokens) == (len(one.ids), 7)
        assert [stage.pool for stage in report.stages] == ["prefill", "decode"]
        assert report.handed_bytes >= report.window_bytes > 0
        assert 0 < report.first_token_s < report.seconds
    # More than one worker of each pool had something to do.
    if sizes.decode > 1:
        assert len({report.stages[1].worker for report in reports}) > 1


def test_drafting_pools(parts):
    one = request(40, 3, 20)
    drafting = lambda: Drafting(parts.drafter, Always(4))  # noqa: E731
    with cluster_of(parts, drafting=drafting) as cluster:
        answer = cluster.submit(one)
        assert list(answer) == alone(parts, one)
        assert answer.report.decode.verified_tokens > 0


def test_pictures_are_encoded_once_and_stand_in_the_prompt(parts):
    from ds41.vision import expand_images, load_image, patches_of

    files = (picture(0), picture(1))
    one = Request("a", (0, IMAGE, 40, 41, IMAGE, 42), files, 8, stop_ids=frozenset())
    seen = [patches_of(load_image(file), tiny_parts.CONFIG.vision) for file in files]
    vectors = torch.cat(list(parts.vision(seen)))
    expanded = expand_images(one.ids, [plan for _, plan in seen], IMAGE).ids
    expected = alone(parts, dataclasses.replace(one, ids=tuple(expanded), pictures=()), vectors)
    with cluster_of(parts) as cluster:
        answer = cluster.submit(one)
        assert list(answer) == expected
        assert answer.report.picture_tokens == len(vectors)
        swapped = cluster.submit(dataclasses.replace(one, pictures=files[::-1]))
        assert list(swapped) != expected
        assert [stage.pool for stage in swapped.report.stages] == ["prefill", "decode"]
        counts = cluster.counters()["cluster"]
        assert (counts["pictures_encoded"], counts["pictures_known"]) == (2, 2)


def test_a_worker_that_waits_keeps_no_handover(parts):
    seen = []

    def make(name, engine):
        take_over = engine.take_over

        def watched(takeover):
            seen.append(weakref.ref(takeover.handover))
            return take_over(takeover)

        engine.take_over = watched
        return made(name, engine)

    made = local_pools.DecodeWorker
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_pools, "DecodeWorker", make)
        with cluster_of(parts) as cluster:
            list(cluster.submit(request(10, 1, 3)))
            for _ in range(200):
                gc.collect()
                if seen[0]() is None:
                    break
                time.sleep(0.01)
            assert seen[0]() is None


def test_no_other_picture_order_or_tenant_is_a_hit(parts, tmp_path):
    """Two pictures side by side and one at the very end, in pools that draft."""
    files = (picture(0), picture(1), picture(2))
    one = Request("a", (0, 40, IMAGE, IMAGE, 41, IMAGE), files, 4, stop_ids=frozenset())
    with (
        PrefixStore(tmp_path, PageLayout.of(tiny_parts.CONFIG, 16), parts.fingerprint, budget_bytes=10**8) as store,
        cluster_of(parts, store=store, drafting=lambda: Drafting(parts.drafter, Always(4))) as cluster,
    ):
        hits, tokens = [], []
        for again in (
            one,
            one,
            dataclasses.replace(one, tenant="b"),
            dataclasses.replace(one, pictures=(files[1], files[0], files[2])),
            dataclasses.replace(one, pictures=(files[0], files[0], files[2])),
        ):
            answer = cluster.submit(again)
            tokens.append(list(answer))
            hits.append(answer.report.prefill.hit_tokens)
    assert hits[0] == hits[2] == hits[3] == hits[4] == 0
    assert hits[1] > 2
    assert tokens[0] == tokens[2]
    assert len(set(map(tuple, tokens[2:]))) == 3


def test_back_pressure(parts, monkeypatch):
    gate = Gate("prefill", 0)
    with cluster_of(parts, PoolSizes(rows=1), gate, monkeypatch, most_running=2, most_waiting=2) as cluster:
        answers = [cluster.submit(request(30, seed, 4)) for seed in range(4)]
        assert gate.reached.wait(20)
        with pytest.raises(Overloaded, match="2 requests are being answered and 2 wait") as refused:
            cluster.submit(request())
        assert refused.value.retry_after_s >= 1
        assert cluster.health()["requests"] == {"running": 2, "waiting": 2}
        gate.lose()
        assert [len(list(answer)) for answer in answers] == [4] * 4
        assert cluster.counters()["cluster"]["requests_refused"] == 1
        assert len(list(cluster.submit(request()))) == 12


def test_tenants_wait_in_turn(parts, monkeypatch):
    gate = Gate("prefill", 0)
    with cluster_of(parts, PoolSizes(rows=1), gate, monkeypatch, most_running=1) as cluster:
        order, answers = [], []
        for number, tenant in enumerate("aaaab"):
            answer = cluster.submit(request(20, number, 2, tenant=tenant))
            answer.listen(lambda n=number, one=answer: order.append(n) if one.ended else None)
            answers.append(answer)
        assert gate.reached.wait(20)
        gate.lose()
        assert [len(list(answer)) for answer in answers] == [2] * 5
        assert list(dict.fromkeys(order)) == [0, 1, 4, 2, 3]


@pytest.mark.parametrize("when", ["waiting", "prefill", "decode"])
def test_cancelling(parts, monkeypatch, when):
    gate = Gate("decode", 3) if when == "decode" else Gate("prefill", 0)
    with cluster_of(parts, PoolSizes(rows=1), gate, monkeypatch, most_running=1) as cluster:
        first, second = cluster.submit(request(60, 0, 200)), cluster.submit(request(60, 1, 3))
        assert gate.reached.wait(20)
        chosen = second if when == "waiting" else first
        chosen.cancel()
        chosen.cancel()
        gate.open()
        assert chosen.wait(20)
        assert chosen.report.finish == "cancelled"
        assert len(list(chosen)) == chosen.report.generated_tokens < 200
        if when != "waiting":
            assert len(list(second)) == 3
        else:
            first.cancel()
        assert first.wait(20)
        for pool in ("prefill", "decode"):
            assert cluster.health()[pool]["running"] == 0


def test_pools_scale_apart_and_lose_nothing(parts):
    requests = tuple(request(30, seed, 6) for seed in range(8))
    expected = of_one_engine(parts, requests)
    with cluster_of(parts, PoolSizes(rows=2)) as cluster:
        answers = [cluster.submit(one) for one in requests]
        cluster.scale("decode", 3)
        cluster.pool("decode").wait_ready(20)
        assert [cluster.health()[pool]["live"] for pool in ("vision", "prefill", "decode")] == [1, 1, 3]
        cluster.scale("decode", 1)
        assert [list(answer) for answer in answers] == expected
        assert len(cluster.pool("decode").members()) == 1
        with pytest.raises(ValueError, match="workers of the decode pool is 0"):
            cluster.scale("decode", 0)
        with pytest.raises(KeyError, match="no pool 'encode'"):
            cluster.scale("encode", 1)


def test_a_conversation_comes_back_to_who_has_its_pages(parts, tmp_path):
    layout = PageLayout.of(tiny_parts.CONFIG, 16)
    with (
        PrefixStore(tmp_path, layout, parts.fingerprint, budget_bytes=10**8) as store,
        cluster_of(parts, PoolSizes(prefill=2, decode=2, rows=2), store=store, pool=HostWindowPool(10**7)) as cluster,
    ):
        ids, workers = ids_of(100, 1), []
        for turn in range(3):
            one = Request("a", ids, max_new_tokens=9, stop_ids=frozenset())
            answer = cluster.submit(one)
            ids = (*ids, *answer, *ids_of(21, 2 + turn))
            report = answer.report
            workers.append([stage.worker for stage in report.stages])
            if turn:
                assert report.prefill.windows == "restored"
                assert report.prefill.hit_tokens == report.prompt_tokens - 22
                assert report.decode.resident_tokens >= 100 // 16 * 16
                assert report.decode.handed_tokens < 60
            list(cluster.submit(request(50, 90 + turn)))
        assert len({tuple(names) for names in workers}) == 1
        stranger = cluster.submit(Request("b", ids, max_new_tokens=2, stop_ids=frozenset()))
        list(stranger)
        assert stranger.report.prefill.hit_tokens == 0


def test_what_can_never_work_is_refused_at_once(parts):
    with cluster_of(parts) as cluster:
        for ids, options, message in (
            ((1, 272), {}, "token id 272 at place 1; expected an integer from 0 to 271"),
            ((1, -1), {}, "token id -1"),
            ((1, True), {}, "token id True"),
            (
                (1,) * 395,
                {"max_new_tokens": 6},
                "401 in all; there is room for 400",
            ),
            ((1, 2), {"pictures": (b"x",)}, "1 pictures and 0 places"),
        ):
            with pytest.raises(ValueError, match=message):
                cluster.submit(Request("a", ids, **options))
        with pytest.raises(ImageError):
            list(cluster.submit(Request("a", (IMAGE, 2), (b"no picture",))))
        big = cluster.submit(Request("a", (IMAGE,) * 12, (picture(3),) * 12, max_new_tokens=380))
        with pytest.raises(ValueError, match=r"pictures included, .* there is room for 400"):
            list(big)
    for wrong in ({"ids": ()}, {"ids": (1,), "max_new_tokens": 0}, {"ids": (1,), "temperature": -1}):
        with pytest.raises(ValueError, match="expected"):
            Request("a", **wrong)
    with cluster_of(parts, vision=None) as cluster, pytest.raises(ValueError, match="nothing here can see"):
        cluster.submit(Request("a", (IMAGE,), (b"x",)))
    with pytest.raises(RuntimeError, match="closed"):
        cluster.submit(request())


def test_closing_ends_everything(parts):
    with cluster_of(parts, PoolSizes(rows=1), most_running=2) as cluster:
        answers = [cluster.submit(request(60, seed, 300)) for seed in range(5)]
        next(answers[0])
    assert all(answer.ended for answer in answers)
    assert answers[0].report.finish in ("cancelled", "failed")


def test_an_answer_wakes_who_listens(parts):
    with cluster_of(parts) as cluster:
        answer, woken = cluster.submit(request()), threading.Event()
        answer.listen(woken.set)
        taken = []
        while not answer.ended:
            woken.wait(20)
            woken.clear()
            taken += answer.take()
        taken += answer.take()
        assert len(taken) == 12
        assert answer.error is None
