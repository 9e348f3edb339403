"""The command line: help, usage errors, pipes and exit codes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from tokenslo import cli
from tokenslo.cli import COMMANDS
from tokenslo.version import VERSION

ROOT = Path(__file__).parent.parent

HELP = """\
Usage: tokenslo [OPTIONS] [COMMAND] [ARGS]...

  Token-level metrics and SLOs for LLMs on NVIDIA Triton and TensorRT-LLM.

Options:
  --version   Show the version and exit.
  -h, --help  Show this message and exit.

Commands:
  backtest       Backtest alerts against Prometheus history.
  check-config   Check the configuration of LLM servers.
  completion     Print the completion script of a shell.
  convert        Convert Sloth, OpenSLO and Pyrra files.
  demo           Run the demo: a real Triton with a simulated engine.
  diagnose       Diagnose an incident with the checks of the playbooks.
  doctor         Report which signals a live server provides.
  explain        Explain error budgets, and when each alert fires.
  exporter       Run the sidecar.
  gate           Promote or abort a canary, or hold it.
  generate       Generate rules, dashboards, runbooks, gates and autoscaling.
  init           Write an initial SLO file from a live server.
  lint           Check the queries of dashboards and rule files.
  load           Run a controlled load test of an LLM server.
  report         Report usage and cost by tenant.
  schema         Print the JSON Schema of SLO files, for editors.
  server-config  Print the Triton settings that SLO files need.
  signals        Print the metrics of the sidecar and their methods.
  top            Show live sidecars in a terminal.
  validate       Check SLO files.
"""


def tokenslo(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tokenslo", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        env=os.environ | {"COLUMNS": "80"},
        **options,  # type: ignore[call-overload]
    )


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)])
def test_top_level_help_lists_the_commands(arguments: tuple[str, ...]) -> None:
    done = tokenslo(*arguments)
    assert (done.returncode, done.stdout, done.stderr) == (0, HELP, "")


def test_the_version_is_that_of_the_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == VERSION


def test_version_option_prints_the_version() -> None:
    done = tokenslo("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("tokenslo 0.")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_exists_and_has_help(name: str) -> None:
    command = cli.cli.get_command(click.Context(cli.cli), name)
    assert command is not None
    assert command.name == name
    assert command.help
    assert COMMANDS[name][1].endswith(".")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("exprter",), "tokenslo: No such command 'exprter'. Did you mean 'exporter'? "),
        (("x" * 100_000,), "tokenslo: No such command 'xxx"),
        (
            ("generate", "--outputt", "x"),
            "tokenslo generate: No such option '--outputt'. Did you me",
        ),
        (
            ("generate", "a", "-o", "b", "--only", "alert"),
            "tokenslo generate: Invalid value for '--",
        ),
        (("server-config", "--nope"), "tokenslo server-config: No such option '--nope'. "),
        (("server-config",), "tokenslo server-config: Missing argument 'FILE...'. "),
        (("exporter",), "command line: no source is configured. Fix: "),
        (("server-config", "nowhere.yaml"), "nowhere.yaml: cannot be read: No such file"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(arguments: tuple[str, ...], message: str) -> None:
    done = tokenslo(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1


def test_every_problem_of_every_file_is_reported(tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text("")
    done = tokenslo("server-config", str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml"))
    assert done.returncode == 2
    assert [Path(line.split(":")[0]).name for line in done.stderr.splitlines()] == [
        "a.yaml",
        "b.yaml",
    ]


def test_a_closed_output_pipe_causes_no_traceback() -> None:
    code = """
import click
from tokenslo import cli
cli.LazyGroup.get_command = lambda *_: click.Command("x", callback=lambda: click.echo("x" * 10**6))
cli.main(["x"])
"""
    measurement, writing = os.pipe()
    os.close(measurement)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, timeout=30
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


def test_output_to_a_full_device_is_one_error_line() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tokenslo", "--version"],
            cwd=ROOT, stdout=full, stderr=subprocess.PIPE, timeout=30,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (
        2,
        b"tokenslo: standard output: No space left on device\n",
    )


def test_ctrl_c_is_exit_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def interrupted() -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(cli.LazyGroup, "get_command", lambda *_: interrupted)
    with pytest.raises(SystemExit) as exited:
        cli.main(["exporter"])
    assert exited.value.code == 130


def test_a_check_that_fails_decides_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def checks() -> None:
        raise click.exceptions.Exit(1)

    monkeypatch.setattr(cli.LazyGroup, "get_command", lambda *_: checks)
    with pytest.raises(SystemExit) as exited:
        cli.main(["generate"])
    assert exited.value.code == 1
