"""Clients that use the openai package and its persistent connections."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import openai

from tests.truth.client_record import ClientRecord
from tests.truth.over_http import (
    FRESH_SECONDS,
    HOST,
    PATIENCE_SECONDS,
    HttpClientRequest,
    unread_bytes,
)


class OpenAIPackageClient:
    """A client of the package that sends one request after the other."""

    def __init__(self, port: int) -> None:
        self._sent = 0.0
        self._http = openai.DefaultHttpxClient(event_hooks={"request": [self._sending]})
        self._client = openai.OpenAI(
            base_url=f"http://{HOST}:{port}/v1",
            api_key="none",
            max_retries=0,
            timeout=PATIENCE_SECONDS,
            http_client=self._http,
        )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def run(self, planned: HttpClientRequest) -> ClientRecord:
        """Send a request; disconnect after a number of tokens if planned."""
        seen = ClientRecord(planned.model, planned.manner, planned.stream)
        try:
            answer = self._create(planned)
        except openai.APIStatusError as error:
            return seen.end("invalid", str(error.status_code))
        if not planned.stream:
            seen.tokens = answer.usage.completion_tokens
            return seen.end("ok", answer.choices[0].finish_reason)
        seen.sent = self._sent
        try:
            return _read(answer, planned, seen)
        except openai.APIError:
            if seen.reason == "error":  # the server closes the connection after it
                return seen.end("error", "error")
            return seen.end("truncated", "closed")
        finally:
            answer.close()

    def _create(self, planned: HttpClientRequest) -> Any:
        usage = (
            {"stream_options": planned.more["stream_options"]}
            if "stream_options" in planned.more
            else {}
        )
        extra = {key: value for key, value in planned.more.items() if key not in usage}
        common: dict[str, Any] = {
            "model": planned.model,
            "max_tokens": planned.tokens,
            "stream": planned.stream,
            "extra_body": extra,
            **usage,
        }
        if planned.api == "chat":
            message: Any = {"role": "user", "content": "one two three four"}
            return self._client.chat.completions.create(messages=[message], **common)
        return self._client.completions.create(prompt="one two three four", **common)

    def _sending(self, request: Any) -> None:
        request.extensions["trace"] = self._trace

    def _trace(self, event: str, _: object) -> None:
        if event == "http11.send_request_body.started":
            self._sent = time.monotonic()


def _read(answer: Any, planned: HttpClientRequest, seen: ClientRecord) -> ClientRecord:
    text: Callable[[Any], Any] = _delta if planned.api == "chat" else _text
    reads = _Reads(answer.response.extensions["network_stream"])
    finish, total = "", 0
    for count, chunk in enumerate(answer, 1):
        reported = chunk.usage.completion_tokens if chunk.usage else None
        if not chunk.choices:
            seen.tokens = reported or seen.tokens
            continue
        finish = seen.reason = chunk.choices[0].finish_reason or finish
        if reported is not None:
            if reported > total:
                seen.receive(reads.time, reported - total)
                total = reported
        elif text(chunk.choices[0]):
            seen.receive(reads.time)
        enough = planned.manner == "close" and len(seen.arrivals) >= planned.after
        if enough and count == reads.events and reads.fresh():
            return seen.end("client_disconnected")
    return seen.end("error" if finish == "error" else "ok", finish)


class _Reads:
    """Tracks the package's reads: ``time`` of the last one, and the count of ``events``.

    Bytes that arrived with the head of the response have no time until the next read.
    """

    def __init__(self, stream: Any) -> None:
        self.time = time.monotonic()
        self.events = 0
        self._socket = stream.get_extra_info("socket")
        self._read = stream.read
        stream.read = self._timed_read

    def fresh(self) -> bool:
        """Whether the last read was just now, and no byte is unread."""
        return time.monotonic() - self.time < FRESH_SECONDS and not unread_bytes(self._socket)

    def _timed_read(self, *arguments: Any, **named: Any) -> bytes:
        data: bytes = self._read(*arguments, **named)
        self.time = time.monotonic()
        self.events += data.count(b"data: ")
        return data


def _delta(choice: Any) -> Any:
    return choice.delta.content


def _text(choice: Any) -> Any:
    return choice.text
