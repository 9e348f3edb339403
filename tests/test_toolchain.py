"""The toolchain uses installed programs, and installs missing ones completely or not at all."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from lab import toolchain, triton
from lab.toolchain import InstallError, UnavailableProgram

pytest_plugins = ["pytester"]

# An apt-get with three packages: it lists them once it has updated from our sources, which must
# not happen twice. Its packages are tar files, for the dpkg and dpkg-deb beside it.
APT_GET = r"""
echo "apt-get $*" >> "$LOG"
case "$*" in
  "update --print-uris") cat "$ARCHIVE/uris" ;;
  "-c "*" update") touch "$ARCHIVE/updated" ;;
  "-c "*" download "*)
    shift 3
    for name; do
      [ -e "$ARCHIVE/updated" ] || { echo "E: Unable to locate package $name"; exit 100; }
      cp "$ARCHIVE/$name" "${name}_1_amd64.deb"
    done ;;
  *) exit 9 ;;
esac
"""
DPKG = '[ "$1" = -x ] && tar -xf "$2" -C "$3"\n'
DPKG_DEB = '[ "$1 $3" = "-f Depends" ] && tar -xOf "$2" control\n'
PACKAGES = {
    "prometheus": {
        "control": "libc6 (>= 2.34), libjs-graphs, adduser",
        "usr/bin/prometheus": "#!pages in /usr/share/prometheus/web//and here",
        "usr/share/prometheus/web/graph.html": "graph",
    },
    "libjs-graphs": {
        "control": "libjs-base (>= 3), fonts-signs",
        "usr/share/javascript/graphs.js": "graphs",
    },
    "libjs-base": {"control": "", "usr/share/javascript/base.js": "base"},
    "promtool": {"control": "", "usr/bin/promtool": "#!tool"},
    "haproxy": {"control": "libc6 (>= 2.36), liblua5.3-0", "usr/sbin/haproxy": "#!gateway"},
    "liblua5.3-0": {"control": "libc6", "usr/lib/x86_64-linux-gnu/liblua5.3.so.0": "library"},
    "prometheus-alertmanager": {"control": "", "usr/bin/prometheus-alertmanager": "#!alerts"},
    "victoria-metrics": {"control": "", "usr/bin/victoria-metrics": "#!receiver"},
}
# What a machine's lists may name besides Debian's main: as `apt-get update --print-uris` does.
URIS = """
'http://mirror.example/debian/dists/bookworm/InRelease' mirror_InRelease 0
'http://mirror.example/debian/dists/bookworm/main/binary-amd64/Packages.xz' a 0
'http://mirror.example/debian/dists/bookworm/main/binary-all/Packages.xz' b 0
'http://mirror.example/debian/dists/bookworm/main/dep11/Components-amd64.yml.xz' c 0
'http://mirror.example/debian/dists/bookworm/contrib/binary-amd64/Packages.xz' d 0
'http://mirror.example/debian/dists/bookworm-updates/main/binary-amd64/Packages.xz' e 0
'http://mirror.example/debian-security/dists/bookworm-security/main/binary-amd64/Packages.xz' f 0
'mirror+file:///etc/apt/mirrors/dists/bookworm/main/binary-amd64/Packages.xz' g 0
'https://vendor.example/apt/dists/bookworm/main/binary-amd64/Packages.xz' h 0
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Be on a Debian without any of the programs; its cache, not there yet."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "cat", "cp", "tar", "touch", "ldd"):
        (tools / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setenv("TOKENSLO_CACHE", str(tmp_path / "cache"))
    debian = {"ID": "debian", "VERSION_CODENAME": "bookworm"}
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: debian)
    return tmp_path / "cache"


