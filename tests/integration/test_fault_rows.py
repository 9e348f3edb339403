"""Rows of the fault matrix that take seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.faults.__main__ import run_row
from lab.faults.catalogue import CATALOGUE

pytestmark = pytest.mark.long


@pytest.mark.parametrize("key", ["file-size-limit", "sigkill-taps-proxy", "sigterm-taps"])
def test_a_row_passes(key: str, tmp_path: Path) -> None:
    row = run_row(CATALOGUE[key], tmp_path / key)
    assert row.problems(CATALOGUE[key]) == ()
    assert row.result(CATALOGUE[key]) == "passed"
