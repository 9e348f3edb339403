"""Fields of requests, responses and events that all APIs share."""

from __future__ import annotations

from typing import Final, NamedTuple

from exporter.protocol.events import Stages
from exporter.protocol.json_scan import Found, count

CHOICES: Final = 1024
"""The limit of choices of one request."""


class RequestFields(NamedTuple):
    """The fields of a request's body."""

    model: str = ""
    request_id: str = ""
    streaming: bool = False
    choices: int = 1


class TokenUsage(NamedTuple):
    """The server's token counts, None where it reports none."""

    input: int | None
    output: int | None
    cached: int | None


class ResponsePart(NamedTuple):
    """The fields of an event or of a whole response.

    * ``has_text``: it has text of the first choice.
    * ``first``: it belongs to the first choice.
    * ``others``: the number of other choices that it has text of.
    * ``repeats``: its text repeats that of earlier events, if the server sent such.
    * ``running``: the usage is that of the choice so far, not of the whole response.
    * ``status``: an HTTP status inside the response, 0 for none.
    * ``last``: it is the last event.
    """

    has_text: bool = False
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
    """Return the number of prompts in a member: a list holds strings or token lists, else one."""
    if isinstance(prompt, list) and prompt and type(prompt[0]) is not int:
        return len(prompt)
    return 1


def choices_of(prompts: int, *numbers: Found) -> int:
    """Return the number of requested choices: the greatest number for each prompt."""
    each = max((count(number) or 1 for number in numbers), default=1)
    return min(prompts * each, CHOICES)
