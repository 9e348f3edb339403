"""Render the rows of all sidecars as one frame of lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from textwrap import wrap

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from slos.terminal_text import terminal_text
from top.columns import (
    COLUMNS,
    DASH,
    GAP,
    TopColumn,
    cell_text,
    columns_for,
    main_width,
    total_width,
)
from top.filters import NAMES, Selection, select
from top.rows import ModelRow, SidecarRows

_MODEL = 13
_LONGEST_MODEL = 40
_LONGEST_SIDECAR = 28
_FEWEST_ROWS = 3
_ASCII = str.maketrans(
    {DASH: "-", "▇": "#", "▁": ".", "…": ".", "▲": "^", "▼": "v", "↑": "^", "↓": "v", "✗": "x"}
)


@dataclass(frozen=True, slots=True)
class FrameOptions:
    """Options of a frame; without ``height``, it has all rows and no keys."""

    width: int
    height: int | None = None
    ascii_only: bool = False


@dataclass(frozen=True, slots=True)
class _TableLayout:
    """The widths of the name columns, the columns of numbers, and the gap before each of these.

    With ``numbers``, sidecars have a number instead of their address.
    """

    model: int
    sidecar: int
    numbers: bool
    columns: Sequence[TopColumn]
    gap: int


def frame(
    sidecars: Sequence[SidecarRows], selection: Selection, options: FrameOptions
) -> list[Text]:
    """Return the lines of a frame, each at most as wide as the terminal."""
    rows = select((row for one in sidecars for row in one.rows), selection)
    layout = _layout(sidecars, options.width)
    top = [_summary(sidecars, rows), *_legend(sidecars, layout, options.width)]
    top.append(_heading(layout, selection))
    body = [*_errors(sidecars, layout), *_lines(rows, sidecars, layout)]
    if not body:
        body = [Text(_nothing(sidecars, selection), "dim")]
    bottom = list(_below(sidecars, rows, selection, options))
    if options.height is None:
        lines = [*top, *body, *bottom]
    else:
        lines = _fitted(top, body, bottom, selection.first, options.height - 1)
        lines.append(_footer(selection, options.width))
    for line in lines:
        line.plain = terminal_text(line.plain)
        line.truncate(options.width, overflow="ellipsis")
        line.rstrip()
        if options.ascii_only:
            line.plain = line.plain.translate(_ASCII)
    return lines


def _layout(sidecars: Sequence[SidecarRows], width: int) -> _TableLayout:
    models = [cell_len(row.name) for one in sidecars for row in one.rows]
    longest = min(_LONGEST_MODEL, max([len("MODEL"), *models]))
    several = len(sidecars) > 1
    addresses = max((cell_len(one.sidecar) for one in sidecars), default=0)
    sidecar, numbers = 0, False
    if several:
        sidecar = min(_LONGEST_SIDECAR, max(len("SIDECAR"), addresses))
        numbers = width < max(_MODEL, longest) + GAP + sidecar + main_width()
        sidecar = len(str(len(sidecars))) if numbers else sidecar
    names = sidecar + GAP if several else 0
    room = width - names
    reserved = max(_MODEL, longest)  # a long name is worth more than a median
    columns = columns_for(room - (reserved if reserved + main_width() <= room else _MODEL))
    model = min(longest, room - total_width(columns))
    gap = 2 * GAP if longest + total_width(columns, 2 * GAP) <= room else GAP
    return _TableLayout(max(1, model), sidecar, numbers, columns, gap)


def _summary(sidecars: Sequence[SidecarRows], rows: Sequence[ModelRow]) -> Text:
    down = sum(bool(one.error) for one in sidecars)
    total = sum(len(one.rows) for one in sidecars)
    models = plural(total, "model") if len(rows) == total else f"{len(rows)} of {total} models"
    span = max((one.seconds for one in sidecars), default=0.0)
    parts = [
        plural(len(sidecars), "sidecar") + (f", {down} down" if down else ""),
        models,
        f"last {span:.{0 if span >= 10 else 1}f} s" if span else "collecting",
    ]
    text = Text("tokenslo top", "bold")
    for part in parts:
        text.append(f"  {part}", "bold red" if "down" in part else "not bold")
    return text


def plural(number: int, noun: str) -> str:
    """Write a count and its noun: ``1 model``, ``2 models``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def sort_name(key: str) -> str:
    """Return the name of a sort key as the header of its column has it."""
    return next((column.title for column in COLUMNS if column.key == key), key.upper())


