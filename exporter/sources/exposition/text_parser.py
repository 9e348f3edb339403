r"""Parse the Prometheus text exposition format 0.0.4, with the deviations of real servers.

Families
    The name on a ``# TYPE`` (or ``# HELP``) line is the family, exactly as written: Triton's
    counters are called ``nv_inference_count``, vLLM's ``vllm:prompt_tokens_total``, and what
    prometheus_client writes as ``x_created`` is a gauge family of its own.  A histogram ``h`` owns
    the samples ``h_bucket``, ``h_sum`` and ``h_count``, a summary ``s`` owns ``s``, ``s_sum`` and
    ``s_count``, in any order.  A sample that no family owns makes one of its own name, untyped.
    Samples of one family that are scattered over the body are brought together.

Accepted beyond the format
    Line ends of CR LF; ``nan`` and ``inf`` in any case (Triton writes ``Nan``); an unknown escape
    in a label value stands for itself; a ``# TYPE`` line may be repeated; ``#x TYPE y`` is a
    comment, though prometheus_client takes it for a declaration.  Timestamps are accepted and
    dropped: the time of the scrape counts.

Refused although prometheus_client accepts it
    A last line without line feed, because the body was cut off there; leading commas in labels;
    a third word after the name, and timestamps that are not integers; types and syntax of
    OpenMetrics (``unknown``, ``info``, exemplars, quoted names); ``# HELP`` without a name; a
    ``# TYPE`` after the samples it is about or against an earlier one; a sample ``h`` of a
    histogram ``h``; blanks other than space and tab; and what no server writes and would take many
    times its size in memory: lines of more than 64 KiB, more than 200,000 lines, more than 10,000
    families.

Not detected
    A body cut off exactly between two lines is a valid exposition; only the transport shows it.
    Lines of unwanted families are recognised by name and not parsed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, cast

Sample = tuple[str, Mapping[str, str], float]

_SUFFIXES = {
    "counter": ("",),
    "gauge": ("",),
    "histogram": ("_bucket", "_sum", "_count"),
    "summary": ("", "_sum", "_count"),
    "untyped": ("",),
}

# Quantifiers are possessive: what has matched is not tried again, so that every pattern takes
# linear time whatever the input.
_BLANKS = " \t\r"
_B = r"[ \t]*+"
_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*+"
_CHARACTERS = r'[^"\\]*+(?:\\.[^"\\]*+)*+'
_COMMENT = re.compile(rf"{_B}([^ \t]*+){_B}([^ \t]*+){_B}(.*+)")
_METRIC_NAME = re.compile(_NAME)
_SAMPLE = re.compile(rf'({_NAME})(?:{_B}\{{((?:[^"}}]++|"{_CHARACTERS}")*+)\}}|(?=[ \t])){_B}(.*+)')
_VALUE = re.compile(r"([^ \t]++)(?:[ \t]++-?[0-9]++)?+")
# The last alternative matches the rest, so that no second attempt starts further right.
_LABEL = re.compile(
    rf'{_B}(?:(?!__)([a-zA-Z_][a-zA-Z0-9_]*+){_B}={_B}"({_CHARACTERS})"{_B}(?:,|$)|(.++))'
)

_MAX_LINE_BYTES = 64 * 1024
_MAX_LINES = 200_000
_MAX_FAMILIES = 10_000
_MAX_CACHED_BLOCKS = 16_384
_MAX_CACHED_LENGTH = 1_024  # characters


class ExpositionError(ValueError):
    """A body that is not an exposition; ``line`` is 1-based."""

    def __init__(self, line: int, message: str) -> None:
        self.line = line
        super().__init__(f"line {line}: {message}")


@dataclass(frozen=True, slots=True)
class RevaluedSamples(Sequence[Sample]):
    """The samples of known ``series`` with new ``values``; each is made when it is read."""

    series: Sequence[Sample]
    values: list[float]

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return list(self)[index]
        name, labels, _ = self.series[index]
        return name, labels, self.values[index]

    def __iter__(self) -> Iterator[Sample]:
        for (name, labels, _), value in zip(self.series, self.values, strict=True):
            yield name, labels, value


@dataclass(slots=True)
class ParsedFamily:
    """A metric family; ``type`` is counter, gauge, histogram, summary or untyped.

    ``samples`` holds (sample name, labels, value) in order of appearance; labels are read-only and
    shared between samples and between scrapes.  ``duplicate`` is a duplicate series, if any.
    ``cache`` is for what is derived from names and labels alone:
    :mod:`exporter.sources.exposition.incremental_reader` keeps it while they stay the same.
    """

    name: str
    type: str = "untyped"
    help: str = ""
    samples: Sequence[Sample] = field(default_factory=list)
    duplicate: str = ""
    cache: dict[object, object] = field(default_factory=dict, compare=False, repr=False)

    def parsed(self) -> list[Sample]:
        """Return the samples while they are parsed."""
        return cast(list[Sample], self.samples)

    def values(self) -> list[float]:
        """Return the values of the samples."""
        if isinstance(self.samples, RevaluedSamples):
            return self.samples.values
        return [value for _, _, value in self.samples]

    def sample_names(self) -> list[str]:
        """Return the names that samples of this family have."""
        return [self.name + suffix for suffix in _SUFFIXES[self.type]]


class _Blocks(dict[str, Mapping[str, str]]):
    """Labels by block: blocks repeat across families and scrapes.

    Raises ValueError for a block that is malformed or not worth keeping.  When full it is emptied:
    a server with more blocks than fit would defeat any ageing as well.
    """

    def __missing__(self, block: str) -> Mapping[str, str]:
        if not 0 < len(block) <= _MAX_CACHED_LENGTH:
            raise ValueError
        if len(self) >= _MAX_CACHED_BLOCKS:
            self.clear()
        labels = self[block] = _labels(block)
        return labels


_known_labels = _Blocks()


class _Malformed(ValueError):  # noqa: N818
    """An error in a line, raised without its line number."""

    def __init__(self, found: str, expected: str) -> None:
        shown = repr(found if len(found) <= 60 else found[:59] + "…") if found else "nothing"
        super().__init__(f"found {shown}, expected {expected}")


def read(body: bytes, wanted: Collection[str] | None = None) -> dict[str, ParsedFamily]:
    """Return the families of a body by name, in order of appearance.

    ``wanted`` are the names of the families to return, those that the body lacks are omitted;
    None means all.  An empty body has no families.  Raises ExpositionError.
    """
    check_lines(body)
    text = _decode(body)
    families: dict[str, ParsedFamily] = {}
    owners: dict[str, ParsedFamily] = {}  # by sample name
    selected: Container[str] = families if wanted is None else frozenset(wanted)
    number = 0
    try:
        # A group is a comment line and the lines up to the next one; the first has no comment.
        for group in ("\n" + text.removesuffix("\n")).split("\n# "):
            comment, _, lines = group.partition("\n")
            size = group.count("\n")
            following = number + 1 + size
            family = _declare(comment, families, owners)
            if not size:
                done = True
            elif not family:
                done = False
            elif family.name in selected:
                done = _read_plain_samples(lines, family)
            else:
                done = _all_belong_to(group, size, family)
            if not done:
                for line in lines.split("\n"):
                    number += 1
                    _read_line(line, families, owners)
            number = following
    except _Malformed as problem:
        raise ExpositionError(number, str(problem)) from None
    if text and not text.endswith("\n"):
        number = text.count("\n") + 1
        raise ExpositionError(number, "expected a line feed at the end: the body was cut off")
    return {name: family for name, family in families.items() if name in selected}


def check_lines(body: bytes) -> None:
    """Raise ExpositionError if a line is too long or there are too many."""
    start = 0
    while len(body) - start > _MAX_LINE_BYTES:
        end = body.rfind(b"\n", start, start + _MAX_LINE_BYTES + 1)
        if end < 0:
            line = body.count(b"\n", 0, start) + 1
            raise ExpositionError(line, f"expected at most {_MAX_LINE_BYTES >> 10} KiB in a line")
        start = end + 1
    if body.count(b"\n") > _MAX_LINES:
        raise ExpositionError(_MAX_LINES + 1, f"expected at most {_MAX_LINES:,} lines")


def _decode(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        line = body.count(b"\n", 0, error.start) + 1
        found = f"found the byte 0x{body[error.start]:02x}, expected UTF-8 text"
        raise ExpositionError(line, found) from None


def _declare(
    comment: str, families: dict[str, ParsedFamily], owners: dict[str, ParsedFamily]
) -> ParsedFamily | None:
    """Handle a HELP or TYPE comment; return its family, None for other comments."""
    words = _COMMENT.fullmatch(comment.rstrip(_BLANKS))
    keyword, name, rest = words.groups() if words else ("", "", "")
    if keyword not in ("HELP", "TYPE"):
        return None
    if not _METRIC_NAME.fullmatch(name):
        raise _Malformed(name, f"the name of a metric after # {keyword}")
    family = _family(name, families)
    if keyword == "HELP":
        family.help = re.sub(r"\\[\\n]", _unescape, rest)
    elif rest not in _SUFFIXES:
        raise _Malformed(rest, f"the type of {name}: {', '.join(_SUFFIXES)}")
    elif rest != family.type:
        if family.samples or family.type != "untyped":
            raise _Malformed(rest, f"{name} to stay {family.type}, as lines above have it")
        family.type = rest
    owners.update(dict.fromkeys(family.sample_names(), family))
    return family


def _family(name: str, families: dict[str, ParsedFamily]) -> ParsedFamily:
    family = families.get(name)
    if family is None:
        if len(families) >= _MAX_FAMILIES:
            raise _Malformed(name, f"at most {_MAX_FAMILIES:,} families")
        family = families[name] = ParsedFamily(name)
    return family


def _all_belong_to(group: str, size: int, family: ParsedFamily) -> bool:
    """Return whether all ``size`` lines after a group's comment belong to the family, by name."""
    for after in "{ ":
        for name in family.sample_names():
            size -= group.count(f"\n{name}{after}")
            if not size:
                return True
    return False


