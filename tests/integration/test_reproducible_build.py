"""Two builds of the same source give the same bytes."""

from __future__ import annotations

import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.installed_wheel import build

pytestmark = pytest.mark.long  # packs the project four times

EPOCH = "1700000000"
DATE = (2023, 11, 14, 22, 13, 20)


def test_builds_in_two_folders_at_two_times_are_identical(tmp_path: Path) -> None:
    """The second is built from the first's sdist, with other modes and times of files."""
    first, second = tmp_path / "first", tmp_path / "second"
    sdist = build("sdist", first, SOURCE_DATE_EPOCH=EPOCH)
    wheel = build("wheel", first, SOURCE_DATE_EPOCH=EPOCH)
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    [source] = (tmp_path / "source").iterdir()
    for number, path in enumerate(source.rglob("*")):
        os.utime(path, (number, number))
        path.chmod(0o700 if path.is_dir() else 0o600)
    again = build("sdist", second, source, SOURCE_DATE_EPOCH=EPOCH)
    assert again.read_bytes() == sdist.read_bytes()
    assert (
        build("wheel", second, source, SOURCE_DATE_EPOCH=EPOCH).read_bytes() == wheel.read_bytes()
    )
    with zipfile.ZipFile(wheel) as files:
        assert {each.date_time for each in files.infolist()} == {DATE}
