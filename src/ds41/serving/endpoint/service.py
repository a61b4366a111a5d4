"""What all requests of an endpoint share: the pools behind it, whose keys are whose, bounds, and who is running.

Source: ds41's own.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Protocol, TypeVar

from starlette.datastructures import Headers
from tokenizers import Tokenizer

from ds41.chat_format import Turns
from ds41.config import ModelConfig
from ds41.serving.counters import Counters
from ds41.serving.endpoint.api_keys import ApiKeys
from ds41.serving.endpoint.errors import ApiError
from ds41.serving.endpoint.gate import Gate
from ds41.serving.endpoint.limits import Limits
from ds41.serving.endpoint.meters import Meters
from ds41.serving.endpoint.reader import Reader
from ds41.serving.pools.requests import Answer, Request

DEFAULT_TENANT = "default"
# Requests that are parsed, made into tokens and handed to the pools at once; more only share the processor.
_PREPARED_AT_ONCE = 4
_Result = TypeVar("_Result")


class Backend(Protocol):
    """What answers requests; :class:`ds41.serving.pools.Cluster` is one. Its methods may be called from any thread.

    config: of the model. max_tokens: the longest sequence. health: by pool, its workers, how many of them are live,
    and what else there is to count, running and waiting requests for example. counters: by tier.
    """

    config: ModelConfig
    max_tokens: int

    def submit(self, request: Request) -> Answer:
        """Take a request; :meth:`ds41.serving.pools.Cluster.submit` says what it refuses."""
        ...

    def health(self) -> Mapping[str, Mapping[str, int]]:
        """By pool, its workers, how many of them are live, and other counts."""
        ...

    def counters(self) -> Mapping[str, Counters]:
        """By tier, what it has counted."""
        ...


class Service:
    """The state of one endpoint, for one event loop.

    Args:
        keys: whose requests are taken; None takes all as of the tenant "default", if they come to a loopback name.
        model_name: what clients call the model.
    """

    def __init__(
        self,
        backend: Backend,
        tokenizer: Tokenizer,
        model_name: str,
        keys: ApiKeys | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.backend, self.tokenizer, self.model_name = backend, tokenizer, model_name
        self.limits = Limits() if limits is None else limits
        self.turns = Turns(tokenizer, backend.config)
        self.gate, self.meters = Gate(self.limits, keyed=keys is not None), Meters()
        self._readers: set[Reader] = set()
        self._stopped: ApiError | None = None
        self._keys = keys
        self._threads = ThreadPoolExecutor(_PREPARED_AT_ONCE, "ds41-prepare")
        # Apart, so that the state can be asked for while all of those are busy.
        self._state_thread = ThreadPoolExecutor(1, "ds41-state")

    def tenant(self, headers: Headers) -> str:
        """Whose a request is.

        Raises:
            ApiError: 401 for a key that is nobody's; 403 without keys for another host than this machine.
        """
        if self._keys is None:
            # A page in a browser may have its own name point here.
            if not is_loopback(_host(headers.get("host", ""))):
                raise ApiError(403, "without keys, only requests to localhost are answered", code="forbidden_host")
            return DEFAULT_TENANT
        given = headers.getlist("authorization")
        tenant = self._keys.tenant(given[0] if len(given) == 1 else None)
        if tenant is None:
            raise ApiError(
                401, "no valid key was given; expected the header Authorization: Bearer KEY", code="invalid_api_key"
            )
        return tenant

    async def state(self, ask: Callable[[], _Result]) -> _Result:
        """What the backend says of itself; asked beside the event loop, for it may wait."""
        return await asyncio.get_running_loop().run_in_executor(self._state_thread, ask)

    async def submit(self, prepare: Callable[[], tuple[_Result, Answer]]) -> tuple[_Result, Answer]:
        """Prepare and submit a request beside the event loop. If nobody waits any more, its answer is cancelled."""
        future = self._threads.submit(prepare)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            future.add_done_callback(_cancel_answer)
            raise

    @contextmanager
    def following(self, reader: Reader) -> Iterator[None]:
        """Let :meth:`stop_all` reach a reader, also where it came while the request was being prepared."""
        self._readers.add(reader)
        if self._stopped is not None:
            reader.stop(self._stopped)
        try:
            yield
        finally:
            self._readers.discard(reader)

    def stop_all(self, error: ApiError) -> None:
        """Have every running request end with ``error``, for good."""
        self._stopped = error
        for reader in self._readers:
            reader.stop(error)

    def close(self) -> None:
        """Give back the threads; a second time does nothing."""
        for threads in (self._threads, self._state_thread):
            threads.shutdown(wait=False, cancel_futures=True)


def is_loopback(host: str) -> bool:
    """Whether a host's name or address can only be this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host(header: str) -> str:
    """The name in a Host header, without port and brackets."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]


def _cancel_answer(future: Future[tuple[object, Answer]]) -> None:
    if not future.cancelled() and future.exception() is None:
        future.result()[1].cancel()
