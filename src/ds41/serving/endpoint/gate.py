"""How many requests run at once, in all and of each tenant; closed when the server is about to leave."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from ds41.serving.endpoint.errors import ApiError, unavailable
from ds41.serving.endpoint.limits import Limits


class Gate:
    """Counts requests in an event loop; there is no queue here, what cannot run is refused.

    Args:
        keyed: requests have keys; without them all are of one tenant, who needs no name in errors.
    """

    def __init__(self, limits: Limits, keyed: bool = True) -> None:
        self._limits, self._whose = limits, "this key's tenant" if keyed else "the server"
        self._tenants: Counter[str] = Counter()
        self._empty = asyncio.Event()
        self._empty.set()
        self.draining = False

    @property
    def running(self) -> int:
        return self._tenants.total()

    @contextmanager
    def enter(self, tenant: str) -> Iterator[None]:
        """Hold a place.

        Raises:
            ApiError: 503 while draining, 429 without a place.
        """
        if self.draining:
            raise unavailable("the server is shutting down")
        self._check(self.running, self._limits.running, "the server")
        self._check(self._tenants[tenant], self._limits.running_tenant, self._whose)
        self._tenants[tenant] += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._tenants[tenant] -= 1
            if not self._tenants[tenant]:
                del self._tenants[tenant]
            if not self._tenants:
                self._empty.set()

    async def wait_empty(self, seconds: float) -> bool:
        """Wait until nothing runs; False if something still does after ``seconds``."""
        with anyio.move_on_after(seconds):
            await self._empty.wait()
        return self._empty.is_set()

    def _check(self, running: int, most: int, whose: str) -> None:
        if running >= most:
            raise ApiError(
                429,
                f"{whose} has {running} request{'' if running == 1 else 's'} running; expected fewer than {most}",
                kind="rate_limit_error",
                code="rate_limit_exceeded",
                retry_after_s=1.0,
            )