def _legend(sidecars: Sequence[SidecarRows], layout: _TableLayout, width: int) -> list[Text]:
    """List the numbers of sidecars, where their addresses do not fit."""
    if not layout.numbers:
        return []
    entries = [f"{number} {one.sidecar}" for number, one in enumerate(sidecars, 1)]
    lines = [""]
    for entry in entries:
        joined = f"{lines[-1]}  {entry}" if lines[-1] else entry
        lines[-1:] = [joined] if cell_len(joined) <= width else [lines[-1], entry]
    return [Text(line, "dim") for line in lines]


def _heading(layout: _TableLayout, selection: Selection) -> Text:
    text = Text(style="bold underline")
    if layout.sidecar and layout.numbers:
        text.append("#".rjust(layout.sidecar) + " ")
    text.append(set_cell_size("MODEL", layout.model), _sorted("model", selection))
    if layout.sidecar and not layout.numbers:
        name = set_cell_size("SIDECAR", layout.sidecar)
        text.append(" ").append(name, _sorted("sidecar", selection))
    for column in layout.columns:
        title = column.title.rjust(column.width)
        text.append(" " * layout.gap).append(title, _sorted(column.key, selection))
    return text


def _sorted(key: str, selection: Selection) -> str:
    return "reverse" if key == selection.sort else ""


def _lines(
    rows: Sequence[ModelRow], sidecars: Sequence[SidecarRows], layout: _TableLayout
) -> Iterator[Text]:
    numbers = {one.sidecar: str(number) for number, one in enumerate(sidecars, 1)}
    models = _shortened((row.name for one in sidecars for row in one.rows), layout.model)
    addresses = _shortened(numbers, layout.sidecar)
    for row in rows:
        text = Text()
        if layout.sidecar and layout.numbers:
            text.append(numbers[row.sidecar].rjust(layout.sidecar) + " ", "dim")
        text.append(models[row.name], "bold" if row.missed else "")
        if layout.sidecar and not layout.numbers:
            text.append(" ").append(addresses[row.sidecar], "dim")
        for column in layout.columns:
            text.append(" " * layout.gap).append_text(cell_text(column, row))
        yield text


def _shortened(names: Iterable[str], width: int) -> dict[str, str]:
    """Return names in exactly this width, cropped where they stay different, if they can."""
    distinct = list(dict.fromkeys(names))
    if all(cell_len(name) <= width for name in distinct):
        return {name: set_cell_size(name, width) for name in distinct}
    pairs = zip(min(distinct), max(distinct), strict=False)
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    half = max(0, width - 1) // 2
    crops: tuple[Callable[[str], str], ...] = (
        lambda name: name,
        lambda name: f"…{name[common:]}",
        lambda name: f"{name[:half]}…{name[len(name) - half :]}",
        lambda name: f"…{name[len(name) - max(0, width - 1) :]}",
    )
    for crop in crops:
        short = {
            name: _cropped(name if cell_len(name) <= width else crop(name), width)
            for name in distinct
        }
        if len(set(short.values())) == len(distinct):
            return short
    return {name: _cropped(name, width) for name in distinct}


def _cropped(text: str, width: int) -> str:
    if cell_len(text) > width:
        text = f"{set_cell_size(text, max(0, width - 1))}…"
    return set_cell_size(text, width)


def _errors(sidecars: Sequence[SidecarRows], layout: _TableLayout) -> Iterator[Text]:
    for number, one in enumerate(sidecars, 1):
        if one.error:
            text = Text(style="red")
            if layout.numbers:
                text.append(str(number).rjust(layout.sidecar) + " ")
            yield text.append(f"✗ {one.error}")


def _nothing(sidecars: Sequence[SidecarRows], selection: Selection) -> str:
    if any(one.rows for one in sidecars):
        return f"no model passes the filter: {selection.filter}"
    waiting = any(not one.answered and not one.error for one in sidecars)
    return "collecting" if waiting else "no sidecar reports a model"


