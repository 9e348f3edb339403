"""What a request, an answer or an event of one says, whichever API it belongs to."""

from __future__ import annotations

from typing import NamedTuple

from exporter.wire.events import Stages


class Asked(NamedTuple):
    """What the body of a request says of it."""

    model: str = ""
    request_id: str = ""
    streaming: bool = False
    choices: int = 1


class Usage(NamedTuple):
    """The server's own numbers of tokens, None where it does not say."""

    input: int | None
    output: int | None
    cached: int | None


class Piece(NamedTuple):
    """What an event says, or a whole answer.

    ``bears`` says that it has text of the first choice, ``first`` that it is about that at all.
    """

    bears: bool = False
    first: bool = True
    finish: str = ""
    usage: Usage | None = None
    error: bool = False
    model: str = ""
    version: str = ""
    stages: Stages | None = None