@pytest.fixture
def apt(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have a Debian archive to install from; the log of what it was asked."""
    archive = tmp_path / "archive"
    for package, files in PACKAGES.items():
        for path, text in files.items():
            file = tmp_path / package / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            file.chmod(0o755)
        archive.mkdir(exist_ok=True)
        subprocess.run(["tar", "-cf", archive / package, "-C", tmp_path / package, *files])
    (archive / "uris").write_text(URIS)
    log = tmp_path / "log"
    log.touch()
    monkeypatch.setenv("ARCHIVE", str(archive))
    monkeypatch.setenv("LOG", str(log))
    for name, script in (("apt-get", APT_GET), ("dpkg", DPKG), ("dpkg-deb", DPKG_DEB)):
        tool(tmp_path / "bin", name, script)
    return log


def tool(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}")
    (folder / name).chmod(0o755)


def start(script: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", dedent(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def silent(_: str) -> None:
    pass


def fails_to_report(text: str) -> None:
    raise AssertionError(text)


def test_program_on_path_is_used(cache: Path, tmp_path: Path) -> None:
    tool(tmp_path / "bin", "promtool", "")
    tool(tmp_path / "bin", "prometheus-alertmanager", "")
    assert toolchain.program("promtool", fails_to_report) == tmp_path / "bin/promtool"
    assert (
        toolchain.program("alertmanager", fails_to_report)
        == tmp_path / "bin/prometheus-alertmanager"
    )
    assert not cache.exists()


def lists(apt: Path) -> str:
    return (apt / "sources.list").read_text()


def test_a_mirror_under_another_name_is_used(apt: Path, cache: Path, tmp_path: Path) -> None:
    """The keys of a company's mirror are in the machine's keyring, not in Debian's."""
    uris = tmp_path / "archive/uris"
    prefix = "http://mirror.example/debian"
    renamed = URIS.replace(prefix, "http://corp.example/apt-proxy").replace("mirror+file", "http")
    uris.write_text(re.sub(".*vendor.*", "", renamed))
    toolchain.program("promtool", silent)
    assert "deb [target=Packages] http://corp.example/apt-proxy bookworm main\n" in lists(
        cache / "apt"
    )


DEBIAN = pytest.mark.skipif(
    not (shutil.which("apt-get") and shutil.which("dpkg-deb")), reason="needs apt and dpkg"
)


@DEBIAN
def test_a_newer_version_on_the_machine_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real apt, on a machine that has Prometheus from Debian's security updates."""
    sources = [
        mirror(tmp_path / "debian", "bookworm", "2.42-1"),
        mirror(tmp_path / "debian-security", "bookworm-security", "2.42-2"),
    ]
    (tmp_path / "sources.list").write_text("".join(sources))
    installed = "Package: prometheus\nStatus: install ok installed\nVersion: 2.42-3\n"
    (tmp_path / "status").write_text(f"{installed}Architecture: all\nMaintainer: x\n\n")
    (tmp_path / "preferences").write_text("Package: *\nPin: release *\nPin-Priority: -1\n")
    (tmp_path / "apt.conf").write_text(
        f'''Dir::Etc::SourceList "{tmp_path}/sources.list";
        Dir::Etc::SourceParts "/dev/null";
        Dir::Etc::Preferences "{tmp_path}/preferences";
        Dir::State::Status "{tmp_path}/status";
        Acquire::AllowInsecureRepositories "true";
        APT::Get::AllowUnauthenticated "true";'''
    )
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))
    monkeypatch.setenv("TOKENSLO_CACHE", str(tmp_path / "cache"))
    debian = {"ID": "debian", "VERSION_CODENAME": "bookworm"}
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: debian)
    home = toolchain.debian("prometheus", silent, "prometheus", "")
    assert (home / "usr/bin/prometheus").read_text() == "2.42-2"


def mirror(folder: Path, suite: str, version: str) -> str:
    """Make an unsigned archive with one version of Prometheus. Returns its source line."""
    tree, deb = folder / "tree", folder / f"prometheus_{version}_all.deb"
    control = (
        f"Package: prometheus\nVersion: {version}\nArchitecture: all\n"
        "Maintainer: x\nDescription: x\nDepends: fonts-signs\n"
    )
    for file, text in (("DEBIAN/control", control), ("usr/bin/prometheus", version)):
        (tree / file).parent.mkdir(parents=True, exist_ok=True)
        (tree / file).write_text(text)
    subprocess.run(["dpkg-deb", "--build", tree, deb], check=True, stdout=subprocess.DEVNULL)
    machine = subprocess.check_output(["dpkg", "--print-architecture"], text=True).strip()
    index = folder / f"dists/{suite}/main/binary-{machine}/Packages"
    index.parent.mkdir(parents=True)
    content = deb.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    index.write_text(f"{control}Filename: {deb.name}\nSize: {len(content)}\nSHA256: {digest}\n\n")
    listed = index.read_bytes()
    (folder / f"dists/{suite}/Release").write_text(
        f"Suite: {suite}\nCodename: {suite}\nComponents: main\nArchitectures: {machine}\nSHA256:\n"
        f" {hashlib.sha256(listed).hexdigest()} {len(listed)} main/binary-{machine}/Packages\n"
    )
    return f"deb copy:{folder} {suite} main\n"


