"""Clients on plain sockets: Triton's generate extension and OpenAI's API, unary and streaming."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import struct
import sys
import termios
import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from tests.truth.client_record import QUEUE_FULL, ClientRecord, of_status

Manner = Literal[
    "end",  # read all
    "close early",  # close before the first token
    "reset early",  # close with RST before the first token
    "close",  # close when the socket has nothing to read
    "reset",  # close with RST at that time
    "close unread",  # close while a token is unread: the kernel sends RST
    "half-close early",  # close the client's half before the first token, and read all
    "half-close",  # close the client's half when the socket has nothing to read, and read all
    "pause",  # read nothing for a while, then all
    "pause and close",  # read nothing for a while, then close
    "die",  # the process is killed when the socket has nothing to read
]
Api = Literal["generate", "chat", "completions"]
Json = Mapping[str, Any]

HOST = "127.0.0.1"
PATIENCE_SECONDS = 30.0
SOON_SECONDS, PAUSE_SECONDS = 0.004, 0.15
FRESH_SECONDS = 0.008
"""Maximum age of a token before a disconnect: after an older one, the next may be in flight."""

LAST_TOKEN_SECONDS = 1.0
"""The stream is over after this time without a token."""

_SO_TIMESTAMPNS = 35  # asm-generic/socket.h; Python has no name for it
_TIMESPEC = struct.Struct("qq")
_LINGER = struct.pack("ii", 1, 0)
_READ_SIZE = 1 << 20


@dataclass(frozen=True, slots=True)
class HttpClientRequest:
    """A request and its client's manner; ``after`` is the count of tokens before a disconnect."""

    api: Api
    model: str
    tokens: int
    manner: Manner = "end"
    after: int = 0
    more: Json = field(default_factory=dict)
    stream: bool = True

    def request(self) -> bytes:
        """Return the bytes to send."""
        path = {
            "generate": f"/v2/models/{self.model}/generate{'_stream' * self.stream}",
            "chat": "/v1/chat/completions",
            "completions": "/v1/completions",
        }[self.api]
        words = "one two three four"
        prompt: Json = {
            "generate": {"text_input": words},
            "chat": {"messages": [{"role": "user", "content": words}], "model": self.model},
            "completions": {"prompt": words, "model": self.model},
        }[self.api]
        body = {**prompt, "max_tokens": self.tokens, "stream": self.stream, **self.more}
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {len(data)}\r\n\r\n"
        return head.encode() + data


