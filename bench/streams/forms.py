"""The bytes of streams, as the servers write them.

The text of each token is its time of sending: nanoseconds of the monotonic clock.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

STAMP = re.compile(rb'" (\d{18})"')
"""A token's text; it matches once the stamp is complete, wherever a read splits it."""
STAMP_BYTES = 21
_PLACEHOLDER = "0" * 18


@dataclass(frozen=True)
class Form:
    """A request, and its response: head, the parts of an event around the stamp, end."""

    request: bytes
    head: bytes
    before: bytes
    after: bytes
    end: bytes


def _form(path: str, body: dict[str, object], event: str, done: str) -> Form:
    content = json.dumps(body).encode()
    before, after = _chunk(event).split(_PLACEHOLDER.encode())
    return Form(
        request=b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (path.encode(), len(content), content),
        head=b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n",
        before=before,
        after=after,
        end=(_chunk(done) if done else b"") + b"0\r\n\r\n",
    )


def _chunk(data: str) -> bytes:
    event = f"data: {data}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(event), event)


def triton(model: str) -> Form:
    """Return the form of Triton's generate_stream."""
    return _form(
        f"/v2/models/{model}/generate_stream",
        {"text_input": "some words", "max_tokens": 1000},
        f'{{"model_name":"{model}","model_version":"1","text_output":" {_PLACEHOLDER}"}}',
        "",
    )


def openai(model: str) -> Form:
    """Return the form of a chat completion of Triton's OpenAI frontend and vLLM."""
    messages = [{"role": "user", "content": "some words"}]
    return _form(
        "/v1/chat/completions",
        {"model": model, "messages": messages, "stream": True},
        '{"id":"cmpl-5d2c3a9a-3c0e-4b59-9a5b-2f1d6c8e7b40","choices":[{"delta":'
        f'{{"content":" {_PLACEHOLDER}","function_call":null,"role":null,"tool_calls":null}},'
        '"logprobs":null,"finish_reason":null,"index":0}],"created":1795224346,'
        f'"model":"{model}","system_fingerprint":null,"object":"chat.completion.chunk"}}',
        "[DONE]",
    )


FORMS = {"triton": triton, "openai": openai}