def test_a_missing_program_is_unpacked_from_debian(apt: Path, cache: Path) -> None:
    messages: list[str] = []
    prometheus = toolchain.program("prometheus", messages.append)
    home = cache / "debian-bookworm/prometheus"
    assert prometheus == home / "usr/bin/prometheus"
    assert os.access(prometheus, os.X_OK)
    assert messages == ["prometheus: downloading from Debian bookworm"]
    # Its pages come along, and it looks for them in the folder it is run in.
    assert {str(file.relative_to(home)) for file in home.rglob("*") if file.is_file()} >= {
        "usr/share/prometheus/web/graph.html",
        "usr/share/javascript/graphs.js",
        "usr/share/javascript/base.js",
    }
    assert prometheus.read_text() == "#!pages in usr//share/prometheus/web//and here"
    assert toolchain.root(prometheus) == home
    assert not list(cache.rglob("*.deb"))


def test_a_program_finds_the_libraries_that_are_unpacked_with_it(apt: Path, cache: Path) -> None:
    haproxy = toolchain.program("haproxy", silent)
    home = cache / "debian-bookworm/haproxy"
    assert haproxy == home / "usr/sbin/haproxy"
    libraries = f"{home}/usr/lib/x86_64-linux-gnu"
    assert toolchain.environment(haproxy)["LD_LIBRARY_PATH"] == libraries
    promtool = toolchain.program("promtool", silent)
    for program in (promtool, Path("/usr/sbin/nginx")):
        assert toolchain.environment(program) == os.environ


def test_only_the_machines_own_debian_mirrors_are_used(apt: Path, cache: Path) -> None:
    toolchain.program("prometheus", silent)
    keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
    signed = f" signed-by={keyring}" if Path(keyring).exists() else ""
    assert (cache / "apt/sources.list").read_text() == "".join(
        f"deb [target=Packages{signed}] {source}\n"
        for source in (
            "http://mirror.example/debian bookworm main",
            "http://mirror.example/debian bookworm-updates main",
            "http://mirror.example/debian-security bookworm-security main",
            "mirror+file:///etc/apt/mirrors bookworm main",
        )
    )
    conf = f"-c {cache}/apt/apt.conf"
    assert apt.read_text().splitlines() == [
        f"apt-get {conf} download prometheus",
        "apt-get update --print-uris",
        f"apt-get {conf} update",
        f"apt-get {conf} download prometheus",
        f"apt-get {conf} download libjs-graphs",
        f"apt-get {conf} download libjs-base",
    ]


def test_installed_program_is_not_installed_again(apt: Path) -> None:
    first = toolchain.program("prometheus", silent)
    apt_log = apt.read_text()
    assert toolchain.program("prometheus", fails_to_report) == first
    assert apt.read_text() == apt_log


def test_the_lists_of_an_earlier_download_serve_the_next(apt: Path) -> None:
    toolchain.program("prometheus", silent)
    toolchain.program("alertmanager", silent)
    assert apt.read_text().count(" update\n") == 1


def test_promtool_is_found_in_whichever_package_has_it(apt: Path, cache: Path) -> None:
    assert (
        toolchain.program("promtool", silent) == cache / "debian-bookworm/promtool/usr/bin/promtool"
    )


def test_program_of_a_newer_release_comes_from_that_release(
    apt: Path, cache: Path, tmp_path: Path
) -> None:
    tool(tmp_path / "bin", "victoria-metrics", "")  # the machine's own, too old
    messages: list[str] = []
    home = cache / "debian-trixie/victoria-metrics"
    assert (
        toolchain.program("victoria-metrics", messages.append) == home / "usr/bin/victoria-metrics"
    )
    assert messages == ["victoria-metrics: downloading from Debian trixie"]
    lists = (cache / "apt-trixie/sources.list").read_text().splitlines()
    assert [line.split("] ")[1] for line in lists] == [
        "http://mirror.example/debian trixie main",
        "http://mirror.example/debian trixie-updates main",
        "http://mirror.example/debian-security trixie-security main",
        "mirror+file:///etc/apt/mirrors trixie main",
    ]
    assert not (cache / "apt").exists()


