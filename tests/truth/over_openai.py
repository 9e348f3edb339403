"""Clients by the openai package, on connections that it keeps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import openai

from tests.truth.over_http import FRESH_SECONDS, HOST, PATIENCE_SECONDS, HttpClientRequest, waiting
from tests.truth.seen import Seen


class OpenAIPackageClient:
    """One after the other, requests by one client of the package."""

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

    def run(self, planned: HttpClientRequest) -> Seen:
        """Send a request; disconnect after a number of tokens if planned."""
        seen = Seen(planned.model, planned.manner, planned.stream)
        try:
            answer = self._create(planned)
        except openai.APIStatusError as error:
            return seen.ends("invalid", str(error.status_code))
        if not planned.stream:
            seen.tokens = answer.usage.completion_tokens
            return seen.ends("ok", answer.choices[0].finish_reason)
        seen.sent = self._sent
        try:
            return _read(answer, planned, seen)
        except openai.APIError:
            return seen.ends("error", "truncated")
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


def _read(answer: Any, planned: HttpClientRequest, seen: Seen) -> Seen:
    text: Callable[[Any], Any] = _delta if planned.api == "chat" else _text
    reads = _Reads(answer.response.extensions["network_stream"])
    finish, grown = "", 0
    for count, chunk in enumerate(answer, 1):
        reported = chunk.usage.completion_tokens if chunk.usage else None
        if not chunk.choices:
            seen.tokens = reported or seen.tokens
            continue
        finish = chunk.choices[0].finish_reason or finish
        if reported is not None:
            if reported > grown:
                seen.takes(reads.time, reported - grown)
                grown = reported
        elif text(chunk.choices[0]):
            seen.takes(reads.time)
        enough = planned.manner == "close" and len(seen.arrivals) >= planned.after
        if enough and count == reads.events and reads.fresh():
            return seen.ends("disconnected")
    return seen.ends("ok", finish)


class _Reads:
    """Watches what the package reads: ``time`` is when it last did, ``events`` how many it has.

    Bytes that came with the head of the response have no time until the next read.
    """

    def __init__(self, stream: Any) -> None:
        self.time = time.monotonic()
        self.events = 0
        self._socket = stream.get_extra_info("socket")
        self._read = stream.read
        stream.read = self._note

    def fresh(self) -> bool:
        """Whether what was last read had just come, and nothing more is there."""
        return time.monotonic() - self.time < FRESH_SECONDS and not waiting(self._socket)

    def _note(self, *arguments: Any, **named: Any) -> bytes:
        data: bytes = self._read(*arguments, **named)
        self.time = time.monotonic()
        self.events += data.count(b"data: ")
        return data


def _delta(choice: Any) -> Any:
    return choice.delta.content


def _text(choice: Any) -> Any:
    return choice.text
