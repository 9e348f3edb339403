"""Render the examples of ``deploy/`` with kustomize and Helm."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import yaml

from tools.kubernetes.limit_files import ROOT

KUSTOMIZE = ROOT / "deploy/kustomize"
CHART = ROOT / "deploy/helm/tokenslo"
EXAMPLE_CHART = ROOT / "deploy/helm/example"
RENDERED = ROOT / "deploy/rendered"


class MissingToolError(Exception):
    """A tool is not installed."""


def kustomized(folder: Path) -> str:
    """Return what kustomize builds from a folder."""
    for command in (["kustomize", "build"], ["kubectl", "kustomize"]):
        if shutil.which(command[0]):
            return _output(*command, str(folder))
    raise MissingToolError("neither kustomize nor kubectl is installed")


def templated(values: Mapping[str, object], *arguments: str) -> str:
    """Return the chart of a server that has the chart tokenslo as a dependency, with its values."""
    with tempfile.TemporaryDirectory() as folder:
        chart = Path(folder) / "chart"
        shutil.copytree(EXAMPLE_CHART, chart, ignore=shutil.ignore_patterns("charts", "*.lock"))
        shutil.copytree(CHART, chart / "charts/tokenslo")
        file = Path(folder) / "values.yaml"
        file.write_text(yaml.safe_dump({"tokenslo": values}), encoding="utf-8")
        options = ("--namespace", "llm", "--values", str(file), *arguments)
        return helm("template", "triton", str(chart), *options)


def helm(*arguments: str) -> str:
    """Return the output of Helm."""
    if not shutil.which("helm"):
        raise MissingToolError("helm is not installed")
    return _output("helm", *arguments)


def ci_values(name: str) -> Mapping[str, object]:
    """Return values in the chart's folder ``ci``."""
    text = (CHART / f"ci/{name}-values.yaml").read_text(encoding="utf-8")
    values: Mapping[str, object] = yaml.safe_load(text)
    return values


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
    return done.stdout


EXAMPLES: Mapping[str, Callable[[], str]] = {
    **{
        f"kustomize-{name}": partial(kustomized, KUSTOMIZE / "examples" / name)
        for name in ("scrape", "proxy-tap", "capture-tap", "trtllm-serve-proxy-tap")
    },
    **{
        f"helm-{name}": lambda name=name: templated(ci_values(name))  # type: ignore[misc]
        for name in ("scrape", "proxy-tap", "capture-tap")
    },
}
"""By name: renders an example."""
