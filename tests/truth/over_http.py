"""Clients on bare sockets: Triton's generate extension and OpenAI's API, whole and in pieces."""

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

from tests.truth.seen import Seen, of_status

Manner = Literal[
    "end",  # read all
    "close early",  # close before the first token
    "reset early",  # close with RST before the first token
    "close",  # close when nothing waits to be read
    "reset",  # close with RST then
    "close unread",  # close when a token waits to be read, which makes the kernel reset
    "half-close early",  # close its half before the first token, and read all
    "half-close",  # close its half when nothing waits to be read, and read all
    "pause",  # read nothing for a while, then all
    "pause and close",  # read nothing for a while, then close
    "die",  # be killed when nothing waits to be read
]
Api = Literal["generate", "chat", "completions"]
Json = Mapping[str, Any]

HOST = "127.0.0.1"
PATIENCE_SECONDS = 30.0
SOON_SECONDS, PAUSE_SECONDS = 0.004, 0.15
FRESH_SECONDS = 0.008
"""A token that has waited for longer may be followed by the next one at any time."""

ALL_CAME_SECONDS = 1.0
"""Without a token for so long there will be none."""

_SO_TIMESTAMPNS = 35  # asm-generic/socket.h; Python has no name for it
_TIMESPEC = struct.Struct("qq")
_LINGER = struct.pack("ii", 1, 0)
_MUCH = 1 << 20


@dataclass(frozen=True, slots=True)
class HttpClientRequest:
    """A request, and how its client behaves; ``after`` tokens it leaves, if it does."""

    api: Api
    model: str
    tokens: int
    manner: Manner = "end"
    after: int = 0
    more: Json = field(default_factory=dict)
    stream: bool = True

    def request(self) -> bytes:
        """Return it as it is sent."""
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


