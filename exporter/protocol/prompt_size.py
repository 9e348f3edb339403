"""Measure the length of prompts while requests are scanned, without keeping any of their text.

The prompt is the messages of a chat with its tools, the prompt of a completion, or the inputs of a
KServe request.  Its length is the number of tokens if the prompt is tokenised, otherwise the bytes
of its JSON: keys and quotes stand for what chat templates add.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from typing import Final, NamedTuple

from exporter.protocol.json_scan import Expected, Found, JsonScanner, Keep, Wanted, count

TOKEN_IDS: Final = ("input_ids", "prompt_token_ids", "prompt")
"""Members that may hold token ids; the first one of these counts."""
TEXTS: Final = (
    *("messages", "tools", "functions", "prompt", "input", "instructions", "system"),
    *("text", "text_input"),
)
"""Members with the text of prompts, in any API."""
_INPUTS: Final = "inputs"
_TREE: Final[Mapping[str, Wanted]] = {
    _INPUTS: [
        {"name": Keep.NAME, "shape": [Keep.MARK], "parameters": {"binary_data_size": Keep.MARK}}
    ]
}
"""What KServe's ``infer`` says about its tensors; their data may follow the JSON."""
MAX_MEMBERS: Final = 64
"""The limit of measured members of one request."""
_WINDOW: Final = 256
_BASE64: Final = re.compile(rb"[A-Za-z0-9+/=_-]{256}")
_DIGITS: Final = frozenset(b"0123456789")
_ESCAPE, _ESCAPE_EXCESS = b"\\u", 3
"""``\\u4e2d`` has six bytes for a character of three bytes in UTF-8."""


class PromptLength(NamedTuple):
    """The tokens of a tokenised prompt, or the bytes of any other; None if unknown."""

    tokens: int | None = None
    size: int | None = None


UNMEASURED: Final = PromptLength()


class _MemberSize:
    """The size of one member's value: bytes without media, and commas."""

    __slots__ = ("_first", "commas", "size")

    def __init__(self) -> None:
        self.size = self.commas = 0
        self._first = b""

    def add(self, part: bytes) -> None:
        """Add the next part of the value; spaces before it are no part."""
        if not self.size and part.isspace():
            return
        self.size += text_size(part)
        self.commas += part.count(b",")
        self._first = self._first or part.lstrip(b" \t\r\n[")[:1]

    @property
    def tokens(self) -> int | None:
        """The number of token ids, None for anything else."""
        is_ids = bool(self._first) and self._first[0] in _DIGITS
        return self.commas + 1 if is_ids else None


class PromptScanner(JsonScanner):
    """Scan the body of a request, and measure its members."""

    __slots__ = ("_measured", "_sizes")

    def __init__(self, wanted: Mapping[str, Wanted]) -> None:
        super().__init__({**wanted, **_TREE})
        self._measured: _MemberSize | None = None
        self._sizes: dict[str, _MemberSize] = {}

    def feed(self, data: bytes) -> None:
        """Scan the next part of the document."""
        at, end = 0, len(data)
        while at < end and self._expected is not Expected.NOTHING:
            begin, at = at, self._step(data, at)
            in_root = len(self._stack) <= 1
            if self._measured is not None:
                self._measured.add(data[begin:at])
                if in_root and self._expected in (Expected.COMMA, Expected.NOTHING):
                    self._measured = None
            elif in_root and self._stack and self._expected is Expected.VALUE:
                self._measured = self._of_key()
        if self._measured is not None and at < end:
            self._measured.add(data[at:])  # beyond a limit of the scan

    def length(self) -> PromptLength:
        """Return the length of the prompt; unknown if the request is incomplete."""
        if self._expected is not Expected.NOTHING:
            return UNMEASURED
        found = self.found.get(_INPUTS)
        if isinstance(found, list) and found:
            return _of_tensors(found, self._sizes[_INPUTS].size)
        for name in TOKEN_IDS:
            if name in self._sizes and (tokens := self._sizes[name].tokens) is not None:
                return PromptLength(tokens=tokens)
        texts = [self._sizes[name].size for name in TEXTS if name in self._sizes]
        sizes = texts or [each.size for each in self._sizes.values()]
        return PromptLength(size=sum(sizes)) if sizes else UNMEASURED

    def _of_key(self) -> _MemberSize | None:
        if self._key not in self._sizes and len(self._sizes) == MAX_MEMBERS:
            return None
        return self._sizes.setdefault(self._key, _MemberSize())


def text_size(part: bytes) -> int:
    """Return the bytes of text in a part of a JSON value, without images and audio in base64."""
    size = len(part) - _ESCAPE_EXCESS * part.count(_ESCAPE)
    for begin in range(0, len(part) - _WINDOW + 1, _WINDOW):
        window = part[begin : begin + _WINDOW]
        if b" " not in window and _BASE64.fullmatch(window):
            size -= _WINDOW
    return max(0, size)


def _of_tensors(tensors: list[Found], size: int) -> PromptLength:
    """Return the length of a prompt in KServe's tensors, whose JSON has ``size`` bytes."""
    binary = 0
    for tensor in tensors:
        if not isinstance(tensor, dict):
            continue
        shape, parameters = tensor.get("shape"), tensor.get("parameters")
        if tensor.get("name") == "input_ids" and isinstance(shape, list):
            sides = [count(side) for side in shape]
            return PromptLength(tokens=prod(side or 0 for side in sides))
        if isinstance(parameters, dict):
            binary += count(parameters.get("binary_data_size")) or 0
    return PromptLength(size=binary or size)
