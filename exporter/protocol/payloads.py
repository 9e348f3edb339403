"""What a request, an answer or an event of one says, whichever API it belongs to."""

from __future__ import annotations

from typing import Final, NamedTuple

from exporter.protocol.events import Stages
from exporter.protocol.json_scan import Found, count

CHOICES: Final = 1024
"""The most answers to one request that are believed."""


class RequestFields(NamedTuple):
    """What the body of a request says of it."""

    model: str = ""
    request_id: str = ""
    streaming: bool = False
    choices: int = 1


class TokenUsage(NamedTuple):
    """The server's own numbers of tokens, None where it does not say."""

    input: int | None
    output: int | None
    cached: int | None


class ResponsePart(NamedTuple):
    """What an event says, or a whole answer.

    ``bears`` says that it has text of the first choice, ``first`` that it is about that at all,
    ``others`` how many other choices it has text of.  ``repeats`` marks text that earlier events
    had, if the server sends such.  ``running`` says that the usage is that of the choice so far,
    not of the whole answer.  ``status`` is an HTTP status inside of the answer, 0 for none.
    ``last`` says that nothing follows.
    """

    bears: bool = False
    first: bool = True
    others: int = 0
    repeats: bool = False
    finish: str = ""
    status: int = 0
    usage: TokenUsage | None = None
    running: bool = False
    error: bool = False
    last: bool = False
    model: str = ""
    version: str = ""
    stages: Stages | None = None


def prompts_of(prompt: Found) -> int:
    """Return how many prompts a member holds: texts or lists of tokens in a list, else one."""
    if isinstance(prompt, list) and prompt and type(prompt[0]) is not int:
        return len(prompt)
    return 1


def choices_of(prompts: int, *numbers: Found) -> int:
    """Return how many answers a request asks for: the greatest number for each prompt."""
    each = max((count(number) or 1 for number in numbers), default=1)
    return min(prompts * each, CHOICES)
