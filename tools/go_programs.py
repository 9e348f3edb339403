"""Build programs that long tests use, with Go, and print their folders.

``PATH=$(python -m tools.go_programs):$PATH make test-long`` runs the tests of ``deploy/`` with
Helm, helm-unittest, kubeconform, kustomize and an API server, and those of rules with Mimir.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from lab import toolchain
from lab.toolchain import InstallError


@dataclass(frozen=True, slots=True)
class GoProgram:
    """A program, the Go module that has it, the module's version, the package in it, its tags."""

    name: str
    module: str
    version: str
    package: str = ""
    tags: str = ""


MIMIR = "v1.3.1-0.20260423142704-aced80d74930"
"""A commit of 2026-04-23. Go has no releases from 2.0 on, as the module's path has no version."""
PROGRAMS = (
    GoProgram("helm", "helm.sh/helm/v3", "v3.22.0", "/cmd/helm"),
    GoProgram("untt", "github.com/helm-unittest/helm-unittest", "v1.1.2", "/cmd/helm-unittest"),
    GoProgram("kubeconform", "github.com/yannh/kubeconform", "v0.8.0", "/cmd/kubeconform"),
    GoProgram("kustomize", "sigs.k8s.io/kustomize/kustomize/v5", "v5.8.2"),
    GoProgram("kube-apiserver", "k8s.io/kubernetes", "v1.33.13", "/cmd/kube-apiserver"),
    GoProgram("mimir", "github.com/grafana/mimir", MIMIR, "/cmd/mimir", "netgo,stringlabels"),
    GoProgram("mimirtool", "github.com/grafana/mimir", MIMIR, "/cmd/mimirtool", "stringlabels"),
)
_GO = re.compile(r"^go \S+$", re.MULTILINE)
_REPLACED = re.compile(r"^\s*(?:replace )?(\S+)( v\S+)? => (\S+(?: v\S+)?)$", re.MULTILINE)


def main() -> int:
    """Print the folders for PATH; return 1 if Go is missing or a program cannot be built."""
    if not shutil.which("go"):
        print("go is not installed: install it, and put go on PATH", file=sys.stderr)
        return 1
    try:
        print(*map(install, PROGRAMS), sep=":")
    except InstallError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def install(program: GoProgram) -> Path:
    """Return the folder of a program, built once in the cache.

    Raises lab.toolchain.InstallError if it cannot be built.
    """

    def build(home: Path) -> None:
        source = home / "source"
        source.mkdir()
        _write_module(program, source)
        command: list[str | Path] = ["go", "build", "-mod=mod", "-buildvcs=false"]
        command += [f"-tags={program.tags}", "-o"]
        package = program.module + program.package
        toolchain.run(program.name, [*command, home / program.name, package], cwd=source)
        shutil.rmtree(source)

    name = f"{program.name}-{program.version}"
    return toolchain.install(name, build, lambda text: print(text, file=sys.stderr))


def _write_module(program: GoProgram, folder: Path) -> None:
    """Write a module that requires the program's, and the checksums that come with it.

    `go install` accepts no module with replacements, so they are repeated here. Those by a folder
    are libraries of Kubernetes' own repository, published as v0.33.1 for v1.33.1.
    """
    module = f"{program.module}@{program.version}"
    answer = json.loads(toolchain.run(program.name, ["go", "mod", "download", "-json", module]))
    required = Path(answer["GoMod"]).read_text(encoding="utf-8")
    shutil.copyfile(Path(answer["Dir"]) / "go.sum", folder / "go.sum")
    published = program.version.replace("v1.", "v0.", 1)
    lines = ["module programs", *_GO.findall(required)]
    lines.append(f"require {program.module} {program.version}")
    for name, version, other in _REPLACED.findall(required):
        by = f"{name} {published}" if other.startswith("./") else other
        lines.append(f"replace {name}{version} => {by}")
    (folder / "go.mod").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
