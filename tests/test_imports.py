"""Import directions: packages are layers, and imports go down only."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Everything else is forbidden; `lab` is used by the demo command, tests and bench.
MAY_IMPORT = {
    "documents": set(),
    "promql": {"documents"},
    "slos": {"promql", "documents"},
    "alerts": {"slos", "promql"},
    "dashboards": {"slos", "promql"},
    "runbooks": {"slos", "promql"},
    "diagnosis": {"runbooks", "slos", "promql"},
    "gates": {"slos", "promql"},
    "autoscaling": {"slos", "promql"},
    "admission": {"slos", "promql", "documents"},
    "config_checks": {"admission", "slos", "promql", "documents"},
    "exporter": {"admission", "config_checks", "slos", "promql"},
    "loadtest": {"slos", "promql"},
    "top": {"exporter", "slos", "promql"},
    "usage": {"slos", "promql"},
    "tokenslo": {
        *("exporter", "alerts", "dashboards", "runbooks", "diagnosis", "top", "slos", "promql"),
        *("admission", "autoscaling", "config_checks", "gates", "loadtest", "usage"),
    },
}
ALSO = {"tokenslo/commands/demo.py": {"lab"}}

# The layers of the sidecar, lowest first.
GROUND = {
    *("background", "connection_limit", "cooperative", "families", "gateway_names", "genai"),
    *(
        "http_server",
        "interpreter",
        "log",
        "methods",
        "outcome_rules",
        "process_metrics",
        "reloaded_files",
        "render_gate",
        "samples",
        "signal_catalogue",
        "sockets",
        "connection_listener",
        "web_config",
    ),
}
FLOORS = (
    GROUND,
    *({name} for name in ("protocol", "recording", "taps", "settings", "sources", "store")),
    *({name} for name in ("objectives", "web", "doctor", "scrape_loop", "app")),
)

# What would hold memory of a sidecar that has no use for it.
UNUSED_AT_START = (
    "importlib.metadata",
    "yaml",
    "exporter.sources.triton.triton_source",
    "exporter.web_config.reader",
    "exporter.web.status_page",
)
# What a running sidecar must not load: the generators' libraries and the lab's.
NOT_IN_THE_SIDECAR = (
    "grafanalib",
    "_jsonnet",
    "rich",
    "opentelemetry",
    "alerts",
    "dashboards",
    "lab",
)


@cache
def imports(path: Path) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """Return every import of a file, also those inside functions."""
    tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return tuple(node for node in tree if isinstance(node, ast.Import | ast.ImportFrom))


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and top-level package of every import."""
    for node in imports(path):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.split(".")[0]) for alias in node.names)
        else:
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            assert node.module is not None
            yield node.lineno, node.module.split(".")[0]


