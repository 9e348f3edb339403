"""Generated examples are current: `tokenslo generate` yields the committed files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenslo.cli import main

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted(path.relative_to(ROOT) for path in ROOT.glob("examples/*/slo.*"))


def test_examples_exist():
    assert Path("examples/chat/slo.yaml") in EXAMPLES


@pytest.mark.parametrize("slo", EXAMPLES, ids=str)
def test_generated_examples_are_current(slo, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit) as stopped:
        main(["generate", str(slo), "-o", str(slo.parent), "--check"])
    assert stopped.value.code == 0, f"run `make examples`\n{capsys.readouterr().out}"
