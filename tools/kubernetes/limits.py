"""Limits of a scrape and times of a shutdown, from the limits of the sidecar.

A scrape with more samples or labels than a PodMonitor's limits is discarded as a whole, so the
limits are upper bounds of what a sidecar serves.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from math import ceil

from exporter.gateway_names import NAMES, ROLES
from exporter.recording.initial_series import known_labels
from exporter.recording.label_limiter import MAX_SERIES
from slos.indicators import CLAUSES
from slos.model import Service
from slos.outcomes import OUTCOMES, REFUSALS
from slos.own_metrics import OWN_METRICS
from slos.prompt_classes import MAX_CLASSES
from slos.signals import (
    MODEL_LABELS,
    SIGNALS,
    TENANT_SIGNALS,
    Signal,
)
from slos.thresholds import thresholds

OWN_SAMPLES = 1_000
"""Samples without a model: sources, taps, background tasks, processes."""
CLIENT_SAMPLES = MAX_SERIES
"""Samples that clients can cause: tenants and reasons."""
ENGINE_BOUNDARIES = 48
"""Bucket boundaries of an engine's own histogram; those of vLLM and SGLang have fewer."""
_LAYERS = ("model", "backend", "decode", "probe")
_PROBE_SERIES = 5
"""The last result and duration of probes, and their number by three results."""
STEP = 50
"""Samples to which those of a model are rounded up."""

TARGET_LABELS = ("job", "instance", "namespace", "pod", "container", "endpoint")
"""Labels that Prometheus Operator adds to every sample of a PodMonitor."""

ENDPOINT_REMOVAL = 15
"""Seconds after the deletion of a pod until no client uses it any more."""
SIDECAR_EXIT = 10
"""Seconds that the sidecar has to end after the server: ``--tap-drain`` 5 s, and to exit."""
MAX_OUTPUT_TOKENS = 4096
"""Output tokens of the longest response, where objectives bound only the time per token."""


def model_samples(prompt_classes: int = MAX_CLASSES) -> int:
    """Return the most samples of one version of a model, objectives excluded.

    ``prompt_classes`` is the number of values of that label, 0 without prompt classes.  The result
    is rounded up, so that a new signal rarely changes the manifests.
    """
    served = [
        signal for signal in SIGNALS.values() if prompt_classes or signal.key != "prompt_class"
    ]
    signals = sum(_signal_samples(signal, prompt_classes) for signal in served)
    of_other_tenants = sum(len(known_labels(signal)) for signal in TENANT_SIGNALS)
    infos = 2 + len(served) + len(_LAYERS) + _PROBE_SERIES
    exact = signals + of_other_tenants + infos + len(NAMES) * len(ROLES)
    return ceil(exact / STEP) * STEP


def objective_samples(prompt_classes: int = MAX_CLASSES) -> int:
    """Return the most samples of an objective for one model: those of a goodput objective.

    Each clause has a bucket boundary and good and bad events, ``ttft`` refused ones too; verdicts
    exist with and without tenant.  Two more are time slices.
    """
    of_clauses = sum(3 * _classes(SIGNALS[clause], prompt_classes) for clause in CLAUSES)
    of_clauses += len(REFUSALS) * _classes(SIGNALS["ttft"], prompt_classes)
    verdicts = 3 + len(REFUSALS) + len(CLAUSES)
    return 2 + of_clauses + (_classes(SIGNALS["goodput"], prompt_classes) + 1) * verdicts


def _classes(signal: Signal, prompt_classes: int) -> int:
    return max(1, prompt_classes) if signal.by_prompt_class else 1


def _signal_samples(signal: Signal, prompt_classes: int) -> int:
    classes = _classes(signal, prompt_classes)
    if signal.kind == "histogram":
        infinity_count_sum = 3
        of_engine = ENGINE_BOUNDARIES + infinity_count_sum
        return max(of_engine, classes * (len(signal.buckets) + infinity_count_sum))
    if signal.key == "request_failures":
        return len(OUTCOMES) - 1  # with the reason "other"
    of_tenants = signal.key in TENANT_SIGNALS.values()
    return 0 if of_tenants else classes * len(known_labels(signal.key))


def sample_limit(models: int, objectives: int, prompt_classes: int = MAX_CLASSES) -> int:
    """Return the most samples of a scrape, with versions of models counted."""
    per_model = model_samples(prompt_classes) + objectives * objective_samples(prompt_classes)
    return OWN_SAMPLES + models * per_model + CLIENT_SAMPLES


def label_limit() -> int:
    """Return the most labels of a sample, its name included."""
    measured = max(
        len((*MODEL_LABELS, *signal.fixed, *signal.possible_labels)) + (signal.kind == "histogram")
        for signal in SIGNALS.values()
    )
    own = max(len(labels) for _, _, labels in OWN_METRICS.values())
    return len(("__name__",)) + max(measured, own) + len(TARGET_LABELS)


def longest_stream(services: Iterable[Service], max_output_tokens: int = MAX_OUTPUT_TOKENS) -> int:
    """Return the seconds of the longest stream that is good for all objectives.

    It is the largest threshold of the duration of requests, if there is one; otherwise a first
    token and ``max_output_tokens`` at the largest thresholds.  Zero if objectives bound neither.
    """
    bounds = {signal: Decimal(repr(max(found))) for signal, found in thresholds(services).items()}
    if "e2e" in bounds:
        return ceil(bounds["e2e"])
    per_token = bounds.get("tpot") or bounds.get("itl")
    if per_token is None:
        return 0
    return ceil(bounds.get("ttft", Decimal(0)) + per_token * (max_output_tokens - 1))


def grace_period(stream_seconds: int) -> int:
    """Return ``terminationGracePeriodSeconds`` for a longest stream."""
    return ENDPOINT_REMOVAL + stream_seconds + SIDECAR_EXIT
