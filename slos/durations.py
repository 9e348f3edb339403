"""Parse and format durations and shares: ``800ms``, ``28d``, ``99.9%``.

They are exact, so that rules and bucket boundaries have the value of the file.
"""

from __future__ import annotations

import re
from decimal import Decimal
from functools import lru_cache
from itertools import pairwise

from promql.literals import decimal_text
from slos.errors import BadValue, quoted

# Prometheus's units and their sizes in seconds, largest first; a year is always 365 days.
_UNITS = {
    "y": Decimal(31_536_000),
    "w": Decimal(604_800),
    "d": Decimal(86_400),
    "h": Decimal(3_600),
    "m": Decimal(60),
    "s": Decimal(1),
    "ms": Decimal("0.001"),
}
_WRITTEN = ("d", "h", "m")
_ORDER = tuple(_UNITS)
_EXAMPLES = "such as 800ms, 2.5s or 1h30m"

# The digits are bounded so that sums and products stay exact in 28-digit decimals.
_NUMBER = r"[0-9]{1,8}(?:\.[0-9]{1,9})?"
_PART = re.compile(rf"({_NUMBER})(ms|[ywdhms])")
_DURATION = re.compile(rf"(?:[0-9]{{1,8}}(?:ms|[ywdhms]))*{_NUMBER}(?:ms|[ywdhms])")
_BARE = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_SHARE = re.compile(rf"({_NUMBER})%")

DURATION_PATTERN = rf"^{_DURATION.pattern}$"
SHARE_PATTERN = rf"^{_NUMBER}%$"
"""Regular expressions of durations and shares for editors."""


@lru_cache(maxsize=1 << 12)
def parse_duration(text: str) -> Decimal:
    """Read a duration such as ``800ms``, ``28d`` or ``1h30m``; return seconds.

    Units are those of Prometheus (ms s m h d w y), each at most once, from large to small; only the
    last number may have a fraction.  Raises :class:`~slos.errors.BadValue`, a ``ValueError``.
    """
    if not _DURATION.fullmatch(text):
        raise _not_a("duration", text, _DURATION, f"write a number with its unit, {_EXAMPLES}")
    parts = _PART.findall(text)
    ranks = [_ORDER.index(unit) for _, unit in parts]
    if any(later <= earlier for earlier, later in pairwise(ranks)):
        raise BadValue(
            f"{quoted(text)} does not go from large units to small ones",
            f"write every unit once, the largest first, {_EXAMPLES}",
        )
    return sum((Decimal(count) * _UNITS[unit] for count, unit in parts), Decimal(0))


@lru_cache(maxsize=1 << 12)
def format_duration(seconds: Decimal) -> str:
    """Write ``seconds`` (not negative) in the shortest form, exact to the nanosecond.

    :func:`parse_duration` reads it back.  Days are the largest unit, as in 28d.  Whole seconds are
    written as in PromQL.
    """
    if seconds < 0:
        raise ValueError(f"{seconds} is negative")
    rest, text = seconds, ""
    for unit in _WRITTEN:
        count, rest = divmod(rest, _UNITS[unit])
        text += f"{int(count)}{unit}" if count else ""
    if rest >= 1:
        return f"{text}{decimal_text(rest)}s"
    if rest:
        return f"{text}{decimal_text(rest * 1000)}ms"
    return text or "0s"


def parse_share(text: str) -> Decimal:
    """Read a percentage such as ``99.9%``; return a ratio.

    A bare ratio such as ``0.999`` is refused, as ``1`` would be ambiguous.  Raises
    :class:`~slos.errors.BadValue`, a ``ValueError``.
    """
    match = _SHARE.fullmatch(text)
    if not match:
        raise _not_a("percentage", text, _SHARE, "write a percentage such as 99.9%")
    return Decimal(match[1]).scaleb(-2)


def _not_a(kind: str, text: str, form: re.Pattern[str], fix: str) -> BadValue:
    """Return the error for a text that is not a ``kind``, with the likely meaning if any."""
    if _BARE.fullmatch(text.strip()):
        return BadValue(f"{quoted(text.strip())} has no unit", fix)
    squeezed = "".join(text.split())
    if squeezed != text and form.fullmatch(squeezed):
        fix = f"write {squeezed}"
    return BadValue(f"{quoted(text)} is not a {kind}", fix)
