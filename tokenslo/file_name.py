"""The type of parameters that name files: shells complete them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class FileName(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """A path, ``-`` or a URL, which the command checks itself."""

    name = "text"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Let the shell complete file names."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type="file")]


FILE_NAME = FileName()
