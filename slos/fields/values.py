"""Read the scalars of an SLO file: names, quantities, URLs."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from urllib.parse import urlsplit

from promql.expr import decimal_text
from slos.durations import parse_duration, parse_share
from slos.errors import BadValue, quoted
from slos.model import HISTOGRAMS
from slos.schema import MAX_TEXT, Place, Shape, expect

API_VERSION = "tokenslo/v1"
_NAME = re.compile(r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?")
_NAME_FORM = 'in lower-case letters, digits and "-", at most 63, a letter first'
NAME_SHAPE: Shape = {"type": "string", "pattern": f"^{_NAME.pattern}$"}
_URL_TEXT = re.compile(r"[!#-;=?-\[\]_a-z~]+")
URL_SHAPE: Shape = {"type": "string", "pattern": "^[hH][tT][tT][pP][sS]?://", "maxLength": MAX_TEXT}
_CALENDAR = re.compile(
    r"[0-9]*[MQY]|(?i:(?=[a-z -]*?(?:calendar|month|quarter|week|year))[a-z -]*)"
)


def read_api_version(value: object, _: Place) -> str:
    """Read the version of the language."""
    if value != API_VERSION:
        shown = quoted(value) if isinstance(value, str) else "this"
        raise BadValue(f"{shown} is not a version that tokenslo supports", f"write {API_VERSION}")
    return API_VERSION


def read_name(value: object, _: Place) -> str:
    """Read the name of a service or an objective."""
    text: str = expect(str, f"a name {_NAME_FORM}", value)
    if not _NAME.fullmatch(text):
        near = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
        fix = near if _NAME.fullmatch(near) else f"a name {_NAME_FORM}"
        raise BadValue(f"{quoted(text)} is not a name", f"write {fix}")
    return text


def with_unit(value: object, wanted: str) -> str:
    """Read a text with a unit; refuse a bare number for its missing unit."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise BadValue(f"{repr(value)[:40]} has no unit", f"write {wanted}")
    text: str = expect(str, wanted, value)
    return text


def read_bounded(
    value: object, parse: Callable[[str], Decimal], least: str, most: str, fix: str
) -> Decimal:
    """Read a quantity above ``least`` and at most ``most``."""
    text = with_unit(value, fix)
    quantity = parse(text)
    if quantity <= parse(least):
        raise BadValue(f"{text} is not above {least}", f"write {fix}")
    if quantity > parse(most):
        raise BadValue(f"{text} is above {most}", f"write {fix}")
    return quantity


def read_seconds(value: object, _: Place) -> Decimal:
    """Read a latency threshold in seconds, at most two hours."""
    return read_bounded(
        value, parse_duration, "0s", "2h", "at most 2h, such as 800ms (m is minutes)"
    )


def read_share_below_one(value: object, wanted: str, why: str) -> Decimal:
    """Read a share above 0% and below 100%; ``why`` explains why 100% is wrong."""
    share = read_bounded(value, parse_share, "0%", "100%", wanted)
    if share == 1:
        raise BadValue(why, f"write {wanted}")
    return share


def read_ratio(value: object, _: Place) -> Decimal:
    """Read a threshold of a ratio."""
    return read_share_below_one(
        value, "a share below 100%, such as 90%", "nothing can be above 100%"
    )


def read_threshold(value: object, _: Place) -> str:
    """Read a threshold as text; its indicator decides its unit."""
    return with_unit(value, "a threshold with its unit, such as 800ms or 90%")


def is_quantity(text: str, parse: Callable[[str], Decimal]) -> bool:
    """Whether ``parse`` accepts a text."""
    try:
        parse(text)
    except BadValue:
        return False
    return True


def read_target(value: object, _: Place) -> Decimal:
    """Read the target of an objective, below 100%."""
    wanted = "a percentage below 100%, such as 99.9%"
    if isinstance(value, float) and 0 < value < 1:
        wanted = f"{decimal_text(Decimal(repr(value)) * 100)}%"
    elif isinstance(value, int | float) and 1 < value < 100:
        wanted = f"{decimal_text(repr(value))}%"
    target = read_bounded(value, parse_share, "0%", "100%", wanted)
    if target == 1:
        raise BadValue("100% leaves no error budget", f"write {wanted}")
    return target


def read_window(value: object, _: Place) -> Decimal:
    """Read the rolling window of objectives in seconds."""
    wanted = "a rolling window from 1d to 90d, such as 28d"
    text = with_unit(value, wanted)
    if _CALENDAR.fullmatch(text):
        message = "calendar windows are not supported, as Prometheus only looks back a fixed time"
        raise BadValue(message, f"write {wanted}")
    window = parse_duration(text)
    if not parse_duration("1d") <= window <= parse_duration("90d"):
        raise BadValue(f"{text} is not within 1d and 90d", f"write {wanted}")
    if window % parse_duration("1d"):
        raise BadValue(f"{text} is not a number of whole days", f"write {wanted}")
    return window


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port  # asking for the port checks it
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(host) and bool(_URL_TEXT.fullmatch(text))


def read_url(value: object, place: Place) -> str:
    """Read an http or https URL without credentials."""
    text: str = expect(str, "an http or https URL", value)
    if not _is_url(text):
        raise BadValue("is not an http or https URL", "write one, such as https://example.com/chat")
    if len(text) > MAX_TEXT:
        raise BadValue(f"is longer than {MAX_TEXT:,} characters", "shorten it")
    if "@" in urlsplit(text).netloc:
        raise BadValue("holds credentials, which every alert would show", "remove them")
    return text


def read_histograms(value: object, _: Place) -> str:
    """Read how Prometheus stores histograms."""
    known = " or ".join(HISTOGRAMS)
    text: str = expect(str, known, value)
    if text not in HISTOGRAMS:
        raise BadValue(f"{quoted(text)} is no way to store histograms", f"write {known}")
    return text


def read_runbooks(value: object, place: Place) -> str:
    """Read the base URL of runbook pages, with ``{service}`` and ``{alert}`` allowed in it."""
    if isinstance(value, str):
        read_url(value.replace("{alert}", "alert").replace("{service}", "service"), place)
        return value
    return read_url(value, place)
