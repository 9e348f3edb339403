"""Tailed JSON Lines files: every line once, through any rotation, and losses counted."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.sources.file_tailer import MAX_LINE, MAX_OPEN, FileTailer


def tailer(folder: Path, most: int = 10**9) -> FileTailer:
    return FileTailer(str(folder / "perf_metrics-*.jsonl"), most)


def lines(*objects: Mapping[str, object]) -> str:
    return "".join(json.dumps(one) + "\n" for one in objects)


class TestFileTailer:
    def test_only_what_is_appended(self, tmp_path: Path) -> None:
        path = tmp_path / "perf_metrics-a.jsonl"
        path.write_text(lines({"n": 1}, {"n": 2}))
        files = tailer(tmp_path)
        assert list(files.read()) == []
        with path.open("a") as out:
            out.write(lines({"n": 3}) + '{"n": 4')
        assert list(files.read()) == [{"n": 3}]
        with path.open("a") as out:
            out.write("0}\n")
        assert list(files.read()) == [{"n": 40}]
        assert list(files.read()) == []
        assert files.malformed == 0

    def test_line_completed_after_the_start_is_new(self, tmp_path: Path) -> None:
        path = tmp_path / "perf_metrics-a.jsonl"
        path.write_text(lines({"n": 1}) + '{"n": ')
        files = tailer(tmp_path)
        assert list(files.read()) == []
        with path.open("a") as out:
            out.write("2}\n")
        assert list(files.read()) == [{"n": 2}]

    def test_new_file_is_read_from_its_start(self, tmp_path: Path) -> None:
        files = tailer(tmp_path)
        assert list(files.read()) == []
        (tmp_path / "perf_metrics-b.jsonl").write_text(lines({"n": 1}))
        (tmp_path / "other.jsonl").write_text(lines({"n": 9}))
        assert list(files.read()) == [{"n": 1}]

    def test_rotation_and_truncation(self, tmp_path: Path) -> None:
        path = tmp_path / "perf_metrics-a.jsonl"
        files = tailer(tmp_path)
        list(files.read())
        path.write_text(lines({"n": 1}, {"n": 2}))
        assert list(files.read()) == [{"n": 1}, {"n": 2}]
        with path.open("a") as out:
            out.write(lines({"n": 3}))
        path.rename(tmp_path / "perf_metrics-a.1.jsonl")
        path.write_text(lines({"n": 4}))
        assert list(files.read()) == [{"n": 3}, {"n": 4}]
        path.write_text("")
        assert list(files.read()) == []
        path.write_text(lines({"n": 5}))
        assert list(files.read()) == [{"n": 5}]

    def test_two_names_of_one_file(self, tmp_path: Path) -> None:
        files = tailer(tmp_path)
        list(files.read())
        (tmp_path / "perf_metrics-a.jsonl").write_text(lines({"n": 1}))
        (tmp_path / "perf_metrics-latest.jsonl").symlink_to(tmp_path / "perf_metrics-a.jsonl")
        assert list(files.read()) == [{"n": 1}]

    def test_malformed_lines_are_counted_and_skipped(self, tmp_path: Path) -> None:
        files = tailer(tmp_path)
        list(files.read())
        bad = ['{"n": ', "[1]", "\x00\xff", "9" * 5000, "[" * 100_000, ""]
        text = "\n".join([*bad, '{"n": 1}', "x" * (3 * MAX_LINE), '{"n": 2}']) + "\n"
        (tmp_path / "perf_metrics-a.jsonl").write_text(text)
        assert list(files.read()) == [{"n": 1}, {"n": 2}]
        assert files.malformed == 6

    def test_large_backlog_is_read_in_steps(self, tmp_path: Path) -> None:
        files = tailer(tmp_path, most=100)
        list(files.read())
        (tmp_path / "perf_metrics-a.jsonl").write_text(lines(*({"n": n} for n in range(100))))
        got: list[object] = []
        for _ in range(20):
            batch = list(files.read())
            assert len(batch) <= 12
            got += batch
        assert got == [{"n": n} for n in range(100)]

    def test_pipes_and_dangling_links_are_skipped(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "perf_metrics-pipe.jsonl")
        files = tailer(tmp_path)
        assert list(files.read()) == []
        assert files.files == 0
        gone = tmp_path / "perf_metrics-gone.jsonl"
        gone.symlink_to(tmp_path / "nowhere")
        assert list(files.read()) == []
        assert files.error == ""

    @settings(max_examples=60, deadline=None)
    @given(data=st.data())
    def test_each_line_is_read_once_in_any_segmentation(
        self, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        folder = tmp_path_factory.mktemp("followed")
        files = tailer(folder)
        list(files.read())
        text = lines(*({"n": n, "é": "ü" * (n % 7)} for n in range(20))).encode()
        cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
        got: list[object] = []
        for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
            with (folder / "perf_metrics-a.jsonl").open("ab") as out:
                out.write(text[start:end])
            got += files.read()
        assert [one["n"] for one in got if isinstance(one, dict)] == list(range(20))

    def test_lines_of_a_file_renamed_out_of_the_pattern_are_read(self, tmp_path: Path) -> None:
        path = tmp_path / "perf_metrics-a.jsonl"
        path.write_text(lines({"n": 1}))
        files = tailer(tmp_path)
        assert list(files.read()) == []
        with path.open("a", buffering=1) as out:
            out.write(lines({"n": 2}, {"n": 3}))
            path.rename(tmp_path / "perf_metrics-a.jsonl.1")
            path.write_text(lines({"n": 4}))
            assert numbers(files) == [2, 3, 4]
            out.write(lines({"n": 5}))
        assert numbers(files) == [5]
        assert files.lossy == 0

    def test_folder_that_returns_is_not_read_again(self, tmp_path: Path) -> None:
        folder = tmp_path / "in"
        folder.mkdir()
        path = folder / "perf_metrics-a.jsonl"
        files = tailer(folder)
        assert list(files.read()) == []
        path.write_text(lines(*map(long, range(200))))
        assert numbers(files) == list(range(200))
        files.close()
        for moved in (shutil.move, shutil.copytree):  # the same inode, and a new one
            moved(str(folder), str(tmp_path / "away"))
            shutil.rmtree(folder, ignore_errors=True)
            assert numbers(files) == []
            moved(str(tmp_path / "away"), str(folder))
            shutil.rmtree(tmp_path / "away", ignore_errors=True)
            assert numbers(files) == []
        with path.open("a") as out:
            out.write(lines(long(200)))
        assert numbers(files) == [200]
        assert files.lossy == 0

    def test_many_files_are_read_once_with_few_descriptors(self, tmp_path: Path) -> None:
        files = tailer(tmp_path)
        assert list(files.read()) == []
        for number in range(600):
            path = tmp_path / f"perf_metrics-{number}.jsonl"
            path.write_text(lines(long(number)))
        open_before = descriptors()
        assert sorted(numbers(files)) == list(range(600))
        assert descriptors() - open_before <= MAX_OPEN
        for number in range(0, 600, 7):
            with (tmp_path / f"perf_metrics-{number}.jsonl").open("a") as out:
                out.write(lines(long(1000 + number)))
        assert sorted(numbers(files)) == [1000 + number for number in range(0, 600, 7)]
        assert numbers(files) == []

    def test_more_files_than_can_be_tailed_is_an_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("exporter.sources.file_tailer.MAX_FILES", 3)
        for number in range(4):
            path = tmp_path / f"perf_metrics-{number}.jsonl"
            path.write_text(lines(long(number)))
            os.utime(path, (number, number))
        files = tailer(tmp_path)
        assert numbers(files) == []
        assert files.error == ""
        (tmp_path / "perf_metrics-9.jsonl").write_text(lines(long(9)))
        assert numbers(files) == []
        assert files.error.endswith("and only 3 can be tailed: remove old files")
        (tmp_path / "perf_metrics-1.jsonl").unlink()
        assert numbers(files) == [9]
        assert files.error == ""

    def test_a_truncated_file_is_counted_and_read_from_its_start(self, tmp_path: Path) -> None:
        path = tmp_path / "perf_metrics-a.jsonl"
        files = tailer(tmp_path)
        list(files.read())
        path.write_text(lines(*map(long, range(3))))
        assert numbers(files) == [0, 1, 2]
        with path.open("a") as out:
            out.write(lines(long(3)))  # lost
        path.write_text(lines(*map(long, range(4, 12))))  # longer than before
        assert numbers(files) == list(range(4, 12))
        assert files.lossy == 1
        assert files.new_losses() == (
            "1 of the files was truncated or replaced before its end was read: rotate by renaming, "
            "and keep rotated files for a minute"
        )
        assert files.new_losses() == ""


def numbers(files: FileTailer) -> list[int]:
    return [int(str(one["n"])) for one in files.read()]


def long(number: int) -> dict[str, object]:
    return {"n": number, "padding": "x" * (30 + number % 50)}


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


class Log:
    """A writer that rotates its log in every way, and what each of its files must yield.

    ``certain`` are the lines that must be read, ``seen`` the files that were there at a read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "in"
        self.away = folder / "away"
        self.folder.mkdir()
        self.path = self.folder / "perf_metrics-live.jsonl"
        self.written = self.rotations = 0
        self.clock = 10**18
        self.certain: set[int] = set()
        self.unread: set[int] = set()
        self.seen = True
        self.path.touch()

    def append(self, count: int) -> None:
        with self.path.open("a") as out:
            for _ in range(count):
                out.write(lines(long(self.written)))
                self.certain.add(self.written)
                self.unread.add(self.written)
                self.written += 1
        self.tick()

    def tick(self) -> None:
        """Give every change a time of its own, however coarse the file system's clock."""
        self.clock += 10**9
        os.utime(self.path, ns=(self.clock, self.clock))

    def rotated(self, *, matching: bool) -> Path:
        self.rotations += 1
        name = f"perf_metrics-{self.rotations}.jsonl" + ("" if matching else ".old")
        return self.folder / name

    def rename(self, *, matching: bool) -> None:
        if not matching and not self.seen:
            self.certain -= self.unread
        self.path.rename(self.rotated(matching=matching))
        self.unread = set()
        self.path.touch()
        self.tick()
        self.seen = False

    def copy_and_truncate(self, *, matching: bool) -> None:
        if not matching:
            self.certain -= self.unread
        shutil.copy2(self.path, self.rotated(matching=matching))
        self.path.write_text("")
        self.unread = set()
        self.tick()

    def delete(self) -> None:
        if not self.seen:
            self.certain -= self.unread
        self.path.unlink()
        self.unread = set()
        self.path.touch()
        self.tick()
        self.seen = False

    def read(self) -> None:
        self.unread, self.seen = set(), True

    def read_by_descriptor(self) -> None:
        if self.seen:
            self.unread = set()


