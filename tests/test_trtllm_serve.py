"""The fake trtllm-serve over HTTP, in its own process."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.client import HTTPConnection, HTTPResponse, IncompleteRead
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from lab import trtllm_server
from lab.engine_settings import EngineSettings
from lab.load import Load, LoadSettings, running_load
from lab.process import HOST
from lab.trtllm_serve.flags import read_flags, write_flags
from lab.trtllm_serve.settings import RELEASES, ServeSettings
from tests.polling import wait_until

PATIENCE = 20.0
QUICK = EngineSettings(step_seconds=0.005, sequence_seconds=0.0005, context_token_seconds=0.0001)
LOAD = LoadSettings(
    rate=40,
    seconds=0.8,
    protocol="chat",
    prompt_words=(20, 60),
    max_tokens=(5, 20),
    disconnect_before_first_token=0,
    disconnect_mid_stream=0,
    invalid=0,
    failing=0,
)


@dataclass
class ServeClient:
    """A client of one server; leaving a `with` block disconnects its stream."""

    port: int

    def get(self, path: str) -> tuple[int, str]:
        with self.send("GET", path) as response:
            return response.status, response.read().decode()

    def json(self, path: str) -> Any:
        status, text = self.get(path)
        assert status == 200
        return json.loads(text)

    def post(self, path: str, **body: Any) -> tuple[int, dict[str, str], str]:
        with self.send("POST", path, body) as response:
            return response.status, dict(response.getheaders()), response.read().decode()

    @contextmanager
    def leaving(self, **body: Any) -> Iterator[HTTPResponse | None]:
        """Send a request and disconnect."""
        connection = HTTPConnection(HOST, self.port, timeout=PATIENCE)
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "a b"} | body))
        response = connection.getresponse() if body["stream"] else None
        yield response
        if response:
            response.close()
        connection.close()

    def samples(self) -> dict[tuple[str, ...], float]:
        """Return /prometheus/metrics by name and the labels that matter."""
        kept = ("finished_reason", "http_code")
        families = text_string_to_metric_families(self.get("/prometheus/metrics")[1])
        return {
            (sample.name, *(sample.labels[label] for label in kept if label in sample.labels)): (
                sample.value
            )
            for family in families
            for sample in family.samples
            if not sample.name.endswith("_bucket")
        }

    @contextmanager
    def send(self, method: str, path: str, body: Any = None) -> Iterator[HTTPResponse]:
        headers = {"X-TRTLLM-return-metrics": "1"}
        connection = HTTPConnection(HOST, self.port, timeout=PATIENCE)
        try:
            connection.request(method, path, json.dumps(body) if body else None, headers)
            yield connection.getresponse()
        finally:
            connection.close()


@contextmanager
def serving(
    folder: Path, settings: ServeSettings, engine: EngineSettings = QUICK
) -> Iterator[ServeClient]:
    with trtllm_server.start(folder, settings, engine) as server:
        yield ServeClient(server.ports[0])


# Requests


def test_a_stream_goes_out_as_the_engine_generates(tmp_path: Path) -> None:
    with serving(tmp_path, ServeSettings()) as client:
        status, headers, text = client.post(
            "/v1/chat/completions",
            messages=[{"role": "user", "content": "one two three"}],
            max_tokens=4,
            stream=True,
            stream_options={"include_usage": True},
        )
    assert (status, headers["Content-Type"]) == (200, "text/event-stream; charset=utf-8")
    events = text.split("\n\n")
    assert [event.split(":")[0] for event in events] == [*["data"] * 7, "event", ""]
    assert events[0].endswith("} ")
    assert events[6] == "data: [DONE]"
    name, data = events[7].split("\n")
    assert name == "event: trtllm.perf_metrics"
    metrics = json.loads(data.removeprefix("data: "))
    number = r"[0-9]+\.[0-9]+"
    timing = re.fullmatch(
        rf"server_queue;dur={number}, server_ttft;dur=({number}), server_e2e;dur=({number})",
        metrics.pop("Server-Timing"),
    )
    span = re.fullmatch(
        rf"server-start;ts=({number}), server-end;ts=({number})",
        metrics.pop("X-TRTLLM-Start-End-Time"),
    )
    assert not metrics
    assert timing is not None
    assert span is not None
    assert 5 <= float(timing[1]) < float(timing[2]) < 10_000
    start, end = float(span[1]), float(span[2])
    assert (end - start) * 1000 == pytest.approx(float(timing[2]), abs=0.01)
    assert start < end < time.monotonic() < start + 60


def test_unary_response_has_its_metrics_in_its_headers(tmp_path: Path) -> None:
    output = tmp_path / "perf"
    settings = ServeSettings(perf_metrics_output_dir=str(output))
    with serving(tmp_path / "server", settings) as client:
        status, headers, text = client.post("/v1/completions", prompt="a b c", max_tokens=3)
    assert status == 200
    assert json.loads(text)["choices"][0]["text"] == "token0 token1 token2 "
    assert headers["Server-Timing"].startswith("server_queue;dur=")
    assert headers["X-TRTLLM-Start-End-Time"].startswith("server-start;ts=")
    (file,) = output.iterdir()
    assert re.fullmatch(r"perf_metrics-server-.+-[0-9]+-[0-9]{8}T[0-9]{6}Z\.jsonl", file.name)
    (line,) = file.read_text().splitlines()
    record = json.loads(line)
    timing = record["perf_metrics"].pop("timing_metrics")
    assert record == {
        "request_id": 1,
        "perf_metrics": {
            "first_iter": 1,
            "last_iter": 3,
            "kv_cache_metrics": {
                "num_total_allocated_blocks": 1,
                "num_new_allocated_blocks": 1,
                "num_reused_blocks": 0,
                "num_missed_blocks": 0,
            },
        },
        "time_breakdown_metrics": {"step_metrics": [], "ctx_chunk_metrics": []},
        "status": "complete",
    }
    assert list(timing) == [
        *("server_arrival_time", "arrival_time", "first_scheduled_time", "first_token_time"),
        "last_token_time",
    ]
    assert list(timing.values()) == sorted(timing.values())


def test_refusals_and_failures_have_their_status(tmp_path: Path) -> None:
    with serving(tmp_path, ServeSettings()) as client:
        refused = client.post("/v1/completions", prompt="a", max_tokens="many")
        too_long = client.post("/v1/completions", prompt="a", max_tokens=1_000_000)
        failed = client.post("/v1/completions", prompt="a", max_tokens=5, fail_after=2)
        with (
            client.send(
                "POST",
                "/v1/completions",
                {"prompt": "a", "max_tokens": 5, "fail_after": 2, "stream": True},
            ) as response,
            pytest.raises(IncompleteRead) as cut,
        ):
            response.read()
        samples = client.samples()
    assert [status for status, _, _ in (refused, too_long, failed)] == [400] * 3
    assert json.loads(refused[2]) == {
        "object": "error",
        "message": "Input should be a valid integer",
        "type": "BadRequestError",
        "param": None,
        "code": 400,
    }
    assert "the KV cache holds" in json.loads(too_long[2])["message"]
    assert b"token1" in cut.value.partial
    assert b"token2" not in cut.value.partial
    assert samples["trtllm_request_error_total", "400"] == 2
    assert not [name for name in samples if name[0] == "trtllm_request_success_total"]


def test_disconnect_is_noticed_late_and_a_stream_has_no_sample(
    tmp_path: Path,
) -> None:
    with serving(tmp_path, ServeSettings()) as client:
        with client.leaving(stream=True, max_tokens=2000) as response:
            assert response
            assert response.readline().startswith(b"data: ")
        with client.leaving(stream=False, max_tokens=2000):
            time.sleep(0.1)  # the server shows no sign of it before it ends
        with client.leaving(stream=True, max_tokens=200, prompt="a " * 900):
            pass
        wait_until(lambda: len(client.json("/lab/truth")["requests"]) == 3)
        wait_until(lambda: ("trtllm_request_success_total", "cancelled") in client.samples())
        samples, truth = client.samples(), client.json("/lab/truth")
    assert [request["finish_reason"] for request in truth["requests"]] == ["cancelled"] * 3
    streamed = truth["requests"][0]
    assert 0.5 < streamed["last_token_time"] - streamed["first_token_time"] < 2.5
    assert samples["trtllm_request_success_total", "cancelled"] == 1
    assert samples[("trtllm_e2e_request_latency_seconds_count",)] == 1


def test_small_questions(tmp_path: Path) -> None:
    settings = ServeSettings(model="llama", per_request="none", prometheus="none")
    with serving(tmp_path, settings) as client:
        assert client.get("/health") == (200, "")
        assert client.json("/version") == {"version": "1.4.0"}
        models = client.json("/v1/models")
        assert client.get("/prometheus/metrics")[0] == 404
        assert client.get("/perf_metrics")[0] == 404
        _, headers, _ = client.post("/v1/completions", prompt="a", max_tokens=1)
    assert "Server-Timing" not in headers
    assert [model["id"] for model in models["data"]] == ["llama"]


# GET /metrics


def test_up_to_1_1_a_read_ends_only_when_the_engine_is_idle(tmp_path: Path) -> None:
    with serving(tmp_path, RELEASES["1.1"]) as client:
        assert client.json("/metrics") == []
        load = Load(f"http://{HOST}:{client.port}", replace(LOAD, seconds=1.5))
        started = time.monotonic()
        with running_load(load):
            wait_until(lambda: load.summary().requests)
            found = client.json("/metrics")
        assert time.monotonic() - started > 1.5 + 1.9
        assert client.json("/metrics") == []
    assert [record["iter"] for record in found] == list(range(1, len(found) + 1))
    assert found[-1]["numActiveRequests"] == found[-1]["numCompletedRequests"]


def test_two_readers_split_the_records_and_one_that_gives_up_loses_its_own(tmp_path: Path) -> None:
    with (
        serving(tmp_path, RELEASES["1.1"]) as client,
        client.leaving(stream=True, max_tokens=200) as response,
    ):
        assert response
        impatient = HTTPConnection(HOST, client.port, timeout=0.5)
        impatient.request("GET", "/metrics")
        with pytest.raises(TimeoutError):
            impatient.getresponse()
        impatient.close()
        found = client.json("/metrics")
        response.read()
    iterations = [record["iter"] for record in found]
    assert iterations == sorted(set(iterations))
    assert 20 < len(iterations) < 180


def test_from_1_2_a_read_takes_two_seconds_and_competes_with_the_gauges(tmp_path: Path) -> None:
    alone = replace(RELEASES["1.2"], prometheus="none")
    with serving(tmp_path / "alone", alone) as client:
        client.post("/v1/completions", prompt="a", max_tokens=5)
        started = time.monotonic()
        assert [record["iter"] for record in client.json("/metrics")] == [1, 2, 3, 4, 5]
        assert time.monotonic() - started > 1.9
    with serving(tmp_path / "both", RELEASES["1.2"]) as client:
        client.post("/v1/completions", prompt="a", max_tokens=5)
        assert client.json("/metrics") == []


def test_later_a_read_is_quick_but_nothing_is_new_until_a_request_completes(
    tmp_path: Path,
) -> None:
    settings = ServeSettings(kept_records=20)
    with serving(tmp_path, settings) as client:
        client.post("/v1/completions", prompt="a", max_tokens=3)
        assert [record["iter"] for record in client.json("/metrics")] == [1, 2, 3]
        with client.leaving(stream=True, max_tokens=60) as response:
            assert response
            lines = [response.readline() for _ in range(20)]
            assert lines[0].startswith(b"data: ")
            started = time.monotonic()
            assert client.json("/metrics") == []
            assert time.monotonic() - started < 1.9
            response.read()
        found = client.json("/metrics")
    assert [record["iter"] for record in found] == list(range(63 - 20 + 1, 63 + 1))


def test_gaps_in_the_records_are_those_of_a_buffer_that_ran_over(tmp_path: Path) -> None:
    settings = ServeSettings(kept_records=10)
    with serving(tmp_path, settings) as client:
        found = []
        for _ in range(2):
            client.post("/v1/completions", prompt="a", max_tokens=30)
            found += client.json("/metrics")
    jumps = [b["iter"] - a["iter"] for a, b in pairwise(found)]
    assert [jump for jump in jumps if jump != 1] == [21]


def test_without_iteration_statistics_there_are_no_records(tmp_path: Path) -> None:
    with serving(tmp_path, ServeSettings(iteration_stats=False)) as client:
        client.post("/v1/completions", prompt="a", max_tokens=3)
        assert client.json("/metrics") == []
        names = {name for name, *_ in client.samples()}
    assert "trtllm_e2e_request_latency_seconds_count" in names
    assert "trtllm_kv_cache_utilization" not in names


@pytest.mark.parametrize("schema", ["tensorrt", "pytorch-1.2", "pytorch-1.4"])
def test_the_file_has_the_records_that_are_read(tmp_path: Path, schema: Any) -> None:
    file = tmp_path / "iterations.jsonl"
    settings = ServeSettings(schema=schema, iterations_file=str(file))
    with serving(tmp_path / "server", settings) as client:
        client.post("/v1/completions", prompt="a b c", max_tokens=5)
        found = client.json("/metrics")
    written = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(found) == (6 if schema == "tensorrt" else 5)
    assert written == found


# Metrics


BASIC = {
    "request_success",
    "e2e_request_latency_seconds",
    "time_to_first_token_seconds",
    "time_per_output_token_seconds",
    "request_queue_time_seconds",
}
GAUGES = {"kv_cache_hit_rate", "kv_cache_utilization"}


def families(client: ServeClient) -> dict[str, Any]:
    return {
        family.name: family
        for family in text_string_to_metric_families(client.get("/prometheus/metrics")[1])
    }


def test_the_names_of_1_1(tmp_path: Path) -> None:
    with serving(tmp_path, RELEASES["1.1"]) as client:
        client.post("/v1/completions", prompt="a", max_tokens=5)
        found = families(client)
    assert set(found) == BASIC
    for family in found.values():
        for sample in family.samples:
            assert sample.labels["model_name"] == sample.labels["engine_type"] == "undefined"
            assert not sample.name.endswith("_created")


def test_the_names_of_1_3(tmp_path: Path) -> None:
    with serving(tmp_path, RELEASES["1.3"]) as client:
        client.post("/v1/completions", prompt="a", max_tokens=5, stop_after=4)
        found = families(client)
    assert set(found) == {f"trtllm_{name}" for name in BASIC | GAUGES}
    (success,) = found["trtllm_request_success"].samples
    assert success.labels == {
        "model_name": "tensorrt_llm",
        "engine_type": "pytorch",
        "finished_reason": "stop",
    }
    (utilization,) = found["trtllm_kv_cache_utilization"].samples
    assert set(utilization.labels) == {"model_name", "engine_type", "pid"}


def test_the_names_of_1_4(tmp_path: Path) -> None:
    settings = ServeSettings(kv_iteration_interval=1)
    prompt = " ".join(f"w{n}" for n in range(100))
    with serving(tmp_path, settings, replace(QUICK, draft_tokens=2, acceptance=0.5)) as client:
        for _ in range(2):
            client.post("/v1/completions", prompt=prompt, max_tokens=40)
        client.post("/v1/completions", prompt="")
        found = families(client)
        samples = client.samples()
    assert set(found) == {
        f"trtllm_{name}"
        for name in {
            *BASIC,
            *GAUGES,
            *("num_requests_running", "num_requests_waiting", "max_num_active_requests"),
            *("iteration_latency_seconds", "gpu_memory_usage_bytes", "cpu_memory_usage_bytes"),
            *("pinned_memory_usage_bytes", "max_batch_size_static", "max_batch_size_runtime"),
            *("max_num_tokens_runtime", "kv_cache_max_blocks", "kv_cache_free_blocks"),
            *("kv_cache_used_blocks", "kv_cache_tokens_per_block", "kv_cache_iter_reuse_rate"),
            *("num_context_requests", "num_generation_requests", "num_paused_requests"),
            *("num_scheduled_requests", "total_context_tokens", "avg_decoded_tokens_per_iter"),
            *("spec_decode_acceptance_length", "spec_decode_draft_overhead"),
            *("prefill_batch_occupancy", "num_requests_completed"),
            *("spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens"),
            *("kv_cache_iter_reused_blocks", "kv_cache_iter_full_reused_blocks"),
            *("kv_cache_iter_missed_blocks", "kv_cache_gen_alloc_blocks"),
            *("kv_cache_reused_blocks", "kv_cache_missed_blocks", "prompt_tokens"),
            *("generation_tokens", "prompt_cached_tokens", "prompt_cached_tokens_per_request"),
            *("prefill_batch_tokens", "request_error", "request_prefill_time_seconds"),
            *("request_decode_time_seconds", "request_inference_time_seconds"),
            *("model_config_info", "parallel_config_info", "kv_cache_config_info"),
        }
    }
    values = {name.removeprefix("trtllm_"): value for (name, *_), value in samples.items()}
    assert values["prompt_tokens_total"] == 200
    assert values["generation_tokens_total"] == 80
    assert values["prompt_cached_tokens_total"] == 96
    assert values["kv_cache_reused_blocks_total"] == 3
    assert values["kv_cache_missed_blocks_total"] == 3
    assert values["kv_cache_iter_missed_blocks_total"] == 3
    assert values["num_requests_completed_total"] == 2
    assert values["prefill_batch_tokens_sum"] == 100 + 4
    assert values["kv_cache_tokens_per_block"] == 32
    assert values["avg_decoded_tokens_per_iter"] == 0


def test_a_request_of_one_token_has_no_time_per_token(tmp_path: Path) -> None:
    with serving(tmp_path, ServeSettings()) as client:
        client.post("/v1/completions", prompt="a", max_tokens=1)
        names = {name for name, *_ in client.samples()}
    assert "trtllm_e2e_request_latency_seconds_count" in names
    assert "trtllm_time_per_output_token_seconds_count" not in names
    assert "trtllm_request_decode_time_seconds_count" not in names


def test_the_gauges_of_a_dead_process_stay(tmp_path: Path) -> None:
    with serving(tmp_path, ServeSettings(dead_worker=True)) as client:
        client.post("/v1/completions", prompt="a", max_tokens=3)
        running = families(client)["trtllm_num_requests_running"].samples
        time_to_first = families(client)["trtllm_time_to_first_token_seconds"].samples
    assert len({sample.labels["pid"] for sample in running}) == len(running) == 2
    assert all("pid" not in sample.labels for sample in time_to_first)


def test_perf_metrics_are_read_once_and_only_the_newest_are_kept(tmp_path: Path) -> None:
    settings = replace(RELEASES["1.3"], perf_metrics_max_requests=2)
    with serving(tmp_path, settings, replace(QUICK, draft_tokens=2)) as client:
        for _ in range(3):
            client.post("/v1/completions", prompt="a b c", max_tokens=20, stream=True)
        found = client.json("/perf_metrics")
        assert client.json("/perf_metrics") == []
        now = time.monotonic()
    assert [item["request_id"] for item in found] == [2, 3]
    for item in found:
        timing = item["perf_metrics"]["timing_metrics"]
        assert list(timing) == [
            *("server_arrival_time", "arrival_time", "first_scheduled_time", "first_token_time"),
            *("server_first_token_time", "last_token_time"),
        ]
        ordered = [timing[name] for name in timing if name != "server_first_token_time"]
        assert ordered == sorted(ordered)
        assert timing["first_token_time"] < timing["server_first_token_time"]
        assert now - 60 < timing["server_arrival_time"] < now
        drafts = item["perf_metrics"]["speculative_decoding"]
        accepted = drafts["total_accepted_draft_tokens"] / drafts["total_draft_tokens"]
        assert drafts["acceptance_rate"] == pytest.approx(accepted)


# The truth, and the load


@pytest.mark.parametrize("protocol", ["completions", "chat"])
def test_truth_is_what_clients_measure(tmp_path: Path, protocol: Any) -> None:
    slow = replace(QUICK, step_seconds=0.05)  # so that scheduling delays are small beside a gap
    with serving(tmp_path, ServeSettings(), slow) as client:
        load = Load(f"http://{HOST}:{client.port}", replace(LOAD, protocol=protocol))
        summary = asyncio.run(load.run())
        truth = client.json("/lab/truth")
        later = client.json(f"/lab/truth?since={truth['mark']}")
    assert summary.requests == summary.outcomes["ok"] == len(truth["requests"]) > 10
    assert summary.gap is not None
    assert summary.gap.count == len(truth["gaps"]) == len(truth["tokens"])
    assert set(truth["tokens"]) == {1}
    assert truth["gap_quantiles"] == truth["token_quantiles"]
    assert summary.gap.p50 == pytest.approx(truth["gap_quantiles"]["p50"], rel=0.25)
    assert summary.tokens == sum(request["output_tokens"] for request in truth["requests"])
    assert later["gaps"] == later["requests"] == []
    assert later["gap_quantiles"] == {}


def test_burst_is_one_gap_of_several_tokens(tmp_path: Path) -> None:
    engine = replace(QUICK, draft_tokens=3, acceptance=1.0)
    with serving(tmp_path, ServeSettings(), engine) as client:
        _, _, text = client.post("/v1/completions", prompt="a", max_tokens=10, stream=True)
        truth = client.json("/lab/truth")
    assert truth["tokens"] == [4, 4, 1]
    assert text.count("data: {") == 1 + 3 + 1
    tokens = sorted(
        gap / n for gap, n in zip(truth["gaps"], truth["tokens"], strict=True) for _ in range(n)
    )
    assert truth["token_quantiles"]["p50"] == pytest.approx(tokens[4])
    assert truth["token_quantiles"]["max"] == pytest.approx(tokens[-1])


def test_load_clients_fail_and_disconnect(tmp_path: Path) -> None:
    mixed = replace(
        LOAD, seconds=1.5, failing=0.2, invalid=0.2, disconnect_mid_stream=0.2, max_tokens=(20, 40)
    )
    with serving(tmp_path, ServeSettings()) as client:
        summary = asyncio.run(Load(f"http://{HOST}:{client.port}", mixed).run())
        wait_until(lambda: client.samples()["trtllm_request_success_total", "length"] > 0)
        samples = client.samples()
    seen = {outcome for outcome, count in summary.outcomes.items() if count}
    assert seen == {
        *("ok", "rejected", "failed_before_first_token", "failed_mid_stream"),
        "disconnected_mid_stream",
    }
    assert samples["trtllm_request_success_total", "length"] == summary.outcomes["ok"]
    assert samples["trtllm_request_error_total", "400"] == summary.outcomes["rejected"]


# Settings


@given(
    st.builds(
        ServeSettings,
        model=st.sampled_from(["m", "a b", "-x"]),
        schema=st.sampled_from(["tensorrt", "pytorch-1.2", "pytorch-1.4"]),
        overlap=st.booleans(),
        host_blocks=st.integers(0, 9),
        read=st.sampled_from(["until-idle", "one-fetch", "tee"]),
        dead_worker=st.booleans(),
        stream_interval=st.integers(1, 9),
    ),
    st.builds(EngineSettings, jitter=st.floats(0, 1), chunked_context=st.booleans()),
)
def test_flags_survive_a_round_trip(settings: ServeSettings, engine: EngineSettings) -> None:
    arguments = ["--port=81", *write_flags(settings), *write_flags(engine)]
    assert read_flags(arguments) == (81, settings, engine)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--schema=cuda", "argument --schema: invalid choice: 'cuda'"),
        ("--kv-blocks=0", "kv_blocks must be at least 1"),
        ("--iteration-interval=0", "must be at least 1"),
    ],
)
def test_invalid_flags_are_refused(
    argument: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        read_flags([argument])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
