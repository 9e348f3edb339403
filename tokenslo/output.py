"""Write generated files: atomically, only changed ones; or print a diff."""

from __future__ import annotations

import difflib
import errno
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from stat import S_ISREG

import click

target_option = click.option(
    "-o",
    "--output",
    "target",
    metavar="FILE",
    type=click.Path(path_type=Path),
    callback=lambda _, __, target: None if target == Path("-") else target,
    help="File to write; - is standard output, the default.",
)
quiet_option = click.option(
    "-q", "--quiet", is_flag=True, help="Print only problems and requested output."
)
force_option = click.option("--force", is_flag=True, help="Replace the file if it exists.")


@dataclass(frozen=True, slots=True)
class Change:
    """A difference between a file and its intended content; None is an absent file."""

    path: Path
    old: str | None
    new: str | None


def changes(folder: Path, files: Mapping[str, str], stale: Iterable[Path] = ()) -> list[Change]:
    """Compare ``files`` (text by path in ``folder``) with the disk; ``stale`` ones are deleted."""
    wanted = {folder / name: text for name, text in files.items()}
    found = [Change(path, _read(path), text) for path, text in wanted.items()]
    gone = [Change(path, _read(path), None) for path in stale if path not in wanted]
    return [change for change in (*found, *gone) if change.old != change.new]


def apply(changes: Sequence[Change]) -> None:
    """Write or delete files to match the intended content.

    All texts are written before the first file is replaced: where one cannot be written, nothing
    changes. A reader sees the old text of a file or the new one, never a part.
    """
    staged: list[tuple[Path, Path]] = []
    try:
        for change in changes:
            if change.new is not None:
                with reporting(change.path):
                    staged.append(_staged(change.path, change.new))
        for temporary, path in staged:
            temporary.replace(path)
        for change in changes:
            if change.new is None:
                with reporting(change.path):
                    change.path.unlink()
    except BaseException:
        for temporary, _ in staged:
            with suppress(OSError):
                temporary.unlink()
        raise


def _staged(path: Path, text: str) -> tuple[Path, Path]:
    """Write a text next to the file that it replaces; return both paths."""
    if path.is_symlink():
        path = path.resolve()  # a link stays a link
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        try:
            _create(temporary, text)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            _create(temporary, text)
        except FileExistsError:
            # One that a killed run has left: in a container its process id is ours.
            temporary.unlink()
            _create(temporary, text)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    return temporary, path


def _create(path: Path, text: str) -> None:
    with path.open("xb") as file:
        file.write(text.encode())


@contextmanager
def reporting(path: Path) -> Iterator[None]:
    """Report an error of the file system as one line with ``path`` and a fix."""
    try:
        yield
    except OSError as error:
        fix = "choose another place with --output"
        raise click.ClickException(
            f"{path}: cannot be written: {error.strerror}. Fix: {fix}."
        ) from None


def check_target(target: Path | None, source: Path, *, force: bool) -> None:
    """Refuse to write to the file that is read, or to replace a file without ``--force``."""
    if target is None or not target.exists():
        return
    if source.exists() and target.samefile(source):
        raise click.ClickException(f"{target}: is the input. Fix: write to another file.")
    if target.is_file() and not force:
        raise click.ClickException(f"{target}: exists. Fix: give --force to replace it.")


def deliver(text: str, target: Path | None) -> None:
    """Write one text to the file of :data:`target_option`, or to standard output."""
    if target is None:
        click.echo(text, nl=False)
        return
    if target.exists() and not target.is_file():  # a pipe or a device cannot be replaced
        with reporting(target):
            target.write_text(text, encoding="utf-8")
    else:
        apply([Change(target, None, text)])


def difference(change: Change) -> Iterator[str]:
    """Yield a unified diff from the files on disk to their intended content."""
    lines = difflib.unified_diff(
        _lines(change.old),
        _lines(change.new),
        "/dev/null" if change.old is None else str(change.path),
        "/dev/null" if change.new is None else str(change.path),
    )
    for line in lines:
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _read(path: Path) -> str | None:
    """Return a file's text, whatever its bytes; None if there is no file.

    Raises click.ClickException for what cannot be replaced: reading a pipe could take forever.
    """
    with reporting(path):
        try:
            if not S_ISREG(path.stat().st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file", str(path))
            return path.read_bytes().decode("utf-8", errors="replace")
        except FileNotFoundError:
            return None


def has_header(path: Path, *headers: str) -> bool:
    """Whether one of the first two lines of a file begins with a header."""
    with path.open(encoding="utf-8", errors="replace") as file:
        return any(line.startswith(headers) for line in islice(file, 2))


def _lines(text: str | None) -> list[str]:
    return [] if text is None else text.splitlines(keepends=True)
