"""Install the real programs that the lab runs, in one cache folder.

Installed programs are reused. Nothing is installed system-wide, root is not needed, and
the machine's own apt is only read. A part is built in a sibling folder under a file lock and
renamed into place, so that it is either whole or absent, also with several processes at once.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

Say = Callable[[str], None]

# Debian's packages for each program: trixie moved promtool out of prometheus.
_PACKAGES = {
    "prometheus": ("prometheus",),
    "promtool": ("prometheus", "promtool"),
    "alertmanager": ("prometheus-alertmanager",),
    "amtool": ("prometheus-alertmanager",),
    "victoria-metrics": ("victoria-metrics",),
    "vmalert": ("victoria-metrics",),
    "nginx": ("nginx",),
}
# Programs whose package in older releases lacks what is needed here, and the first that has it:
# VictoriaMetrics takes OTLP from 1.92 on.
_RELEASES = {"victoria-metrics": "trixie", "vmalert": "trixie"}
_MOVING = {"forky", "sid"}
_ELSEWHERE = "use Debian, a container will do"
# Debian calls the program by the package's name, upstream does not.
_NAMES = {"alertmanager": ("alertmanager", "prometheus-alertmanager")}
_FOLDERS = ("usr/bin", "usr/sbin")
_PAGES = "usr/share/prometheus"
# How mirrors are addressed: also snapshots, and lists of mirrors as on cloud images.
_MIRROR = r"mirror\b.*|.*/{distribution}(-security)?(/\d+T\d+Z)?/?|.*//security\.debian\.org/?"
_COMPONENTS = {"debian": {"main"}, "ubuntu": {"main", "universe"}}
# Neither the packages nor the pins of the machine: `apt-get download` prefers an installed version,
# which these lists need not have. No user _apt, who may not enter the cache; no hooks, which are
# about the machine's own lists.
_APT_CONF = """\
Dir::Etc::SourceList "{apt}/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
Dir::State::Status "{apt}/status";
Dir::State::Lists "{apt}/lists";
Dir::Cache "{apt}";
APT::Sandbox::User "root";
Acquire::Languages "none";
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
"""
_TOOL_SECONDS = 1800
_TAIL_LINES = 15
_TABLE = "|+"  # what Triton's tables of settings, wider than any screen, are drawn with


class MissingPart(Exception):  # noqa: N818 - a fact about the platform, not a failure
    """A program that is unavailable on this platform: name, reason and fix."""

    def __init__(self, part: str, reason: str, fix: str) -> None:
        super().__init__(f"{part} cannot run here: {reason}; {fix}")
        self.part, self.reason, self.fix = part, reason, fix


class PartError(Exception):
    """A program could not be installed; the message ends with the tool's output."""


def program(name: str, say: Say) -> Path:
    """Find `name`: the machine's own program if it is on PATH, else Debian's, in the cache.

    Where only a certain release of Debian will do, it is taken from that one; `promtool@trixie` is
    that of trixie, whatever the machine has.

    Raises MissingPart where there is no Debian to take it from, or where a release that still
    changes does not have it; PartError if the download fails.
    """
    plain, _, release = name.partition("@")
    names = _NAMES.get(plain, (plain,))
    found = next(filter(None, map(shutil.which, names)), None)
    if found and not release and plain not in _RELEASES:
        return Path(found)
    otherwise = f"install it yourself and put {name} on PATH" if not release else _ELSEWHERE
    release = release or _RELEASES.get(plain, "")
    candidates = (
        debian(package, say, name, otherwise, release) / folder / file
        for package in _PACKAGES[plain]
        for folder in _FOLDERS
        for file in names
    )
    try:
        path = next(filter(Path.exists, candidates), None)
    except PartError as error:
        if release not in _MOVING:
            raise
        why = f"Debian {release}, which still changes, did not give it:\n{error}\n"
        raise MissingPart(name, why, "try again later") from error
    if path is None:
        raise PartError(f"{name}: not in Debian's {' or '.join(_PACKAGES[plain])}")
    return path


def debian(package: str, say: Say, part: str, otherwise: str, release: str = "") -> Path:
    """Return the folder that Debian's `package` is unpacked in, which `part` needs.

    Of its dependencies only the scripts of web pages are unpacked too. `otherwise` is the fix on
    systems that are not Debian. `release` is the release of Debian to take it from, instead of the
    machine's own.
    """
    distribution, codename = _distribution(part, otherwise)
    if release and distribution != "debian":
        raise MissingPart(part, f"{distribution} is not Debian", otherwise)
    codename = release or codename

    def build(folder: Path) -> None:
        say(f"{package}: downloading from {distribution.capitalize()} {codename}")
        wanted, done = {package}, set[str]()
        while wanted:
            debs = _download(wanted, distribution, release, folder)
            needed = [_unpack(deb, folder) for deb in debs]
            done |= wanted
            wanted = set(chain(*needed)) - done
        _relocate(folder)

    return install(f"{distribution}-{codename}/{package}", build, say)


def root(program: Path) -> Path | None:
    """Return the folder that `program` must run in to find its templates and pages, if any."""
    return next((each for each in program.parents if (each / _PAGES).is_dir()), None)


def install(name: str, build: Callable[[Path], None], say: Say) -> Path:
    """Return the folder `name` of the cache, filled by `build` unless it is already there."""
    home = cache() / name
    if home.is_dir():
        return home
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        with _lock(home, say):
            if not home.is_dir():
                _fill(home, build)
    except OSError as error:
        raise PartError(
            f"{name}: {error.filename}: {error.strerror}; set TOKENSLO_CACHE to another folder"
        ) from error
    return home


