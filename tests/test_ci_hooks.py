"""The GitHub Action and the hooks of pre-commit: their commands, run as written."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
HOOKS = {each["id"]: each for each in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())}
CHAT = ROOT / "examples/chat"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a folder with an SLO file and everything that is generated from it."""
    folder = tmp_path / "repository"
    shutil.copytree(CHAT, folder)
    program = tmp_path / "runner/tokenslo/bin/tokenslo"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tokenslo "$@"\n')
    program.chmod(0o755)
    return folder


def run(command: list[str], repository: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    runner = repository.parent / "runner"
    path = f"{runner / 'tokenslo/bin'}:{os.environ['PATH']}"
    environment = {"PATH": path, "RUNNER_TEMP": str(runner), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command,
        cwd=repository,
        env=os.environ | environment | environ,
        capture_output=True,
        text=True,
    )


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def break_repository(command: str, repository: Path) -> str:
    """Make the command fail; return what its output must contain."""
    if command == "validate":
        edit(repository / "slo.yaml", "window: 28d", "window: 28 d")
        return "slo.yaml:"
    rules = repository / "alerts/chat.rules.yaml"
    edit(rules, "llm_slo_events_total", "llm_slo_event_total")
    return "alerts/chat.rules.yaml"


def hook_command(hook: dict[str, Any]) -> list[str]:
    files = ["slo.yaml"] if hook.get("pass_filenames", True) else []
    return [*shlex.split(hook["entry"]), *hook.get("args", []), *files]


@pytest.mark.parametrize("command", ["validate", "lint", "generate"])
def test_hooks_pass_and_fail(command: str, repository: Path) -> None:
    hook = HOOKS[f"tokenslo-{command}"]
    passed = run(hook_command(hook), repository)
    assert passed.returncode == 0, passed.stdout + passed.stderr
    expected = break_repository(command, repository)
    failed = run(hook_command(hook), repository)
    assert failed.returncode in (1, 2)
    assert expected in failed.stdout + failed.stderr


def test_validated_files_are_slo_files() -> None:
    pattern = re.compile(HOOKS["tokenslo-validate"]["files"])
    assert all(map(pattern.search, ("slo.yaml", "slos/slo.yml", "teams/a/slo-chat.json")))
    assert not any(map(pattern.search, ("chat.yaml", "slo.jsonnet", "slo/values.yaml")))


def test_the_hook_installs_the_libraries_of_the_generator() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    installed = HOOKS["tokenslo-generate"]["additional_dependencies"]
    assert installed == project["optional-dependencies"]["generate"]


def step_environment(step: dict[str, Any], **given: str) -> dict[str, str]:
    """Replace expressions in the environment of a step, as the runner does."""
    inputs = {name: str(each.get("default", "")) for name, each in ACTION["inputs"].items()}
    values = {f"inputs.{name}": text for name, text in (inputs | given).items()}
    values["github.action_path"] = str(ROOT)
    return {
        name: re.sub(r"\$\{\{ (.+?) \}\}", lambda found: values[found[1]], text)
        for name, text in step["env"].items()
    }


def run_action(repository: Path, **given: str) -> subprocess.CompletedProcess[str]:
    step = ACTION["runs"]["steps"][1]
    # The runner's own command for `shell: bash`.
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    return run(command, repository, **step_environment(step, **given))


@pytest.mark.parametrize(
    ("command", "files"),
    [("validate", "slo.yaml\n"), ("lint", "alerts\ndashboards\n"), ("generate", "slo.yaml")],
)
def test_the_action_passes_and_fails(command: str, files: str, repository: Path) -> None:
    passed = run_action(repository, command=command, files=files)
    assert passed.returncode == 0, passed.stdout + passed.stderr
    expected = break_repository(command, repository)
    failed = run_action(repository, command=command, files=files)
    assert failed.returncode in (1, 2)
    assert expected in failed.stdout + failed.stderr


def test_inputs_of_the_action_are_words_and_never_code(repository: Path) -> None:
    (repository / "a $(touch x); 'b'.yaml").write_text((repository / "slo.yaml").read_text())
    done = run_action(repository, command="validate", files="a $(touch x); 'b'.yaml\n-h\n")
    assert (done.returncode, (repository / "x").exists()) == (2, False)
    assert "-h: " in done.stderr
    done = run_action(repository, command="demo", files="x")
    assert (done.returncode, done.stderr) == (2, "")
    assert done.stdout == ("::error::command is 'demo'. Fix: write validate, lint or generate.\n")
    assert not any("${{" in step["run"] for step in ACTION["runs"]["steps"])
