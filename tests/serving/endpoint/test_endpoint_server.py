"""The endpoint's server as connections meet it: clients that leave, stall or stay too long."""

import asyncio
import json
import re
import socket
import struct
import threading
import time

import pytest
from bare_requests import KEY, SLOW, ask, get, opened, rest
from running_endpoint import running
from scripted_backend import Script, ScriptedBackend, ids, until

from ds41.serving.endpoint.api_keys import ApiKeys
from ds41.serving.endpoint.limits import Limits


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("abruptly", [False, True])
def test_a_connection_that_ends_cancels_its_answer(stream, abruptly):
    backend = ScriptedBackend(SLOW)
    with running(backend) as server:
        line = opened(server, stream=stream)
        assert until(lambda: backend.answers and backend.answers[0].report.generated_tokens > 2)
        if stream:
            assert b"200 OK" in line.recv(2**16)
        if abruptly:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        line.close()
        (answer,) = backend.answers
        assert until(lambda: answer.ended)
        assert answer.cancelled
        assert until(lambda: server.service.gate.running == 0)
        assert server.service.meters.ended["disconnected"] == 1


def test_an_answer_that_comes_after_its_client_has_left_is_cancelled():
    backend, going = ScriptedBackend(), threading.Event()

    def waits(request):
        going.wait(5)
        return SLOW

    backend.script = waits
    with running(backend) as server:
        opened(server).close()
        assert until(lambda: server.service.meters.ended["disconnected"] == 1)
        going.set()
        assert until(lambda: backend.answers and backend.answers[0].ended)
        assert backend.answers[0].cancelled


def test_submissions_that_wait_hold_up_neither_streams_nor_health():
    backend, going = ScriptedBackend(), threading.Event()

    def waits(request):
        if len(request.ids) > 100:
            going.wait(5)
        return Script.of("ok " * 20, pause_s=0.005)

    backend.script = waits
    with running(backend) as server:
        stream = opened(server, stream=True)
        assert until(lambda: backend.answers)
        stuck = [opened(server, messages=[{"role": "user", "content": "x" * 200}]) for _ in range(6)]
        assert until(lambda: server.service.gate.running == 7)
        began = time.monotonic()
        assert get(server, "/health").status == 200
        assert b"[DONE]" in _event_stream(stream)
        assert time.monotonic() - began < 4
        going.set()
        assert all(b"200 OK" in line.recv(2**16) for line in stuck)
        for line in stuck:
            line.close()


def test_more_than_the_server_may_run_is_refused_whoever_asks():
    backend = ScriptedBackend(SLOW)
    keys = ApiKeys([("ann", KEY), ("bob", "bob-secret-0123456789")])
    with running(backend, keys, Limits(running=1, running_tenant=1)) as server:
        line = opened(server)
        assert until(lambda: backend.answers)
        other = ask(server, headers={"Authorization": "Bearer bob-secret-0123456789"})
        assert (other.status, other.error["code"]) == (429, "rate_limit_exceeded")
        assert other.error["message"] == "the server has 1 request running; expected fewer than 1"
        # A key that is nobody's learns nothing of that.
        assert ask(server, headers={"Authorization": "Bearer 0123456789abcdef"}).status == 401
        line.close()
        backend.script = Script()
        assert until(lambda: ask(server).status == 200)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (ApiKeys([("ann", KEY)]), "this key's tenant has 1 request running; expected fewer than 1"),
        (None, "the server has 1 request running; expected fewer than 1"),
    ],
    ids=["keys", "open"],
)
def test_more_than_a_tenant_may_run_is_told_without_a_key_where_there_is_none(keys, message):
    backend = ScriptedBackend(SLOW)
    with running(backend, keys, Limits(running_tenant=1)) as server:
        line = opened(server)
        assert until(lambda: backend.answers)
        assert ask(server).error["message"] == message
        line.close()


def test_a_stream_that_nobody_reads_is_cut_off():
    backend = ScriptedBackend(Script(tokens=tuple(ids("x" * 8000)), pause_s=0.0002), max_tokens=10_000)
    with running(backend, limits=Limits(unread_s=0.3, answer_tokens=8000)) as server:
        line = opened(server, receive_buffer=4096, stream=True, max_tokens=8000)
        assert until(lambda: server.service.meters.ended["unread"] == 1, 8.0)
        (answer,) = backend.answers
        assert until(lambda: answer.ended, 1.0)
        assert answer.cancelled
        # What the system had taken is little, and the connection is gone without an end of the stream.
        received = b""
        with line:
            try:
                while more := line.recv(2**16):
                    received += more
            except ConnectionResetError:
                pass
        assert len(received) < 2**20
        assert b"[DONE]" not in received


