"""A folder for files of other tools, and commands on them."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest
from click.testing import CliRunner, Result

from slos.errors import InvalidFile
from slos.load import load_file
from slos.model import Service
from tokenslo.commands.convert import convert


class Folder:
    """A folder to write files into; names in messages are relative to it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, text: str, name: str = "slo.yaml") -> str:
        (self.path / name).write_text(dedent(text))
        return str(self.path / name)

    def convert(self, text: str, *arguments: str) -> Result:
        return CliRunner().invoke(convert, [self.write(text), *arguments])

    def warnings(self, text: str) -> list[str]:
        return self.relative(self.convert(text).stderr)

    def refusal(self, text: str) -> list[str]:
        """Return the problems of a file from which rules cannot be generated."""
        with pytest.raises(InvalidFile) as refused:
            load_file(self.write(text))
        return self.relative(str(refused.value))

    def relative(self, text: str) -> list[str]:
        return text.replace(f"{self.path}/", "").splitlines()

    def services(self, text: str) -> tuple[Service, ...]:
        return load_file(self.write(text), partly=True).services
