"""Catalogues agree with the expositions of servers and of the sidecar."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.sources.exposition.text_parser import ParsedFamily, read
from promql.lint.catalogue import Catalogue, union
from slos.catalogues.named import NAMES, everything, named
from slos.errors import BadValue
from slos.own_metrics import OWN_METRICS
from slos.signals import SIGNALS

CAPTURES = Path(__file__).parent / "captures"


def differences(catalogue: Catalogue, families: dict[str, ParsedFamily]) -> Iterator[str]:
    """Yield metrics of an exposition that the catalogue lacks or lists differently."""
    for name, family in families.items():
        found = catalogue.find(name)
        if found is None:
            yield f"{name} is not in the catalogue"
            continue
        metric, part = found
        if part == "created" or family.type == "untyped":
            continue
        if metric.kind not in (family.type, "untyped"):
            yield f"{name} is a {family.type}"
        for _, labels, _ in family.samples:
            own = {label for label in labels if not label.startswith("_")}
            if metric.labels is not None and own - metric.labels:
                yield f"{name} has the labels {sorted(own - metric.labels)}"
            for label, possible in metric.values.items():
                if label in labels and labels[label] not in possible:
                    yield f"{name} has {label}={labels[label]}"
            edge = labels.get("le", "")
            if metric.whole_boundaries == "1" and edge.endswith(".0"):
                yield f"{name} has le={edge}"
            if metric.whole_boundaries == "1.0" and edge.isdigit():
                yield f"{name} has le={edge}"


@pytest.mark.parametrize(
    ("name", "file"),
    [
        # The models of the tests also emit families of later releases.
        *(
            ("triton-25.04", f"triton_{what}.txt")
            for what in ("failures", "gpu_by_hand", "idle", "summaries", "traffic", "unloaded")
        ),
        ("trtllm-1.1", "trtllm_serve_1.1_by_hand.txt"),
        ("trtllm-1.2", "trtllm_serve_1.1_by_hand.txt"),
        ("trtllm-1.3", "trtllm_serve_1.3_by_hand.txt"),
        ("trtllm-1.4", "trtllm_serve_1.4_by_hand.txt"),
        ("dynamo-1.6", "trtllm_serve_1.4_by_hand.txt"),
        ("vllm-0.33", "vllm_standalone_by_hand.txt"),
    ],
)
def test_a_server_emits_what_its_catalogue_lists(name: str, file: str) -> None:
    families = read((CAPTURES / file).read_bytes())
    assert families
    assert sorted(differences(named(name), families)) == []


def test_another_servers_catalogue_differs() -> None:
    families = read((CAPTURES / "vllm_standalone_by_hand.txt").read_bytes())
    assert "vllm:num_requests_running is not in the catalogue" in differences(
        named("triton-25.04"), families
    )


def test_the_sidecars_catalogue_lists_all_its_metrics() -> None:
    ours = named("tokenslo")
    wanted = {signal.metric for signal in SIGNALS.values()} | {
        f"{name}_total" if kind == "counter" else name for name, (kind, _, _) in OWN_METRICS.items()
    }
    assert ours.metrics.keys() == wanted
    assert ours.metrics["llm_sequences"].values["state"] == {
        signal.fixed["state"] for signal in SIGNALS.values() if signal.metric == "llm_sequences"
    }


@pytest.mark.parametrize(
    ("metric", "before", "since"),
    [
        ("nv_inference_pending_request_count", "triton-23.08", "triton-23.09"),
        ("nv_trt_llm_request_metrics", "triton-23.10", "triton-23.11"),
        ("nv_inference_first_response_histogram_ms_bucket", "triton-24.10", "triton-24.11"),
        ("nv_llm_output_token_len_sum", "triton-25.01", "triton-25.02"),
        ("vllm:e2e_request_latency_seconds_count", "triton-24.08", "triton-24.09"),
        ("trtllm_request_success_total", "trtllm-1.2", "trtllm-1.3"),
    ],
)
def test_names_come_with_their_release(metric: str, before: str, since: str) -> None:
    assert named(before).find(metric) is None
    assert named(since).find(metric) is not None


def test_values_come_with_their_release() -> None:
    def kinds(name: str) -> frozenset[str]:
        metric = named(name).metrics["nv_trt_llm_kv_cache_block_metrics"]
        return metric.values["kv_cache_block_type"]

    assert kinds("triton-25.04") - kinds("triton-25.03") == {"fraction"}
    assert kinds("triton-24.10") - kinds("triton-24.09") == {"reused"}
    for name, has in (("triton-24.06", False), ("triton-24.07", True)):
        labels = named(name).metrics["nv_inference_request_failure"].labels or ()
        assert ("reason" in labels) is has


def test_the_llm_api_model_has_no_metrics_of_the_engine() -> None:
    names = named("triton-llmapi-25.04").metrics
    assert not [name for name in names if name.startswith(("nv_trt_llm_", "nv_llm_", "vllm:"))]
    assert names["nv_inference_queue_duration_us"].caution
    assert not named("triton-25.04").metrics["nv_inference_queue_duration_us"].caution


def test_a_union_of_catalogues_contains_the_metrics_of_each() -> None:
    both = union((named("triton-25.04"), named("vllm-0.33")))
    latency = both.metrics["vllm:e2e_request_latency_seconds"]
    assert latency.labels == {"model", "version", "model_name", "engine", "le"}
    assert {2.5, 7680.0} <= {*latency.boundaries}
    assert (
        both.rename_of("vllm:time_per_output_token_seconds_bucket") is None
    )  # Triton still has it
    assert both.rename_of("vllm:gpu_cache_usage_perc") is not None


def test_the_union_of_all_catalogues_contains_each() -> None:
    listed = everything()
    for name in NAMES:
        month = name.replace("YY.MM", "24.12").split()[0]
        assert named(month).metrics.keys() <= listed.metrics.keys(), name


@pytest.mark.parametrize("name", ["", "triton", "triton-25.00", "triton-26.10", "vllm-0.9"])
def test_an_unknown_catalogue_name_is_refused(name: str) -> None:
    with pytest.raises(BadValue, match="no catalogue is called"):
        named(name)


def test_no_metric_has_a_name_of_opencost() -> None:
    """OpenCost publishes costs as ``llm_*cost*``; ours are in the report only."""
    names = [*(signal.metric for signal in SIGNALS.values()), *OWN_METRICS]
    rules = (CAPTURES.parents[1] / "examples").glob("*/alerts/*.rules.yaml")
    recorded = [name for path in rules for name in re.findall(r"record: (\S+)", path.read_text())]
    assert recorded
    assert [name for name in (*names, *recorded) if "cost" in name] == []