def cache() -> Path:
    """$TOKENSLO_CACHE, else `.cache` of the checkout this runs from, else `~/.cache/tokenslo`."""
    if chosen := os.environ.get("TOKENSLO_CACHE"):
        return Path(chosen).absolute()
    checkout = Path(__file__).parents[1]
    if (checkout / "pyproject.toml").exists():
        return checkout / ".cache"
    return Path.home() / ".cache/tokenslo"


def run(part: str, command: list[str | Path], cwd: Path | None = None) -> str:
    """Return the output of an installing tool; PartError with the end of it if the tool fails."""
    words = list(map(str, command))
    try:
        done = subprocess.run(
            words,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_TOOL_SECONDS,
        )
    except FileNotFoundError:
        raise PartError(f"{part}: {words[0]} is not on PATH") from None
    except subprocess.TimeoutExpired:
        raise PartError(f"{part}: `{' '.join(words)}` took over {_TOOL_SECONDS} s") from None
    if done.returncode:
        raise PartError(
            f"{part}: `{' '.join(words)}` failed with exit code {done.returncode}:\n"
            f"{tail(done.stdout)}"
        )
    return done.stdout


def tail(text: str, lines: int = _TAIL_LINES) -> str:
    """Cut a tool's output or a server's log to its last lines, indented for an error message."""
    kept = [line for line in text.splitlines() if line.strip() and line[0] not in _TABLE]
    return "\n".join(f"  {line}" for line in kept[-lines:])


def _fill(home: Path, build: Callable[[Path], None]) -> None:
    partial = home.with_name(home.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        build(partial)
        partial.rename(home)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _distribution(part: str, otherwise: str) -> tuple[str, str]:
    """Name the distribution and release of this machine, such as debian, bookworm."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    distribution = release.get("ID", platform.system())
    if distribution not in _COMPONENTS or not shutil.which("apt-get"):
        raise MissingPart(part, f"{distribution} is not Debian", otherwise)
    return distribution, release.get("VERSION_CODENAME", "sid")


def _download(packages: set[str], distribution: str, release: str, into: Path) -> list[Path]:
    """Fetch the .deb files of `packages` with package lists that are ours alone.

    The lists of an earlier download are tried first: they are enough until Debian moves on.
    """
    apt = cache() / (f"apt-{release}" if release else "apt")
    names = sorted(packages)
    part = names[0]
    (apt / "lists").mkdir(parents=True, exist_ok=True)
    with _lock(apt, lambda _: None):
        (apt / "apt.conf").write_text(_APT_CONF.format(apt=apt))
        (apt / "status").touch()
        apt_get: list[str | Path] = ["apt-get", "-c", apt / "apt.conf"]
        try:
            run(part, [*apt_get, "download", *names], cwd=into)
        except PartError:
            (apt / "sources.list").write_text("".join(_sources(part, distribution, release)))
            run(part, [*apt_get, "update"])
            run(part, [*apt_get, "download", *names], cwd=into)
    return list(into.glob("*.deb"))


def _unpack(deb: Path, into: Path) -> list[str]:
    """Unpack one package. Returns the packages with the scripts of its web pages."""
    run(deb.name, ["dpkg", "-x", deb, into])
    depends = run(deb.name, ["dpkg-deb", "-f", deb, "Depends"])
    deb.unlink()
    return re.findall(r"\blibjs-[\w.+-]+", depends)


def _relocate(folder: Path) -> None:
    """Make programs look for their templates and pages in the folder they run in.

    Debian's Prometheus and Alertmanager are built to look for them under /usr/share, which takes
    root to fill, and Alertmanager does not start without; a path of the same length takes over.
    """
    for program in folder.glob("usr/bin/*"):
        code = program.read_bytes()
        if f"/{_PAGES}".encode() in code:
            program.write_bytes(
                code.replace(f"/{_PAGES}".encode(), _PAGES.replace("/", "//", 1).encode())
            )


def _sources(package: str, distribution: str, release: str) -> Iterator[str]:
    """Write source lines for the distribution's archive, its updates and its security updates.

    The mirrors are those in the machine's lists: the ones with an address as the distribution
    gives it, or all of the distribution's suites where a company has renamed its mirror.
    """
    indexes = re.findall(
        r"'(\S+)/dists/([^/\s]+)/(\w+)/binary-\w+/Packages",
        run(package, ["apt-get", "update", "--print-uris"]),
    )
    keyring = Path(f"/usr/share/keyrings/{distribution}-archive-keyring.gpg")
    signed = f" signed-by={keyring}" if keyring.exists() else ""
    known: dict[str, None] = {}
    renamed: dict[str, None] = {}
    for uri, suite, component in indexes:
        name, _, pocket = suite.partition("-")
        wanted = pocket in ("", "updates", "security") and not (pocket and release in _MOVING)
        if not wanted or component not in _COMPONENTS[distribution]:
            continue
        line = f"{uri} {suite.replace(name, release or name)} {component}\n"
        if re.fullmatch(_MIRROR.format(distribution=distribution), uri):
            known[f"deb [target=Packages{signed}] {line}"] = None
        else:
            renamed[f"deb [target=Packages] {line}"] = None
    yield from known or renamed


@contextmanager
def _lock(path: Path, say: Say) -> Iterator[None]:
    with path.with_name(path.name + ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{path.name}: waiting for another process that is installing it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
