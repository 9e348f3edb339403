"""Hatchling build hook: install the packages of the checkout under the one namespace ``tokenslo``.

In the checkout the packages are top-level folders with short names (``exporter``, ``slos``, …).
In the wheel they are subpackages of ``tokenslo``, so that another distribution's package of the
same name neither shadows them nor is shadowed.  The hook copies each file to
``tokenslo/FOLDER/…`` and adds the prefix to its import statements.  No other byte changes, and
line numbers stay.

A module named in a string would keep its old name, so such a string fails the build.
An editable install puts the checkout itself on the path, with the folders as they are.
"""

from __future__ import annotations

import ast
import re
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NAMESPACE = "tokenslo"
_KEYWORD = re.compile(rb"(?:from|import)[ \t]+(?=\w)")
_IMPORTERS = {"__import__", "files", "find_spec", "import_module", "run_module"}
_LEFT_OUT = ("__pycache__", "*.pyc")


class NamespaceError(Exception):
    """Code that cannot move into the namespace, with its place and the fix."""


def moved(source: bytes, name: str, modules: Collection[str]) -> bytes:
    """Return the source of file ``name`` with its imports of ``modules`` in the namespace.

    ``modules`` are the dotted names of all modules and packages that move.
    """
    lines = source.splitlines(keepends=True)
    edits = []
    packages = {module for module in modules if "." not in module}
    for node in ast.walk(ast.parse(source, name)):
        for module in _named_in_strings(node, modules, packages):
            raise NamespaceError(
                f"{name}:{getattr(node, 'lineno', 1)}: a string names the module {module}. "
                "Fix: derive the name from __name__ or __package__."
            )
        if isinstance(node, ast.Import | ast.ImportFrom):
            keyword = _keyword(node, name, modules)
            if keyword:
                edits.append((node.lineno - 1, node.col_offset, keyword))
    for line, column, keyword in sorted(edits, reverse=True):
        old = _KEYWORD.match(lines[line], column)
        if not old:
            raise NamespaceError(f"{name}:{line + 1}: Fix: write the module's name on this line.")
        lines[line] = lines[line][:column] + keyword + lines[line][old.end() :]
    return b"".join(lines)


def _keyword(node: ast.Import | ast.ImportFrom, name: str, modules: Collection[str]) -> bytes:
    """Return what replaces the first word of the statement; nothing if it stays."""
    prefix = NAMESPACE.encode()
    if isinstance(node, ast.ImportFrom):
        return b"from " + prefix + b"." if node.module in modules and not node.level else b""
    if not any(alias.name in modules for alias in node.names):
        return b""
    alias = node.names[0]
    if len(node.names) == 1 and alias.asname:
        return b"import " + prefix + b"."
    if len(node.names) == 1 and "." not in alias.name:
        return b"from " + prefix + b" import "
    raise NamespaceError(
        f"{name}:{node.lineno}: this import binds the name of a top-level package. "
        "Fix: write one `from PACKAGE import MODULE` per package."
    )


def _named_in_strings(
    node: ast.AST, modules: Collection[str], packages: Collection[str]
) -> Iterator[str]:
    """Yield the modules, some of them top-level packages, that are named directly in ``node``."""
    for text in _strings(ast.iter_child_nodes(node)):
        if "." in text and text.rstrip(".") in modules and not text.startswith("."):
            yield text.rstrip(".")
    if isinstance(node, ast.Call) and node.args:
        function = node.func
        called = getattr(function, "attr", getattr(function, "id", ""))
        if called in _IMPORTERS:
            yield from (name for name in _strings(node.args[:1]) if name in packages)
    if isinstance(node, ast.List | ast.Tuple):
        for flag, module in pairwise(node.elts):
            if "-m" in _strings([flag]):
                yield from (name for name in _strings([module]) if name in packages)


def _strings(nodes: Iterable[ast.AST]) -> list[str]:
    return [
        node.value for node in nodes if isinstance(node, ast.Constant) and type(node.value) is str
    ]


def module_names(root: Path, packages: Iterable[str]) -> set[str]:
    """Return the dotted names of the packages and of all modules in them."""
    names = set()
    for package in packages:
        for path in (root / package).rglob("*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            names.add(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return names


def write_namespace(root: Path, packages: Iterable[str], target: Path) -> None:
    """Copy the namespace and the packages below it to the folder ``target``."""
    modules = module_names(root, packages)
    shutil.copytree(root / NAMESPACE, target, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    for package in packages:
        if [*target.glob(package), *target.glob(f"{package}.py")]:
            raise NamespaceError(f"{NAMESPACE}/{package} exists. Fix: rename it or {package}/.")
        shutil.copytree(root / package, target / package, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    for path in sorted(target.rglob("*.py")):
        name = path.relative_to(target).as_posix()
        path.write_bytes(moved(path.read_bytes(), name, modules))


class NamespaceWheel(BuildHookInterface[Any]):
    """Adds the moved packages to the wheel; ``packages`` in pyproject.toml names them."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the packages to a temporary folder and include it."""
        if version == "editable":
            return
        self._folder = tempfile.TemporaryDirectory(prefix="tokenslo-wheel-")
        target = Path(self._folder.name) / NAMESPACE
        write_namespace(Path(self.root), self.config["packages"], target)
        build_data["force_include"][str(target)] = NAMESPACE
        # One by one: the pattern that excludes the unmoved packages would exclude a folder's files.
        for page in sorted((Path(self.root) / "docs/man").glob("*.1")):
            build_data["shared_data"][str(page)] = f"share/man/man1/{page.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary folder."""
        if version != "editable":
            self._folder.cleanup()
