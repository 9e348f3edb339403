"""Draw frames on a terminal and read its keys."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from rich.console import Console, Group
from rich.live import Live

from top.filters import FILTERS, SORTS, Selection, following, select
from top.frame import FrameOptions, frame
from top.scraper import SidecarScraper, scrape_forever, scrape_twice

_QUIT = frozenset({"q", "Q"})
_KEY = re.compile(r"\x1b[\[O][A-Z]|.", re.DOTALL)
_ARROWS = {"\x1b[A": "↑", "\x1bOA": "↑", "k": "↑", "\x1b[B": "↓", "\x1bOB": "↓", "j": "↓"}


async def print_frame(
    sidecars: Sequence[SidecarScraper], interval: float, console: Console
) -> None:
    """Print one frame over ``interval`` seconds, with the reasons of unavailable signals."""
    await scrape_twice(sidecars, interval)
    options = FrameOptions(console.width, ascii_only=console.options.ascii_only)
    for line in frame([one.rows for one in sidecars], Selection(), options):
        console.print(line, soft_wrap=True)


async def run(sidecars: Sequence[SidecarScraper], interval: float, console: Console) -> None:
    """Draw frames until the key q; the terminal is restored in every case."""
    view = _InteractiveView(sidecars, console)
    loop = asyncio.get_running_loop()
    with _keys(view.press), _signals(view.redraw, view.quit), view.live:
        scraping = loop.create_task(scrape_forever(sidecars, interval, view.redraw))
        try:
            await view.draw_until_quit(scraping)
        finally:
            scraping.cancel()
            await asyncio.wait({scraping})


class _InteractiveView:
    """The user's selection, and its frame on the screen."""

    def __init__(self, sidecars: Sequence[SidecarScraper], console: Console) -> None:
        self._sidecars, self._console = sidecars, console
        self._selection = Selection()
        self._changed, self._quit = asyncio.Event(), False
        self.live = Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop")

    def redraw(self) -> None:
        """Draw the next frame soon."""
        self._changed.set()

    def quit(self) -> None:
        """End the view."""
        self._quit = True
        self.redraw()

    def press(self, key: str) -> None:
        """Handle a key."""
        if key in _QUIT:
            self.quit()
        rows = (row for one in self._sidecars for row in one.rows.rows)
        shown = len(select(rows, self._selection))
        self._selection = pressed(self._selection, key, shown)
        self.redraw()

    async def draw_until_quit(self, scraping: asyncio.Task[None]) -> None:
        """Draw a frame after each change; raises the errors of scraping."""
        scraping.add_done_callback(lambda _: self.redraw())
        while not self._quit:
            if scraping.done():
                await scraping
            self._draw()
            await self._changed.wait()
            self._changed.clear()

    def _draw(self) -> None:
        size = self._console.size
        ascii_only = self._console.options.ascii_only
        options = FrameOptions(size.width, size.height, ascii_only=ascii_only)
        lines = frame([one.rows for one in self._sidecars], self._selection, options)
        self.live.update(Group(*lines), refresh=True)


def pressed(selection: Selection, key: str, rows: int) -> Selection:
    """Return the selection after a key; unknown keys change nothing."""
    match _ARROWS.get(key, key):
        case "s":
            return replace(selection, sort=following(selection.sort, SORTS), reverse=False, first=0)
        case "r":
            return replace(selection, reverse=not selection.reverse, first=0)
        case "f":
            return replace(selection, filter=following(selection.filter, FILTERS), first=0)
        case "u":
            return replace(selection, reasons=not selection.reasons)
        case "↑":
            return replace(selection, first=max(0, selection.first - 1))
        case "↓":
            return replace(selection, first=max(0, min(rows - 1, selection.first + 1)))
    return selection


@contextmanager
def _keys(press: Callable[[str], None]) -> Iterator[None]:
    """Call ``press`` with each key that is typed, without echo; restore the terminal at the end.

    Ctrl-Z is off: a stopped process could not restore the screen.
    """
    stream = sys.stdin
    if not stream.isatty():
        yield
        return
    loop, descriptor = asyncio.get_running_loop(), stream.fileno()
    before = termios.tcgetattr(descriptor)

    def read() -> None:
        typed = os.read(descriptor, 1024).decode(errors="ignore")
        for key in _KEY.findall(typed) or _QUIT:  # nothing: the terminal hung up
            press(key)

    try:
        tty.setcbreak(descriptor, termios.TCSANOW)
        mode = termios.tcgetattr(descriptor)
        mode[6][termios.VSUSP] = b"\0"
        termios.tcsetattr(descriptor, termios.TCSANOW, mode)
        loop.add_reader(descriptor, read)
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSAFLUSH, before)


@contextmanager
def _signals(redraw: Callable[[], None], leave: Callable[[], None]) -> Iterator[None]:
    """Draw again when the window is resized; end at SIGTERM and SIGHUP."""
    loop = asyncio.get_running_loop()
    handlers = {signal.SIGWINCH: redraw, signal.SIGTERM: leave, signal.SIGHUP: leave}
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)