def violations(root: Path) -> list[str]:
    found = []
    for package, allowed in MAY_IMPORT.items():
        forbidden = {*MAY_IMPORT, "lab", "tests", "bench", "tools"} - allowed - {package}
        for path in sorted((root / package).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            for line, target in imported(path):
                if target in forbidden - ALSO.get(name, set()):
                    found.append(f"{name}:{line} imports {target}")
    return found


def test_imports_go_down() -> None:
    assert violations(ROOT) == []


def test_a_wrong_import_would_be_found(tmp_path: Path) -> None:
    (tmp_path / "slos").mkdir()
    (tmp_path / "slos/x.py").write_text(
        "import json\ndef f():\n    from exporter.store.view import View\n"
    )
    (tmp_path / "alerts").mkdir()
    (tmp_path / "alerts/y.py").write_text("import dashboards.theme, slos.plan, lab\n")
    assert violations(tmp_path) == [
        "slos/x.py:3 imports exporter",
        "alerts/y.py:1 imports dashboards",
        "alerts/y.py:1 imports lab",
    ]


def exporter_imports(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and module or package below ``exporter`` of every import from there."""
    for node in imports(path):
        if isinstance(node, ast.ImportFrom) and node.module:
            package, *rest = node.module.split(".")
            if package == "exporter":
                found = rest[:1] or [alias.name for alias in node.names]
                yield from ((node.lineno, name) for name in found)


def upward(root: Path) -> list[str]:
    floor = {name: number for number, names in enumerate(FLOORS) for name in names}
    found = []
    for path in sorted((root / "exporter").rglob("*.py")):
        own = path.relative_to(root / "exporter").parts[0].removesuffix(".py")
        if own != "__init__":
            name = path.relative_to(root).as_posix()
            found += [
                f"{name}:{line} imports exporter.{target}"
                for line, target in exporter_imports(path)
                if floor[target] > floor[own]
            ]
    return found


def test_imports_inside_the_sidecar_go_down() -> None:
    assert upward(ROOT) == []


def test_a_wrong_import_inside_the_sidecar_would_be_found(tmp_path: Path) -> None:
    (tmp_path / "exporter/taps").mkdir(parents=True)
    (tmp_path / "exporter/taps/a.py").write_text("from exporter.store.view import View\n")
    (tmp_path / "exporter/log.py").write_text("from exporter import samples, web\n")
    assert upward(tmp_path) == [
        "exporter/log.py:1 imports exporter.web",
        "exporter/taps/a.py:1 imports exporter.store",
    ]


# urllib.request is also the standard library's reader of proxy settings.
OTHER_CLIENTS = {"http.client", "urllib3", "httpx", "urllib.request.urlopen"}
ONE_CLIENT_EXCEPT = {
    "exporter/web/otlp_session.py": "requests",  # the session of OpenTelemetry's exporter
}


def other_clients(root: Path) -> list[str]:
    found = []
    for package in (*MAY_IMPORT, "lab"):
        for path in sorted((root / package).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            for node in imports(path):
                module = node.module if isinstance(node, ast.ImportFrom) else None
                names = [alias.name for alias in node.names]
                taken = {module or "", *names, *(f"{module}.{each}" for each in names)}
                wrong = taken & {*OTHER_CLIENTS, "requests"} - {ONE_CLIENT_EXCEPT.get(name)}
                found += [f"{name}:{node.lineno} imports {each}" for each in sorted(wrong)]
    return found


def test_there_is_one_http_client_library() -> None:
    assert other_clients(ROOT) == []


def test_another_http_client_would_be_found(tmp_path: Path) -> None:
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab/x.py").write_text("import http.client\nfrom urllib.request import urlopen\n")
    (tmp_path / "lab/y.py").write_text("from http.client import HTTPConnection\nimport requests\n")
    assert other_clients(tmp_path) == [
        "lab/x.py:1 imports http.client",
        "lab/x.py:2 imports urllib.request.urlopen",
        "lab/y.py:1 imports http.client",
        "lab/y.py:2 imports requests",
    ]


def test_every_package_has_a_layer() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {
        "tests",
        "bench",
        "tools",
    }
    assert packages - set(MAY_IMPORT) == {"lab"}


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("tokenslo.cli", ("aiohttp", "prometheus_client", "yaml", "slos", *NOT_IN_THE_SIDECAR)),
        ("tokenslo.commands.exporter", (*UNUSED_AT_START, *NOT_IN_THE_SIDECAR)),
        ("exporter.taps.proxy.proxy_tap", ("hpack", *NOT_IN_THE_SIDECAR)),
        ("tokenslo.commands.server_config", ("aiohttp", "prometheus_client", *NOT_IN_THE_SIDECAR)),
    ],
)
def test_heavy_libraries_are_loaded_only_where_they_are_needed(
    module: str, absent: tuple[str, ...]
) -> None:
    code = f"import sys, {module}; print(*(name for name in {absent!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.stderr, done.stdout.split()) == ("", [])


def test_the_documented_floors_are_those_that_are_tested() -> None:
    page = (ROOT / "docs/explanation/design.md").read_text(encoding="utf-8")
    table = page.partition("\n## Floors of the sidecar\n")[2].partition("\n## ")[0]
    rows = [line.split(" | ")[0] for line in table.splitlines() if line.startswith("| `")]
    assert [{*re.findall(r"`(\w+)`", row)} for row in rows] == [{*floor} for floor in FLOORS]


def test_files_above_400_lines_give_the_reason() -> None:
    """The first docstring says why the file is not split, so it has the word "file"."""
    found = []
    for package in (*MAY_IMPORT, "lab", "bench", "tools"):
        for path in sorted((ROOT / package).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if text.count("\n") > 400 and "file" not in text.split('"""')[1]:
                found.append(path.relative_to(ROOT).as_posix())
    assert found == []
