"""Messages of the demo while it sets up."""

from __future__ import annotations

import io
import math
import os
import pty
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import pytest
from click.testing import CliRunner
from rich.console import Console

from lab import demo
from lab.incidents.catalogue import CATALOGUE
from lab.load import LoadSettings
from lab.repository import ModelSettings
from lab.stack import StackSettings
from lab.toolchain import Progress
from tokenslo.cli import cli

SETTINGS = StackSettings(
    Path("slo.yaml"), "chat", Path("out"), ModelSettings(), LoadSettings(seconds=math.inf)
)
SETUP = "starting Triton"


class Interrupted(Exception):  # noqa: N818 - as KeyboardInterrupt
    """Ends a demo before it starts its stack."""


@contextmanager
def starting(_: StackSettings, progress: Progress) -> Iterator[None]:
    progress(SETUP)
    raise Interrupted
    yield


@contextmanager
def terminal() -> Iterator[tuple[TextIO, int]]:
    """Yield a terminal to write to, and the descriptor from which to read what it shows."""
    terminal_fd, output_fd = pty.openpty()
    try:
        with os.fdopen(output_fd, "w") as file:
            yield file, terminal_fd
    finally:
        os.close(terminal_fd)


def begin(monkeypatch: pytest.MonkeyPatch, stdout: TextIO, stderr: TextIO) -> None:
    monkeypatch.setattr(demo, "running", starting)
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setenv("TERM", "xterm")
    with pytest.raises(Interrupted):
        demo.run(SETTINGS, seconds=1.0, console=Console(file=stdout))


def test_set_up_is_reported_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = io.StringIO()
    with terminal() as (stdout, seen):
        begin(monkeypatch, stdout, errors)
        assert SETUP in os.read(seen, 1000).decode()
    assert errors.getvalue() == ""


def test_set_up_is_reported_on_standard_error_if_output_is_a_pipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output = io.StringIO()
    with terminal() as (stderr, seen):
        begin(monkeypatch, output, stderr)
        assert SETUP in os.read(seen, 1000).decode()
    assert output.getvalue() == ""


def test_set_up_is_not_reported_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    output, errors = io.StringIO(), io.StringIO()
    begin(monkeypatch, output, errors)
    assert output.getvalue() + errors.getvalue() == ""


# Incidents


def usage_error(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["demo", *arguments])
    assert result.exit_code == 2
    return result.output


def test_an_unknown_incident_is_an_error_that_names_all() -> None:
    message = usage_error("--incident", "earthquake")
    assert "'earthquake' is not one of" in message
    assert all(repr(key) in message for key in CATALOGUE)


@pytest.mark.parametrize(
    "flag", [("--for", "60s"), ("--slo", "x.yaml"), ("--engine", "triton"), ("--no-prometheus",)]
)
def test_an_incident_decides_its_own_servers_and_time(flag: tuple[str, ...]) -> None:
    name = flag[0].replace("--no-", "--")
    expected = f"--incident decides {name} itself; leave out {name}"
    assert expected in usage_error("--incident", "healthy", *flag)


def test_help_names_the_incidents() -> None:
    words = CliRunner().invoke(cli, ["demo", "--help"], terminal_width=10_000).output
    assert all(key in words for key in CATALOGUE)
