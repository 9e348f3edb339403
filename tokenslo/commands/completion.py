"""``tokenslo completion``: scripts that make a shell complete the command line."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_TOKENSLO_COMPLETE"
"""Click reads it: how a script runs ``tokenslo`` to complete a word."""


@click.command()
@click.argument("shell", type=click.Choice(SHELLS), metavar="SHELL")
def completion(shell: str) -> None:
    """Print the completion script of a shell: bash, zsh or fish.

    bash: tokenslo completion bash > ~/.local/share/bash-completion/completions/tokenslo

    zsh: tokenslo completion zsh > DIR/_tokenslo, where DIR is in $fpath

    fish: tokenslo completion fish > ~/.config/fish/completions/tokenslo.fish
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise click.ClickException(f"click {click.__version__} has no completion for {shell}.")
    script = kind(click.Command("tokenslo"), {}, "tokenslo", _VARIABLE)
    click.echo(script.source_template % script.source_vars())
