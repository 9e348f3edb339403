"""Facts about the machine of a bench, and the load of other processes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bench import conditions
from bench.conditions import NOT_EXPOSED, cpu_times, machine, revision

CPUINFO = "processor\t: 0\nmodel name\t: AMD EPYC\nflags\t\t: fpu hypervisor sse\n"


def root(folder: Path, cpuinfo: str, *governors: str) -> Path:
    (folder / "proc").mkdir()
    (folder / "proc/cpuinfo").write_text(cpuinfo)
    for number, governor in enumerate(governors):
        cpu = folder / f"sys/devices/system/cpu/cpu{number}/cpufreq"
        cpu.mkdir(parents=True)
        (cpu / "scaling_governor").write_text(f"{governor}\n")
    return folder


def test_machine_names_cpu_kernel_and_governors(tmp_path: Path) -> None:
    facts = machine(root(tmp_path, CPUINFO, "powersave", "performance", "powersave"))
    assert facts["CPU"] == "AMD EPYC"
    assert facts["virtual machine"] == "yes"
    assert facts["frequency governor"] == "performance, powersave"
    assert facts["kernel"].startswith("Linux ")
    assert all(facts.values())


def test_a_machine_without_governor_says_so(tmp_path: Path) -> None:
    facts = machine(root(tmp_path, "processor\t: 0\nflags\t: fpu\n"))
    assert facts["frequency governor"] == NOT_EXPOSED
    assert facts["virtual machine"] == "no"
    assert facts["CPU"]


def test_busy_and_stolen_shares_are_of_all_cpu_time(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    #                user nice system idle iowait irq softirq steal guest
    stat.write_text("cpu 100 0 50 800 50 0 0 0 30 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
    before = cpu_times(stat)
    stat.write_text("cpu 130 5 60 830 60 2 3 10 40 0\n")
    assert cpu_times(stat).shares_since(before) == pytest.approx((0.5, 0.1))
    assert before.shares_since(before) == (0.0, 0.0)


def test_revision_has_a_plus_sign_if_other_files_than_the_page_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conditions, "CHECKOUT", tmp_path)
    page, code = tmp_path / "page.md", tmp_path / "code.py"
    assert revision(without=page) == "unknown+"

    def git(*arguments: str) -> None:
        options = ("-c", "user.name=x", "-c", "user.email=x@example.com")
        subprocess.run(["git", *options, *arguments], cwd=tmp_path, check=True, capture_output=True)

    for file in (page, code):
        file.write_text("1\n")
    git("init", "--initial-branch=main")
    git("add", ".")
    git("commit", "--message=x")
    clean = revision(without=page)
    assert len(clean) == 10
    page.write_text("2\n")
    assert revision(without=page) == clean
    code.write_text("2\n")
    assert revision(without=page) == f"{clean}+"