def test_program_of_a_named_release_is_installed_beside_another_version(
    apt: Path, cache: Path, tmp_path: Path
) -> None:
    tool(tmp_path / "bin", "promtool", "")
    messages: list[str] = []
    found = [
        toolchain.program(f"promtool@{release}", messages.append) for release in ("sid", "trixie")
    ]
    assert found == [
        cache / f"debian-{release}/promtool/usr/bin/promtool" for release in ("sid", "trixie")
    ]
    assert "promtool: downloading from Debian sid" in messages
    # Updates and security updates are for releases that no longer change.
    assert "-" not in "".join(re.findall(r" (\S+) main$", lists(cache / "apt-sid"), re.MULTILINE))
    assert toolchain.program("promtool", fails_to_report) == tmp_path / "bin/promtool"


def test_a_release_that_still_changes_may_lack_a_program(cache: Path, tmp_path: Path) -> None:
    tool(tmp_path / "bin", "apt-get", "echo 'E: no such package'\nexit 100\n")
    with pytest.raises(
        UnavailableProgram, match="promtool@forky cannot run here: Debian forky, a release"
    ):
        toolchain.program("promtool@forky", silent)
    with pytest.raises(InstallError, match="E: no such package"):
        toolchain.program("promtool@trixie", silent)


def test_debian_release_is_unavailable_on_ubuntu(
    apt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ubuntu = {"ID": "ubuntu", "VERSION_CODENAME": "noble"}
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: ubuntu)
    with pytest.raises(
        UnavailableProgram, match="victoria-metrics cannot run here: ubuntu is not Debian"
    ):
        toolchain.program("victoria-metrics", silent)


def test_failing_download_shows_the_tools_output_and_removes_its_files(
    cache: Path, tmp_path: Path
) -> None:
    script = "echo 'Err:1 http://mirror.example bookworm'\necho 'E: no route' >&2\nexit 100\n"
    tool(tmp_path / "bin", "apt-get", script)
    with pytest.raises(InstallError) as caught:
        toolchain.program("prometheus", silent)
    assert str(caught.value) == (
        "prometheus: `apt-get update --print-uris` failed with exit code 100:\n"
        "  Err:1 http://mirror.example bookworm\n"
        "  E: no route"
    )
    assert not list(cache.glob("debian-*/prometheus*/**/*"))


def test_missing_tool_is_named(apt: Path, tmp_path: Path) -> None:
    (tmp_path / "bin/dpkg").unlink()
    with pytest.raises(InstallError, match="dpkg is not on PATH"):
        toolchain.program("prometheus", silent)


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="no numpy below 2 for Triton")
def test_failing_pip_shows_its_output(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    messages: list[str] = []
    with pytest.raises(InstallError) as caught:
        triton.install(messages.append)
    assert messages == ["triton: downloading version 2.51.0 from PyPI (74 MB)"]
    assert "-m pip" in str(caught.value).splitlines()[0]
    assert "No matching distribution found for nvidia-pytriton==0.7.0" in str(caught.value)
    assert not list(cache.glob("triton-*/"))


def test_two_processes_install_once(cache: Path) -> None:
    """The second waits, says so, and takes what the first has built."""
    script = """
        import sys, time
        from lab import toolchain
        def build(folder):
            print("builds", flush=True)
            sys.stdin.readline()
            (folder / "done").touch()
        print(toolchain.install("thing", build, lambda text: print(text, flush=True)))
    """
    with start(script) as first, start(script) as other:
        assert first.stdout
        assert other.stdout
        both = {first.stdout.readline(): first, other.stdout.readline(): other}
        waiting = "thing: waiting for another process that is installing it\n"
        assert set(both) == {"builds\n", waiting}
        assert not (cache / "thing").exists()
        assert both["builds\n"].communicate("\n")[0] == f"{cache}/thing\n"
        assert both[waiting].communicate("")[0] == f"{cache}/thing\n"
    assert [file.name for file in (cache / "thing").iterdir()] == ["done"]


def test_killed_installation_starts_over(cache: Path) -> None:
    script = """
        import time
        from lab import toolchain
        def build(folder):
            (folder / "half").touch()
            print("half", flush=True)
            time.sleep(300)
        toolchain.install("thing", build, print)
    """
    with start(script) as killed:
        assert killed.stdout
        killed.stdout.readline()
        killed.send_signal(signal.SIGKILL)
    home = toolchain.install("thing", lambda folder: (folder / "whole").touch(), fails_to_report)
    assert [file.name for file in home.iterdir()] == ["whole"]
    assert [file.name for file in cache.iterdir() if file.is_dir()] == ["thing"]


def test_a_failed_installation_leaves_nothing(cache: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "half").touch()
        raise InstallError("no")

    with pytest.raises(InstallError):
        toolchain.install("thing", build, silent)
    assert not [file for file in cache.iterdir() if file.is_dir()]


def test_a_cache_that_cannot_be_written_is_named(cache: Path) -> None:
    cache.touch()
    with pytest.raises(InstallError) as caught:
        toolchain.install("thing", lambda _: None, silent)
    assert str(caught.value) == (
        f"thing: {cache}: File exists; set TOKENSLO_CACHE to another folder"
    )


@pytest.mark.parametrize("name", ["prometheus", "promtool", "alertmanager", "amtool"])
def test_other_distributions_have_to_bring_their_own(
    name: str, apt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: {"ID": "fedora"})
    with pytest.raises(UnavailableProgram) as caught:
        toolchain.program(name, silent)
    assert caught.value.program == name
    assert str(caught.value) == (
        f"{name} cannot run here: fedora is not Debian; install it yourself and put {name} on PATH"
    )
    assert not apt.read_text()


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"machine": "aarch64"}, "it is built for Linux x86_64, this is Linux aarch64"),
        ({"system": "Darwin"}, "it is built for Linux x86_64, this is Darwin x86_64"),
        ({"libc_ver": ("glibc", "2.31")}, "it needs glibc 2.35, this is glibc 2.31"),
        ({"libc_ver": ("", "")}, "it needs glibc 2.35, this is another libc"),
    ],
)
def test_triton_is_refused_where_it_cannot_run(
    facts: dict[str, object], reason: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"machine": "x86_64", "system": "Linux", **facts}.items():
        monkeypatch.setattr(platform, name, lambda value=value: value)
    with pytest.raises(UnavailableProgram) as caught:
        triton.install(fails_to_report)
    assert str(caught.value) == (
        f"triton cannot run here: {reason}; use Debian 12 or later on x86-64, for example in a "
        "container"
    )


