"""SGLang's own API: POST or PUT ``/generate``.

Every event of a stream carries the text so far (or what is new, with
``--incremental-streaming-output``) and in ``meta_info`` the number of tokens so far, so a chunk has
as many tokens as that number grew.  Events of several answers carry an ``index``.  The stream ends
with ``[DONE]``.  Neither request nor answer names the model.
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
ANSWER: Final[Mapping[str, Wanted]] = {
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


def asked(body: Mapping[str, Found]) -> RequestFields:
    """Return what a request's body says of it."""
    sampling = body.get("sampling_params")
    prompts = max(prompts_of(body.get("text")), prompts_of(body.get("input_ids")))
    return RequestFields(
        request_id=name(body.get("rid")),
        streaming=body.get("stream") is True,
        choices=choices_of(prompts, sampling.get("n") if isinstance(sampling, dict) else None),
    )


def read(answer: Mapping[str, Found]) -> ResponsePart:
    """Return what a whole answer, or an event of one, says of its first choice."""
    if answer.get("error") is not None:
        return ResponsePart(error=True)
    meta = answer.get("meta_info")
    meta = meta if isinstance(meta, dict) else {}
    finish = meta.get("finish_reason")
    finish = finish if isinstance(finish, dict) else {}
    bears = bool(answer.get("text") or answer.get("output_ids"))
    is_first = answer.get("index", 0) == 0
    return ResponsePart(
        bears=bears and is_first,
        first=is_first,
        others=int(bears and not is_first),
        finish=name(finish.get("type")),
        status=count(finish.get("status_code")) or 0,
        usage=TokenUsage(
            count(meta.get("prompt_tokens")),
            count(meta.get("completion_tokens")),
            count(meta.get("cached_tokens")),
        ),
        running=True,
    )
