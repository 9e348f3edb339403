"""The real servers: start, requests, reload, failures and shutdown."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import tritonclient.grpc

import lab
from lab import process
from lab.alertmanager import Alertmanager
from lab.process import HOST, ServerError, get
from lab.prometheus import Prometheus
from lab.triton import VERSION, Triton
from tests.polling import wait_until

CONFIG = """
backend: "python"
input { name: "text" data_type: TYPE_STRING dims: 1 }
output { name: "text" data_type: TYPE_STRING dims: 1 }
"""
# Answers with what it runs on.
MODEL = """
import os, sys
import numpy
import triton_python_backend_utils as pb
import lab

class TritonPythonModel:
    def execute(self, requests):
        facts = [*sys.version_info[:2], numpy.__version__.split(".")[0], lab.__file__, os.getpid()]
        text = pb.Tensor("text", numpy.array([" ".join(map(str, facts))], dtype=object))
        return [pb.InferenceResponse([text]) for _ in requests]
"""
ROUTES = "route: {receiver: none, group_wait: 0s}\nreceivers: [{name: none}]\n"
RULES = """
groups:
  - name: lab
    rules:
      - {record: 'lab:up', expr: up * VALUE}
      - {alert: Always, expr: 'up == 1', labels: {severity: page}}
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return repository(tmp_path_factory.mktemp("models"), MODEL)


@pytest.fixture(scope="module")
def served(
    triton: Callable[..., Triton], models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Triton]:
    with triton(models, tmp_path_factory.mktemp("triton"), load=["*"]) as server:
        yield server


@pytest.fixture(scope="module")
def alerts(
    alertmanager: Callable[..., Alertmanager], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Alertmanager]:
    folder = tmp_path_factory.mktemp("alertmanager")
    (folder / "routes.yml").write_text(ROUTES)
    with alertmanager(folder, folder / "routes.yml") as server:
        yield server


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("rules") / "lab.rules.yml"
    file.write_text(RULES.replace("VALUE", "10"))
    return file


