"""The load test's own books, on a server in this process: it passes what is right and sees what is not."""

import argparse

import pytest
import serve_clients
import serve_load
from hostile import Case, chat
from running_endpoint import running
from scripted_backend import Script, ScriptedBackend, ids

from ds41.serving.endpoint.api_keys import ApiKeys

OPTIONS = argparse.Namespace(clients=3, requests=30, tokens=12, seed=0, json=None)


class InProcess:
    """What the load test needs of its server."""

    def __init__(self, server, keys: dict[str, str]) -> None:
        self._server, self.keys = server, keys
        self.port, self.url = server.port, f"{server.url}/v1"

    client = serve_clients.Server.client
    counted = serve_clients.Server.counted

    def resident_bytes(self) -> int:
        return 2**20

    def end(self) -> int:
        self._server.stop()
        self._server.thread.join(10)
        return 0

    def errors(self) -> str:
        return ""


def measured(backend: ScriptedBackend, monkeypatch) -> tuple[dict, bool]:
    hostile = [Case("no JSON", (400,), b"{"), Case("two answers", (400,), chat(n=2))]
    monkeypatch.setattr(serve_load, "cases", lambda limits: hostile)
    keys = {tenant: f"{tenant}-0123456789abcdef" for tenant in (*serve_clients.TENANTS, serve_clients.ALONE)}
    with running(backend, ApiKeys(keys.items())) as server:
        return serve_load.measure(InProcess(server, keys), OPTIONS)


def by_ids(request) -> Script:
    """An answer that follows from the question."""
    return Script.of(f" {sum(request.ids)} and {len(request.ids)}!" * 25, pause_s=0.003)


def is_first(request) -> bool:
    """Whether it is the first one of the first client's, under load."""
    begin = (0, *ids("User: 0.0 "))
    return request.tenant != serve_clients.ALONE and request.ids[: len(begin)] == begin


def test_what_is_right_passes(monkeypatch, capsys):
    result, good = measured(ScriptedBackend(by_ids), monkeypatch)
    assert good
    assert result["tokens"]["told"] == result["tokens"]["counted"]
    assert result["tokens"]["told"]["completion"] > 0
    assert {error["error"] for error in result["errors"]} == {"401"}
    assert sum(result["kinds"].values()) == OPTIONS.requests
    assert len(result["resident_bytes"]["quarters"]) == 4
    assert [one["status"] for one in result["hostile"]] == [400, 400]
    assert "2 hostile requests, 0 with another status than right" in capsys.readouterr().out


def test_answers_that_are_mixed_up_are_seen(monkeypatch, capsys):
    backend = ScriptedBackend(lambda request: Script.of(" mixed up") if is_first(request) else by_ids(request))
    result, good = measured(backend, monkeypatch)
    assert not good
    assert [one["loaded"] for one in result["different"]] == [" mixed up"]
    assert "different alone" in capsys.readouterr().out


def test_lost_tokens_are_seen(monkeypatch):
    read = serve_clients._finish

    def loses(done, text, finish, usage):
        read(done, text, finish, usage.model_copy(update={"completion_tokens": usage.completion_tokens - 1}))

    monkeypatch.setattr(serve_clients, "_finish", loses)
    result, good = measured(ScriptedBackend(by_ids), monkeypatch)
    assert not good
    assert result["different"] == []
    assert result["tokens"]["told"]["completion"] < result["tokens"]["counted"]["completion"]


def test_a_server_that_fails_is_seen(monkeypatch):
    def fails(request):
        return Script.of("a", error=ZeroDivisionError()) if is_first(request) else by_ids(request)

    result, good = measured(ScriptedBackend(fails), monkeypatch)
    assert not good
    assert {error["error"]: error["count"] for error in result["errors"]} == {"401": 3, "500": 1}


@pytest.mark.parametrize("arguments", [["--clients", "0"], ["--clients", "9", "--requests", "3"], ["--tokens", "1"]])
def test_counts_that_cannot_be(arguments, capsys):
    with pytest.raises(SystemExit):
        serve_load.main(arguments)
    assert "expected at least one client" in capsys.readouterr().err
