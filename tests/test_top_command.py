"""``tokenslo top`` in a pseudo-terminal and in a pipe, against real sidecars."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.fake_server import fake_server
from tests.fake_triton import fake_triton
from tests.polling import until
from tests.test_exporter_command import SLO, chat, sidecar
from tokenslo.cli import main
from top.columns import DASH

ROOT = Path(__file__).parent.parent
ALTERNATE, PRIMARY = "\x1b[?1049h", "\x1b[?1049l"
SHOW_CURSOR = "\x1b[?25h"
CLOSED = "http://127.0.0.1:9"


@asynccontextmanager
async def served(tmp_path: Path) -> AsyncIterator[str]:
    """Run a real sidecar beside a stand-in for Triton; yield its URL."""
    file = tmp_path / "slo.yaml"
    file.write_text(SLO)
    async with fake_triton(**chat()) as triton, sidecar(triton, "--slo", str(file)) as (_, url):
        yield url


@dataclass
class Terminal:
    """A pseudo-terminal with ``tokenslo top`` in it, and everything that it has drawn."""

    ours: int
    theirs: int
    process: subprocess.Popen[bytes]
    drawn: str = field(default="")

    def press(self, keys: str) -> None:
        os.write(self.ours, keys.encode())

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    async def shows(self, text: str) -> str:
        """Wait for text in what is drawn from now on; return the frame up to it."""
        start = len(self.drawn)

        async def found() -> str:
            plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.drawn[start:])
            return plain if text in plain else ""

        return await until(found)

    async def ends(self) -> int:
        return await asyncio.to_thread(self.process.wait, 20)

    def mode(self) -> list[object]:
        return termios.tcgetattr(self.theirs)


@contextmanager
def terminal(*arguments: str, columns: int = 80, rows: int = 24) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    environ = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-c", _IN_A_SESSION, "top", *arguments],
        stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, start_new_session=True,
        env={**environ, "TERM": "xterm-256color", "PYTHONUTF8": "1"},
    )  # fmt: skip
    one = Terminal(ours, theirs, process)
    loop = asyncio.get_running_loop()

    def read() -> None:
        one.drawn += os.read(ours, 65536).decode(errors="replace")

    loop.add_reader(ours, read)
    try:
        yield one
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        loop.remove_reader(ours)
        os.close(ours)
        os.close(theirs)


# Makes the terminal the controlling one, so that Ctrl-C and resizing send signals.
_IN_A_SESSION = """
import fcntl, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from tokenslo.cli import main
main()
"""


async def test_keys_sort_filter_and_quit(tmp_path: Path) -> None:
    async with served(tmp_path) as url:
        with terminal(url, "--interval", "0.2") as screen:
            before = screen.mode()
            first = await screen.shows("chat/1")
            assert "sort MISSED▼" in first
            assert "collecting" in first
            await screen.shows("last 0.")
            assert screen.mode() != before
            screen.press("s")
            await screen.shows("sort MODEL▲")
            screen.press("r")
            await screen.shows("sort MODEL▼")
            screen.press("f")
            await screen.shows("filter active")
            screen.press("u")
            await screen.shows("disconnects of chat/1: server metrics do not show")
            screen.resize(160, 40)
            wide = await screen.shows("TTFT p50")
            assert "PAUSED" in wide + await screen.shows("PAUSED")
            screen.press("q")
            assert await screen.ends() == 0
            assert screen.mode() == before
            assert ALTERNATE in screen.drawn
            assert screen.drawn.rindex(PRIMARY) > screen.drawn.rindex(ALTERNATE)
            assert SHOW_CURSOR in screen.drawn


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0), (signal.SIGHUP, 0)]
)
async def test_a_signal_restores_the_terminal(number: signal.Signals, code: int) -> None:
    with terminal(CLOSED, "--interval", "0.2") as screen:
        before = screen.mode()
        await screen.shows("refused the connection")
        if number == signal.SIGINT:
            screen.press("\x03")  # Ctrl-C
        else:
            screen.process.send_signal(number)
        assert await screen.ends() == code
        assert screen.mode() == before
        assert screen.drawn.rindex(PRIMARY) > screen.drawn.rindex(ALTERNATE)
        assert "Traceback" not in screen.drawn


async def test_a_sidecar_that_ends_becomes_a_row_with_its_error(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(served(tmp_path))
        with terminal(url, "--interval", "0.2", columns=40, rows=8) as screen:
            await screen.shows("1 sidecar  1 model")
            screen.press("\x1b[B\x1b[Ax")  # scrolls one row, and a key without a meaning
            await screen.shows("chat/1")
            await stack.aclose()
            await screen.shows("1 sidecar, 1 down")
            await screen.shows(f"✗ {url}/ refused")


def once(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tokenslo", "top", *arguments],
        cwd=ROOT, capture_output=True, text=True, env={**os.environ, **environ}, check=False,
    )  # fmt: skip


async def test_a_pipe_gets_one_plain_frame(tmp_path: Path) -> None:
    async with served(tmp_path) as url:
        arguments = (f"{url}/metrics", CLOSED, "--interval", "0.2")
        piped = await asyncio.to_thread(once, *arguments, COLUMNS="100")
        forced = await asyncio.to_thread(once, *arguments, "--once", PYTHONUTF8="0", LC_ALL="POSIX")
    assert (piped.returncode, piped.stderr) == (0, "")
    assert "\x1b" not in piped.stdout
    top, heading, down, row = piped.stdout.splitlines()[:4]
    assert top.startswith("tokenslo top  2 sidecars, 1 down  1 model  last 0.")
    assert heading.split()[:4] == ["MODEL", "SIDECAR", "REQ/S", "TOK/S"]
    assert "refused the connection: nothing listens there" in down
    assert row.split()[0] == "chat/1"
    cells = dict(zip(re.split(r" +(?!p95|p50|CACHE)", heading), row.split(), strict=True))
    assert (cells["RUN"], cells["KV CACHE"], cells["DISC/S"]) == ("2", DASH, DASH)
    assert "Fix: " in piped.stdout
    assert forced.returncode == 0


def test_no_sidecar_at_all_is_exit_code_2() -> None:
    done = once(CLOSED, f"{CLOSED}/metrics", "--once")
    assert "  1 sidecar, 1 down  " in done.stdout
    assert done.returncode == 2
    assert "✗ http://127.0.0.1:9/ refused the connection: nothing listens there" in done.stdout


async def test_another_server_is_not_taken_for_a_sidecar() -> None:
    async with fake_triton(**chat()) as triton:
        done = await asyncio.to_thread(once, triton.url, "--once")
    assert done.returncode == 2
    assert f"✗ {triton.url}/ answered 404" in done.stdout


@pytest.mark.parametrize("url", ["localhost:9400", "ftp://x", "http://", "http://[", "http://x:y"])
def test_a_malformed_url_is_one_clear_error(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["top", "http://127.0.0.1:9", url])
    said = capsys.readouterr()
    assert (stopped.value.code, said.out) == (2, "")
    assert "is not an http or https URL" in said.err
    assert len(said.err.splitlines()) == 1


async def test_a_status_page_of_another_version_is_one_clear_error() -> None:
    async with fake_server({"/": {"tokenslo": "0.0.1"}, "/metrics": ""}) as server:
        done = await asyncio.to_thread(once, server.url, "--once")
    assert (done.returncode, done.stderr) == (2, "")
    assert f"✗ {server.url} is not of this version of tokenslo: KeyError" in done.stdout
