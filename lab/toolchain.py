"""Install the real programs that the lab runs, in one cache folder.

Installed programs are reused. Nothing is installed system-wide, root is not needed, and
the machine's own apt is only read. A program is built in a sibling folder under a file lock and
renamed into place, so that it is complete or absent, also with concurrent processes.
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

Progress = Callable[[str], None]

# Debian's packages for each program, none if it has to be on PATH: trixie moved promtool out of
# prometheus.
_PACKAGES = {
    "prometheus": ("prometheus",),
    "promtool": ("prometheus", "promtool"),
    "alertmanager": ("prometheus-alertmanager",),
    "amtool": ("prometheus-alertmanager",),
    "victoria-metrics": ("victoria-metrics",),
    "vmalert": ("victoria-metrics",),
    "nginx": ("nginx",),
    "haproxy": ("haproxy",),
    "caddy": ("caddy",),
    "etcd": ("etcd-server",),
    "kube-apiserver": (),
    "thanos": (),
    "vminsert": (),
    "vmselect": (),
    "vmstorage": (),
    "otelcol": (),
    "mimir": (),
    "mimirtool": (),
}
# The first release of Debian whose package is recent enough: VictoriaMetrics receives OTLP from
# 1.92 on, and Kubernetes requires etcd 3.5.
_RELEASES = {"etcd": "trixie", "victoria-metrics": "trixie", "vmalert": "trixie"}
_MOVING = {"forky", "sid"}
_USE_DEBIAN = "use Debian, for example in a container"
# Debian calls the program by the package's name, upstream does not.
_NAMES = {"alertmanager": ("alertmanager", "prometheus-alertmanager")}
_FOLDERS = ("usr/bin", "usr/sbin")
_PAGES = "usr/share/prometheus"
_LIBRARIES = "usr/lib/*-linux-gnu*/*.so.*"
# The dependencies that a plain Debian lacks: scripts of web pages, and libraries of HAProxy.
_UNPACKED_DEPENDENCIES = r"\b(?:libjs-|liblua|libopentracing)[\w.+-]+"
# Addresses of mirrors, also of snapshots and of mirror lists as on cloud images.
_MIRROR = r"mirror\b.*|.*/{distribution}(-security)?(/\d+T\d+Z)?/?|.*//security\.debian\.org/?"
_COMPONENTS = {"debian": {"main"}, "ubuntu": {"main", "universe"}}
# Neither packages nor pins of the machine: `apt-get download` prefers an installed version, which
# these lists may lack. No user _apt, which may not enter the cache; no hooks, which are meant for
# the machine's own lists.
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
_TABLE = "|+"  # the borders of Triton's tables of settings, which are wider than any screen


class UnavailableProgram(Exception):  # noqa: N818 - a fact about the platform, not a failure
    """A program that is unavailable on this platform: name, reason and fix."""

    def __init__(self, program: str, reason: str, fix: str) -> None:
        super().__init__(f"{program} cannot run here: {reason}; {fix}")
        self.program, self.reason, self.fix = program, reason, fix


class InstallError(Exception):
    """A program could not be installed; the message ends with the tool's output."""


def program(name: str, progress: Progress) -> Path:
    """Return the path of a program: on PATH, else installed from Debian's package in the cache.

    `promtool@trixie` is the program of that release of Debian, even if another one is on PATH.
    Programs that need a recent release are always installed from it.

    Raises UnavailableProgram on other systems than Debian, if Debian has no package of the program,
    or if a release in development lacks it; InstallError if the download fails.
    """
    plain, _, release = name.partition("@")
    names = _NAMES.get(plain, (plain,))
    found = next(filter(None, map(shutil.which, names)), None)
    if found and not release and plain not in _RELEASES:
        return Path(found)
    if not _PACKAGES[plain]:
        raise UnavailableProgram(name, "Debian has no package of it", f"put {name} on PATH")
    otherwise = f"install it yourself and put {name} on PATH" if not release else _USE_DEBIAN
    release = release or _RELEASES.get(plain, "")
    candidates = (
        debian(package, progress, name, otherwise, release) / folder / file
        for package in _PACKAGES[plain]
        for folder in _FOLDERS
        for file in names
    )
    try:
        path = next(filter(Path.exists, candidates), None)
    except InstallError as error:
        if release not in _MOVING:
            raise
        reason = f"Debian {release}, a release in development, lacks it:\n{error}\n"
        raise UnavailableProgram(name, reason, "try again later") from error
    if path is None:
        raise InstallError(f"{name}: not in Debian's {' or '.join(_PACKAGES[plain])}")
    return path


def debian(package: str, progress: Progress, part: str, otherwise: str, release: str = "") -> Path:
    """Return the folder of the unpacked Debian package that `part` requires.

    Of its dependencies, the scripts of web pages and uncommon libraries are unpacked too.
    `otherwise` is the fix on other systems than Debian. `release` is the release of Debian, by
    default the machine's own.
    """
    distribution, codename = _distribution(part, otherwise)
    if release and distribution != "debian":
        raise UnavailableProgram(part, f"{distribution} is not Debian", otherwise)
    codename = release or codename

    def build(folder: Path) -> None:
        progress(f"{package}: downloading from {distribution.capitalize()} {codename}")
        wanted, done = {package}, set[str]()
        while wanted:
            debs = _download(wanted, distribution, release, folder)
            needed = [_unpack(deb, folder) for deb in debs]
            done |= wanted
            wanted = set(chain(*needed)) - done
        _relocate(folder)

    return install(f"{distribution}-{codename}/{package}", build, progress)


