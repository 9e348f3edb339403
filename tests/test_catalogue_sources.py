"""`python -m tools.catalogues` reads declarations of metrics from checkouts of the servers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from promql.lint.catalogue import Metric
from slos.catalogues.named import everything, named
from slos.catalogues.stored import stored
from slos.catalogues.triton import triton
from tests.lint_files import dashboard, panel, run

ROOT = Path(__file__).parent.parent


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return root


def read(server: str, checkout: Path, out: Path, *options: str) -> dict[str, Any]:
    """Run the command and return the families it wrote, by name."""
    out.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "tools.catalogues", server, str(checkout), "-o", str(out)]
    done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    data = json.loads((out / f"{server}.json").read_text("utf-8"))
    return {**data, "families": {each["name"]: each for each in data["families"]}}


RELEASE = ("--release", "9.8.7", "--commit", "abc")
VLLM = {
    "vllm/metrics/names.py": """
class Names:
    LOADED = "vllm:loaded_bytes"
SIZES = (1, 2.5, 4 * 1024)
STATIC_BUCKETS: tuple[float, ...] = (0.5, 1.0)
""",
    "vllm/metrics/core.py": """
from vllm.metrics.names import Names, SIZES
from vllm.elsewhere import UNKNOWN

class Logger:
    _counter_cls = Counter

    def __init__(self, labelnames, config):
        self.prefix = "vllm:"
        self.by = "reason"
        extra = labelnames + [self.by]
        self.a = self._counter_cls(name="vllm:finished", labelnames=extra)
        self.b = Gauge(self.prefix + "waiting", "Waiting requests.", ["model_name"])
        buckets = histogram_buckets("static", config)
        self.c = self._histogram_cls(name=f"{self.prefix}age", labelnames=labelnames,
                                     buckets=buckets)
        for name, text in [("vllm:one", "1"), ("vllm:two", "2")]:
            self._counter_cls(name=name, documentation=text, labelnames=labelnames)
        self.d = Histogram(name="vllm:size", buckets=SIZES, labelnames=config.labels)
        self.e = Counter(name=UNKNOWN, labelnames=labelnames)
        logger.info("vllm:not_a_metric")
        torch.custom_op("vllm::add")

def table():
    return {Names.LOADED: CounterMetadata(documentation="Loaded.", labelnames=("tier",))}
""",
    "vllm/metrics/tests/test_core.py": "Gauge(name='vllm:only_in_tests', labelnames=[])",
}


def test_python_declarations(tmp_path: Path) -> None:
    data = read("vllm", write(tmp_path / "vllm", VLLM), tmp_path / "out", *RELEASE)
    assert (data["release"], data["commit"]) == ("9.8.7", "abc")
    engine = ["model_name", "engine"]
    assert {
        name: (each["kind"], each.get("labels"), each.get("buckets"))
        for name, each in data["families"].items()
    } == {
        "vllm:age": ("histogram", engine, [0.5, 1.0]),
        "vllm:finished_total": ("counter", [*engine, "reason"], None),
        "vllm:loaded_bytes_total": ("counter", None, None),
        "vllm:one_total": ("counter", engine, None),
        "vllm:size": ("histogram", None, [1.0, 2.5, 4096.0]),
        "vllm:two_total": ("counter", engine, None),
        "vllm:waiting": ("gauge", ["model_name"], None),
    }
    assert data["unread"] == ["vllm/metrics/core.py:20"]


TRTLLM = {
    "tensorrt_llm/metrics/collector.py": """
class Collector:
    reason = "finished_reason"

    def __init__(self, labels, buckets=None):
        from prometheus_client import Counter, Histogram
        self.labels = labels
        self.prefix = "trtllm_"
        self.more = {**self.labels, Collector.reason: ""}
        self.done = Counter(name=self.prefix + "done_total", documentation="Done.",
                            labelnames=self.more.keys())
        self.age = Histogram(name=self.prefix + "age_seconds", documentation="Age.",
                             buckets=buckets or [0.3, 0.5], labelnames=self.labels.keys())
"""
}


def test_names_and_labels_of_an_instance(tmp_path: Path) -> None:
    data = read("trtllm", write(tmp_path / "trtllm", TRTLLM), tmp_path / "out", *RELEASE)
    done, age = data["families"]["trtllm_done_total"], data["families"]["trtllm_age_seconds"]
    assert done["labels"] == ["model_name", "engine_type", "finished_reason"]
    assert (age["kind"], age["buckets"]) == ("histogram", [0.3, 0.5])


DYNAMO = {
    "lib/runtime/src/names.rs": """
