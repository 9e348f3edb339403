"""The wheel, installed by pip, pipx and uv from the package index, on every tested Python."""

from __future__ import annotations

import faulthandler
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.installed_wheel import ROOT, build
from tests.integration.test_wheel import IMPORT_EVERY_MODULE

pytestmark = pytest.mark.long
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RELEASES = sorted(
    found[1]
    for each in PROJECT["classifiers"]
    if (found := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", each))
)
SLO = ROOT / "examples/chat/slo.yaml"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    faulthandler.cancel_dump_traceback_later()  # downloads may take longer than a test
    return build("wheel", tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def installers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the programs pipx and uv."""
    folder = tmp_path_factory.mktemp("installers")
    run(sys.executable, "-m", "venv", folder)
    run(folder / "bin/python", "-m", "pip", "install", "--quiet", "pipx", "uv")
    return folder / "bin"


def run(*command: str | Path, cwd: Path | None = None, **environ: str | Path) -> str:
    left_out = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    env: Mapping[str, str] = {
        **{name: value for name, value in os.environ.items() if name not in left_out},
        **{name: str(value) for name, value in environ.items()},
    }
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def use(program: Path, folder: Path) -> None:
    """Use an installed command."""
    assert run(program, "--version") == f"tokenslo {PROJECT['version']}\n"
    assert run(program, "validate", SLO).startswith("ok: chat")
    assert "complete" in run(program, "completion", "bash")
    run(program, "generate", SLO, "-o", folder / "generated", cwd=folder)
    assert (folder / "generated/alerts/chat.rules.yaml").exists()


def test_pipx_installs_the_command_and_its_manual(
    wheel: Path, installers: Path, tmp_path: Path
) -> None:
    homes = {f"PIPX_{name}": tmp_path / name for name in ("HOME", "BIN_DIR", "MAN_DIR")}
    run(installers / "pipx", "install", f"{wheel}[all]", **homes)
    use(tmp_path / "BIN_DIR/tokenslo", tmp_path)
    assert (tmp_path / "MAN_DIR/man1/tokenslo-generate.1").exists()


def test_uv_installs_the_command(wheel: Path, installers: Path, tmp_path: Path) -> None:
    homes = {f"UV_TOOL_{name}": tmp_path / name for name in ("DIR", "BIN_DIR")}
    run(installers / "uv", "tool", "install", "--python", sys.executable, f"{wheel}[all]", **homes)
    use(tmp_path / "BIN_DIR/tokenslo", tmp_path)
    assert (tmp_path / "DIR/tokenslo/share/man/man1/tokenslo-generate.1").exists()


@pytest.mark.parametrize("release", RELEASES)
def test_pip_installs_every_extra_on_each_release_of_python(
    wheel: Path, release: str, tmp_path: Path
) -> None:
    """A deprecation in an imported module is an error."""
    python = shutil.which(f"python{release}")
    if not python or subprocess.run([python, "-c", ""], capture_output=True).returncode:
        pytest.skip(f"python{release} is not installed")  # pyenv has programs for absent releases
    run(python, "-m", "venv", tmp_path / "venv")
    own = tmp_path / "venv/bin/python"
    run(own, "-m", "pip", "install", "--quiet", f"{wheel}[all]")
    count = run(own, "-W", "error", "-X", "dev", "-c", IMPORT_EVERY_MODULE, cwd=tmp_path)
    assert int(count) > 400
    use(tmp_path / "venv/bin/tokenslo", tmp_path)
