"""Command line: ``python -m tools.catalogues SERVER CHECKOUT``."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tools.catalogues import cpp_source, rust_source
from tools.catalogues.family import Declarations, DeclaredMetric, merged
from tools.catalogues.python_source import PythonSources

DATA = Path(__file__).parents[2] / "slos/catalogues/data"

_ENGINE = {"labelnames": ["model_name", "engine"]}
_TRTLLM = {"labels": {"model_name": None, "engine_type": None}}
_AUTOMATIC = ("dynamo_namespace", "dynamo_component", "dynamo_endpoint", "worker_id")


def _vllm(checkout: Path) -> Declarations:
    buckets = {"histogram_buckets": "{}_BUCKETS"}
    sources = PythonSources(checkout, ["vllm"], _ENGINE, buckets)
    return sources.declarations("vllm:", ["vllm:"])


def _sglang(checkout: Path) -> Declarations:
    # Its labels can be extended by options, so they are not known.
    folder = "python/sglang" if (checkout / "python/sglang").exists() else "sglang"
    return PythonSources(checkout, [folder], {}, {}).declarations("sglang:", ["sglang:"])


def _trtllm(checkout: Path) -> Declarations:
    sources = PythonSources(checkout, ["tensorrt_llm/metrics"], _TRTLLM, {})
    return sources.declarations(r"trtllm_|\w+_(seconds|total)$", ["prometheus_client"])


def _dynamo(checkout: Path) -> Declarations:
    hierarchies = {
        "": rust_source.Hierarchy("dynamo_component_", _AUTOMATIC),
        "metrics_kvbm": rust_source.Hierarchy("kvbm_", ()),
    }
    rust = rust_source.declarations(checkout, ["lib"], {"prefix": "dynamo_frontend"}, hierarchies)
    ours = [each for each in rust.families if each.name.startswith(("dynamo_", "kvbm_"))]
    return Declarations(tuple(ours), rust.unread)


_READERS: Mapping[str, Callable[[Path], Declarations]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "trtllm": _trtllm,
    "dynamo": _dynamo,
}
_FIRST_TRITON = "23.04"


def document(server: str, release: str, commit: str, found: Declarations) -> dict[str, Any]:
    """Return the data file of a catalogue."""
    return {
        "server": server,
        "release": release,
        "commit": commit,
        "unread": sorted({*found.unread}),
        "families": [_family(each) for each in merged(found.families)],
    }


def _family(family: DeclaredMetric) -> dict[str, Any]:
    values = {
        "name": family.name,
        "kind": family.kind,
        "labels": None if family.labels is None else [*family.labels],
        "buckets": None if family.buckets is None else [*family.buckets],
        "since": family.since or None,
        "source": family.source,
    }
    return {key: value for key, value in values.items() if value is not None}


def written(value: dict[str, Any]) -> str:
    """Write a data file with one family on each line, so that releases can be compared."""
    families = ",\n".join(f"    {json.dumps(each)}" for each in value["families"])
    head = json.dumps({key: each for key, each in value.items() if key != "families"}, indent=2)
    return f'{head[:-2]},\n  "families": [\n{families}\n  ]\n}}\n'


def main() -> int:
    """Read a checkout and write its data file."""
    parser = argparse.ArgumentParser(prog="python -m tools.catalogues", description=__doc__)
    parser.add_argument("server", choices=[*_READERS, "triton"])
    parser.add_argument("checkout", type=Path, help="of the server's repository; Triton: of core")
    parser.add_argument("--release", default="", help="default: git describe --tags")
    parser.add_argument("--commit", default="", help="default: git rev-parse HEAD")
    parser.add_argument("-o", "--output", type=Path, default=DATA)
    given = parser.parse_args()
    if given.server == "triton":
        found, newest = cpp_source.declarations(given.checkout, _FIRST_TRITON)
        release = given.release or newest
    else:
        found = _READERS[given.server](given.checkout)
        release = given.release or _git(given.checkout, "describe", "--tags")
    commit = given.commit or _git(given.checkout, "rev-parse", "HEAD")
    if not (release and commit and found.families):
        sys.stderr.write("no metric found, or no git checkout: give --release and --commit\n")
        return 2
    path = given.output / f"{given.server}.json"
    path.write_text(written(document(given.server, release, commit, found)), "utf-8")
    for place in sorted({*found.unread}):
        sys.stderr.write(f"{place}: a declaration whose name is not a constant was not read\n")
    sys.stdout.write(f"{path}: {len({each.name for each in found.families})} metric families\n")
    return 0


def _git(checkout: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", checkout, *arguments], capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
