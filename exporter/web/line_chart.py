"""A small line chart as SVG, drawn without a script and colored by the page's style."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, inf, isfinite, isnan, log10

HEIGHT = 100.0
_HEADROOM = 1.08
_ROUND = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)


@dataclass(frozen=True, slots=True)
class ChartLine:
    """A line of a chart; ``name`` is its CSS class, and NaN a gap."""

    name: str
    values: Sequence[float]


def scale_top(lines: Sequence[ChartLine], threshold: float | None) -> float:
    """Return the upper end of the scale, a round number.

    The threshold is part of the scale unless it would flatten the lines.
    """
    finite = [value for line in lines for value in line.values if isfinite(value)]
    highest = max(finite, default=threshold or 1.0) or threshold or 1.0
    if threshold is not None and highest < threshold <= 4 * highest:
        highest = threshold
    wanted = highest * _HEADROOM
    unit = 10.0 ** floor(log10(wanted))
    return unit * next(step for step in _ROUND if step * unit >= wanted * (1 - 1e-9))


def line_chart(lines: Sequence[ChartLine], label: str, threshold: float | None) -> str:
    """Return a chart, oldest value on the left; ``label`` describes it to screen readers.

    A value that is infinite, beyond the last bucket boundary, is drawn at the top.
    """
    top = scale_top(lines, threshold)
    width = max(len(line.values) for line in lines) - 1
    marks = [
        f'<path class="{line.name}" d="{path}"/>'
        for line in lines
        if (path := " ".join(_path(line.values, top)))
    ]
    if threshold is not None and threshold <= top:
        marks.append(f'<path class="limit" d="M0 {_y(threshold, top)}H{width}"/>')
    return (
        f'<svg class="chart" role="img" aria-label="{escape(label)}" '
        f'viewBox="0 0 {width} {HEIGHT:g}" preserveAspectRatio="none">{"".join(marks)}</svg>'
    )


def _path(values: Sequence[float], top: float) -> Iterator[str]:
    """Yield path commands; a value between two gaps is a dash."""
    drawing = False
    for x, value in enumerate(values):
        if isnan(value):
            drawing = False
            continue
        y = _y(value, top)
        yield f"L{x} {y}" if drawing else f"M{x - 0.4:g} {y}h0.4"
        drawing = True


def _y(value: float, top: float) -> str:
    share = 1.0 if value == inf else min(1.0, value / top)
    return f"{HEIGHT * (1 - share):.1f}"
