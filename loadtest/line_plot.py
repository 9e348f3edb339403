"""A line plot with axes as inline SVG, without a script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, isfinite, log10

_WIDTH, _HEIGHT = 480.0, 220.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 56.0, 12.0, 12.0, 34.0
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_TICKS = 5


@dataclass(frozen=True, slots=True)
class PlotLine:
    """Points of a line by x, and its name in the legend."""

    name: str
    points: Sequence[tuple[float, float]]


def line_plot(
    title: str, lines: Sequence[PlotLine], unit: str, x_unit: str, limit: float | None = None
) -> str:
    """Return a figure with its legend; ``limit`` is a horizontal line."""
    drawn = [line for line in lines if line.points]
    xs = sorted({x for line in drawn for x, _ in line.points})
    ys = [y for line in drawn for _, y in line.points if isfinite(y)]
    if not xs or not ys:
        return ""
    step = _step(max(ys))
    top = step * (floor(max(ys) / step) + 1)
    plot = _Plot(xs[0], xs[-1], top)
    marks = [*plot.grid(step), *plot.x_labels(xs)]
    if limit is not None and limit <= top:
        marks.append(plot.limit(limit))
    for number, line in enumerate(drawn):
        marks += plot.line(number, line)
    legend = " ".join(
        f'<span class="key line{number}">{escape(line.name)}</span>'
        for number, line in enumerate(drawn)
    )
    return (
        f"<figure><figcaption>{escape(title)} <small>{escape(unit)} by {escape(x_unit)}</small> "
        f'{legend}</figcaption><svg role="img" aria-label="{escape(title)}" '
        f'viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}">{"".join(marks)}</svg></figure>'
    )


def _step(highest: float) -> float:
    """Return a round distance between ticks."""
    wanted = (highest or 1.0) / _TICKS
    unit = 10.0 ** floor(log10(wanted))
    return unit * next(step for step in _STEPS if step * unit >= wanted * (1 - 1e-9))


@dataclass(frozen=True, slots=True)
class _Plot:
    """Positions in a plot of x from ``low`` to ``high`` and y from 0 to ``top``."""

    low: float
    high: float
    top: float

    def x(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - value / self.top * (_HEIGHT - _TOP - _BOTTOM)

    def grid(self, step: float) -> Iterator[str]:
        for number in range(round(self.top / step) + 1):
            value = number * step
            y = f"{self.y(value):.1f}"
            yield f'<path class="grid" d="M{_LEFT:g} {y}H{_WIDTH - _RIGHT:g}"/>'
            yield f'<text class="y" x="{_LEFT - 6:g}" y="{y}">{value:g}</text>'

    def x_labels(self, values: Sequence[float]) -> Iterator[str]:
        last = -1e9
        for value in values:
            x = self.x(value)
            if x - last >= 30:  # do not overlap
                last = x
                yield f'<text class="x" x="{x:.1f}" y="{_HEIGHT - 12:g}">{value:.3g}</text>'

    def limit(self, value: float) -> str:
        return f'<path class="limit" d="M{_LEFT:g} {self.y(value):.1f}H{_WIDTH - _RIGHT:g}"/>'

    def line(self, number: int, line: PlotLine) -> Iterator[str]:
        points = [(self.x(x), self.y(y)) for x, y in sorted(line.points) if isfinite(y)]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        yield f'<path class="line{number}" d="M{path}"/>'
        for x, y in points:
            yield f'<circle class="line{number}" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>'