def _read_plain_samples(lines: str, family: ParsedFamily) -> bool:
    """Read lines that all are plain samples of the family; return False, with no effect, if not."""
    names = {name: name for name in family.sample_names()}
    try:
        found = [
            # float() alone would accept 1_000.
            (names[name], _known_labels[block], float(value.replace("_", "?")))
            for line in lines.split("\n")
            for name, _, labelled in [line.partition("{")]
            for block, _, value in [labelled.rpartition("} ")]
        ]
    except (KeyError, ValueError):
        return False
    family.parsed().extend(found)
    return True


def _read_line(
    line: str, families: dict[str, ParsedFamily], owners: dict[str, ParsedFamily]
) -> None:
    line = line.strip(_BLANKS)
    if line.startswith(("# ", "#\t")):
        _declare(line[1:], families, owners)
    elif line and not line.startswith("#"):
        name, labels, value = _read_sample(line)
        if name not in owners:
            if name in families:
                expected = " or ".join(families[name].sample_names())
                raise _Malformed(line, f"{expected}, as {name} is a {families[name].type}")
            owners[name] = _family(name, families)
        owners[name].parsed().append((name, labels, value))


def _read_sample(line: str) -> Sample:
    sample = _SAMPLE.fullmatch(line)
    if not sample:
        raise _Malformed(line, "a comment or a metric name, its labels in braces and a value")
    name, block, rest = sample.groups()
    labels = _labels(block or "")
    value = _VALUE.fullmatch(rest)
    try:
        return name, labels, float(value[1].replace("_", "?") if value else "")
    except ValueError:
        expected = "a number (or NaN, +Inf, -Inf) and at most an integer timestamp"
        raise _Malformed(rest, expected) from None


def _labels(block: str) -> Mapping[str, str]:
    """Return the labels in a block, the text between the braces."""
    pairs = _LABEL.findall(block.strip(_BLANKS))
    if pairs and pairs[-1][2]:
        raise _Malformed(pairs[-1][2], 'name="value" and commas between (no name starts with __)')
    labels = {name: value for name, value, _ in pairs}
    if len(labels) < len(pairs):
        raise _Malformed(block, "each label once")
    if "\\" in block:
        labels = {k: re.sub(r'\\[\\n"]', _unescape, value) for k, value in labels.items()}
    return MappingProxyType(labels)


def _unescape(escape: re.Match[str]) -> str:
    return "\n" if escape[0] == r"\n" else escape[0][1]
