"""The image, built by the steps of its Containerfile in chroots, and run as its users run it."""

from __future__ import annotations

import faulthandler
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tests.installed_wheel import ROOT
from tests.polling import wait_until
from tools import sbom
from tools.containerfile import ImageStage, build, chroot_command, in_chroot

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        os.geteuid() != 0 or not shutil.which("debootstrap"), reason="needs root and debootstrap"
    ),
]
USER = "65532:65532"
PYTHON = "/opt/tokenslo/bin/python"
Image = tuple[ImageStage, Path]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    faulthandler.cancel_dump_traceback_later()  # downloads may take longer than a test
    folder = tmp_path_factory.mktemp("image")
    return build(ROOT / "deploy/image/Containerfile", ROOT, folder)


def run(image: Image, *command: str) -> subprocess.CompletedProcess[str]:
    stage, root = image
    return in_chroot(root, command, stage.environment, user=stage.user, read_only=True)


def files(root: Path) -> Iterator[Path]:
    return (path for path in root.rglob("*") if path.is_file() and not path.is_symlink())


def test_the_root_file_system_has_no_shell_package_manager_or_setuid_file(image: Image) -> None:
    _, root = image
    programs = {path.name for path in files(root) if path.stat().st_mode & stat.S_IXUSR}
    assert not programs & {"sh", "bash", "dash", "apt", "apt-get", "dpkg", "pip", "pip3", "busybox"}
    assert "tokenslo" in programs
    assert not [path for path in files(root) if path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID)]
    assert not [path for path in files(root) if path.stat().st_mode & stat.S_IWOTH]


def test_commands_run_as_a_user_without_rights_on_a_read_only_root(image: Image) -> None:
    assert (
        run(image, *image[0].entrypoint, "--version").stdout == f"tokenslo {version('tokenslo')}\n"
    )
    code = "import os; print(os.getuid(), os.getgid(), os.getgroups()); open('/tmp/x', 'w')"
    done = run(image, PYTHON, "-c", code)
    assert done.stdout == "65532 65532 [65532]\n"
    assert "Read-only file system" in done.stderr


@contextmanager
def running(image: Image, log: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    stage, root = image
    command = [*stage.entrypoint, *stage.command, *arguments]
    with log.open("w") as errors:
        process = subprocess.Popen(
            chroot_command(root, command, user=stage.user, read_only=True),
            env={"PATH": os.environ["PATH"]} | stage.environment,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    with process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)


def page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=20) as answer:  # noqa: S310
        return str(answer.read().decode())


def test_the_sidecar_serves_health_and_its_tap(image: Image, tmp_path: Path) -> None:
    options = ("--listen", "127.0.0.1:0", "--tap", "proxy=127.0.0.1:0=127.0.0.1:9")
    log = tmp_path / "log"
    with running(image, log, *options, "--interval", "50ms") as process:
        assert process.stdout
        found = re.search(r"(http://\S+)/metrics", process.stdout.readline())
        assert found, log.read_text()
        assert page(f"{found[1]}/healthz")
        wait_until(lambda: "_connections{tap=" in page(f"{found[1]}/metrics"))
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert re.search(r"^Uid:\t65532\t65532\t65532\t65532$", status, re.MULTILINE)
        assert re.search(r"^CapEff:\t0+$", status, re.MULTILINE)
    assert process.returncode == 0, log.read_text()


def test_the_bill_of_materials_is_what_is_installed(image: Image) -> None:
    _, root = image
    text = (root / "usr/share/tokenslo/sbom.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    listed = {each["name"] for each in json.loads(text)["components"]}
    lock = sbom.locked((ROOT / "deploy/image/requirements.txt").read_text())
    packages = {path.name for path in (root / "var/lib/dpkg/status.d").iterdir()}
    assert listed == {*lock} | packages


def test_bytecode_has_no_times(image: Image) -> None:
    """Byte 4 of a .pyc has the flags: 1 is a hash that is not checked, 0 a time."""
    _, root = image
    compiled = [*root.glob("opt/**/*.pyc"), *root.glob("usr/lib/python3*/**/*.pyc")]
    assert len(compiled) > 500
    assert {path.read_bytes()[4] for path in compiled} == {1}
