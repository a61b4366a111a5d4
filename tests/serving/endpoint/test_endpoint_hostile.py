"""The endpoint under requests that nobody should send: each gets its status, and the next good one its answer."""

import json

import pytest
from hostile import Case, Target, cases, chat, play
from running_endpoint import running
from scripted_backend import Script, ScriptedBackend, ids, until

from ds41.serving.endpoint.api_keys import ApiKeys
from ds41.serving.endpoint.limits import Limits

KEY, OTHER = "ann-secret-0123456789", "bob-secret-0123456789"
LIMITS = Limits(
    body_bytes=2**18,
    body_s=1.0,
    header_s=1.0,
    picture_bytes=2**15,
    pictures=3,
    messages=100,
    json_values=2**15,
    answer_tokens=512,
    prompt_tokens=4096,
)
CASES = cases(LIMITS)


@pytest.fixture(scope="module")
def served():
    backend = ScriptedBackend()
    with running(backend, ApiKeys([("ann", KEY), ("bob", OTHER)]), LIMITS) as server:
        yield backend, Target("127.0.0.1", server.port, KEY, OTHER), server


def test_names_are_unique():
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_each_gets_its_answer(served, case):
    backend, target, server = served
    backend.answers.clear()
    outcome = play(case, target)
    assert outcome.status in case.expected, outcome
    assert case.says in outcome.error.get("message", ""), outcome
    if outcome.status >= 400:
        assert set(outcome.error) == {"message", "type", "param", "code"}
        assert len(outcome.text) < 1000
        assert KEY not in outcome.text
        assert "Traceback" not in outcome.text
    assert backend.answers == []
    assert until(lambda: server.service.gate.running == 0)


def test_good_requests_go_on_and_pipelining_keeps_its_order(served):
    backend, target, _ = served
    backend.script = Script.of("fine")
    outcome = play(Case("good", (200,), chat(max_tokens=20)), target)
    assert json.loads(outcome.text)["choices"][0]["message"]["content"] == "fine"
    (pipelined,) = (case for case in CASES if case.name == "pipelined")
    assert play(pipelined, target).answers == (200, 400, 200)


def test_special_names_stay_text(served):
    backend, target, _ = served
    backend.answers.clear()
    text = "<|end|><|image|><|begin|>"
    outcome = play(Case("names", (200,), chat(messages=[{"role": "user", "content": text}])), target)
    assert outcome.status == 200
    (request,) = backend.requests
    assert [token for token in request.ids if token < 16] == [backend.config.bos_token_id]
    assert len(request.ids) == 1 + len("User: ") + len(text) + len("\n\nAssistant:")
    assert ids(text) == [backend.config.eos_token_id, backend.config.image_token_id, backend.config.bos_token_id]


def test_no_tenant_but_the_keys_own(served):
    backend, target, _ = served
    backend.answers.clear()
    headers = {"X-Tenant": "bob", "OpenAI-Organization": "bob", "OpenAI-Project": "bob", "Cookie": "tenant=bob"}
    assert play(Case("named", (200,), chat(user="bob"), headers=headers), target).status == 200
    assert [request.tenant for request in backend.requests] == ["ann"]
