"""Completion of commands, options and files in the three shells."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tokenslo.cli import COMMANDS
from tokenslo.commands.completion import SHELLS

ROOT = Path(__file__).parent.parent
SCRIPTS = {
    "bash": """
source ./script
COMP_WORDS=({words})
COMP_CWORD={position}
_tokenslo_completion tokenslo
printf '%s\\n' "${{COMPREPLY[@]}}"
""",
    "zsh": """
compdef() {{ }}
compadd() {{ print -l -- ${{(P)argv[-1]}} }}
_describe() {{ print -l -- ${{(P)argv[3]}} }}
_path_files() {{ print files }}
words=({words})
CURRENT=$(( {position} + 1 ))
source ./script
_tokenslo_completion
""",
    "fish": "source script; complete -C '{line}'",
}
"""How a test requests completions of each shell, as its editor does when the user presses Tab."""


@pytest.fixture
def bin_folder(tmp_path: Path) -> Path:
    """Return a folder with a ``tokenslo`` of the checkout."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "tokenslo"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tokenslo "$@"\n')
    program.chmod(0o755)
    return folder


def run(command: list[str], folder: Path, **environ: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HOME": str(folder)} | environ
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("tokenslo val", "validate"),
        ("tokenslo generate --min-pr", "--min-prometheus"),
        ("tokenslo convert --to open", "openslo"),
    ],
)
def test_shells_complete_words(
    shell: str, line: str, expected: str, bin_folder: Path, tmp_path: Path
) -> None:
    program = shutil.which(shell)
    if not program:
        pytest.skip(f"needs {shell}")
    path = f"{bin_folder}:{os.environ['PATH']}"
    script = run([sys.executable, "-m", "tokenslo", "completion", shell], tmp_path)
    (tmp_path / "script").write_text(script)
    words = line.split()
    code = SCRIPTS[shell].format(words=" ".join(words), position=len(words) - 1, line=line)
    found = run([program, "-c", code], tmp_path, PATH=path)
    assert [row.split("\t")[0].split(":")[0] for row in found.split()][:1] == [expected]


def completions(words: str, tmp_path: Path) -> list[str]:
    """Return what ``tokenslo`` itself prints for bash: a type and a value per line."""
    variables = {
        "_TOKENSLO_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    return run([sys.executable, "-m", "tokenslo"], tmp_path, **variables).splitlines()


def test_an_empty_word_completes_to_every_command(tmp_path: Path) -> None:
    assert completions("tokenslo ", tmp_path) == [f"plain,{name}" for name in sorted(COMMANDS)]


@pytest.mark.parametrize(
    "words", ["tokenslo validate sl", "tokenslo exporter --slo sl", "tokenslo generate -o ou"]
)
def test_files_are_completed_by_the_shell(words: str, tmp_path: Path) -> None:
    [kind] = {each.split(",")[0] for each in completions(words, tmp_path)}
    assert kind in ("file", "dir")


def test_an_unknown_shell_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tokenslo", "completion", "tcsh"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'" in done.stderr
