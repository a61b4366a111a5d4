"""The endpoint's orderly end: what runs goes on for a while, what comes is refused, what is left ends with an error."""

import json
import threading
import time

import pytest
from bare_requests import SLOW, ask, get, opened, rest
from running_endpoint import running
from scripted_backend import Script, ScriptedBackend, until


def test_draining_lets_running_answers_end_and_takes_no_more():
    backend = ScriptedBackend(Script.of("y" * 150, pause_s=0.01))
    with running(backend) as server:
        whole, stream = opened(server), opened(server, stream=True)
        assert until(lambda: len(backend.answers) == 2)
        server.stop()
        assert until(lambda: server.service.gate.draining)
        refused = ask(server)
        assert (refused.status, refused.error["message"]) == (503, "the server is shutting down")
        health = get(server, "/health")
        assert (health.status, json.loads(health.text)["status"]) == (503, "draining")
        assert b"y" * 150 in rest(whole)
        assert b"[DONE]" in rest(stream)
        server.thread.join(5)
        assert not server.thread.is_alive()
    with pytest.raises(ConnectionRefusedError):
        server.connect()


@pytest.mark.parametrize("twice", [False, True])
def test_what_runs_after_the_drain_ends_with_an_error(twice):
    backend = ScriptedBackend(SLOW)
    with running(backend, drain_s=60.0 if twice else 0.2) as server:
        whole, stream = opened(server), opened(server, stream=True)
        assert until(lambda: len(backend.answers) == 2 and all(one.report.generated_tokens for one in backend.answers))
        server.stop()
        if twice:
            server.stop()
        assert b"503" in rest(whole).split(b"\r\n")[0]
        assert b'data: {"error": {"message": "the server is shutting down"' in rest(stream)
        server.thread.join(5)
        assert not server.thread.is_alive()
    assert all(answer.cancelled for answer in backend.answers)


def test_a_request_that_is_being_prepared_when_all_are_stopped_ends_as_well():
    backend, going = ScriptedBackend(), threading.Event()

    def waits(request):
        going.wait(5)
        return SLOW

    backend.script = waits
    with running(backend, drain_s=60.0) as server:
        line = opened(server)
        assert until(lambda: server.service.gate.running == 1)
        server.stop()
        server.stop()
        time.sleep(0.05)
        going.set()
        assert b"503" in rest(line).split(b"\r\n")[0]
        server.thread.join(3)
        assert not server.thread.is_alive()
    assert backend.answers[0].cancelled


def test_it_is_told_how_many_run_when_it_begins_to_drain():
    backend, told = ScriptedBackend(SLOW), []
    with running(backend, draining=told.append) as server:
        lines = [opened(server) for _ in range(2)]
        assert until(lambda: len(backend.answers) == 2)
        server.stop()
        assert until(lambda: told == [2])
        server.stop()
        for line in lines:
            assert b"503" in rest(line).split(b"\r\n")[0]
    assert told == [2]
