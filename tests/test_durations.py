"""Durations: parsing, formatting and their limits."""

from __future__ import annotations

from decimal import Decimal
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slos.durations import format_duration, parse_duration, parse_share
from slos.errors import BadValue

DAY = 86_400


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("800ms", "0.8"),
        ("2.5s", "2.5"),
        ("0s", "0"),
        ("5m", "300"),
        ("1h30m", "5400"),
        ("1h0.5m", "3630"),
        ("28d", 28 * DAY),
        ("4w", 28 * DAY),
        ("1y", 365 * DAY),
        ("1y1w1d1h1m1s1ms", "32230861.001"),
    ],
)
def test_durations_are_read_in_prometheus_units(text, seconds):
    assert parse_duration(text) == Decimal(seconds)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        ("0", "0s"),
        ("0.06", "60ms"),
        ("0.0025", "2.5ms"),
        ("1", "1s"),
        ("1.5", "1.5s"),
        ("300", "5m"),
        ("5400", "1h30m"),
        ("8.64E+5", "10d"),
        (28 * DAY, "28d"),
        ("93784.5", "1d2h3m4.5s"),
    ],
)
def test_durations_are_written_in_the_usual_form(seconds, text):
    assert format_duration(Decimal(seconds)) == text


@given(st.decimals(0, 10**12, places=9))
def test_written_durations_are_read_back_exactly(seconds):
    assert parse_duration(format_duration(seconds)) == seconds


def test_a_negative_duration_is_refused():
    with pytest.raises(ValueError, match="negative"):
        format_duration(Decimal(-1))


WRITE_DURATION = "write a number with its unit, such as 800ms, 2.5s or 1h30m"
WRITE_ORDER = "write every unit once, the largest first, such as 800ms, 2.5s or 1h30m"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", f'"" is not a duration; {WRITE_DURATION}'),
        ("800", f'"800" has no unit; {WRITE_DURATION}'),
        ("1e3", f'"1e3" has no unit; {WRITE_DURATION}'),
        ("800 ms", '"800 ms" is not a duration; write 800ms'),
        ("5 minutes", f'"5 minutes" is not a duration; {WRITE_DURATION}'),
        ("800MS", f'"800MS" is not a duration; {WRITE_DURATION}'),
        ("1.5h30m", f'"1.5h30m" is not a duration; {WRITE_DURATION}'),
        ("-5s", f'"-5s" is not a duration; {WRITE_DURATION}'),
        ("1m2h", f'"1m2h" does not go from large units to small ones; {WRITE_ORDER}'),
        ("1h1h", f'"1h1h" does not go from large units to small ones; {WRITE_ORDER}'),
        ("123456789s", f'"123456789s" is not a duration; {WRITE_DURATION}'),
        ("٣s", f'"٣s" is not a duration; {WRITE_DURATION}'),
        ("1s\n", '"1s\\n" is not a duration; write 1s'),
        ("x" * 99, f'"{"x" * 60}…" is not a duration; {WRITE_DURATION}'),
    ],
)
def test_an_invalid_duration_is_refused_with_a_fix(text, message):
    with pytest.raises(ValueError) as refused:  # noqa: PT011  (the whole message is compared)
        parse_duration(text)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("text", "ratio"), [("99.9%", "0.999"), ("95%", "0.95"), ("0%", "0"), ("100%", "1")]
)
def test_shares_are_percentages(text, ratio):
    assert str(parse_share(text).normalize()) == ratio


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0.999", '"0.999" has no unit; write a percentage such as 99.9%'),
        ("99.9 %", '"99.9 %" is not a percentage; write 99.9%'),
        ("99,9%", '"99,9%" is not a percentage; write a percentage such as 99.9%'),
        ("-1%", '"-1%" is not a percentage; write a percentage such as 99.9%'),
        ("NaN%", '"NaN%" is not a percentage; write a percentage such as 99.9%'),
    ],
)
def test_an_invalid_share_is_refused_with_a_fix(text, message):
    with pytest.raises(ValueError) as refused:  # noqa: PT011  (the whole message is compared)
        parse_share(text)
    assert str(refused.value) == message


@pytest.mark.parametrize("text", ["9" * 32_000 + "x", "1m" * 16_000 + "x", "9 " * 16_000])
@pytest.mark.parametrize("parse", [parse_duration, parse_share])
def test_long_text_is_refused_in_linear_time(text, parse):
    started = process_time()
    with pytest.raises(BadValue):
        parse(text)
    assert process_time() - started < 2  # of a backtracking pattern: 30 s


@given(st.text(max_size=30) | st.from_regex(r"[0-9.]{1,8}[ywdhms%]{1,2}", fullmatch=True))
def test_any_text_is_read_or_refused(text):
    for parse in (parse_duration, parse_share):
        try:
            quantity = parse(text)
        except ValueError:
            continue
        assert quantity >= 0