def root(program: Path) -> Path | None:
    """Return the working directory in which `program` finds its templates and pages, if any."""
    return next((each for each in program.parents if (each / _PAGES).is_dir()), None)


def environment(program: Path) -> dict[str, str]:
    """Return the environment in which `program` finds the libraries unpacked with it."""
    folders = set[str]()
    if program.is_relative_to(cache()):
        folders = {str(library.parent) for library in program.parents[2].glob(_LIBRARIES)}
    return os.environ | ({"LD_LIBRARY_PATH": ":".join(sorted(folders))} if folders else {})


def install(name: str, build: Callable[[Path], None], progress: Progress) -> Path:
    """Return the folder `name` of the cache; `build` fills it on the first call."""
    home = cache() / name
    if home.is_dir():
        return home
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        with _lock(home, progress):
            if not home.is_dir():
                _fill(home, build)
    except OSError as error:
        raise InstallError(
            f"{name}: {error.filename}: {error.strerror}; set TOKENSLO_CACHE to another folder"
        ) from error
    return home


def cache() -> Path:
    """Return $TOKENSLO_CACHE, else `.cache` of the checkout, else `~/.cache/tokenslo`."""
    if chosen := os.environ.get("TOKENSLO_CACHE"):
        return Path(chosen).absolute()
    checkout = Path(__file__).parents[1]
    if (checkout / "pyproject.toml").exists():
        return checkout / ".cache"
    return Path.home() / ".cache/tokenslo"


def run(part: str, command: list[str | Path], cwd: Path | None = None) -> str:
    """Return a tool's output; raises InstallError with the end of the output if it fails."""
    arguments = list(map(str, command))
    try:
        done = subprocess.run(
            arguments,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_TOOL_SECONDS,
        )
    except FileNotFoundError:
        raise InstallError(f"{part}: {arguments[0]} is not on PATH") from None
    except subprocess.TimeoutExpired:
        raise InstallError(f"{part}: `{' '.join(arguments)}` took over {_TOOL_SECONDS} s") from None
    if done.returncode:
        raise InstallError(
            f"{part}: `{' '.join(arguments)}` failed with exit code {done.returncode}:\n"
            f"{tail(done.stdout)}"
        )
    return done.stdout


def tail(text: str, lines: int = _TAIL_LINES) -> str:
    """Return the last lines of a tool's output or a server's log, indented for an error message."""
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
    """Return the distribution and release of this machine: debian, bookworm."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    distribution = release.get("ID", platform.system())
    if distribution not in _COMPONENTS or not shutil.which("apt-get"):
        raise UnavailableProgram(part, f"{distribution} is not Debian", otherwise)
    return distribution, release.get("VERSION_CODENAME", "sid")


def _download(packages: set[str], distribution: str, release: str, into: Path) -> list[Path]:
    """Download the .deb files of `packages` with package lists of our own.

    The lists of an earlier download are tried first; they are valid until Debian's next release.
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
        except InstallError:
            (apt / "sources.list").write_text("".join(_sources(part, distribution, release)))
            run(part, [*apt_get, "update"])
            run(part, [*apt_get, "download", *names], cwd=into)
    return list(into.glob("*.deb"))


def _unpack(deb: Path, into: Path) -> list[str]:
    """Unpack one package; return those of its dependencies that must be unpacked too."""
    run(deb.name, ["dpkg", "-x", deb, into])
    depends = run(deb.name, ["dpkg-deb", "-f", deb, "Depends"])
    deb.unlink()
    return re.findall(_UNPACKED_DEPENDENCIES, depends)


def _relocate(folder: Path) -> None:
    """Make programs read their templates and pages from their working directory.

    Debian's Prometheus and Alertmanager read them from /usr/share, which only root can fill, and
    Alertmanager does not start without them.  A relative path of the same length replaces it.
    """
    for program in folder.glob("usr/bin/*"):
        code = program.read_bytes()
        if f"/{_PAGES}".encode() in code:
            program.write_bytes(
                code.replace(f"/{_PAGES}".encode(), _PAGES.replace("/", "//", 1).encode())
            )


def _sources(package: str, distribution: str, release: str) -> Iterator[str]:
    """Yield source lines for the distribution's archive, its updates and its security updates.

    The mirrors come from the machine's lists: those at an official address, or all that have the
    distribution's suites if none is, as behind a company's mirror.
    """
    indexes = re.findall(
        r"'(\S+)/dists/([^/\s]+)/(\w+)/binary-\w+/Packages",
        run(package, ["apt-get", "update", "--print-uris"]),
    )
    keyring = Path(f"/usr/share/keyrings/{distribution}-archive-keyring.gpg")
    signed = f" signed-by={keyring}" if keyring.exists() else ""
    official: dict[str, None] = {}
    renamed: dict[str, None] = {}
    for uri, suite, component in indexes:
        name, _, pocket = suite.partition("-")
        wanted = pocket in ("", "updates", "security") and not (pocket and release in _MOVING)
        if not wanted or component not in _COMPONENTS[distribution]:
            continue
        line = f"{uri} {suite.replace(name, release or name)} {component}\n"
        if re.fullmatch(_MIRROR.format(distribution=distribution), uri):
            official[f"deb [target=Packages{signed}] {line}"] = None
        else:
            renamed[f"deb [target=Packages] {line}"] = None
    yield from official or renamed


@contextmanager
def _lock(path: Path, progress: Progress) -> Iterator[None]:
    with path.with_name(path.name + ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"{path.name}: waiting for another process that is installing it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
