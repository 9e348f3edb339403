"""Decompress gzip and deflate bodies incrementally, within bounds (RFC 9110, section 8.4.1)."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

MAX_CHUNK_BYTES: Final = 1024 * 1024
"""The size limit of one decompressed chunk; a larger one is treated as a decompression bomb."""

_GZIP = 16 + zlib.MAX_WBITS
_RAW = -zlib.MAX_WBITS
_DEFLATE_METHOD = 8
_WINDOW_BITS: Final = {b"gzip": _GZIP, b"x-gzip": _GZIP, b"deflate": zlib.MAX_WBITS}


def supports(encoding: bytes) -> bool:
    """Return whether bodies of a Content-Encoding can be decompressed."""
    return encoding in _WINDOW_BITS


class Inflater:
    """Decompress a body and pass it to ``take``; call ``failed`` once if decompression fails.

    Servers flush after each event of a stream, so an event is complete with its last byte.
    """

    __slots__ = ("_encoding", "_failed", "_inflate", "_take")

    def __init__(
        self,
        encoding: bytes,
        take: Callable[[bytes, float], None],
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        self._encoding = encoding
        self._take = take
        self._failed: Callable[[], None] | None = failed
        self._inflate: zlib._Decompress | None = None

    def feed(self, chunk: bytes, time: float) -> None:
        """Decompress the next chunk."""
        if self._failed is None or not chunk:
            return
        if self._inflate is None:
            bits = _WINDOW_BITS[self._encoding]
            if self._encoding == b"deflate" and chunk[0] & 0xF != _DEFLATE_METHOD:
                bits = _RAW  # some servers omit the zlib header
            self._inflate = zlib.decompressobj(bits)
        try:
            data = self._inflate.decompress(chunk, MAX_CHUNK_BYTES)
        except zlib.error:
            self._fail()
            return
        if data:
            self._take(data, time)
        if self._inflate.unconsumed_tail:
            self._fail()

    def _fail(self) -> None:
        failed, self._failed, self._inflate = self._failed, None, None
        if failed:
            failed()
