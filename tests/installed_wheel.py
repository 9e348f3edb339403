"""Build the distribution, and install it beside exactly the libraries of its extras, offline."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent


def build(target: str, folder: Path, root: Path = ROOT, **environ: str) -> Path:
    """Build the ``wheel`` or ``sdist`` of a source folder; return the file."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", folder]
    environment = os.environ | environ
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    [built] = folder.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return built


def requirements(*extras: str) -> Iterator[Requirement]:
    """Yield what pyproject.toml requires for the distribution with these extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for text in project["dependencies"]:
        yield Requirement(text)
    for extra in extras:
        for each in map(Requirement, project["optional-dependencies"][extra]):
            if each.name == project["name"]:
                yield from requirements(*each.extras)
            else:
                yield each


def closure(wanted: Iterable[Requirement]) -> dict[str, Requirement]:
    """Return requirements by distribution name, with those of the installed distributions."""
    found: dict[str, Requirement] = {}
    waiting = [*wanted]
    while waiting:
        one = waiting.pop()
        name = canonicalize_name(one.name)
        known = found.get(name)
        if known and one.extras <= known.extras:
            continue
        found[name] = one
        for text in distribution(name).requires or ():
            more = Requirement(text)
            marker = more.marker
            if not marker or any(marker.evaluate({"extra": each}) for each in (*one.extras, "")):
                waiting.append(more)
    return found


@dataclass(frozen=True)
class Installed:
    """A virtual environment that has the wheel."""

    folder: Path

    @property
    def python(self) -> Path:
        """The interpreter."""
        return self.folder / "bin/python"

    @property
    def site_packages(self) -> Path:
        """The folder of its packages."""
        return next(self.folder.glob("lib/python*/site-packages"))

    def run(
        self, *command: str | Path, cwd: Path, code: int = 0, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment."""
        program, *arguments = command
        done = subprocess.run(
            [self.folder / "bin" / program, *arguments],
            cwd=cwd,
            env=_environment() | (env or {}),
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done


def install(wheel: Path, folder: Path, *extras: str) -> Installed:
    """Install the wheel, and link the libraries of its extras, into an empty environment."""
    venv.create(folder, symlinks=True)
    installed = Installed(folder)
    for name in closure(requirements(*extras)):
        _link(name, installed.site_packages)
    pip = [sys.executable, "-m", "pip", "--python", installed.python, "install", "--no-deps"]
    quiet = ["--no-index", "--no-compile", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *quiet, wheel], check=True, env=_environment())
    return installed


def _link(name: str, site_packages: Path) -> None:
    found = distribution(name)
    for top in sorted({Path(file).parts[0] for file in found.files or () if ".." not in str(file)}):
        there, here = Path(str(found.locate_file(top))), site_packages / top
        if top == "__pycache__":
            continue
        if here.is_dir() and not here.is_symlink():
            raise AssertionError(here)
        if here.is_symlink() and here.resolve() != there.resolve():
            raise AssertionError(f"{here} is of two distributions")
        if not here.exists():
            here.symlink_to(there)


def _environment() -> dict[str, str]:
    left_out = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if name not in left_out}
