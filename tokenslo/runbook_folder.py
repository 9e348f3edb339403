"""Runbooks in the output folder: local notes, files of the site, and pages to remove."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path

import runbooks
from slos.errors import InvalidFile, Problem
from slos.generated_yaml import HEADER
from tokenslo import output

_OURS = (runbooks.HEADER, HEADER)


def with_local_notes(
    folder: Path, services: Iterable[str], pages: Mapping[str, str]
) -> dict[str, str]:
    """Return pages with the notes below ``local/`` of their service, which mirrors its pages.

    Raises InvalidFile for notes that have no page, and for those that are no text.
    """
    merged, problems = {**pages}, []
    for service in services:
        home = runbooks.folder(service)
        local = folder / home / runbooks.LOCAL_FOLDER
        with output.reporting(local):
            found = sorted(path for path in local.rglob("*.md") if path.is_file())
        for path in found:
            page = f"{home}/{path.relative_to(local).as_posix()}"
            try:
                merged[page] = runbooks.with_notes(pages[page], _text(path))
            except KeyError:
                near = get_close_matches(page, pages, 1) or [f"{home}/README.md"]
                fix = f"rename the file after its page, such as {near[0]}, or remove it"
                problems.append(Problem(str(path), 0, "", f"there is no page {page}", fix))
            except UnicodeDecodeError:
                problems.append(Problem(str(path), 0, "", "is not UTF-8", "save it as UTF-8"))
    if problems:
        raise InvalidFile(problems)
    return merged


def _text(path: Path) -> str:
    with output.reporting(path):
        return path.read_text(encoding="utf-8-sig")


def site(folder: Path, services: Iterable[str], version: str) -> dict[str, str]:
    """Return the files of the site for these services and those of earlier runs.

    A file of another origin is kept.
    """
    with output.reporting(folder):
        earlier = folder.glob(f"{runbooks.folder('*')}/README.md")
        present = {*services, *(path.parent.name for path in earlier if _is_ours(path))}
        wanted = runbooks.site_files(present, version=version)
        return {
            path: text
            for path, text in wanted.items()
            if not (folder / path).exists() or _is_ours(folder / path)
        }


def _is_ours(path: Path) -> bool:
    return path.is_file() and output.has_header(path, *_OURS)


def page_patterns(service: str) -> Iterator[str]:
    """Yield patterns of the pages of a service."""
    yield f"{runbooks.folder(service)}/*.md"
    yield f"{runbooks.folder(service)}/playbooks/*.md"