class HttpResponseReader:
    """Reads a response: status, events or body, and whether it is complete."""

    def __init__(self) -> None:
        self.status = 0
        self.complete = False
        self._rest = b""
        self._chunked = self._events = False
        self._remaining: int | None = None
        self._body = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the data of each event, or the complete body of a unary response."""
        self._rest += data
        if not self.status:
            head, end, rest = self._rest.partition(b"\r\n\r\n")
            if not end:
                return
            self._rest = rest
            lines = head.decode().lower().split("\r\n")
            fields = dict(line.split(": ", 1) for line in lines[1:])
            self.status = int(lines[0].split()[1])
            self._chunked = fields.get("transfer-encoding") == "chunked"
            self._events = fields.get("content-type", "").startswith("text/event-stream")
            if not self._chunked:
                self._remaining = int(fields["content-length"])
        self._body += b"".join(self._chunks())
        if self._events:
            *events, self._body = self._body.split(b"\n\n")
            for event in events:
                if event.startswith(b"data: "):
                    yield event[6:].strip()
        elif self.complete:
            yield self._body

    def _chunks(self) -> Iterator[bytes]:
        if self._remaining is not None:
            chunk, self._rest = self._rest, b""
            self._remaining -= len(chunk)
            self.complete = not self._remaining
            yield chunk
        while self._chunked and not self.complete:
            size, end, rest = self._rest.partition(b"\r\n")
            if not end or len(rest) < int(size, 16) + 2:
                return
            length = int(size, 16)
            self._rest = rest[length + 2 :]
            self.complete = not length
            yield rest[:length]


class TokenRecorder:
    """Records the tokens, finish reason and errors in the events of a response."""

    def __init__(self, api: Api, seen: ClientRecord) -> None:
        self.failed = self.done = self.refused = False
        self.finish = ""
        self._seen = seen
        self._choice: Callable[[Json], Json] = _whole if api == "generate" else _first_choice
        self._total = 0

    def record(self, data: bytes, now: float) -> None:
        """Handle an event, or the body of a unary response."""
        if data == b"[DONE]":
            self.done = True
            return
        document = json.loads(data)
        if document.get("error") is not None or document.get("object") == "error":
            self.failed, self.refused = True, QUEUE_FULL in data.decode()
            return
        choice = self._choice(document)
        self.finish = choice.get("finish_reason") or self.finish
        usage = document.get("usage") or {}
        reported = usage.get("completion_tokens")
        if not self._seen.streaming:
            self._seen.tokens = reported or 0
        elif choice and reported is not None:
            if reported > self._total:  # continuous usage is cumulative
                self._seen.receive(now, reported - self._total)
                self._total = reported
        elif choice.get("text_output") or choice.get("text") or choice.get("content"):
            self._seen.receive(now)
        elif reported is not None:
            self._seen.tokens = reported


def _whole(document: Json) -> Json:
    return document


def _first_choice(document: Json) -> Json:
    choices = document.get("choices") or [{}]
    return {**choices[0], **choices[0].get("delta", {})}


class HttpStreamClient:
    """One connection with one request.

    The time of a chunk is when the kernel received it, so a busy machine does not delay it;
    ``lags`` are the seconds until the client read each.
    """

    def __init__(self, port: int, planned: HttpClientRequest) -> None:
        self.seen = ClientRecord(planned.model, planned.manner, planned.stream)
        self.lags: list[float] = []
        self._planned = planned
        self._response = HttpResponseReader()
        self._recorder = TokenRecorder(planned.api, self.seen)
        self._ended = ""
        self.socket = socket.create_connection((HOST, port), timeout=PATIENCE_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)

    def run(self) -> ClientRecord:
        """Send the request; behave by its manner."""
        request = self._planned.request()
        self.seen.mark_sent()
        self.socket.sendall(request)
        try:
            return self._behave()
        finally:
            self.socket.close()

    def _behave(self) -> ClientRecord:
        after = self._planned.after
        match self._planned.manner.split():
            case [how, "early"]:
                time.sleep(SOON_SECONDS)
                # Some servers send the head of a response first; a busy machine may have the rest.
                if unread_bytes(self.socket) and not self._step():
                    return self._outcome()
                early = not self.seen.arrivals and not unread_bytes(self.socket)
                if early and time.monotonic() - self.seen.sent < FRESH_SECONDS:
                    return self._disconnect(how)
                return self._disconnect_after(how, 1)
            case ["end"]:
                return self._read_all()
            case ["pause", *then]:
                self._read_tokens(after)
                time.sleep(PAUSE_SECONDS)
                return self._disconnect_unread() if then else self._read_all()
            case ["close", "unread"]:
                self._read_tokens(after)
                return self._disconnect_unread()
            case [how]:
                return self._disconnect_after(how, after)
        raise ValueError(self._planned.manner)

    # Disconnects

    def _disconnect_after(self, how: str, tokens: int) -> ClientRecord:
        """Disconnect after ``tokens`` chunks with tokens, when the last has just arrived."""
        while self._read_tokens(tokens):
            if self.lags[-1] < FRESH_SECONDS and not unread_bytes(self.socket):
                return self._disconnect(how)
            tokens += 1
        return self._outcome()

    def _disconnect(self, how: str) -> ClientRecord:
        if how == "half-close":
            return self._half_close()
        if how == "reset":
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
        self.seen.end("client_disconnected")
        if how == "die":
            print_record(self.seen)
            os.kill(os.getpid(), signal.SIGKILL)
        return self.seen

    def _disconnect_unread(self) -> ClientRecord:
        """Disconnect when one more token has just arrived; count the unread tokens as well."""
        before, deadline = unread_bytes(self.socket), time.monotonic() + LAST_TOKEN_SECONDS
        while time.monotonic() < deadline:
            time.sleep(0.0005)
            if unread_bytes(self.socket) > before:
                data, lag = self._receive(socket.MSG_PEEK)
                if lag < FRESH_SECONDS and unread_bytes(self.socket) == len(data):
                    self.socket.close()
                    self._record(data, time.monotonic())
                    return self.seen.end("client_disconnected")
        return self._read_all()  # too late to disconnect

    def _half_close(self) -> ClientRecord:
        """Half-close, and read all; a server that aborts because of that sees a disconnect."""
        seen, so_far, tokens = self.seen, len(self.seen.arrivals), self.seen.tokens
        self.socket.shutdown(socket.SHUT_WR)
        self._read_all()
        if not self._response.complete:
            del seen.arrivals[so_far:]
            seen.late, seen.tokens = seen.tokens - tokens, tokens
            seen.end("client_disconnected")
        return seen

    # Reads

    def _read_all(self) -> ClientRecord:
        while self._step():
            pass
        return self._outcome()

    def _read_tokens(self, count: int) -> bool:
        """Read until ``count`` chunks with tokens arrived; return whether they did."""
        while len(self.seen.arrivals) < count:
            if not self._step():
                return False
        return True

    def _step(self) -> bool:
        """Read available bytes, or wait for some; return whether there may be more."""
        try:
            data, lag = self._receive()
        except ConnectionResetError:
            self._ended = "reset"
            return False
        if not data:
            self._ended = "closed"
            return False
        self.lags.append(lag)
        self._record(data, time.monotonic() - lag)
        return not self._response.complete

    def _receive(self, flags: int = 0) -> tuple[bytes, float]:
        """Return the available bytes and the age of the last ones in seconds; 0 if unknown.

        The kernel records times only a moment after the first socket has requested them.
        """
        data, notes, _, _ = self.socket.recvmsg(_READ_SIZE, 64, flags)
        if not notes:
            return data, 0.0
        seconds, nanoseconds = _TIMESPEC.unpack(notes[0][2])
        return data, time.time() - seconds - nanoseconds * 1e-9

    def _record(self, data: bytes, received: float) -> None:
        for event in self._response.feed(data):
            self._recorder.record(event, received)

    def _outcome(self) -> ClientRecord:
        """Record the outcome of a response that has ended."""
        status, recorder = self._response.status, self._recorder
        if recorder.failed and status == 200:
            return self.seen.end("error", "in_band")
        if not self._response.complete and not recorder.finish:
            return self.seen.end("truncated" if status else "error", self._ended)
        if recorder.refused:
            return self.seen.end("shed", "capacity")
        if status != 200:
            # Triton returns 400 for errors of a model as well; the request shows which it is.
            failed = "fail_after" in self._planned.more
            return self.seen.end("error" if failed else of_status(status), str(status))
        failed = recorder.finish == "error"
        return self.seen.end("error" if failed else "ok", recorder.finish)


def unread_bytes(connection: socket.socket) -> int:
    """Return the number of unread bytes."""
    size = array("i", [0])
    fcntl.ioctl(connection, termios.FIONREAD, size)
    return size[0]


def print_record(seen: ClientRecord) -> None:
    """Print the record of a request as JSON."""
    print(json.dumps(asdict(seen)), flush=True)


if __name__ == "__main__":
    # On a busy machine no token may be fresh enough for a disconnect; the response completes then.
    request = HttpClientRequest(**json.loads(sys.argv[2]))
    print_record(HttpStreamClient(int(sys.argv[1]), request).run())
