"""A real Triton server on this machine, without a GPU and without a container.

PyPI's nvidia-pytriton contains the server, the Python backend and one stub per Python version,
with relative library paths.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from pathlib import Path

from lab import toolchain
from lab.process import HOST, ServerProcess, serve
from lab.toolchain import InstallError, Progress, UnavailableProgram

VERSION = "2.51.0"
_REQUIREMENTS = ("nvidia-pytriton==0.7.0", "numpy<2")
_ENDPOINTS = ("http", "grpc", "metrics")
_EXIT_SECONDS = 5
_LAST_PYTHON = 12  # there is a stub for 3.13, but no numpy below 2, which tensors require
_PYTHON = f"3.{sys.version_info.minor}"
_LIBPYTHON = f"libpython{_PYTHON}.so.1.0"


class Triton(ServerProcess):
    """A running Triton server; `url` is its HTTP endpoint."""

    @property
    def grpc(self) -> str:
        """Its gRPC endpoint as host:port."""
        return f"{HOST}:{self.ports[1]}"

    @property
    def metrics(self) -> str:
        """The URL of its Prometheus metrics."""
        return f"http://{HOST}:{self.ports[2]}/metrics"


def start(
    home: Path,
    models: Path,
    folder: Path,
    *,
    load: Sequence[str] | None = None,
    arguments: Sequence[str] = (),
    deadline: float = 90.0,
) -> Triton:
    """Start the Triton installed at `home` on the model repository `models`, its files in `folder`.

    Without `load` it serves every model; with it, the named ones (`*`: all), and models can be
    loaded and unloaded over HTTP. Model code runs in processes of this Python and can import the
    packages that are installed beside `lab`.
    """
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    explicit = [] if load is None else ["--model-control-mode=explicit"]
    server = home / "pytriton/tritonserver"

    def command(ports: Sequence[int]) -> list[str | Path]:
        return [
            server / "bin/tritonserver",
            f"--model-repository={models}",
            f"--backend-directory={server / 'backends'}",
            f"--cache-directory={server / 'caches'}",
            *(f"--{endpoint}-address={HOST}" for endpoint in _ENDPOINTS),
            *(
                f"--{endpoint}-port={port}"
                for endpoint, port in zip(_ENDPOINTS, ports, strict=True)
            ),
            f"--exit-timeout-secs={_EXIT_SECONDS}",
            *explicit,
            *(f"--load-model={name}" for name in load or ()),
            *arguments,
        ]

    return serve(
        Triton,
        "triton",
        command,
        folder / "triton.log",
        ready="/v2/health/ready",
        ports=len(_ENDPOINTS),
        env=_environment(home, folder / "python"),
        deadline=deadline,
        grace=2 * _EXIT_SECONDS,
    )


def _environment(home: Path, python: Path) -> dict[str, str]:
    """Return the server's environment; its models run in the virtual environment `python`.

    The Python backend's stub is an isolated interpreter: it ignores PYTHONPATH and uses the
    packages of the python3 on PATH. In this environment the stub's numpy precedes the packages
    installed beside `lab`.
    """
    venv.create(python, symlinks=True)
    packages = next(python.glob("lib/python*/site-packages"))
    root = Path(toolchain.__file__).parents[toolchain.__name__.count(".")]
    (packages / "models.pth").write_text(f"{home}\n{root}\n")
    path = f"{python / 'bin'}:{os.environ.get('PATH', os.defpath)}"
    return os.environ | {"TRITON_SERVER_CPU_ONLY": "1", "PATH": path}


def install(progress: Progress) -> Path:
    """Install the Triton server for the running Python, once; return its folder.

    Raises UnavailableProgram on other platforms, InstallError if the download fails.
    """
    _refuse_other_platforms()
    return toolchain.install(
        f"triton-{VERSION}-python{_PYTHON}", lambda home: _build(home, progress), progress
    )


def _refuse_other_platforms() -> None:
    machine = f"{platform.system()} {platform.machine()}"
    libc = " ".join(platform.libc_ver()).strip() or "another libc"
    fix = "use Debian 12 or later on x86-64, for example in a container"
    if machine != "Linux x86_64":
        raise UnavailableProgram("triton", f"it is built for Linux x86_64, this is {machine}", fix)
    if not _is_enough(*platform.libc_ver()):
        raise UnavailableProgram("triton", f"it needs glibc 2.35, this is {libc}", fix)
    if sys.version_info[1] > _LAST_PYTHON:
        raise UnavailableProgram(
            "triton",
            f"its Python backend needs numpy below 2, which Python 3.{sys.version_info[1]} lacks",
            f"use Python 3.11 or 3.{_LAST_PYTHON}",
        )


def _is_enough(libc: str, version: str) -> bool:
    """Whether the wheel supports this C library (manylinux_2_35)."""
    return libc == "glibc" and tuple(map(int, version.split("."))) >= (2, 35)


def _build(home: Path, progress: Progress) -> None:
    progress(f"triton: downloading version {VERSION} from PyPI (74 MB)")
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install"]
    options = ["--quiet", "--no-input", "--no-deps", "--only-binary=:all:", "--no-compile"]
    toolchain.run("triton", [*pip, *options, "--target", home, *_REQUIREMENTS])
    server = home / "pytriton/tritonserver"
    stub = server / "backends/python/triton_python_backend_stub"
    shutil.copy(server / f"python_backend_stubs/{_PYTHON}/{stub.name}", stub)
    stub.chmod(0o755)
    _provide_libpython(stub, home / "nvidia_pytriton.libs", progress)


def _provide_libpython(stub: Path, libraries: Path, progress: Progress) -> None:
    """Copy this Python's shared library into the stub's library path, unless the loader finds one.

    Debian's python3 is linked statically; the library is in a separate package.
    """
    own = Path(sysconfig.get_config_var("LIBDIR") or "", _LIBPYTHON)
    if own.exists():
        shutil.copy(own, libraries)
    elif not _starts(stub):
        otherwise = f"install {_LIBPYTHON}, or use a Python that has it"
        package = toolchain.debian(f"libpython{_PYTHON}", progress, "triton", otherwise)
        shutil.copy(next(package.glob(f"usr/lib/*/{_LIBPYTHON}")), libraries)
    if not _starts(stub):
        raise InstallError(f"triton: {stub} does not start; see the output of `ldd {stub}`")


def _starts(stub: Path) -> bool:
    """Whether the loader finds all libraries of the stub: it then rejects its arguments."""
    done = subprocess.run([stub], capture_output=True, text=True)
    return "Expected" in done.stderr
