"""The command ``tokenslo``: a table of commands, each loaded only when it is run.

Exit codes: 0 success, 1 a check failed (or the reader of the output closed it, which click
handles), 2 invalid input or a missing library, 3 an inconclusive gate, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

COMMANDS: Mapping[str, tuple[str, str]] = {
    "backtest": (
        "tokenslo.commands.backtest:backtest_",
        "Backtest alerts against Prometheus history.",
    ),
    "check-config": (
        "tokenslo.commands.check_config:check_config",
        "Check the configuration of LLM servers.",
    ),
    "completion": (
        "tokenslo.commands.completion:completion",
        "Print the completion script of a shell.",
    ),
    "convert": (
        "tokenslo.commands.convert:convert",
        "Convert Sloth, OpenSLO and Pyrra files.",
    ),
    "demo": (
        "tokenslo.commands.demo:demo",
        "Run the demo: a real Triton with a simulated engine.",
    ),
    "diagnose": (
        "tokenslo.commands.diagnose:diagnose_",
        "Diagnose an incident with the checks of the playbooks.",
    ),
    "doctor": (
        "tokenslo.commands.doctor:doctor",
        "Report which signals a live server provides.",
    ),
    "explain": (
        "tokenslo.commands.explain:explain",
        "Explain error budgets, and when each alert fires.",
    ),
    "exporter": (
        "tokenslo.commands.exporter:exporter",
        "Run the sidecar.",
    ),
    "gate": (
        "tokenslo.commands.gate:gate_",
        "Promote or abort a canary, or hold it.",
    ),
    "generate": (
        "tokenslo.commands.generate:generate",
        "Generate rules, dashboards, runbooks, gates and autoscaling.",
    ),
    "init": (
        "tokenslo.commands.init:init",
        "Write an initial SLO file from a live server.",
    ),
    "lint": (
        "tokenslo.commands.lint:lint",
        "Check the queries of dashboards and rule files.",
    ),
    "load": (
        "tokenslo.commands.load:load",
        "Run a controlled load test of an LLM server.",
    ),
    "report": (
        "tokenslo.commands.report:report",
        "Report usage and cost by tenant.",
    ),
    "schema": (
        "tokenslo.commands.schema:schema",
        "Print the JSON Schema of SLO files, for editors.",
    ),
    "server-config": (
        "tokenslo.commands.server_config:server_config",
        "Print the Triton settings that SLO files need.",
    ),
    "signals": (
        "tokenslo.commands.signals:signals",
        "Print the metrics of the sidecar and their methods.",
    ),
    "top": (
        "tokenslo.commands.top:top",
        "Show live sidecars in a terminal.",
    ),
    "validate": (
        "tokenslo.commands.validate:validate",
        "Check SLO files.",
    ),
}
"""Name: where it is, and its help, so that listing the commands imports none of them."""


_LONGEST_NAME = 100  # difflib's time grows with the square of a word


class LazyGroup(click.Group):
    """A group whose commands are those of :data:`COMMANDS`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, as shown."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in COMMANDS:
            return None
        module, _, function = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), function)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; suggest a similar name for an unknown one."""
        unknown = args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None
        if unknown:
            from difflib import get_close_matches

            near = get_close_matches(args[0][:_LONGEST_NAME].lower(), COMMANDS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete names of commands without importing the commands."""
        from click.shell_completion import CompletionItem

        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=COMMANDS[name][1]) for name in names), *options]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


def _print_version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        click.echo(f"tokenslo {version('tokenslo')}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Token-level metrics and SLOs for LLMs on NVIDIA Triton and TensorRT-LLM."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    sys.exit(_run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    """Run the command line; print an expected error as one line."""
    try:
        code = cli.main(arguments, prog_name="tokenslo", standalone_mode=False)
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "tokenslo"
        message = error.format_message().rstrip()
        end = "" if message.endswith((".", "?", "!")) else "."
        return _fail(f"{path}: {message}{end} Try `{path} --help`.")
    except click.ClickException as error:
        return _fail(f"tokenslo: {error.format_message()}")
    except (click.Abort, KeyboardInterrupt):
        return 130
    except ModuleNotFoundError as error:
        from tokenslo.extras import missing_extra

        extra = missing_extra(error)
        if not extra:
            raise
        return _fail(
            f"tokenslo: the library {error.name} is not installed. "
            f"Fix: pip install 'tokenslo[{extra}]'"
        )
    except ValueError as error:
        from slos.errors import InvalidFile

        if isinstance(error, InvalidFile):
            return _fail(str(error))
        raise
    except OSError as error:  # of standard output; commands report errors of files themselves
        _discard_unwritten_output()
        return _fail(f"tokenslo: {error.filename or 'standard output'}: {error.strerror or error}")
    return code if isinstance(code, int) else 0


def _discard_unwritten_output() -> None:
    """Discard what standard output cannot take: Python 3.14 would fail again at its exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str) -> int:
    from slos.terminal_text import terminal_text

    click.echo(terminal_text(message), err=True)
    return 2