class Answer:
    """Takes an answer apart: its status, its events (or its body), and whether it is all there."""

    def __init__(self) -> None:
        self.status = 0
        self.complete = False
        self._rest = b""
        self._chunked = self._events = False
        self._left: int | None = None
        self._body = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the data of each event, or of a whole answer its body, when it is all there."""
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
                self._left = int(fields["content-length"])
        self._body += b"".join(self._chunks())
        if self._events:
            *events, self._body = self._body.split(b"\n\n")
            for event in events:
                if event.startswith(b"data: "):
                    yield event[6:].strip()
        elif self.complete:
            yield self._body

    def _chunks(self) -> Iterator[bytes]:
        if self._left is not None:
            chunk, self._rest = self._rest, b""
            self._left -= len(chunk)
            self.complete = not self._left
            yield chunk
        while self._chunked and not self.complete:
            size, end, rest = self._rest.partition(b"\r\n")
            if not end or len(rest) < int(size, 16) + 2:
                return
            length = int(size, 16)
            self._rest = rest[length + 2 :]
            self.complete = not length
            yield rest[:length]


class AnswerReader:
    """What the events of an answer mean."""

    def __init__(self, api: Api, seen: Seen) -> None:
        self.failed = self.done = False
        self.finish = ""
        self._seen = seen
        self._choice: Callable[[Json], Json] = _whole if api == "generate" else _first_choice
        self._grown = 0

    def take(self, data: bytes, now: float) -> None:
        """Handle an event, or the body of a unary response."""
        if data == b"[DONE]":
            self.done = True
            return
        document = json.loads(data)
        if document.get("error") is not None or document.get("object") == "error":
            self.failed = True
            return
        choice = self._choice(document)
        self.finish = choice.get("finish_reason") or self.finish
        usage = document.get("usage") or {}
        reported = usage.get("completion_tokens")
        if not self._seen.streaming:
            self._seen.tokens = reported or 0
        elif choice and reported is not None:
            if reported > self._grown:  # continuous usage: what grows is what came
                self._seen.takes(now, reported - self._grown)
                self._grown = reported
        elif choice.get("text_output") or choice.get("text") or choice.get("content"):
            self._seen.takes(now)
        elif reported is not None:
            self._seen.tokens = reported


def _whole(document: Json) -> Json:
    return document


def _first_choice(document: Json) -> Json:
    choices = document.get("choices") or [{}]
    return {**choices[0], **choices[0].get("delta", {})}


class HttpStreamClient:
    """One connection with one request.

    Pieces have the time at which the kernel had them for the client, which is not to wait for its
    turn on a busy machine; ``lags`` is how long it did wait before it had read them.
    """

    def __init__(self, port: int, planned: HttpClientRequest) -> None:
        self.seen = Seen(planned.model, planned.manner, planned.stream)
        self.lags: list[float] = []
        self._planned = planned
        self._answer = Answer()
        self._reader = AnswerReader(planned.api, self.seen)
        self._ended = ""
        self._socket = socket.create_connection((HOST, port), timeout=PATIENCE_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)

    def run(self) -> Seen:
        """Ask, and do as it is to do."""
        request = self._planned.request()
        self.seen.send_now()
        self._socket.sendall(request)
        try:
            return self._behave()
        finally:
            self._socket.close()

    def _behave(self) -> Seen:
        after = self._planned.after
        match self._planned.manner.split():
            case [how, "early"]:
                time.sleep(SOON_SECONDS)
                # Some servers send the head of a response first; a busy machine may have the rest.
                if waiting(self._socket) and not self._step():
                    return self._over()
                early = not self.seen.arrivals and not waiting(self._socket)
                if early and time.monotonic() - self.seen.sent < FRESH_SECONDS:
                    return self._leave(how)
                return self._leave_after(how, 1)
            case ["end"]:
                return self._read_all()
            case ["pause", *then]:
                self._read_tokens(after)
                time.sleep(PAUSE_SECONDS)
                return self._leave_unread() if then else self._read_all()
            case ["close", "unread"]:
                self._read_tokens(after)
                return self._leave_unread()
            case [how]:
                return self._leave_after(how, after)
        raise ValueError(self._planned.manner)

    # How it leaves

    def _leave_after(self, how: str, tokens: int) -> Seen:
        """Disconnect after ``tokens`` tokens, when the last has just arrived."""
        while self._read_tokens(tokens):
            if self.lags[-1] < FRESH_SECONDS and not waiting(self._socket):
                return self._leave(how)
            tokens += 1
        return self._over()

    def _leave(self, how: str) -> Seen:
        if how == "half-close":
            return self._half_close()
        if how == "reset":
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
        self.seen.ends("disconnected")
        if how == "die":
            tell(self.seen)
            os.kill(os.getpid(), signal.SIGKILL)
        return self.seen

    def _leave_unread(self) -> Seen:
        """Leave when one more token has just come, and count what was there without being read."""
        before, deadline = waiting(self._socket), time.monotonic() + ALL_CAME_SECONDS
        while time.monotonic() < deadline:
            time.sleep(0.0005)
            if waiting(self._socket) > before:
                data, lag = self._receive(socket.MSG_PEEK)
                if lag < FRESH_SECONDS and waiting(self._socket) == len(data):
                    self._socket.close()
                    self._take(data, time.monotonic())
                    return self.seen.ends("disconnected")
        return self._read_all()  # too late to leave

    def _half_close(self) -> Seen:
        """Ask no more, and read on; a server that breaks off for that takes it for a farewell."""
        seen, so_far, tokens = self.seen, len(self.seen.arrivals), self.seen.tokens
        self._socket.shutdown(socket.SHUT_WR)
        self._read_all()
        if not self._answer.complete:
            del seen.arrivals[so_far:]
            seen.late, seen.tokens = seen.tokens - tokens, tokens
            seen.ends("disconnected")
        return seen

    # What it reads

    def _read_all(self) -> Seen:
        while self._step():
            pass
        return self._over()

    def _read_tokens(self, count: int) -> bool:
        """Read until ``tokens`` chunks with tokens arrived; return whether they did."""
        while len(self.seen.arrivals) < count:
            if not self._step():
                return False
        return True

    def _step(self) -> bool:
        """Read what is there, or wait for it; return whether there may be more."""
        try:
            data, lag = self._receive()
        except ConnectionResetError:
            self._ended = "reset"
            return False
        if not data:
            self._ended = "truncated"
            return False
        self.lags.append(lag)
        self._take(data, time.monotonic() - lag)
        return not self._answer.complete

    def _receive(self, flags: int = 0) -> tuple[bytes, float]:
        """Return the available bytes and the age of the last ones in seconds; 0 if unknown.

        The kernel begins to note times a moment after the first socket has asked for it.
        """
        data, notes, _, _ = self._socket.recvmsg(_MUCH, 64, flags)
        if not notes:
            return data, 0.0
        seconds, nanoseconds = _TIMESPEC.unpack(notes[0][2])
        return data, time.time() - seconds - nanoseconds * 1e-9

    def _take(self, data: bytes, came: float) -> None:
        for event in self._answer.feed(data):
            self._reader.take(event, came)

    def _over(self) -> Seen:
        """Judge an answer that has ended."""
        status, reader = self._answer.status, self._reader
        if reader.failed and status == 200:
            return self.seen.ends("error", "in_band")
        if not self._answer.complete:
            return self.seen.ends("error", self._ended)
        if status != 200:
            # Triton says 400 of what fails in a model as well; who asked knows what it asked for.
            failed = "fail_after" in self._planned.more
            return self.seen.ends("error" if failed else of_status(status), str(status))
        return self.seen.ends("ok", reader.finish)


def waiting(connection: socket.socket) -> int:
    """Return how many bytes wait to be read."""
    size = array("i", [0])
    fcntl.ioctl(connection, termios.FIONREAD, size)
    return size[0]


def tell(seen: Seen) -> None:
    """Print the results of the clients."""
    print(json.dumps(asdict(seen)), flush=True)


if __name__ == "__main__":
    # On a busy machine no token may be fresh enough to leave after: then the answer ends.
    tell(HttpStreamClient(int(sys.argv[1]), HttpClientRequest(**json.loads(sys.argv[2]))).run())
