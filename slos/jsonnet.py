"""Evaluate a Jsonnet file within limits.

Jsonnet is a programming language: a file may loop endlessly, fill the memory or import any file
that the user may read.  So it runs in a process of its own, with a deadline and a memory limit, and
its imports are confined to its own folder and the library folders given.  It sees no environment,
no external variables and no native functions.

This file is both sides: :func:`evaluate` starts Python on this very file.  The child is isolated
from the caller's ``PYTHONPATH`` and working directory, so only the standard library and the
jsonnet package can be imported here.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

SECONDS = 20.0
MAX_BYTES = 1 << 20
"""Of each file imported, and of the output."""
_MEMORY = 512 << 20
_MAX_STACK = 500
_MAX_MESSAGE = 4_000
_REFUSED = 3

# "STATIC ERROR: f.jsonnet:3:1: why", or "RUNTIME ERROR: why" with one frame a line after it.
_STATIC = re.compile(r"STATIC ERROR: (?P<file>.+?):(?P<line>[0-9]+):[0-9-]+: (?P<why>.*)")
_FRAME = re.compile(r"\t(?P<file>[^\t]+):\(?(?P<line>[0-9]+):[0-9]")


class JsonnetError(ValueError):
    """An evaluation failed at ``line`` (1-based, 0 if unknown) of ``file`` or an import."""

    def __init__(self, message: str, file: str, line: int = 0) -> None:
        self.message, self.file, self.line = message, file, line
        super().__init__(message)


def evaluate(file: str, source: str, libraries: Sequence[Path] = ()) -> str:
    """Evaluate ``source``, the text of ``file``; return JSON.  Raises :class:`JsonnetError`.

    Imports are looked up next to the importing file, then in ``libraries``, and must lie within the
    folder of ``file`` or a library once symlinks and ``..`` are resolved.  Without the library
    jsonnet, raises ModuleNotFoundError.
    """
    if find_spec("_jsonnet") is None:
        raise ModuleNotFoundError("No module named '_jsonnet'", name="_jsonnet")
    command = [sys.executable, "-I", __file__, file, *map(str, libraries)]
    try:
        done = subprocess.run(
            command, input=source.encode(), capture_output=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise JsonnetError(f"Jsonnet did not finish within {SECONDS:g} s", file) from None
    if done.returncode == 0:
        return done.stdout.decode()
    stderr = done.stderr.decode(errors="replace")
    if done.returncode != _REFUSED:
        raise JsonnetError(_crash(done.returncode, stderr), file)
    raise _located(stderr, file)


def _crash(code: int, stderr: str) -> str:
    if code < 0 or "MemoryError" in stderr:
        return f"Jsonnet crashed or needed more than {_MEMORY >> 20} MiB of memory"
    last = stderr.strip().splitlines()[-1:] or ["no message"]
    return f"Jsonnet could not run: {last[0]}"


def _located(stderr: str, file: str) -> JsonnetError:
    """Parse Jsonnet's error output into a message with its place."""
    if static := _STATIC.match(stderr):
        return JsonnetError(static["why"], static["file"], int(static["line"]))
    message, _, frames = stderr.removeprefix("RUNTIME ERROR: ").partition("\n\t")
    for frame in _FRAME.finditer(f"\t{frames}"):
        if frame["file"] != "std.jsonnet":
            return JsonnetError(message, frame["file"], int(frame["line"]))
    return JsonnetError(message, file)


class _Imports:
    """Finds imported files within ``roots``."""

    def __init__(self, folder: Path, libraries: Sequence[Path]) -> None:
        self.libraries = libraries
        self.roots = [path.resolve() for path in (folder, *libraries)]

    def __call__(self, folder: str, name: str) -> tuple[str, bytes]:
        for base in (Path(folder), *self.libraries):
            found = base / name
            real = found.resolve()
            if not any(real.is_relative_to(root) for root in self.roots):
                raise PermissionError("it is outside of the file's folder and the library folders")
            if real.is_file():
                return str(found), self._read(real)
            if real.exists():  # a folder; or a pipe, which would be waited for
                raise ValueError("it is not a regular file")
        raise FileNotFoundError("no such file")

    @staticmethod
    def _read(path: Path) -> bytes:
        with path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ValueError(f"it is larger than {MAX_BYTES >> 20} MiB")
        return content


@contextmanager
def _silent() -> Iterator[None]:
    """Discard standard error, which the parent keeps in memory.

    ``std.trace`` writes there without a limit.
    """
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)


def _child(file: str, *libraries: str) -> int:
    import resource

    import _jsonnet

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # The other side may be killed before its deadline has come.
    resource.setrlimit(resource.RLIMIT_CPU, (int(SECONDS) + 1, int(SECONDS) + 1))
    imports = _Imports(Path(file).parent, [Path(library) for library in libraries])
    source = sys.stdin.buffer.read().decode()
    try:
        with _silent():
            text = _jsonnet.evaluate_snippet(
                file, source, max_stack=_MAX_STACK, import_callback=imports
            ).encode()
    except RuntimeError as error:
        sys.stderr.write(_short(str(error)))
        return _REFUSED
    if len(text) > MAX_BYTES:
        sys.stderr.write(f"RUNTIME ERROR: its output is larger than {MAX_BYTES >> 20} MiB")
        return _REFUSED
    sys.stdout.buffer.write(text)
    return 0


def _short(stderr: str) -> str:
    """Shorten a message of Jsonnet in the middle: its end has the places."""
    if len(stderr) <= _MAX_MESSAGE:
        return stderr
    half = _MAX_MESSAGE // 2
    return f"{stderr[:half]}…\n\t{stderr[-half:]}"


if __name__ == "__main__":
    sys.exit(_child(*sys.argv[1:]))
