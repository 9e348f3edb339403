"""A hang in which nothing ends pages within five minutes, on a real Triton and a real Prometheus.

The sidecar starts with a capture tap while streams are under way, as on a server that was in use
before; then the process of the model is stopped.  No client gives up.  Each second of the test is
five of the history.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from service_example import example, objective

import alerts
from lab.engine_settings import EngineSettings
from lab.process import get
from lab.prometheus import Prometheus
from lab.repository import write_repository
from lab.triton import Triton
from tests import libyaml
from tests.integration.test_live_readiness import (
    LLM,
    eventually_metric,
    model_process,
    send_request,
    sidecar,
)
from tests.packet_capture import need_capture
from tests.rule_values.replay import replaying
from tests.rule_values.rule_files import firing, generated_rules, history, parsed

SLO = f"""\
apiVersion: tokenslo/v1
service: chat
owner: inference
selector: {{model: {LLM}}}
window: 28d
objectives:
  - {{name: first-token, indicator: ttft, threshold: 800ms, target: 95%}}
  - {{name: availability, indicator: availability, target: 99.9%}}
  - {{name: completion, indicator: stream_completion, target: 99%}}
alerting:
  page: {{labels: {{severity: critical}}}}
  ticket: {{labels: {{severity: warning}}}}
"""
PACE = 5
STUCK_AFTER = 60
"""The default of the sidecar, in seconds of the history."""


LATE = 'llm_slo_events_total{model="llama",namespace="prod",signal="ttft"'
ENDED = 'llm_requests_total{model="llama",namespace="prod",signal="ttft"'


@pytest.mark.parametrize("counts_in_flight", [True, False])
def test_generated_hang_test_fails_on_rules_without_active_requests(
    run: Callable[..., subprocess.CompletedProcess[str]], counts_in_flight: bool
) -> None:
    plan = example(objective("ttft", "0.99"), objective("availability", "0.99"))
    files = alerts.files(plan, source="slo.yaml", version="0")
    tests = libyaml.load(files["alerts/chat.test.yaml"])
    tests["tests"] = [test for test in tests["tests"] if test["name"].startswith("a hang")]
    assert len(tests["tests"]) == 1
    rules = files["alerts/chat.rules.yaml"]
    assert LATE in rules
    given = {
        "chat.rules.yaml": rules if counts_in_flight else rules.replace(LATE, ENDED),
        "hang.yaml": libyaml.dump(tests),
    }
    done = run(plan, "test", "rules", "hang.yaml", **given)
    assert (done.returncode == 0) is counts_in_flight, done.stdout + done.stderr


@pytest.mark.long
def test_a_hang_in_which_nothing_ends_pages_within_5_minutes(
    triton: Callable[..., Triton], prometheus: Callable[..., Prometheus], tmp_path: Path
) -> None:
    need_capture()
    slo = tmp_path / "slo.yaml"
    slo.write_text(SLO)
    write_repository(tmp_path / "models", engine=EngineSettings())
    scrapes = []
    with triton(tmp_path / "models", tmp_path) as server:
        before = [threading.Thread(target=send_request, args=(server, 300)) for _ in range(12)]
        for client in before:
            client.start()
        flags = (
            *("--tap", f"capture=lo:{server.ports[0]}", "--slo", str(slo)),
            *("--stuck-after", f"{STUCK_AFTER // PACE}s"),
        )
        with sidecar(server, tmp_path, *flags) as running:
            clients = [threading.Thread(target=send_request, args=(server, 300)) for _ in range(12)]
            for client in clients:
                client.start()
            eventually_metric(running, f'llm_live_streams{{model="{LLM}",version="1"}} 12.0')
            process = model_process(server)
            os.kill(process, signal.SIGSTOP)
            try:
                for _ in range(STUCK_AFTER // PACE + 10):
                    scrapes.append(parsed(get(running.ports[0], "/metrics")[1]))
                    time.sleep(1)  # the interval of scrapes
            finally:
                os.kill(process, signal.SIGCONT)
        for client in (*before, *clients):
            client.join()
    rules = generated_rules(slo, tmp_path / "out")
    with replaying(prometheus, tmp_path / "prometheus") as replay:
        replay.add(history(scrapes, PACE, 600))
        fired = firing(replay, rules, 600)
    pages = {name: at for (name, severity), at in fired.items() if severity == "critical"}
    assert min(pages.values(), default=600) <= 300, fired
