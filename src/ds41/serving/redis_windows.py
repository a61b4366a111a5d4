"""The window pool over a Redis or Valkey server: the windows of many machines within the reach of each.

The report's pool is distributed (section 3.2.1). Here the server does the work: each window is a string that the
server expires by itself, and the server's memory policy makes room. Needs the extra ``ds41[redis]``.

Source: report section 3.2.1 for a distributed pool; scripts and keys are ds41's own.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ds41.serving.counters import Counters
from ds41.serving.windows import LIFETIME_S, POOL_COUNTERS, Lease, buffer_of, check_key, checked_lifetime

if TYPE_CHECKING:
    import redis

# The server evicts and expires by itself and does not tell its clients: see RedisWindowPool.server_counts.
REDIS_COUNTERS = (*(name for name in POOL_COUNTERS if name not in ("evicted", "expired")), "damaged", "errors")
POLICIES = ("volatile-lru", "allkeys-lru", "volatile-ttl", "volatile-lfu", "allkeys-lfu")

_MAGIC = b"ds41win1"
_DIGEST_BYTES = hashlib.sha256().digest_size
_HEADER_BYTES = len(_MAGIC) + _DIGEST_BYTES
# The longest string that a server takes unless it is configured otherwise (proto-max-bulk-len).
_LONGEST_VALUE = 512 * 2**20


class WindowPoolError(RuntimeError):
    """The pool cannot be set up; the message says what is missing and what to do."""


class RedisWindowPool:
    """Windows on a Redis or Valkey server. Safe for several threads, processes and machines.

    ``server``: a URL (``redis://host:6379/0``, ``rediss://``, ``unix:///path``) or a ``redis.Redis`` with timeouts
    of its own. ``lifetime_s``: seconds from :meth:`put` until the server drops the entry; a take does not prolong
    them. ``prefix`` begins the name of every key; the window's key follows in hexadecimal digits.

    A value carries a SHA-256 over its key and its bytes. What fails it (cut, flipped, foreign, stored under another
    key) is removed and counted as ``damaged``, and never given out.

    The pool is a cache beside the model, so a server that fails is a miss or a refusal, never an exception: it is
    counted in ``errors`` and described in ``last_error``. After a failed connection or a timeout (``timeout_s``)
    the server is left alone for ``retry_s`` seconds, so that a hung one does not hold up every request.

    Raises:
        WindowPoolError: the package ``redis`` is not installed, the URL is wrong, the server does not answer or
            refuses the login, or the client decodes replies to text.
        TypeError: ``server`` is neither a URL nor a ``redis.Redis``.
        ValueError: ``lifetime_s`` is not above 0.
    """

    def __init__(
        self,
        server: str | redis.Redis,
        lifetime_s: float = LIFETIME_S,
        prefix: str = "ds41:window:",
        *,
        timeout_s: float = 1.0,
        retry_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._redis = _package()
        self._owns_client = isinstance(server, str)
        if not isinstance(server, (str, self._redis.Redis)):
            raise TypeError(f"server is {type(server).__name__}; expected a URL or a redis.Redis")
        self._client = self._connect(server, timeout_s) if isinstance(server, str) else server
        self._lifetime_ms = max(1, round(checked_lifetime(lifetime_s) * 1000))
        self._prefix = prefix.encode()
        self._retry_s = retry_s
        self._clock = clock
        self._away_until = float("-inf")
        self.counters = Counters(REDIS_COUNTERS)
        self.last_error: str | None = None
        self._check_client()

    def put(self, key: bytes, data: bytes | memoryview) -> bool:
        """Keep ``data`` under ``key``, in place of what was there; False if the server does not take it.

        Raises:
            TypeError: the key is not bytes, or the data not a buffer of bytes.
            ValueError: the key or the data is empty.
        """
        check_key(key)
        view = buffer_of(key, data)
        kept = False
        if _HEADER_BYTES + view.nbytes <= _LONGEST_VALUE:
            payload = view if view.c_contiguous and view.ndim == 1 else view.tobytes()
            value = b"".join((_header(key, payload), payload))
            kept = self._ask(lambda: self._client.set(self._name(key), value, px=self._lifetime_ms)) is not None
        if not kept:
            self.counters.add("refused_puts")
            return False
        self.counters.add("puts")
        self.counters.add("bytes_written", view.nbytes)
        return True

    def take(self, keys: Sequence[bytes]) -> Lease | None:
        """A lease on the first of ``keys`` that is present, whole and not expired, or None.

        One exchange with the server if that is the first key or none, two if it is another. The bytes of no other
        window are transferred, except those of a damaged one.

        Raises:
            TypeError: a key is not bytes.
            ValueError: a key is empty.
        """
        for key in keys:
            check_key(key)
        self.counters.add("lookups")
        left = list(keys)
        while left:
            first, *others = left
            replies = self._ask(lambda first=first, others=others: self._look(first, others))
            if replies is None:
                break
            value, *present = replies
            if value is not None:
                data = self._checked(first, value)
                if data is not None:
                    self.counters.add("hits")
                    self.counters.add("bytes_read", data.nbytes)
                    return Lease(first, data)
            # One that was there may expire before it is asked for: then the rest is looked at once more.
            left = [key for key, there in zip(others, present, strict=True) if there]
        self.counters.add("misses")
        return None

    def drop(self, key: bytes) -> bool:
        """Recycle an entry at once; False if there was none, or if the server does not answer. Leases keep reading.

        Raises:
            TypeError: the key is not bytes.
            ValueError: the key is empty.
        """
        check_key(key)
        if not self._ask(lambda: self._client.unlink(self._name(key))):
            return False
        self.counters.add("recycled")
        return True

    def configure(self, budget_bytes: int, policy: str = "volatile-lru") -> None:
        """Set the memory limit of the whole server and how it makes room.

        ``volatile-lru`` evicts the keys unused for longest among those that expire, as all windows do, and leaves
        others' permanent keys alone.

        Raises:
            ValueError: ``budget_bytes`` is not above 0, or the policy is unknown or never evicts.
            WindowPoolError: the server does not allow it.
        """
        if budget_bytes <= 0:
            raise ValueError(f"budget_bytes is {budget_bytes}; expected at least 1")
        if policy not in POLICIES:
            raise ValueError(f"policy is {policy!r}; expected one of {', '.join(POLICIES)}")
        try:
            self._client.config_set("maxmemory", budget_bytes)
            self._client.config_set("maxmemory-policy", policy)
        except self._redis.RedisError as error:
            raise WindowPoolError(
                f"{self._where()} does not let itself be configured ({error}); "
                f"set maxmemory {budget_bytes} and maxmemory-policy {policy} where it is administered"
            ) from error

    def server_counts(self) -> dict[str, int]:
        """What the whole server counts, for all its clients: keys and bytes now, evicted and expired since its start.

        ``budget_bytes`` is its memory limit, 0 for none. Empty if the server does not answer.
        """
        found = self._ask(lambda: self._client.info())
        if found is None:
            return {}
        return {
            "entries": sum(numbers["keys"] for name, numbers in found.items() if _is_database(name)),
            "held_bytes": found["used_memory"],
            "budget_bytes": found["maxmemory"],
            "evicted": found["evicted_keys"],
            "expired": found["expired_keys"],
        }

    def close(self) -> None:
        """Close the connections, unless the client was given."""
        if self._owns_client:
            self._client.close()

    def __enter__(self) -> RedisWindowPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connect(self, url: str, timeout_s: float) -> redis.Redis:
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        # A second try would double the time that a hung server holds up a request. Connections that the server
        # closed while they lay idle need none: the client notices when it takes them up.
        once = Retry(NoBackoff(), 0)
        try:
            return self._redis.Redis.from_url(
                url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, retry=once
            )
        except ValueError as error:
            raise WindowPoolError(f"the server's URL is wrong: {error}") from error

    def _check_client(self) -> None:
        if self._client.connection_pool.connection_kwargs.get("decode_responses"):
            raise WindowPoolError("the client decodes replies to text; windows are bytes: set decode_responses=False")
        try:
            self._client.ping()
        except self._redis.AuthenticationError as error:
            raise WindowPoolError(
                f"{self._where()} refuses the login: {error}. Give a user and a password that it knows in the URL"
            ) from error
        except self._redis.RedisError as error:
            raise WindowPoolError(
                f"{self._where()} does not answer as a Redis server: {error}. Start one there (redis-server or "
                f"valkey-server), give another URL, or use HostWindowPool, which needs none"
            ) from error

    def _where(self) -> str:
        """The server's address; a URL may hold a password, so not that."""
        options = self._client.connection_pool.connection_kwargs
        return options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"

    def _name(self, key: bytes) -> bytes:
        return self._prefix + key.hex().encode()

    def _look(self, first: bytes, others: list[bytes]) -> list:
        """The value of the first key (None if there is none), and of each other whether it is there."""
        pipeline = self._client.pipeline(transaction=False)
        pipeline.get(self._name(first))
        for key in others:
            pipeline.exists(self._name(key))
        replies = pipeline.execute(raise_on_error=False)
        for reply in replies:
            if isinstance(reply, Exception) and not _is_wrong_type(reply):
                raise reply
        return replies

    def _checked(self, key: bytes, value: bytes | Exception) -> memoryview | None:
        """The window in a value, or None for a damaged one, which is removed."""
        if isinstance(value, bytes):
            data = memoryview(value)[_HEADER_BYTES:]
            if data.nbytes and value[:_HEADER_BYTES] == _header(key, data):
                return data
        self.counters.add("damaged")
        self._ask(lambda: self._client.unlink(self._name(key)))
        return None

    def _ask(self, request: Callable):
        """The reply of the server, or None if it fails or is being left alone."""
        if self._clock() < self._away_until:
            return None
        try:
            return request()
        except self._redis.RedisError as error:
            self.counters.add("errors")
            self.last_error = f"{type(error).__name__}: {error}"
            if isinstance(error, (self._redis.ConnectionError, self._redis.TimeoutError)):
                self._away_until = self._clock() + self._retry_s
            return None


def _package():
    try:
        import redis
    except ImportError as error:
        raise WindowPoolError("a window pool over Redis needs the package redis: pip install 'ds41[redis]'") from error
    return redis


def _header(key: bytes, payload: bytes | memoryview) -> bytes:
    """What stands before a window: a mark of the format, and a digest that binds the bytes to their key."""
    digest = hashlib.sha256(len(key).to_bytes(8, "little") + key)
    digest.update(payload)
    return _MAGIC + digest.digest()


def _is_wrong_type(reply: Exception) -> bool:
    """Under the window's name there is a list or the like, which only somebody else can have put there."""
    return str(reply).startswith("WRONGTYPE")


def _is_database(name: str) -> bool:
    return name.startswith("db") and name[2:].isdigit()
