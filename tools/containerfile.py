"""Execute a Containerfile without a container engine, each stage in a chroot.

``python -m tools.containerfile FILE CONTEXT FOLDER`` builds every stage below FOLDER and prints the
root of the last one.  It needs root, and debootstrap for stages from a Debian image.  It executes
the instructions that are in the file; an instruction that it does not support is an error.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_DEBIAN = re.compile(r"(?:docker\.io/library/)?debian:(\d+)(?:-slim)?")
_SUITES = {"12": "bookworm"}
_PASSED = ("http_proxy", "https_proxy", "no_proxy", "PIP_INDEX_URL", "PIP_CERT")
"""Variables of this machine that RUN sees, as with --build-arg and --env of an engine."""
_BOUND = ("/etc/resolv.conf", "/usr/local/share/ca-certificates")
"""Files of this machine that RUN sees: name servers, and certificates of its registries."""


class ContainerfileError(Exception):
    """An instruction that this script does not execute."""


@dataclass
class ImageStage:
    """One stage: its root file system, and what its instructions set."""

    name: str
    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    folder: str = "/"
    user: str = "0:0"
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()


def parse(text: str) -> list[ImageStage]:
    """Return the stages with their COPY and RUN steps, in order."""
    stages: list[ImageStage] = []
    for word, rest in _instructions(text):
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            stages.append(ImageStage(name or str(len(stages)), base))
            continue
        stage = stages[-1]
        if word in ("COPY", "RUN", "WORKDIR"):
            stage.steps.append((word, rest))
        elif word in ("ARG", "ENV"):
            for each in shlex.split(rest):
                name, _, value = each.partition("=")
                stage.environment[name] = value
        elif word == "USER":
            stage.user = rest
        elif word == "ENTRYPOINT":
            stage.entrypoint = tuple(json.loads(rest))
        elif word == "CMD":
            stage.command = tuple(json.loads(rest))
        elif word not in ("EXPOSE", "LABEL"):
            raise ContainerfileError(f"{word} is not implemented")
    return stages


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.strip():
            word, _, rest = line.strip().partition(" ")
            yield word, " ".join(rest.split()) if word != "RUN" else rest.strip()


def included(context: Path) -> Iterator[str]:
    """Yield the files of a context that its .containerignore, a list of exceptions, includes."""
    lines = (context / ".containerignore").read_text().split()
    if lines[0] != "*":
        raise ContainerfileError(".containerignore does not begin with *")
    wanted = [line[1:] for line in lines if line.startswith("!")]
    ignored = [line.removeprefix("**/") for line in lines[1:] if not line.startswith("!")]
    for name in wanted:
        path = context / name
        if not path.exists():
            raise ContainerfileError(f".containerignore includes {name}, which does not exist")
        for each in sorted(path.rglob("*")) if path.is_dir() else [path]:
            parts = each.relative_to(context).parts
            if each.is_file() and not any(
                fnmatch.fnmatch(part, pattern) for part in parts for pattern in ignored
            ):
                yield "/".join(parts)


def build(file: Path, context: Path, folder: Path) -> tuple[ImageStage, Path]:
    """Execute all stages below ``folder``; return the last one and its root."""
    roots: dict[str, Path] = {}
    stages = parse(file.read_text(encoding="utf-8"))
    for stage in stages:
        root = roots[stage.name] = folder / stage.name
        _base(stage.base, root)
        for word, rest in stage.steps:
            if word == "WORKDIR":
                stage.folder = rest
                (root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
            elif word == "COPY":
                _copy(rest, stage, root, roots, context)
            else:
                _run(rest, stage, root)
    return stages[-1], roots[stages[-1].name]


def _base(base: str, root: Path) -> None:
    if base == "scratch":
        root.mkdir(parents=True)
        return
    found = _DEBIAN.fullmatch(base)
    if not found:
        raise ContainerfileError(f"FROM {base} is not implemented; only debian and scratch are")
    command = ["debootstrap", "--variant=minbase", _SUITES[found[1]], str(root)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _copy(rest: str, stage: ImageStage, root: Path, roots: dict[str, Path], context: Path) -> None:
    *flags, source, target = rest.split()
    there = root / Path(stage.folder, target).relative_to("/")
    if not flags and (source, target) == (".", "."):
        for name in included(context):
            (there / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(context / name, there / name)
    elif len(flags) == 1 and flags[0].startswith("--from="):
        origin = roots[flags[0].removeprefix("--from=")] / source.lstrip("/")
        shutil.copytree(origin, there, symlinks=True, dirs_exist_ok=True)
    else:
        raise ContainerfileError(f"COPY {rest} is not implemented")


def _run(command: str, stage: ImageStage, root: Path) -> None:
    passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
    script = f"cd {shlex.quote(stage.folder)} && {command}"
    binds = [path for path in _BOUND if Path(path).exists()]
    done = in_chroot(root, ["/bin/sh", "-c", script], stage.environment | passed, binds=binds)
    if done.returncode:
        raise ContainerfileError(f"RUN {command}\n{done.stdout}{done.stderr}")


def chroot_command(
    root: Path, command: Sequence[str], *, user: str = "0:0", read_only: bool = False,
    binds: Sequence[str] = (),
) -> list[str]:  # fmt: skip
    """Return the command in a mount namespace of its own, so that no mount outlives it."""
    steps = ['mount --bind "$ROOT" "$ROOT"']
    for path in binds:
        steps += [
            f'mkdir -p "$ROOT{Path(path).parent}"',
            f'if [ -d {path} ]; then mkdir -p "$ROOT{path}"; else touch "$ROOT{path}"; fi',
            f'mount --bind {path} "$ROOT{path}"',
        ]
    steps += ['mkdir -p "$ROOT/proc" "$ROOT/dev"', 'mount -t proc proc "$ROOT/proc"']
    steps += ['mount --bind /dev "$ROOT/dev"']
    if read_only:
        steps.append('mount -o remount,bind,ro "$ROOT"')
    # The environment is that of the image, whose PATH need not have the folders of this machine.
    program = shutil.which("chroot", path="/usr/sbin:/usr/bin:/sbin:/bin")
    steps.append(f'exec {program} --userspec={user} "$ROOT" {shlex.join(command)}')
    script = "; ".join(["set -e", f"ROOT={shlex.quote(str(root.resolve()))}", *steps])
    return ["unshare", "--mount", "sh", "-c", script]


def in_chroot(
    root: Path, command: Sequence[str], environment: dict[str, str], *, user: str = "0:0",
    read_only: bool = False, binds: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Run a program in a root file system, with nothing but ``environment``."""
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return subprocess.run(
        chroot_command(root, command, user=user, read_only=read_only, binds=binds),
        env={"PATH": path} | environment,
        capture_output=True,
        text=True,
    )


def main(file: str, context: str, folder: str) -> None:
    """Build, and print the root of the last stage."""
    try:
        _, root = build(Path(file), Path(context), Path(folder))
    except ContainerfileError as error:
        sys.exit(f"containerfile: {error}")
    print(root)


if __name__ == "__main__":
    main(*sys.argv[1:])
