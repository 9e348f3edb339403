"""Parse SGLang's own API: POST or PUT ``/generate``.

Every event of a stream carries the text so far (with ``--incremental-streaming-output`` only the
new text), and in ``meta_info`` the number of tokens so far.  The increase of that number is the
token count of the chunk.  Events of several choices carry an ``index``.  The stream ends with
``[DONE]``.  Neither request nor response names the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from exporter.protocol.json_scan import Found, Keep, Wanted, count, name
from exporter.protocol.payloads import (
    RequestFields,
    ResponsePart,
    TokenUsage,
    choices_of,
    prompts_of,
)

REQUEST: Final[Mapping[str, Wanted]] = {
    "rid": Keep.NAME,
    "stream": Keep.MARK,
    "text": [Keep.MARK],
    "input_ids": [Keep.MARK],
    "sampling_params": {"n": Keep.MARK},
}
RESPONSE: Final[Mapping[str, Wanted]] = {
    "index": Keep.MARK,
    "text": Keep.MARK,
    "output_ids": Keep.MARK,
    "error": Keep.MARK,
    "meta_info": {
        "finish_reason": {"type": Keep.NAME, "status_code": Keep.MARK},
        "prompt_tokens": Keep.MARK,
        "completion_tokens": Keep.MARK,
        "cached_tokens": Keep.MARK,
    },
}


def read_request(body: Mapping[str, Found]) -> RequestFields:
    """Return the fields of a request's body."""
    sampling = body.get("sampling_params")
    prompts = max(prompts_of(body.get("text")), prompts_of(body.get("input_ids")))
    return RequestFields(
        request_id=name(body.get("rid")),
        streaming=body.get("stream") is True,
        choices=choices_of(prompts, sampling.get("n") if isinstance(sampling, dict) else None),
    )


def read_response(body: Mapping[str, Found]) -> ResponsePart:
    """Read a whole response or one event of it; text is that of the first choice."""
    if body.get("error") is not None:
        return ResponsePart(error=True)
    meta = body.get("meta_info")
    meta = meta if isinstance(meta, dict) else {}
    finish = meta.get("finish_reason")
    finish = finish if isinstance(finish, dict) else {}
    has_text = bool(body.get("text") or body.get("output_ids"))
    is_first = body.get("index", 0) == 0
    return ResponsePart(
        has_text=has_text and is_first,
        first=is_first,
        others=int(has_text and not is_first),
        finish=name(finish.get("type")),
        status=count(finish.get("status_code")) or 0,
        usage=TokenUsage(
            count(meta.get("prompt_tokens")),
            count(meta.get("completion_tokens")),
            count(meta.get("cached_tokens")),
        ),
        running=True,
    )
