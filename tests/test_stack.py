"""The run folder of a demo: recreated, never another program's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lab.process import ServerError
from lab.stack import locked_folder


def test_folder_is_recreated_each_time(tmp_path: Path) -> None:
    folder = tmp_path / "out/run"
    with locked_folder(folder):
        (folder / "prometheus/data").mkdir(parents=True)
        (folder / "sidecar.log").touch()
        (folder / "link").symlink_to(tmp_path)
    with locked_folder(folder):
        assert [path.name for path in folder.iterdir()] == [".tokenslo-demo"]
    assert tmp_path.exists()


def test_foreign_folder_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    with pytest.raises(ServerError, match="is not from an earlier demo"), locked_folder(tmp_path):
        pass
    assert (tmp_path / "precious").exists()


def test_second_demo_does_not_touch_the_folder_of_the_first(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    code = (
        "import sys; from pathlib import Path; from lab.stack import locked_folder\n"
        "with locked_folder(Path(sys.argv[1])):\n"
        "    (Path(sys.argv[1]) / 'log').touch(); print('claimed', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as first:
        try:
            assert first.stdout
            assert first.stdout.readline() == b"claimed\n"
            with pytest.raises(ServerError) as refused, locked_folder(folder):
                pass
            assert str(refused.value) == (
                f"another demo is running in {folder}; stop it or choose another --output"
            )
            assert (folder / "log").exists()
        finally:
            first.kill()
    with locked_folder(folder):
        assert not (folder / "log").exists(), "a killed demo blocks no other"