pub mod name_prefix { pub const FRONTEND: &str = "dynamo_frontend"; }
pub mod frontend_service {
    /// Requests that ended.
    pub const REQUESTS_TOTAL: &str = "requests_total";
    pub const QUEUED: &str = "queued";
    pub mod status { pub const OK: &str = "ok"; }
}
pub mod labels { pub const MODEL: &str = "model"; }
""",
    "lib/llm/src/metrics.rs": """
use runtime::names::{frontend_service, labels, name_prefix};
fn named(suffix: &str) -> String {
    format!("{}_{}", name_prefix::FRONTEND, suffix)
}
pub fn new(prefix: &str) {
    let request_counter = IntCounterVec::new(
        Opts::new(named(frontend_service::REQUESTS_TOTAL), "Requests, by model"),
        &[labels::MODEL, "status"],
    );
    let queued = |suffix: &str| prometheus::IntGauge::new(
        format!("{}_{}", &prefix, suffix), "Queued");
    queued(frontend_service::QUEUED);
    let age = Histogram::with_opts(
        HistogramOpts::new("dynamo_frontend_age_seconds", "Age").buckets(vec![0.5, 1.0]));
    let hits = metrics.create_intcountervec("hits_total", "Hits", &["tier"], &[]);
    let lost = IntCounter::new(computed(), "Not known");
}
#[cfg(test)]
mod tests { fn x() { IntGauge::new("dynamo_only_in_tests", "x"); } }
""",
}


def test_rust_declarations(tmp_path: Path) -> None:
    data = read("dynamo", write(tmp_path / "dynamo", DYNAMO), tmp_path / "out", *RELEASE)
    automatic = ["dynamo_namespace", "dynamo_component", "dynamo_endpoint", "worker_id"]
    assert {
        name: (each["kind"], each.get("labels"), each.get("buckets"))
        for name, each in data["families"].items()
    } == {
        "dynamo_component_hits_total": ("counter", [*automatic, "tier"], None),
        "dynamo_frontend_age_seconds": ("histogram", [], [0.5, 1.0]),
        "dynamo_frontend_queued": ("gauge", [], None),
        "dynamo_frontend_requests_total": ("counter", ["model", "status"], None),
    }
    assert data["unread"] == ["lib/llm/src/metrics.rs:17"]


def test_cpp_declarations_of_release_branches(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        who = ("-c", "user.name=t", "-c", "user.email=t@example.com")
        done = subprocess.run(
            ["git", *who, *arguments], cwd=checkout, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    one = 'family_(prometheus::BuildCounter()\n  .Name("nv_one")\n  .Help("One"))'
    two = 'other_(prometheus::BuildSummary().Name("nv_two").Help("Two"))'
    checkout = write(tmp_path / "core", {"src/metrics.cc": one})
    git("init", "-q", "-b", "r23.04")
    git("add", ".")
    git("commit", "-qm", "one")
    git("checkout", "-qb", "r24.01")
    write(checkout, {"src/metrics.cc": f"{one},\n{two}"})
    git("commit", "-qam", "two")
    data = read("triton", checkout, tmp_path / "out")
    assert (data["release"], data["commit"]) == ("24.01", git("rev-parse", "HEAD"))
    assert data["families"] == {
        "nv_one": {"name": "nv_one", "kind": "counter", "source": "src/metrics.cc"},
        "nv_two": {
            "name": "nv_two", "kind": "summary", "since": "24.01", "source": "src/metrics.cc"
        },
    }  # fmt: skip


def test_a_folder_without_metrics_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.catalogues", "vllm", str(tmp_path), *RELEASE]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "no metric found" in done.stderr


@pytest.mark.parametrize("server", ["vllm", "sglang", "dynamo", "triton", "trtllm"])
def test_every_catalogue_names_its_release_and_commit(server: str) -> None:
    data = stored(server)
    assert data.release
    assert data.commit
    assert len(data.metrics) > 30


def test_tritons_core_emits_what_its_source_declares() -> None:
    data = stored("triton")
    for release in ((23, 4), (23, 9), (24, 1), (24, 11), (26, 6)):
        month = f"{release[0]}.{release[1]:02}"
        declared = {name for name in data.metrics if data.since.get(name, "") <= month}
        listed = triton(release).metrics
        # Its response caches and backends declare the others.
        others = ("nv_cache_num_", "nv_cache_util", "nv_cache_lookup", "nv_cache_insertion")
        core = {name for name in listed if name.startswith("nv_")}
        core -= {name for name in core if name.startswith(("nv_trt_llm_", "nv_llm_"))}
        core -= {name for name in core if name.startswith(others) and name not in declared}
        assert core == declared, month
        for name in declared:
            assert listed[name].kind == data.metrics[name].kind


def test_vllms_catalogue_is_that_of_the_source() -> None:
    listed = named("vllm-0.33").metrics
    assert listed["vllm:admission_rejections_total"].labels == {"model_name", "reason"}
    for name in ("vllm:nixl_xfer_time_seconds", "vllm:estimated_flops_per_gpu_total"):
        assert name in listed
    assert listed["vllm:kv_offload_load_bytes_total"].unit == "bytes"


def test_trtllm_serves_catalogue_adds_buckets_units_and_labels_to_its_source() -> None:
    declared, listed = stored("trtllm").metrics, named("trtllm-1.4").metrics
    assert listed.keys() == declared.keys()
    latency = listed["trtllm_time_to_first_token_seconds"]
    assert latency.boundaries == declared[latency.name].boundaries
    assert "prometheus_metrics_config" in latency.boundaries_from
    assert listed["trtllm_prefill_batch_tokens"].boundaries[0] == 64.0
    assert not listed["trtllm_prefill_batch_tokens"].boundaries_from
    rank = listed["trtllm_scheduled_batch_size"]
    assert rank.labels == {"model_name", "engine_type", "rank", "pid"}
    assert listed["trtllm_kv_cache_utilization"].unit == "ratio"
    assert listed["trtllm_kv_cache_config_info"].labels is None


def test_earlier_releases_of_trtllm_serve_emit_metrics_of_1_4_under_other_names() -> None:
    first, newest = named("trtllm-1.2"), named("trtllm-1.4")
    assert len(first.metrics) == 5
    for name, metric in first.metrics.items():
        same = newest.metrics[f"trtllm_{name}"]
        assert (metric.kind, metric.labels, metric.boundaries) == (
            same.kind,
            same.labels,
            same.boundaries,
        )
        assert not metric.boundaries_from
    assert "trtllm_cache_config_info" in named("trtllm-1.3").metrics
    renamed = newest.rename_of("trtllm_cache_config_info")
    assert renamed
    assert renamed.now == "trtllm_kv_cache_config_info"


QUERY = 'sum(rate(vllm:time_to_first_token_seconds_bucket{le="0.8"}[5m]))'


FIXED = 'sum(rate(trtllm_prefill_batch_tokens_bucket{le="100.0"}[5m]))'


@pytest.mark.parametrize(
    ("query", "options", "found"),
    [
        ("vllm:of_another_release", (), [("TL002", "note")]),
        ("vllm:of_another_release", ("--catalogue", "vllm-0.33"), [("TL002", "error")]),
        ("vllm:kvcr_state", ("--catalogue", "vllm-0.33"), []),
        ("sglang:num_running_reqs", (), []),
        ("sglang:num_running_requests", ("--catalogue", "sglang-0.5"), [("TL002", "error")]),
        ("dynamo_frontend_inflight_requests", ("--catalogue", "dynamo-1.6"), []),
        ("dynamo_frontend_requests_active", ("--catalogue", "dynamo-1.6"), [("TL002", "error")]),
        (QUERY, ("--catalogue", "vllm-0.33"), [("TL005", "note")]),
        (QUERY.replace("vllm:", "trtllm_"), ("--catalogue", "trtllm-1.4"), [("TL005", "note")]),
        (FIXED, ("--catalogue", "trtllm-1.4"), [("TL005", "error")]),
        ("trtllm_cache_config_info", ("--catalogue", "trtllm-1.4"), [("TL002", "error")]),
        ('rate(vllm:nixl_failures_total{engine="0"}[5m])', (), [("TL002", "note")]),
        (
            'rate(vllm:admission_rejections_total{engine="0", finished_reason="x"}[5m])',
            ("--catalogue", "vllm-0.33"),
            [("TL003", "error")],
        ),
    ],
)
def test_unknown_names_and_configurable_buckets(
    query: str, options: tuple[str, ...], found: list[tuple[str, str]], tmp_path: Path
) -> None:
    findings = run(tmp_path, dashboard(panel(query)), *options)
    assert [(each["check"], each["severity"]) for each in findings] == found


def test_a_metric_that_the_source_declares_is_never_unknown() -> None:
    listed = everything()
    for server in ("vllm", "sglang", "dynamo", "triton", "trtllm"):
        for name in stored(server).metrics:
            assert isinstance(listed.metrics[name], Metric)