def test_a_request_has_so_long_in_total():
    backend = ScriptedBackend(SLOW)
    with running(backend, limits=Limits(request_s=0.6)) as server:
        outcome = ask(server)
        assert (outcome.status, outcome.error["code"]) == (504, "timeout")
        assert "within 0.6 s" in outcome.error["message"]
        events = rest_of_stream(server)
        assert events[-1]["error"]["code"] == "timeout"
        assert "".join(event["choices"][0]["delta"].get("content", "") for event in events[:-1]).startswith("x")
        assert until(lambda: all(answer.cancelled for answer in backend.answers))


def test_tokens_that_never_pause_are_no_longer_allowed():
    backend = ScriptedBackend(Script(tokens=tuple(ids("x" * 9000)), pause_s=0.0001), max_tokens=10_000)
    with running(backend, limits=Limits(request_s=0.3, answer_tokens=9000)) as server:
        assert ask(server, max_tokens=9000).status == 504


def test_a_submission_that_waits_too_long_is_given_up():
    backend, going = ScriptedBackend(), threading.Event()

    def waits(request):
        going.wait(5)
        return SLOW

    backend.script = waits
    with running(backend, limits=Limits(request_s=0.2)) as server:
        outcome = ask(server)
        assert (outcome.status, outcome.error["code"]) == (504, "timeout")
        going.set()
        assert until(lambda: backend.answers and backend.answers[0].cancelled)


def rest_of_stream(server, **fields) -> list[dict]:
    line = opened(server, stream=True, **fields)
    text = _event_stream(line).decode()
    return [json.loads(found) for found in re.findall(r"^data: (\{.*\})$", text, re.MULTILINE)]


def _event_stream(line: socket.socket) -> bytes:
    """A response in chunks, up to its last."""
    received = b""
    with line:
        while not received.endswith(b"0\r\n\r\n"):
            more = line.recv(2**16)
            assert more, received
            received += more
    return received


def test_a_quiet_stream_shows_that_it_lives():
    backend = ScriptedBackend(Script.of("ab", pause_s=0.25))
    with running(backend, limits=Limits(quiet_s=0.1)) as server:
        text = _event_stream(opened(server, stream=True)).decode()
    assert text.index("200 OK") < text.index(": waiting") < text.index('"content": "a"') < text.index("[DONE]")


def test_idle_connections_and_too_many_are_closed():
    limits = Limits(idle_s=0.2, header_s=1.5, connections=3)
    with running(ScriptedBackend(), limits=limits) as server:
        lines = [server.connect() for _ in range(3)]
        assert until(lambda: _is_closed(server.connect()))
        began = time.monotonic()
        lines[0].sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200 OK" in rest(lines[0])
        assert time.monotonic() - began < 1.5
        # The others have never said anything.
        assert all(_is_closed(line) for line in lines[1:])
        with server.connect() as line:
            line.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"200 OK" in line.recv(2**16)


@pytest.mark.parametrize(
    ("sent", "status"), [(b"\x16\x03\r\n\r\n", b"400 Bad Request"), (b"GET / HTTP/1.1\r\n", b"408 Request Timeout")]
)
def test_a_refused_connection_gets_a_whole_status_line(sent, status):
    with running(ScriptedBackend(), limits=Limits(header_s=0.2)) as server:
        line = server.connect()
        line.sendall(sent)
        head, _, body = rest(line).partition(b"\r\n\r\n")
        assert head.split(b"\r\n")[0] == b"HTTP/1.1 " + status
        assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}


def test_a_client_that_resets_while_it_is_refused_leaves_no_traceback(monkeypatch, caplog):
    ended, lines = [], []
    transports = asyncio.selector_events._SelectorSocketTransport
    write_eof, abort = transports.write_eof, transports.abort

    def late(transport):
        # The client resets after all has been written and before the end is announced.
        lines[0].close()
        try:
            write_eof(transport)
        except OSError as error:
            ended.append(error)
            raise

    monkeypatch.setattr(transports, "write_eof", late)
    monkeypatch.setattr(transports, "abort", lambda transport: (ended.append("aborted"), abort(transport)))
    monkeypatch.setattr("ds41.serving.endpoint.server._LINGER_S", 0.1)
    with running(ScriptedBackend(), limits=Limits(header_s=0.2)) as server:
        lines.append(server.connect())
        lines[0].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        lines[0].sendall(b"POST / HTTP/1.1\r\n")
        assert until(lambda: "aborted" in ended)
        assert isinstance(ended[0], OSError)
        assert get(server, "/health").status == 200
    assert "Traceback" not in caplog.text
    assert not caplog.records


