"""Read metrics that Triton's core declares with prometheus-cpp, on every release branch."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tools.catalogues.family import Declarations, DeclaredMetric

_DECLARED = re.compile(r'Build(Counter|Gauge|Histogram|Summary)\(\)\s*\.Name\(\s*"(\w+)"\s*\)')
_BRANCH = re.compile(r"(?:origin/)?r([0-9]{2}\.[0-9]{2})")
_SOURCES = ("src/metrics.cc", "src/metric_model_reporter.cc", "src/cache_manager.cc")


def declarations(checkout: Path, first: str) -> tuple[Declarations, str]:
    """Return the families of a git checkout and its newest release.

    ``since`` is the first release branch of each family, "" if that is ``first`` or older.
    """
    listed = _git(checkout, "for-each-ref", "--format=%(refname:short)")
    branches = {
        found[1]: branch for branch in listed.split() if (found := _BRANCH.fullmatch(branch))
    }
    families: dict[str, DeclaredMetric] = {}
    for release in sorted(branches):
        if release < first:
            continue
        for path in _SOURCES:
            for kind, name in _DECLARED.findall(
                _git(checkout, "show", f"{branches[release]}:{path}")
            ):
                since = "" if release == first else release
                families.setdefault(
                    name, DeclaredMetric(name, kind.lower(), None, None, path, since)
                )
    return Declarations(tuple(families.values()), ()), max(branches)


def _git(checkout: Path, *arguments: str) -> str:
    """Run git; an object that does not exist gives an empty text."""
    done = subprocess.run(["git", "-C", checkout, *arguments], capture_output=True, check=False)
    return done.stdout.decode("utf-8", "replace")
