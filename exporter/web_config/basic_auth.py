"""Check passwords against bcrypt hashes, in a thread and with a cache of correct ones."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Literal

Verdict = Literal["accepted", "refused", "busy"]

MAX_PENDING = 8
"""Checks that may wait for the thread; more are refused as busy."""
MAX_PASSWORD = 72
"""Bytes of a password that bcrypt uses."""


@cache
def _thread() -> ThreadPoolExecutor:
    # One for all listeners: wrong passwords must not occupy more than one CPU.
    return ThreadPoolExecutor(1, "bcrypt")


class BasicAuth:
    """Checks Authorization headers against ``users``, which maps names to bcrypt hashes.

    A correct password is hashed once and then recognised by a keyed digest.  Wrong passwords are
    not cached, so they displace nothing, and at most MAX_PENDING of them wait.
    """

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = {name: text.encode() for name, text in users.items()}
        # Unknown users take as long as the slowest known one.
        self._decoy = max(self._users.values(), key=lambda text: text[4:6])
        self._key = secrets.token_bytes(32)
        self._correct: set[bytes] = set()
        self._pending = 0

    async def check(self, authorization: str) -> Verdict:
        """Return whether the header has the name and the password of a user."""
        found = _credentials(authorization)
        if found is None:
            return "refused"
        name, password = found
        digest = self._digest(name, password)
        if digest in self._correct:
            return "accepted"
        if self._pending >= MAX_PENDING:
            return "busy"
        stored = self._users.get(name)
        self._pending += 1
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(_thread(), _matches, password, stored or self._decoy)
        work.add_done_callback(self._done)  # not when this request ends: the thread works on
        correct = await asyncio.shield(work) and stored is not None
        if correct:
            self._correct.add(digest)
        return "accepted" if correct else "refused"

    def _done(self, _: object) -> None:
        self._pending -= 1

    def _digest(self, name: str, password: bytes) -> bytes:
        return hmac.digest(self._key, name.encode() + b"\0" + password, hashlib.sha256)


def _credentials(authorization: str) -> tuple[str, bytes] | None:
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        return (name.decode(), password[:MAX_PASSWORD]) if colon else None
    except (binascii.Error, ValueError):
        return None


def _matches(password: bytes, stored: bytes) -> bool:
    import bcrypt  # needed only with users

    try:
        return bcrypt.checkpw(password, stored)
    except ValueError:  # a password that bcrypt cannot hash
        return False
