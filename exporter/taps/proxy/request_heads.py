"""Detect the end of the first head, after which the proxy connects to the server."""

from __future__ import annotations

import re

from exporter.protocol.detection import PREFACE
from exporter.taps.proxy.tls import HTTP1, HTTP2

_EMPTY_LINES = re.compile(rb"[\r\n]*")
_HEAD_ENDS = (b"\r\n\r\n", b"\n\n")
_TLS_RECORD, _TLS_RECORD_HEAD = b"\x16\x03", 5
_FRAME_HEAD = 9
_TYPE_AT, _SETTINGS = 3, 4


class FirstHead:
    """Find the end of the first head in the bytes that a client has sent.

    A head is that of an HTTP/1 request without preceding empty lines, the connection preface of
    HTTP/2 with its SETTINGS frame, or a TLS record, which the proxy forwards unchanged.

    ``size`` counts the received bytes of the head.
    """

    __slots__ = ("_searched", "_start", "size")

    def __init__(self) -> None:
        self._start = self._searched = self.size = 0

    def protocol(self, sent: bytearray) -> str:
        """Return the protocol of the client, empty until its head is complete."""
        if sent[:1] == PREFACE[:1] and sent[: len(PREFACE)] == PREFACE[: len(sent)]:
            return self._http2(sent)
        if sent[: len(_TLS_RECORD)] == _TLS_RECORD[: len(sent)]:
            return self._tls(sent)
        return self._http1(sent)

    def _http1(self, sent: bytearray) -> str:
        if self._searched <= self._start and (empty := _EMPTY_LINES.match(sent, self._start)):
            self._start = empty.end()
        searched = max(self._start, self._searched)
        places = ((sent.find(mark, searched), len(mark)) for mark in _HEAD_ENDS)
        end = min((place + size for place, size in places if place >= 0), default=0)
        self._searched = len(sent) - len(_HEAD_ENDS[0]) + 1
        self.size = end - self._start if end else len(sent)
        return HTTP1 if end else ""

    def _http2(self, sent: bytearray) -> str:
        self.size = len(sent)
        head = sent[len(PREFACE) : len(PREFACE) + _FRAME_HEAD]
        if len(head) < _FRAME_HEAD:
            return ""
        whole = len(PREFACE) + _FRAME_HEAD
        if head[_TYPE_AT] == _SETTINGS:  # a server refuses any other first frame
            whole += int.from_bytes(head[:3], "big")
        self.size = min(len(sent), whole)
        return HTTP2 if len(sent) >= whole else ""

    def _tls(self, sent: bytearray) -> str:
        self.size = len(sent)
        head = sent[:_TLS_RECORD_HEAD]
        if len(head) < _TLS_RECORD_HEAD:
            return ""
        whole = _TLS_RECORD_HEAD + int.from_bytes(head[-2:], "big")
        self.size = min(len(sent), whole)
        return HTTP1 if len(sent) >= whole else ""
