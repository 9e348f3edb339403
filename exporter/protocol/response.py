"""Follows what a server answers to one request: its text, its tokens, and how it went."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from exporter.protocol import anthropic, kserve_http, openai, openai_responses, sglang
from exporter.protocol.event_template import EventTemplate, likeness, usage_at
from exporter.protocol.events import Listener, Outcome, Stream
from exporter.protocol.json_scan import Found, Wanted, loaded
from exporter.protocol.payloads import RequestFields, ResponsePart, TokenUsage

_QUOTE = b'"'[0]
_PATIENCE = 8
"""So many events in a row are tried as likenesses of which none was ever met again."""

_BY_STATUS: Final[Mapping[int, Outcome]] = {
    408: "timeout",
    429: "rejected",
    499: "cancelled",
    503: "rejected",
    504: "timeout",
}
_BY_FINISH: Final[Mapping[str, Outcome]] = {
    "timeout": "timeout",
    "cancelled": "cancelled",
    "abort": "cancelled",
    "error": "error",
}


class ApiFormat(NamedTuple):
    """How to read what is asked and answered; the trees are what is wanted of either's JSON.

    ``ends`` says that streams carry their own end mark: one without it was cut off.
    """

    request: Mapping[str, Wanted]
    answer: Mapping[str, Wanted]
    asked: Callable[[Mapping[str, Found]], RequestFields]
    read: Callable[[Mapping[str, Found]], ResponsePart]
    ends: bool = True


KSERVE: Final = ApiFormat(
    kserve_http.REQUEST, kserve_http.ANSWER, kserve_http.asked, kserve_http.read, ends=False
)
OPENAI: Final = ApiFormat(openai.REQUEST, openai.ANSWER, openai.asked, openai.read)
RESPONSES: Final = ApiFormat(
    openai_responses.REQUEST, openai_responses.ANSWER, openai_responses.asked, openai_responses.read
)
MESSAGES: Final = ApiFormat(anthropic.REQUEST, anthropic.ANSWER, anthropic.asked, anthropic.read)
SGLANG: Final = ApiFormat(sglang.REQUEST, sglang.ANSWER, sglang.asked, sglang.read)


class ResponseReader:
    """Takes the events of a streaming answer, or what was found in a whole one.

    ``done`` says that the server has sent what it sends last, ``failed`` that it told of an error.
    """

    __slots__ = (
        "_api",
        "_bore",
        "_finish",
        "_likeness",
        "_listener",
        "_output",
        "_patience",
        "_status",
        "_strange",
        "_stream",
        "_uncounted",
        "done",
        "failed",
    )

    def __init__(self, api: ApiFormat, stream: Stream, listener: Listener) -> None:
        self.done = False
        self._api = api
        self._stream = stream
        self._listener = listener
        self._likeness: EventTemplate | None = None
        self._patience = _PATIENCE
        self._output = 0  # tokens so far, where every chunk says it
        self._finish = ""
        self._status = 0
        self.failed = self._strange = self._uncounted = self._bore = False

    @property
    def held(self) -> int:
        """How many bytes of earlier events are held."""
        return len(self._likeness.before) + len(self._likeness.after) if self._likeness else 0

    def event(self, name: bytes, data: bytes, time: float) -> None:
        """Take in one event of a stream."""
        known = self._likeness
        if known and (end := known.match(data)) >= 0:
            self._patience = _PATIENCE
            bears = data[known.start] != _QUOTE
            if not known.usage:
                if bears:
                    self._listener.chunk(self._stream, time, 0)
                return
            if usage := openai.usage(usage_at(data, end)):
                self._use(usage)
                self._count(bears, usage, time)
                return
        self._read(name, data, time)

    def found(self, document: Mapping[str, Found], time: float) -> None:
        """Take in an event, of which only this was kept."""
        self._take(self._api.read(document), time)

    def whole(self, document: Mapping[str, Found]) -> None:
        """Take in what was found in an answer that is no stream."""
        self._note(self._api.read(document))

    def outcome(self, status: int) -> tuple[Outcome, str]:
        """Return what became of a request whose answer is complete, and why."""
        if 200 <= status < 300:
            if self.failed:
                return "error", "in_band"
            if self._status >= 400:
                return of_status(self._status), self._finish
            return _BY_FINISH.get(self._finish, "ok"), self._finish
        return of_status(status), str(status)

    def _read(self, name: bytes, data: bytes, time: float) -> None:
        if name == openai.TIMING_EVENT:
            self._stream.stages = openai.stages(data) or self._stream.stages
            return
        if data.strip() == openai.DONE:
            self.done = True
            return
        document = loaded(data)
        if document is None:
            self._pass_over()
            return
        piece = self._take(self._api.read(document), time)
        if self._patience and piece.bears:
            self._learn(data, piece)

    def _learn(self, data: bytes, piece: ResponsePart) -> None:
        self._patience -= 1
        if learnt := likeness(data, piece, self._api.read):
            self._likeness = learnt

    def _take(self, piece: ResponsePart, time: float) -> ResponsePart:
        """Take in what an event says; return what of that counts."""
        if piece.running and self._stream.choices > 1:
            piece = piece._replace(usage=None)  # it is that of a single choice
        self._note(piece)
        self._stream.other_chunks += piece.others
        if piece.first and not (piece.repeats and self._bore):
            self._count(piece.bears, piece.usage, time)
        return piece

    def _note(self, piece: ResponsePart) -> None:
        stream = self._stream
        self.failed = self.failed or piece.error
        self.done = self.done or piece.last
        self._status = piece.status or self._status
        self._finish = piece.finish or self._finish
        # A name that a server gives is better than what a client wrote, which may be anything.
        stream.model = piece.model or stream.model
        stream.version = stream.version or piece.version
        stream.stages = piece.stages or stream.stages
        if piece.usage:
            self._use(piece.usage)

    def _use(self, usage: TokenUsage) -> None:
        stream = self._stream
        if usage.input is not None:
            stream.input_tokens = usage.input
        if usage.output is not None:
            stream.output_tokens = usage.output
            stream.counted = True
        if usage.cached is not None:
            stream.cached_tokens = usage.cached

    def _count(self, bears: bool, usage: TokenUsage | None, time: float) -> None:
        """Tell of a piece with text, or with more tokens where every piece says how many.

        Usage that comes after pieces without is that of the whole answer and says nothing of the
        piece it came with.
        """
        if usage and usage.output and not self._uncounted:
            grown = usage.output - self._output
            if grown > 0:
                self._bore = True
                self._output = usage.output
                self._listener.chunk(self._stream, time, grown)
        elif bears:
            self._uncounted = self._bore = True
            self._listener.chunk(self._stream, time, 0)

    def _pass_over(self) -> None:
        if not self._strange:
            self._strange = True
            self._listener.skipped("event")


def of_status(status: int) -> Outcome:
    """Return what became of a request that was answered with such a status."""
    if 200 <= status < 300:
        return "ok"
    return _BY_STATUS.get(status, "error" if status >= 500 else "invalid")
