"""Render a page of the documentation.

Three parts of a page follow from the code:

- ``<!-- generated: NAME -->`` … ``<!-- end -->`` holds what ``GENERATED[NAME]`` returns;
- a fence ````` ```console ````` holds commands (``$ …``) and their output.  ``exit=1`` in its info
  string is the exit code of the last command, 0 otherwise;
- a fence with ``title="NAME"`` is a file that the commands after it find in their folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.docs.reference import GENERATED
from tools.docs.sandbox import ROOT, Sandbox, sandbox

__all__ = ["ROOT", "Fence", "every_fence", "fences", "pages", "render"]

_FENCE = re.compile(
    r"^```(?P<kind>\w+)(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)
_BLOCK = re.compile(
    r"(?P<start><!-- generated: (?P<name>[\w-]+) -->\n).*?(?P<end><!-- end -->)", re.DOTALL
)
_TITLE = re.compile(r'title="([^"]+)"')
_EXIT = re.compile(r"\bexit=(\d+)")


@dataclass(frozen=True, slots=True)
class Fence:
    """A fenced block: ``kind`` is its language, ``line`` where it begins."""

    kind: str
    info: str
    body: str
    line: int

    @property
    def title(self) -> str:
        """The name of the file that it shows; empty if it shows none."""
        found = _TITLE.search(self.info)
        return found[1] if found else ""

    @property
    def exit_code(self) -> int:
        """The exit code of the last command."""
        found = _EXIT.search(self.info)
        return int(found[1]) if found else 0

    @property
    def commands(self) -> list[str]:
        """The commands of a ``console`` or ``sh`` fence; a backslash continues a line."""
        lines = self.body.replace("\\\n", "").splitlines()
        if self.kind == "console":
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        return [line for line in lines if line and not line.startswith("#")]


def pages() -> list[Path]:
    """Return every page that is rendered."""
    return [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "SECURITY.md",
        ROOT / "bench/README.md",
        *sorted((ROOT / "deploy").rglob("*.md")),
        *sorted((ROOT / "docs").rglob("*.md")),
    ]


def fences(text: str) -> Iterator[Fence]:
    """Yield the fenced blocks of a page."""
    for found in _FENCE.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        yield Fence(found["kind"], found["info"], found["body"], line)


def every_fence(*kinds: str) -> list[tuple[str, Fence]]:
    """Return the fenced blocks of these languages, each with the path of its page."""
    return [
        (page.relative_to(ROOT).as_posix(), fence)
        for page in pages()
        for fence in fences(page.read_text(encoding="utf-8"))
        if fence.kind in kinds
    ]


def render(text: str) -> str:
    """Return a page with its generated blocks and the output of its commands.

    Raises CommandError where a command ends with another exit code than the page states.
    """
    text = _BLOCK.sub(
        lambda found: found["start"] + GENERATED[found["name"]]() + found["end"], text
    )
    if not any(fence.kind == "console" for fence in fences(text)):
        return text
    with sandbox() as folder:
        return _FENCE.sub(lambda found: _fence(found, folder), text)


def _fence(found: re.Match[str], folder: Sandbox) -> str:
    fence = Fence(found["kind"], found["info"], found["body"], 0)
    if fence.title:
        folder.write(fence.title, fence.body)
    if fence.kind != "console":
        return found[0]
    shown = re.findall(r"^\$ (?:.*\\\n)*.*", fence.body, re.MULTILINE)
    last = len(shown) - 1
    body = ""
    for index, command in enumerate(shown):
        output = folder.run(
            command[2:].replace("\\\n", ""), fence.exit_code if index == last else 0
        )
        body += f"{command}\n{output}"
    return f"```{found['kind']}{found['info']}\n{body}```"
