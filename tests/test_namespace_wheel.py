"""The build hook that moves the packages below ``tokenslo`` in the wheel."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tools.namespace_wheel import NamespaceError, module_names, moved, write_namespace

ROOT = Path(__file__).parent.parent
MODULES = {"slos", "slos.plan", "slos.imports", "slos.imports.sloth", "top"}


def hook_packages() -> list[str]:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    packages: list[str] = wheel["targets"]["wheel"]["hooks"]["custom"]["packages"]
    return packages


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from slos import plan\n", "from tokenslo.slos import plan\n"),
        ("from  slos.plan import (\n  P)\n", "from tokenslo.slos.plan import (\n  P)\n"),
        ("import slos\n", "from tokenslo import slos\n"),
        ("import slos as language\n", "import tokenslo.slos as language\n"),
        ("import slos.plan as plans  # why\n", "import tokenslo.slos.plan as plans  # why\n"),
        ("def f():\n\timport top\n", "def f():\n\tfrom tokenslo import top\n"),
        ("é = 1; import top; import os", "é = 1; from tokenslo import top; import os"),
        ("from tokenslo.top import x\r\n", "from tokenslo.top import x\r\n"),
        ("import slosh, topology\n", "import slosh, topology\n"),
        ('"""Code: from slos import plan"""\n', '"""Code: from slos import plan"""\n'),
        ("x = 'slos', 'slos.yaml', 'See slos.plan.'", "x = 'slos', 'slos.yaml', 'See slos.plan.'"),
    ],
)  # fmt: skip
def test_only_imports_of_moved_packages_get_the_prefix(source: str, expected: str) -> None:
    assert moved(source.encode(), "x.py", MODULES).decode() == expected


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import_module('slos.plan')", "x.py:1: a string names the module slos.plan. Fix: "),
        ("\nm = f'slos.imports.{name}'", "x.py:2: a string names the module slos.imports. Fix: "),
        ("importlib.import_module('top')", "x.py:1: a string names the module top. Fix: "),
        ("c = [python, '-m', 'top']", "x.py:1: a string names the module top. Fix: "),
        ("import os, slos", "x.py:1: this import binds the name of a top-level package. Fix: "),
        ("import slos.plan", "x.py:1: this import binds the name of a top-level package. Fix: "),
        ("from \\\n    slos import plan", "x.py:1: Fix: write the module's name on this line."),
    ],
)
def test_code_that_cannot_move_fails_the_build(source: str, message: str) -> None:
    with pytest.raises(NamespaceError) as raised:
        moved(source.encode(), "x.py", MODULES)
    assert str(raised.value).startswith(message)


def test_a_package_of_the_name_of_a_module_fails_the_build(tmp_path: Path) -> None:
    for name in ("tokenslo/top.py", "top/__init__.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    with pytest.raises(NamespaceError, match=r"tokenslo/top exists\. Fix: rename it or top/"):
        write_namespace(tmp_path, ["top"], tmp_path / "wheel")


def test_the_hook_moves_every_package_of_the_checkout() -> None:
    found = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert {*hook_packages()} == found - {"tokenslo", "tests", "bench", "tools"}
    assert "slos.imports.sloth" in module_names(ROOT, ["slos"])
