"""The built wheel in an empty environment: one namespace, and the commands of each extra."""

from __future__ import annotations

import re
import subprocess
import urllib.request
import zipfile
from pathlib import Path

import pytest

from tests.installed_wheel import ROOT, Installed, build, install
from tests.polling import wait_until

CHAT = ROOT / "examples/chat"
SLO = CHAT / "slo.yaml"
IMPORT_EVERY_MODULE = """
import importlib, pkgutil, sys, tokenslo
left_out = ("served_model", "served_stage")  # Triton loads them
names = [each.name for each in pkgutil.walk_packages(tokenslo.__path__, "tokenslo.")]
for name in names:
    if not name.endswith(("__main__", *left_out)):
        importlib.import_module(name)
print(len(names))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def core(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(wheel, tmp_path_factory.mktemp("core"))


@pytest.fixture(scope="module")
def everything(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(wheel, tmp_path_factory.mktemp("all"), "all")


@pytest.fixture(scope="module")
def sidecar(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(wheel, tmp_path_factory.mktemp("exporter"), "exporter")


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_the_wheel_has_one_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        top = {name.partition("/")[0] for name in archive.namelist()}
        names = archive.namelist()
    assert top == {"tokenslo", "tokenslo-0.1.0.dist-info", "tokenslo-0.1.0.data"}
    assert "tokenslo-0.1.0.data/data/share/man/man1/tokenslo-exporter.1" in names
    for name in ("lab/slo.yaml", "runbooks/evidence.yaml", "slos/catalogues/data/vllm.json"):
        assert f"tokenslo/{name}" in names
    assert not [name for name in names if "__pycache__" in name]


def test_only_import_lines_differ_from_the_checkout(wheel: Path) -> None:
    changed = 0
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".py"):
                in_checkout = ROOT / name.removeprefix("tokenslo/")
                original = in_checkout if in_checkout.exists() else ROOT / name
                before = original.read_text().split("\n")
                after = archive.read(name).decode().split("\n")
                for old, new in zip(before, after, strict=True):
                    if old != new:
                        changed += 1
                        plain = new.replace("from tokenslo import ", "import ")
                        assert old in (plain, new.replace(" tokenslo.", " ", 1)), name
                        assert old.lstrip().startswith(("from ", "import "))
    assert changed > 1000


def test_generated_files_are_those_of_the_checkout(everything: Installed, tmp_path: Path) -> None:
    everything.run("tokenslo", "--help", cwd=tmp_path)
    assert everything.run("tokenslo", "validate", SLO, cwd=tmp_path).stdout.startswith("ok: chat")
    everything.run("tokenslo", "generate", SLO, "-o", "out", cwd=tmp_path)
    expected = files(CHAT)
    del expected["slo.yaml"]
    assert files(tmp_path / "out") == expected


def test_another_package_of_the_same_name_changes_nothing(
    everything: Installed, tmp_path: Path
) -> None:
    for name in ("exporter", "slos", "alerts", "documents"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the wrong package')\n")
    env = {"PYTHONPATH": str(tmp_path)}
    everything.run("python", "-m", "tokenslo", "validate", SLO, cwd=tmp_path, env=env)
    code = "import importlib.util as u; print(u.find_spec('exporter'), u.find_spec('slos'))"
    assert everything.run("python", "-c", code, cwd=ROOT / "docs").stdout == "None None\n"


def test_every_module_can_be_imported(everything: Installed, tmp_path: Path) -> None:
    command = ("python", "-W", "error", "-c", IMPORT_EVERY_MODULE)
    assert int(everything.run(*command, cwd=tmp_path).stdout) > 400


def serve(installed: Installed, tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [installed.folder / "bin/tokenslo", "exporter", "--listen", "127.0.0.1:0"]
    with (tmp_path / "log").open("w") as log:
        return subprocess.Popen(
            [*command, "--interval", "50ms", *arguments],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )


def page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=20) as answer:  # noqa: S310
        return str(answer.read().decode())


def test_the_sidecar_runs_with_the_libraries_of_its_extra(
    sidecar: Installed, tmp_path: Path
) -> None:
    process = serve(sidecar, tmp_path, "--tap", "proxy=127.0.0.1:0=127.0.0.1:9", "--slo", str(SLO))
    with process:
        try:
            assert process.stdout
            line = process.stdout.readline()
            url = re.search(r"(http://\S+)/metrics", line)
            assert url, line + (tmp_path / "log").read_text()
            assert page(f"{url[1]}/healthz")
            wait_until(lambda: "_connections{tap=" in page(f"{url[1]}/metrics"))
        finally:
            process.terminate()
    assert process.returncode == 0, (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("arguments", "library", "extra"),
    [
        (("generate", SLO, "-o", "out"), "grafanalib", "generate"),
        (("exporter", "--triton", "http://127.0.0.1:1"), "prometheus_client", "exporter"),
        (("top", "http://127.0.0.1:1"), "rich", "terminal"),
        (("diagnose", "--prometheus", "http://127.0.0.1:1", "--slo", SLO), "rich", "terminal"),
        (("validate", "slo.jsonnet"), "_jsonnet", "jsonnet"),
        (("demo",), "rich", "terminal"),
    ],
    ids=lambda value: str(value[0]) if isinstance(value, tuple) else "",
)
def test_a_missing_extra_is_one_error(
    core: Installed, tmp_path: Path, arguments: tuple[str | Path, ...], library: str, extra: str
) -> None:
    (tmp_path / "slo.jsonnet").write_text("{}")
    done = core.run("tokenslo", *arguments, cwd=tmp_path, code=2)
    assert (done.stdout, done.stderr) == (
        "",
        f"tokenslo: the library {library} is not installed. Fix: pip install 'tokenslo[{extra}]'\n",
    )
    assert not (tmp_path / "out").exists()


def test_pushing_metrics_needs_the_extra_otlp(sidecar: Installed, tmp_path: Path) -> None:
    options = ("--triton", "http://127.0.0.1:1", "--otlp-endpoint", "http://127.0.0.1:1")
    done = sidecar.run("tokenslo", "exporter", *options, cwd=tmp_path, code=2)
    assert "Fix: pip install 'tokenslo[otlp]'\n" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("validate", SLO),
        ("explain", SLO),
        ("generate", SLO, "-o", "out", "--only", "alerts,tests,runbooks"),
        ("server-config", SLO),
        ("lint", CHAT / "alerts", CHAT / "dashboards"),
        ("convert", SLO, "--to", "openslo"),
        ("schema",),
        ("signals",),
        ("doctor", "--help"),
        ("init", "--help"),
    ],
    ids=lambda arguments: str(arguments[0]),
)
def test_commands_of_the_plain_installation(
    core: Installed, tmp_path: Path, arguments: tuple[str | Path, ...]
) -> None:
    assert core.run("tokenslo", *arguments, cwd=tmp_path).stdout
