"""Pages of docs/ that are generated say what the code says."""

from pathlib import Path

from click.testing import CliRunner

from tokenslo.commands.signals import signals

DOCS = Path(__file__).parents[1] / "docs"


def test_the_page_of_signals_is_current() -> None:
    printed = CliRunner().invoke(signals).output
    assert (DOCS / "signals.md").read_text() == printed, "write it again: make examples"
