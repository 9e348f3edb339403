"""Run the commands of a page in a folder of their own."""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree
from tempfile import TemporaryDirectory
from unittest.mock import patch

from tokenslo.cli import main

ROOT = Path(__file__).parents[2]
_SHELL = re.compile(r"[|&;<>$`*?~]")
_LIMIT_SECONDS = 60


class CommandError(Exception):
    """A command ended with another exit code than its page states."""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A folder with the files that a page shows, and the repository's ``examples/``."""

    folder: Path

    def write(self, name: str, text: str) -> None:
        """Write a file that the page shows."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def run(self, command: str, exit_code: int = 0) -> str:
        """Return the output of a command, both streams together.

        Raises CommandError if it ends with another exit code.
        """
        words = shlex.split(command)
        plain = words[0] == "tokenslo" and not _SHELL.search(command)
        code, output = _in_process(words[1:], self.folder) if plain else self._shell(command)
        if code != exit_code:
            raise CommandError(f"`{command}` ends with {code} instead of {exit_code}:\n{output}")
        lines = "".join(f"{line.rstrip()}\n" for line in output.splitlines())
        return lines.replace(f"{self.folder}/", "")

    def _shell(self, command: str) -> tuple[int, str]:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=os.environ
            | {"COLUMNS": "80", "PATH": f"{self.folder / '.bin'}:{os.environ['PATH']}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_LIMIT_SECONDS,
            check=False,
        )
        return done.returncode, done.stdout


def _in_process(arguments: list[str], folder: Path) -> tuple[int, str]:
    """Run ``tokenslo``; importing it once for all commands of all pages saves most of the time."""
    output = io.StringIO()
    code = 0
    with (
        chdir(folder),
        patch.dict(os.environ, {"COLUMNS": "80"}),
        redirect_stdout(output),
        redirect_stderr(output),
    ):
        try:
            main(arguments)
        except SystemExit as end:
            code = int(end.code or 0)
    return code, output.getvalue()


@contextmanager
def sandbox() -> Iterator[Sandbox]:
    """Create a folder for the commands of one page; delete it afterwards."""
    with TemporaryDirectory() as name:
        folder = Path(name).resolve()
        copytree(ROOT / "examples", folder / "examples")
        (folder / ".bin").mkdir()
        program = folder / ".bin/tokenslo"
        program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m tokenslo "$@"\n')
        program.chmod(0o755)
        yield Sandbox(folder)
