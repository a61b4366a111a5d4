"""The endpoint as an ASGI application.

Source: OpenAI's HTTP API for paths and shapes.
"""

from __future__ import annotations

import time

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ds41.serving.endpoint.completions import Completions
from ds41.serving.endpoint.errors import ApiError, internal, no_model, shown
from ds41.serving.endpoint.limits import Limits
from ds41.serving.endpoint.replies import send_error
from ds41.serving.endpoint.service import Service

# Without these, there is nobody to answer; without pictures' workers, texts are answered.
_NEEDED_POOLS = {"prefill", "decode"}


def build_app(service: Service) -> FastAPI:
    """An application that answers in the shape of OpenAI's API.

    ``/v1/chat/completions``, ``/v1/completions`` and ``/v1/models`` need a key where the service has keys, so does
    ``/metrics``; ``/health`` does not.
    """
    # Neither documentation, which would load scripts from elsewhere, nor redirects, which would lose a body.
    app = FastAPI(title="ds41", openapi_url=None, redirect_slashes=False)
    began = int(time.time())
    model = {"id": service.model_name, "object": "model", "created": began, "owned_by": "ds41"}

    @app.get("/v1/models")
    async def models(request: Request) -> Response:
        service.tenant(request.headers)
        return JSONResponse({"object": "list", "data": [model]})

    @app.get("/v1/models/{name}")
    async def one_model(request: Request, name: str) -> Response:
        service.tenant(request.headers)
        if name != service.model_name:
            raise no_model(name, service.model_name)
        return JSONResponse(model)

    @app.get("/health")
    async def health() -> Response:
        pools = await service.state(service.backend.health)
        # A backend may tell of more than pools.
        dead = {name for name, pool in pools.items() if pool.get("live", 1) == 0}
        state = "ok"
        if service.gate.draining:
            state = "draining"
        elif dead:
            state = "down" if dead & _NEEDED_POOLS else "degraded"
        content = {"status": state, "pools": {name: dict(pool) for name, pool in pools.items()}}
        return JSONResponse(content, 200 if state in ("ok", "degraded") else 503)

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        service.tenant(request.headers)
        health, tiers = await service.state(lambda: (service.backend.health(), service.backend.counters()))
        text = service.meters.lines(service.gate.running, health, tiers)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    app.router.add_route("/v1/chat/completions", Completions(service, "chat"), methods=["POST"])
    app.router.add_route("/v1/completions", Completions(service, "text"), methods=["POST"])

    @app.exception_handler(ApiError)
    async def refuse(request: Request, error: ApiError) -> Response:
        return JSONResponse(error.body(), error.status, error.headers())

    @app.exception_handler(HTTPException)
    async def no_route(request: Request, error: HTTPException) -> Response:
        messages = {
            404: f"there is nothing at {shown(request.url.path)}",
            405: f"{shown(request.url.path)} does not take {shown(request.method)}",
        }
        message = messages.get(error.status_code, "the request cannot be answered")
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
        body = ApiError(error.status_code, message, code=code).body()
        return JSONResponse(body, error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def fail(request: Request, error: Exception) -> Response:
        return JSONResponse(internal().body(), 500)

    app.add_middleware(_ShortHeads, limits=service.limits)
    return app


class _ShortHeads:
    """Refuses heads above the limit, which the server's parser enforces only on heads that come in pieces."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app, self._limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        size = len(scope.get("raw_path") or b"") + len(scope["query_string"])
        size += sum(len(name) + len(value) for name, value in scope["headers"])
        if size <= self._limits.header_bytes:
            await self._app(scope, receive, send)
            return
        message = f"the request's head has {size} bytes; expected at most {self._limits.header_bytes}"
        await send_error(send, ApiError(431, message, code="head_too_large"), self._limits.unread_s)
