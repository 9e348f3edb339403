"""Catalogue of SGLang with ``--enable-metrics``.

Names, types and default buckets are in ``data/sglang.json``.  Options add labels, so labels are not
checked.
"""

from __future__ import annotations

from dataclasses import replace

from promql.lint.catalogue import Catalogue
from slos.catalogues.stored import release_of, stored

PREFIXES = ("sglang:",)
_CONFIGURABLE = {
    "sglang:time_to_first_token_seconds": "--bucket-time-to-first-token",
    "sglang:inter_token_latency_seconds": "--bucket-inter-token-latency",
    "sglang:e2e_request_latency_seconds": "--bucket-e2e-request-latency",
}


def sglang() -> Catalogue:
    """Return the metrics of a release."""
    known = stored("sglang")
    metrics = {
        name: replace(metric, boundaries_from=_CONFIGURABLE.get(name, ""))
        for name, metric in known.metrics.items()
    }
    return Catalogue(f"SGLang {release_of(known)}", metrics, PREFIXES)