def _is_closed(line: socket.socket) -> bool:
    with line:
        try:
            return line.recv(2**16) == b""
        except ConnectionResetError:
            return True


def test_an_answered_request_whose_body_goes_on_is_not_listened_to_for_ever():
    with running(ScriptedBackend(), ApiKeys([("ann", KEY)]), Limits(header_s=0.3)) as server:
        head = "GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n"
        line = server.connect()
        line.sendall(head.encode())
        assert b"200 OK" in line.recv(2**16)

        def goes_on() -> bool:
            try:
                line.sendall(b"x")
            except OSError:
                return False
            time.sleep(0.02)
            return True

        began = time.monotonic()
        while goes_on():
            assert time.monotonic() - began < 5


def test_health_tells_which_pools_live():
    backend = ScriptedBackend()
    with running(backend, ApiKeys([("ann", KEY)])) as server:
        for live, status, state in (
            ({"vision": 1, "prefill": 1, "decode": 1}, 200, "ok"),
            ({"vision": 0, "prefill": 1, "decode": 1}, 200, "degraded"),
            ({"vision": 1, "prefill": 1, "decode": 0}, 503, "down"),
            ({"vision": 1, "prefill": 0, "decode": 1}, 503, "down"),
        ):
            backend.live = live
            # No key is needed for it.
            outcome = get(server, "/health", headers={"Authorization": ""})
            assert (outcome.status, json.loads(outcome.text)["status"]) == (status, state)


def test_metrics_count_what_happened_and_name_nobody():
    backend = ScriptedBackend(Script.of("four"))
    with running(backend, ApiKeys([("ann", KEY)])) as server:
        prompt = json.loads(ask(server).text)["usage"]["prompt_tokens"]
        ask(server, stop="ur")
        ask(server, n=2)
        get(server, "/nowhere" + KEY)
        text = get(server, "/metrics").text
    metrics = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    path = 'ds41_http_requests_total{path="/v1/chat/completions",status='
    assert (metrics[path + '"200"}'], metrics[path + '"400"}']) == ("2", "1")
    assert metrics['ds41_tokens_total{kind="completion"}'] == "8"
    assert metrics['ds41_tokens_total{kind="prompt"}'] == str(2 * prompt)
    assert metrics['ds41_tokens_total{kind="cached"}'] == str(prompt)
    assert {name: metrics[name] for name in metrics if name.startswith("ds41_answers_total")} == {
        'ds41_answers_total{end="stop"}': "2"
    }
    assert metrics["ds41_request_seconds_count"] == "2"
    assert metrics['ds41_request_seconds_bucket{le="+Inf"}'] == "2"
    assert metrics['ds41_pool_live{pool="decode"}'] == "2"
    assert metrics["ds41_engine_turns_total"] == "2"
    assert metrics["ds41_http_running"] == "0"
    assert "ann" not in text
    assert KEY not in text


def test_without_keys_only_names_of_this_machine_are_answered():
    backend = ScriptedBackend()
    with running(backend) as server:
        for host, status in (
            (f"localhost:{server.port}", 200),
            ("[::1]:80", 200),
            ("127.0.0.1", 200),
            ("attacker.example", 403),
            ("127.0.0.1.attacker.example", 403),
            ("10.0.0.1", 403),
        ):
            assert ask(server, headers={"Host": host}).status == status
        assert {request.tenant for request in backend.requests} == {"default"}


def test_nothing_of_a_request_is_logged(caplog, capfd):
    backend = ScriptedBackend(Script(refusal=ZeroDivisionError("inside")))
    with running(backend, ApiKeys([("ann", KEY)])) as server, caplog.at_level("DEBUG"):
        outcome = ask(server, messages=[{"role": "user", "content": "what is private"}])
        ask(server, path=f"/v1/chat/completions?key={KEY}", headers={"Authorization": "Bearer " + "z" * 30})
    assert outcome.status == 500
    assert "inside" not in outcome.text
    assert "ZeroDivisionError: inside" in caplog.text
    out, err = capfd.readouterr()
    for secret in (KEY, "private", "z" * 30):
        assert secret not in caplog.text + out + err
