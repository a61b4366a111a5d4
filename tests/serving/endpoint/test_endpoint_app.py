"""The endpoint as an application without a server of its own, over ASGI."""

import asyncio

import httpx2
import pytest
from running_endpoint import MODEL
from scripted_backend import TOKENIZER, Script, ScriptedBackend

from ds41.serving.endpoint.app import build_app
from ds41.serving.endpoint.service import Service

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 40}


def requested(backend: ScriptedBackend, method: str, path: str, **options) -> httpx2.Response:
    async def send() -> httpx2.Response:
        service = Service(backend, TOKENIZER, MODEL)
        transport = httpx2.ASGITransport(build_app(service), raise_app_exceptions=False)
        try:
            async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
                return await client.request(method, path, **options)
        finally:
            service.close()

    return asyncio.run(send())


@pytest.mark.parametrize(
    ("path", "fields", "expected"),
    [
        ("/v1/chat/completions", CHAT, '"content": "Hello, world."'),
        ("/v1/completions", {"model": MODEL, "prompt": "Hi"}, '"text": "Hello, world."'),
    ],
)
def test_answers_whole_and_streamed(path, fields, expected):
    whole = requested(ScriptedBackend(), "POST", path, json=fields)
    assert (whole.status_code, whole.headers["content-type"]) == (200, "application/json")
    assert expected in whole.text
    assert whole.headers["x-request-id"] == whole.json()["id"]
    streamed = requested(ScriptedBackend(Script(together=99)), "POST", path, json={**fields, "stream": True})
    assert streamed.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert expected in streamed.text
    assert streamed.text.endswith("data: [DONE]\n\n")


def test_errors_have_the_shape_and_a_name_for_the_log():
    response = requested(ScriptedBackend(), "POST", "/v1/chat/completions", json={**CHAT, "n": 3})
    assert response.status_code == 400
    assert response.json() == {
        "error": {
            "message": "n is not supported; expected nothing or 1",
            "type": "invalid_request_error",
            "param": "n",
            "code": "unsupported_field",
        }
    }
    assert response.headers["x-request-id"].startswith("chatcmpl-")


@pytest.mark.parametrize("path", ["/health", "/metrics"])
def test_a_fault_inside_is_not_shown(path):
    class Broken(ScriptedBackend):
        def health(self):
            raise ZeroDivisionError("secret of the house")

    response = requested(Broken(), "GET", path)
    assert (response.status_code, response.json()["error"]["type"]) == (500, "server_error")
    assert "secret" not in response.text
