"""``--metrics``: SLO files against the metrics that servers expose."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from service_example import objective, service

from slos.missing_metrics import unserved
from tokenslo.cli import main
from tokenslo.commands.generate import generate
from tokenslo.commands.validate import validate

SLO = """\
apiVersion: tokenslo/v1
service: chat
selector: {model: llama, namespace: prod}
objectives:
  - {name: first-token, indicator: ttft, threshold: 1s, target: 95%}
  - {name: availability, indicator: availability, target: 99.9%}
  - {name: kv, indicator: kv_headroom, threshold: 90%, target: 99%}
"""
TTFT = "llm_time_to_first_token_seconds"
SERVED = """\
# TYPE llm_time_to_first_token_seconds histogram
llm_time_to_first_token_seconds_bucket{model="llama",version="1",le="0.5"} 1
llm_time_to_first_token_seconds_bucket{model="llama",version="1",le="1.0"} 2
llm_time_to_first_token_seconds_bucket{model="llama",version="1",le="+Inf"} 2
# TYPE llm_requests_total counter
llm_requests_total{model="llama",version="1",outcome="ok"} 1
# TYPE llm_kv_cache_utilization_ratio gauge
llm_kv_cache_utilization_ratio{model="llama",version="1"} 0.5
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slo.yaml").write_text(SLO)
    return tmp_path


def run(metrics: str | None = None, *places: str) -> tuple[int, str]:
    if metrics is not None:
        Path("metrics.txt").write_text(metrics)
        places = (*places, "metrics.txt")
    options = [argument for place in places for argument in ("--metrics", place)]
    result = CliRunner().invoke(validate, ["slo.yaml", *options])
    return result.exit_code, result.output


def test_a_file_whose_metrics_are_served_is_valid() -> None:
    assert run(SERVED) == (0, "ok: chat: 3 objectives\n")


def test_both_spellings_of_a_whole_boundary_are_accepted() -> None:
    assert run(SERVED.replace('"1.0"', '"1"'))[0] == 0


def test_a_threshold_between_boundaries_is_reported_with_the_nearest() -> None:
    assert run(SERVED.replace('le="1.0"', 'le="1.5"')) == (
        2,
        "slo.yaml:5: objectives[0].threshold: 1s is no bucket boundary of "
        f'{TTFT}_bucket{{model="llama",namespace="prod"}}; the nearest are 500ms and 1.5s. '
        "Fix: start the sidecar with --slo and this file, which adds the boundary where the "
        "sidecar measures; where the histogram is the server's own, use one of its boundaries.\n",
    )


def test_every_server_must_have_the_boundary() -> None:
    other = f'{TTFT}_bucket{{model="llama",version="2",le="0.25"}} 1\n'
    code, text = run(SERVED.replace("# TYPE llm_requests", f"{other}# TYPE llm_requests"))
    assert code == 2
    assert "the nearest are 250ms." in text


def test_a_missing_metric_is_reported() -> None:
    code, text = run(SERVED.replace("llm_requests_total", "http_requests_total"))
    assert code == 2
    assert text.startswith("slo.yaml:6: objectives[1]: llm_requests_total is not served. Fix: ")


def test_a_metric_with_other_labels_is_reported() -> None:
    code, text = run(SERVED.replace('ratio{model="llama"', 'ratio{model="qwen"'))
    assert (code, text) == (
        2,
        "slo.yaml:7: objectives[2]: selects "
        'llm_kv_cache_utilization_ratio{model="llama",namespace="prod"}, but only '
        '{model="qwen"} is served. Fix: correct the selector, which is the service\'s.\n',
    )


def test_several_expositions_are_merged() -> None:
    first, second = SERVED.split("# TYPE llm_requests_total")
    Path("first.txt").write_text(first)
    assert run(f"# TYPE llm_requests_total{second}", "first.txt")[0] == 0


def test_nothing_is_generated_for_a_server_without_the_boundary(folder: Path) -> None:
    Path("metrics.txt").write_text(SERVED.replace('le="1.0"', 'le="2"'))
    arguments = ["slo.yaml", "-o", "out", "--metrics", "metrics.txt"]
    result = CliRunner().invoke(generate, arguments)
    assert result.exit_code != 0
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ("", "has no metrics"),
        ("what?\n", "metrics.txt:1: is not an exposition of metrics: "),
        ("# TYPE a gauge\n", "there is no series"),
    ],
)
def test_an_invalid_exposition_is_refused(
    metrics: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("metrics.txt").write_text(metrics)
    with pytest.raises(SystemExit, match="2"):
        main(["validate", "slo.yaml", "--metrics", "metrics.txt"])
    assert message in capsys.readouterr().err


@pytest.fixture
def server() -> Iterator[str]:
    class MetricsPage(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(SERVED.encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), MetricsPage) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}/metrics"
        running.shutdown()


def test_metrics_of_a_running_server_are_read(server: str) -> None:
    assert run(None, server) == (0, "ok: chat: 3 objectives\n")


def test_histograms_and_queries_of_the_file_are_checked(folder: Path) -> None:
    (folder / "slo.yaml").write_text(
        "apiVersion: tokenslo/v1\nservice: web\nobjectives:\n"
        "  - name: fast\n    target: 99%\n"
        "    indicator: {histogram: 'http_seconds{job=~\"web.*\"}', threshold: 400ms}\n"
        "  - name: good\n    target: 99%\n"
        "    indicator: {bad: 'errors_total', total: 'requests_total'}\n"
    )
    served = 'http_seconds_bucket{le="0.5"} 1\nrequests_total 1\n'
    assert run(served) == (
        2,
        "slo.yaml:4: objectives[0].threshold: 400ms is no bucket boundary of http_seconds_bucket"
        '{job=~"web.*"}; the nearest are 500ms. Fix: use one of these, or add this boundary to '
        "the server's histogram.\n"
        "slo.yaml:7: objectives[1]: errors_total is not served. "
        "Fix: correct its name, or give --metrics of the server that has it as well.\n",
    )


@given(st.decimals("0.001", "100", places=3), st.sampled_from(["{:f}", "{:.1f}", "{:g}"]))
def test_a_boundary_is_accepted_in_every_spelling(edge, form) -> None:
    wanted = objective("ttft")
    wanted = type(wanted)(wanted.name, "ttft", wanted.target, edge.normalize())
    text = form.format(float(edge))
    found = list(unserved(service(wanted), {f"{TTFT}_bucket": [{"model": "llama", "le": text}]}))
    assert (found == []) is (float(text) == float(edge))
