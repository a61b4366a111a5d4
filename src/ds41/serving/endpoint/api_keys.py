"""The keys of the endpoint: whose a request is. Secrets are not kept, only their digests.

Source: ds41's own; the ``Authorization: Bearer`` header of RFC 6750.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import stat
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

_TENANT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@-]{0,63}", re.ASCII)
_SHORTEST = 16
_BEARER = re.compile(r"Bearer +([!-~]+) *", re.ASCII | re.IGNORECASE)


class ApiKeys:
    """Which tenant a secret belongs to.

    Args:
        keys: tenant and secret. A tenant may have several.
        places: where each of them is written, for errors; "key 1", "key 2", ... without.

    Raises:
        ValueError: a tenant's name or a secret that is none, or a secret that two tenants have. No message shows a
            secret.
    """

    def __init__(self, keys: Iterable[tuple[str, str]], places: Sequence[str] | None = None) -> None:
        self._tenants: dict[bytes, str] = {}
        for number, (tenant, secret) in enumerate(keys):
            self._add(f"key {number + 1}" if places is None else places[number], tenant, secret)
        if not self._tenants:
            raise ValueError("there are no keys; expected one or more")

    @classmethod
    def read(cls, path: str | os.PathLike) -> ApiKeys:
        """Keys from a file: lines of ``TENANT SECRET``, # before a comment; or JSON, {"TENANT": "SECRET" or a list}.

        A secret has 16 or more printable ASCII characters and no space. A file that others may read gives a warning.

        Raises:
            ValueError: the file cannot be read, or holds something else.
        """
        path = Path(path)
        try:
            with path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                text = file.read().decode("utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"{path} is not UTF-8; expected lines of TENANT SECRET, or JSON") from None
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            warnings.warn(f"{path} holds keys and others may read or change it; chmod 600 it", stacklevel=2)
        try:
            if text.lstrip().startswith("{"):
                return cls(_from_json(text))
            lines = _from_lines(text)
            return cls(lines.values(), [f"line {number}" for number in lines])
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def tenant(self, authorization: str | None) -> str | None:
        """Whose the ``Authorization`` header's key is; None if it is nobody's. Takes as long for every key."""
        match = _BEARER.fullmatch(authorization or "")
        given, found = _digest(match[1] if match else ""), None
        for digest, tenant in self._tenants.items():
            if hmac.compare_digest(digest, given):
                found = tenant
        return found if match else None

    def __len__(self) -> int:
        return len(self._tenants)

    def __repr__(self) -> str:
        return f"ApiKeys({len(self)} keys of {len(set(self._tenants.values()))} tenants)"

    def _add(self, name: str, tenant: str, secret: str) -> None:
        if not isinstance(tenant, str) or not _TENANT.fullmatch(tenant):
            # A file with its columns swapped has the secret here.
            raise ValueError(
                f"{name} has no tenant; expected up to 64 letters, digits and ._@-, with a letter, digit or _ first"
            )
        if (fault := _fault(secret)) is not None:
            raise ValueError(
                f"{name} (tenant {tenant}): the secret {fault}; expected {_SHORTEST} or more printable ASCII "
                "characters without spaces"
            )
        digest = _digest(secret)
        if self._tenants.setdefault(digest, tenant) != tenant:
            raise ValueError(
                f"{name} (tenant {tenant}): the secret is also one of {self._tenants[digest]}'s; expected one tenant"
            )


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("ascii")).digest()


def _fault(secret: object) -> str | None:
    """Why a secret is none, in words that do not show it; None for a good one."""
    if not isinstance(secret, str):
        return "is no string"
    if not re.fullmatch(r"[!-~]*", secret):
        return "has a space or a character that is not printable ASCII"
    if len(secret) < _SHORTEST:
        return f"has {len(secret)} character{'' if len(secret) == 1 else 's'}"
    return None


def _from_lines(text: str) -> dict[int, tuple[str, str]]:
    """Tenant and secret by the number of their line."""
    keys = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2:
            count = "1 word" if len(words) == 1 else f"{len(words)} words"
            raise ValueError(f"line {number} has {count}; expected TENANT SECRET")
        keys[number] = (words[0], words[1])
    return keys


def _from_json(text: str) -> list[tuple[str, str]]:
    try:
        content = json.loads(text)
    except ValueError:
        # The decoder's error quotes nothing, but holds the whole text.
        raise ValueError("it begins as JSON and is none") from None
    return [
        (tenant, secret)
        for tenant, secrets in content.items()
        for secret in (secrets if isinstance(secrets, list) else [secrets])
    ]