OPERATIONS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 12)),
    st.tuples(st.sampled_from(["read", "away", "remount", "rename", "rename out", "delete"])),
    st.tuples(st.sampled_from(["truncate", "copy and truncate"])),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(OPERATIONS, max_size=25))
def test_every_line_is_read_once_through_any_rotation(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[str, int]]
) -> None:
    log = Log(tmp_path_factory.mktemp("log"))
    files = tailer(log.folder)
    got = numbers(files)
    for operation, *count in operations:
        match operation:
            case "append":
                log.append(*count)
            case "read":
                got += numbers(files)
                log.read()
            case "away" | "remount":
                move = shutil.move if operation == "away" else shutil.copytree
                move(str(log.folder), str(log.away))
                shutil.rmtree(log.folder, ignore_errors=True)
                got += numbers(files)
                move(str(log.away), str(log.folder))
                shutil.rmtree(log.away, ignore_errors=True)
                log.read_by_descriptor()
                log.seen &= operation == "away"
            case "rename" | "rename out":
                log.rename(matching=operation == "rename")
            case "delete":
                log.delete()
            case _:
                log.copy_and_truncate(matching=operation == "copy and truncate")
    for _ in range(3):
        got += numbers(files)
    files.close()
    assert len(got) == len(set(got)), "counted twice"
    assert log.certain <= set(got), "lost"
