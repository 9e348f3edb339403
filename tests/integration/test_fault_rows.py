"""Rows of the fault matrix that take seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.faults.__main__ import run_row
from lab.faults.catalogue import CATALOGUE

pytestmark = pytest.mark.long
KEYS = (
    *("file-size-limit", "sigterm-proxy", "sigkill-proxy", "sigkill-taps-proxy", "sigterm-taps"),
    "memory-cgroup",
)


@pytest.mark.parametrize("key", KEYS)
def test_a_row_passes(key: str, tmp_path: Path) -> None:
    row = run_row(CATALOGUE[key], tmp_path / key)
    if row.unavailable:
        pytest.skip(row.unavailable)
    assert row.problems(CATALOGUE[key]) == ()
    assert row.result(CATALOGUE[key]) == "passed"
