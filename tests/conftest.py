"""Fixtures of the real servers and tools.

A test gets a tool by fixture, or names it in `@pytest.mark.needs("triton", …)` if it starts a
command that uses the tool. Tests of a tool that the platform does not support are left out, and the
end of the run lists them; a tool that cannot be installed on a supported platform is an error.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from lab import alertmanager as alertmanager_server
from lab import prometheus as prometheus_server
from lab import toolchain
from lab import triton as triton_server
from lab.alertmanager import Alertmanager
from lab.prometheus import Prometheus
from lab.toolchain import UnavailableProgram
from lab.triton import Triton
from tests.conversion_folder import Folder
from tests.triton_models import ARGUMENTS, MODELS, write_models

LEFT_OUT = "left out"


@pytest.fixture(scope="session")
def part(pytestconfig: pytest.Config) -> Callable[[str], Path]:
    """Return a function that installs a tool by name, unless it is installed."""
    return partial(_install, pytestconfig)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Return a folder for files of other tools and commands on them."""
    return Folder(tmp_path)


@pytest.fixture(scope="session")
def promtool(part: Callable[[str], Path]) -> Path:
    return part("promtool")


@pytest.fixture(scope="session")
def amtool(part: Callable[[str], Path]) -> Path:
    return part("amtool")


@pytest.fixture(scope="session")
def triton(part: Callable[[str], Path]) -> Callable[..., Triton]:
    """`triton(models, folder, …)`: lab.triton.start with the installed server; use it in `with`."""
    return partial(triton_server.start, part("triton"))


@pytest.fixture(scope="session")
def test_triton(
    triton: Callable[..., Triton], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Triton]:
    """A Triton with all of tests/triton_models loaded; a test that unloads one loads it again."""
    folder = tmp_path_factory.mktemp("test_triton")
    write_models(folder / "models")
    with triton(folder / "models", folder, load=MODELS, arguments=ARGUMENTS) as running:
        yield running


@pytest.fixture(scope="session")
def prometheus(part: Callable[[str], Path]) -> Callable[..., Prometheus]:
    """`prometheus(folder, scrape=…)`: lab.prometheus.start; use it in `with`."""
    return partial(prometheus_server.start, part("prometheus"))


@pytest.fixture(scope="session")
def alertmanager(part: Callable[[str], Path]) -> Callable[..., Alertmanager]:
    """`alertmanager(folder, config)`: lab.alertmanager.start; use it in `with`."""
    return partial(alertmanager_server.start, part("alertmanager"))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(part, …): uses real servers or tools of the lab")
    config.addinivalue_line("markers", "alone: measures times, so no other test may run meanwhile")
    config.addinivalue_line("markers", "long: runs for long by nature; see `make test-long`")
    # Times of examples depend on the load of the machine; bench/ measures speed.
    settings.register_profile(
        "on a busy machine",
        deadline=None,
        derandomize=config.getoption("hypothesis_seed") is None,
        max_examples=60,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("on a busy machine")
    # promtool and Prometheus use a quarter less CPU with a larger heap of about 100 MB.
    os.environ.setdefault("GOGC", "400")
    # A run in a shell's background (`make test &`) ignores Ctrl-C, and so would what tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("alone") and item.path.parent.name != "integration":
            raise pytest.UsageError(f"{item.nodeid}: move it to tests/integration, or unmark alone")


def pytest_collection_finish() -> None:
    """Keep thousands of collected tests out of every garbage collection from here on."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        for name in mark.args:
            _install(item.config, name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "setup" and call.excinfo and call.excinfo.errisinstance(UnavailableProgram):
        reason = str(call.excinfo.value)
        report.outcome = "skipped"
        report.longrepr = (str(item.path), (item.location[1] or 0) + 1, reason)
        report.user_properties.append((LEFT_OUT, reason))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    left_out = [
        f"{report.nodeid}: {reason}"
        for report in terminalreporter.getreports("skipped")
        for name, reason in report.user_properties
        if name == LEFT_OUT
    ]
    if left_out:
        terminalreporter.ensure_newline()
        terminalreporter.section("tests not run: this platform cannot have their servers")
        for line in left_out:
            terminalreporter.write_line(line)


def _install(config: pytest.Config, name: str) -> Path:
    """Install a tool; report a download past pytest's capture, also from a worker of xdist."""
    capture = config.pluginmanager.getplugin("capturemanager")

    def progress(text: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n{text}", file=sys.stderr, flush=True)

    return (
        triton_server.install(progress) if name == "triton" else toolchain.program(name, progress)
    )