@pytest.fixture(scope="module")
def monitoring(
    prometheus: Callable[..., Prometheus],
    alerts: Alertmanager,
    rules: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    targets = {"alerts": f"{alerts.url}/metrics"}
    with prometheus(
        folder, scrape=targets, rules=[rules], interval=0.2, alertmanager=alerts.url
    ) as server:
        yield server


def repository(folder: Path, model: str) -> Path:
    (folder / "probe/1").mkdir(parents=True)
    (folder / "probe/config.pbtxt").write_text(CONFIG)
    (folder / "probe/1/model.py").write_text(model)
    return folder


def fetch(url: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urlopen(url, data) as answer:  # noqa: S310
        text = answer.read()
    return json.loads(text) if text else None


def probe(server: Triton) -> list[str]:
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["?"]}
    answer = fetch(f"{server.url}/v2/models/probe/infer", {"inputs": [tensor]})
    return str(answer["outputs"][0]["data"][0]).split()


def query(server: Prometheus, expr: str) -> list[Any]:
    answer = fetch(f"{server.url}/api/v1/query?{urlencode({'query': expr})}")
    return list(answer["data"]["result"])


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_triton_runs_models_with_this_python_and_our_packages(served: Triton) -> None:
    *facts, pid = probe(served)
    assert facts == [*map(str, sys.version_info[:2]), "1", lab.__file__]
    assert os.getpgid(int(pid)) == os.getpgid(served.pid) == served.pid


def test_triton_serves_http_grpc_and_metrics(served: Triton) -> None:
    assert fetch(f"{served.url}/v2")["version"] == VERSION
    assert tritonclient.grpc.InferenceServerClient(served.grpc).is_model_ready("probe")
    with urlopen(served.metrics) as answer:  # noqa: S310
        assert b'nv_inference_request_success{model="probe",version="1"}' in answer.read()


def test_triton_loads_and_unloads_models_on_request(served: Triton) -> None:
    control = f"{served.url}/v2/repository/models/probe"
    ready = "/v2/models/probe/ready"
    fetch(f"{control}/unload", {})
    wait_until(lambda: get(served.ports[0], ready)[0] == 400)
    fetch(f"{control}/load", {})
    assert get(served.ports[0], ready)[0] == 200


def test_a_model_that_cannot_load_is_explained(
    triton: Callable[..., Triton], tmp_path: Path
) -> None:
    models = repository(tmp_path / "models", "raise RuntimeError('no such engine')")
    with pytest.raises(ServerError) as caught:
        triton(models, tmp_path)
    assert "failed to load 'probe' version 1: Internal: RuntimeError: no such engine" in str(
        caught.value
    )


def test_triton_is_not_ready_before_its_metrics_are(
    triton: Callable[..., Triton],
    models: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Triton answers over HTTP a moment before it finds the port of its metrics taken, and ends."""
    choose = process.free_ports
    with socket.create_server((HOST, 0)) as taken:
        offers = iter([(*choose(2), taken.getsockname()[1]), choose(3)])
        monkeypatch.setattr(process, "free_ports", lambda _: next(offers))
        with triton(models, tmp_path) as server:
            assert server.ports[2] != taken.getsockname()[1]
            assert get(server.ports[2], "/metrics")[0] == 200
    assert next(offers, None) is None


def test_triton_and_its_models_end_with_their_parent(
    triton: Callable[..., Triton], models: Path, tmp_path: Path
) -> None:
    script = (
        "import sys, time; from pathlib import Path; from lab import triton\n"
        "server = triton.start(triton.install(print), Path(sys.argv[1]), Path(sys.argv[2]))\n"
        "print(server.pid, flush=True); time.sleep(300)"
    )
    command = [sys.executable, "-c", script, str(models), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout
        pid = int(holder.stdout.readline())
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        holder.send_signal(signal.SIGKILL)
    assert children
    wait_until(lambda: gone(pid) and all(gone(int(child)) for child in children))


def test_prometheus_scrapes_evaluates_and_alerts(
    monitoring: Prometheus, alerts: Alertmanager, promtool: Path, amtool: Path
) -> None:
    # A scrape of a busy machine may fail first.
    recorded = wait_until(lambda: query(monitoring, "lab:up{job='alerts'} == 10"))
    assert recorded[0]["metric"]["instance"] == alerts.url.removeprefix("http://")
    (alert,) = wait_until(lambda: fetch(f"{alerts.url}/api/v2/alerts"))
    assert alert["labels"].items() >= {"alertname": "Always", "severity": "page"}.items()

    checked = subprocess.run(
        [promtool, "check", "config", monitoring.log.with_name("prometheus.yml")],
        capture_output=True,
        text=True,
    )
    assert "SUCCESS: 2 rules found" in checked.stdout
    listed = subprocess.run(
        [amtool, f"--alertmanager.url={alerts.url}", "alert", "query"],
        capture_output=True,
        text=True,
    )
    assert "Always" in listed.stdout


def test_prometheus_reloads_its_rules_or_reports_the_error(
    monitoring: Prometheus, rules: Path
) -> None:
    rules.write_text(RULES.replace("VALUE", "20"))
    monitoring.reload()
    wait_until(lambda: query(monitoring, "lab:up == 20"))
    rules.write_text(RULES.replace("VALUE", "("))
    with pytest.raises(
        ServerError, match=r"kept its configuration: (.|\n)*lab\.rules\.yml.*parse error"
    ):
        monitoring.reload()
    assert query(monitoring, "lab:up == 20")


def test_prometheus_keeps_its_data_over_a_restart(
    prometheus: Callable[..., Prometheus], tmp_path: Path
) -> None:
    rules = tmp_path / "rules.yml"
    rules.write_text("groups: [{name: lab, rules: [{record: 'lab:one', expr: vector(1)}]}]")
    with prometheus(tmp_path, scrape={}, rules=[rules], interval=0.2) as server:
        wait_until(lambda: query(server, "lab:one"))
    with prometheus(tmp_path, scrape={}) as server:
        assert query(server, "last_over_time(lab:one[1m])")


def test_prometheus_ui_is_complete(monitoring: Prometheus) -> None:
    """Debian keeps their scripts in other packages."""
    with urlopen(f"{monitoring.url}/graph") as answer:  # noqa: S310
        page = answer.read().decode()
    needed = re.findall(r'(?:src|href)="(/[^"?]+\.(?:js|css))', page)
    assert needed
    assert [path for path in needed if get(monitoring.ports[0], path)[0] != 200] == []