def test_triton_is_refused_for_pythons_it_has_no_numpy_for(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 13, 0))
    with pytest.raises(
        UnavailableProgram, match=r"numpy below 2, .* Python 3\.13 .*; use Python 3\.11"
    ):
        triton.install(fails_to_report)


def test_cache_is_in_the_checkout_by_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("TOKENSLO_CACHE", raising=False)
    assert toolchain.cache() == Path(__file__).parents[1] / ".cache"
    monkeypatch.setattr(toolchain, "__file__", str(tmp_path / "site-packages/lab/toolchain.py"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert toolchain.cache() == tmp_path / ".cache/tokenslo"
    monkeypatch.setenv("TOKENSLO_CACHE", "relative")
    monkeypatch.chdir(tmp_path)
    assert toolchain.cache() == tmp_path / "relative"


USERS = """
    import pytest
    def test_rules(promtool): assert promtool.exists()
    @pytest.mark.needs("prometheus")
    def test_demo(): pass
    def test_sums(): pass
"""


def test_skipped_tests_of_missing_programs_are_listed(
    cache: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: {"ID": "fedora"})
    pytester.makeconftest((Path(__file__).parent / "conftest.py").read_text())
    pytester.makepyfile(USERS)
    result = pytester.runpytest_inprocess("--strict-markers", "-p", "no:asyncio")
    result.assert_outcomes(passed=1, skipped=2)
    report = result.stdout.str().partition("tests not run: this platform cannot have")[2]
    why = "cannot run here: fedora is not Debian; install it yourself and put"
    name = "test_skipped_tests_of_missing_programs_are_listed.py"
    assert report.splitlines()[1:3] == [
        f"{name}::test_rules: promtool {why} promtool on PATH",
        f"{name}::test_demo: prometheus {why} prometheus on PATH",
    ]


def test_failing_installations_are_errors(
    cache: Path, tmp_path: Path, pytester: pytest.Pytester
) -> None:
    tool(tmp_path / "bin", "apt-get", "echo 'E: no route'\nexit 100\n")
    pytester.makeconftest((Path(__file__).parent / "conftest.py").read_text())
    pytester.makepyfile(USERS)
    result = pytester.runpytest_inprocess("--strict-markers", "-p", "no:asyncio")
    result.assert_outcomes(passed=1, errors=2)
    result.stdout.fnmatch_lines(
        ["E *InstallError: prometheus: `apt-get update*", "E *no route"] * 2
    )
    result.stdout.no_fnmatch_line("*tests not run*")