def _below(
    sidecars: Sequence[SidecarRows],
    rows: Sequence[ModelRow],
    selection: Selection,
    options: FrameOptions,
) -> Iterator[Text]:
    """Yield problems, missed objectives, and the reasons of unavailable signals."""
    wide = options.width
    problems = [*_problems(sidecars), *_missed(rows, several=len(sidecars) > 1)]
    if problems:
        yield Text()
        yield from problems
    everything = options.height is None
    if everything or selection.reasons:
        found = list(_reasons(rows, wide))
        if any(cell.estimate for row in rows for cell in row.cells.values()):
            found.append(Text("~ estimate: the sidecar's status page states the method", "dim"))
        if found:
            yield Text()
            yield from found


def _problems(sidecars: Sequence[SidecarRows]) -> Iterator[Text]:
    for one in sidecars:
        for problem in one.problems:
            yield Text(f"! {one.sidecar} {problem}", "yellow")


def _missed(rows: Sequence[ModelRow], *, several: bool) -> Iterator[Text]:
    for row in rows:
        for one in row.missed:
            good, bad = one.good_events or 0.0, one.bad_events or 0.0
            share = f"{good / (good + bad):.1%} good in 1 min, " if good + bad else ""
            where = f" on {row.sidecar}" if several else ""
            text = Text("✗ ", "red").append(f"{one.service}/{one.objective}", "bold red")
            target = f" {share}target {one.target}: {row.name}{where}"
            yield text.append(target, "default")


def _reasons(rows: Iterable[ModelRow], width: int) -> Iterator[Text]:
    """Yield the reason and the fix of each unavailable signal, once for all models."""
    titles = {column.key: column.signal for column in COLUMNS}
    signals: dict[tuple[str, str], dict[str, None]] = {}
    models: dict[tuple[str, str], dict[str, None]] = {}
    for row in rows:
        for key, cell in row.cells.items():
            if cell.state == "unavailable":
                cause = cell.reason, cell.fix
                signals.setdefault(cause, {})[titles[key]] = None
                models.setdefault(cause, {})[row.name] = None
    for cause, names in signals.items():
        yield from _reason(", ".join(names), cause, models[cause], width)


def _reason(
    signals: str, cause: tuple[str, str], models: Mapping[str, None], width: int
) -> Iterator[Text]:
    named = list(models)[:3]
    more = f" and {len(models) - 3} more" if len(models) > 3 else ""
    reason, fix = cause
    text = f"{DASH} {signals} of {', '.join(named)}{more}: {reason or 'no reason given'}"
    for part in (text, f"  Fix: {fix}" if fix else ""):
        for line in wrap(part, max(20, width), subsequent_indent="  ", break_on_hyphens=False):
            yield Text(line, "dim")


def _fitted(
    top: list[Text], body: list[Text], bottom: list[Text], first: int, height: int
) -> list[Text]:
    """Fit a frame into a height: the rows scroll, and the part below keeps a third."""
    room = max(_FEWEST_ROWS, height - len(top))
    below = min(len(bottom), max(room // 3, room - len(body)))
    space = max(1, room - below)
    first = min(first, max(0, len(body) - space))
    shown = body[first : first + space]
    if first + space < len(body):
        hidden = len(body) - first - space + 1
        shown[-1] = Text(f"… {plural(hidden, 'more row')}", "dim")
    lower = bottom[:below]
    if below < len(bottom) and lower:
        lower[-1] = Text(f"… {plural(len(bottom) - below + 1, 'more line')}", "dim")
    lines = [*top, *shown, *lower][:height]
    return [*lines, *(Text() for _ in range(height - len(lines)))]


def _footer(selection: Selection, width: int) -> Text:
    arrow = "▲" if selection.reverse != (selection.sort in NAMES) else "▼"
    keys = {
        "q": "quit",
        "s": f"sort {sort_name(selection.sort)}{arrow}",
        "r": "reverse",
        "f": f"filter {selection.filter}",
        "u": "reasons",
        "↑↓": "scroll",
    }
    text = Text()
    for key, action in keys.items():
        style = "bold" if key == "u" and selection.reasons else ""
        part = Text(" ").append(key, "bold reverse").append(f" {action} ", style)
        if text.cell_len + part.cell_len <= width:
            text.append_text(part)
    return text
