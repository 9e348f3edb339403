"""Checks of what is deployed: readiness, starts, probes, versions, content."""

from __future__ import annotations

from runbooks import service_queries as queries
from runbooks.checks.comparison import THAN_BEFORE
from runbooks.diagnosis_check import compares, service_check

ROLLOUT_CHECKS = (
    service_check(
        "not_ready",
        "Is every model ready?",
        queries.models_ready,
        compares("==", 1, " for every model"),
        "the server has loaded the model",
        "load_failure",
        "The server's own statement, 1 if some version is ready; `POST /v2/repository/index` of "
        "Triton has every version with the reason. A ready model may still be stuck or produce "
        "bad responses.",
    ),
    service_check(
        "recent_start",
        "Has a server or a model started in the last 15 minutes?",
        queries.time_ready,
        compares(">", "0.98", " of the scrapes on every instance"),
        "servers and models have been up for a while",
        "cold_start",
        "The share of the sidecar's recent scrapes in which the server and the model were ready. "
        "A new version and a restart both lower it.",
    ),
    service_check(
        "probe_fails",
        "Do probes get a token from the model?",
        queries.probes,
        compares("==", 1, " for every probed model"),
        "the model produces tokens",
        "bad_inference",
        "Needs `--probe MODEL`. Also check the instances whose model is not ready.",
    ),
    service_check(
        "short_answers",
        "Are responses shorter than yesterday?",
        queries.ratio(queries.response_length),
        compares(">", "0.5", THAN_BEFORE),
        "responses are about as long as before",
        "bad_inference",
        "Output tokens per successful request. Empty and truncated responses have status 200, so "
        "their length is the only sign in metrics. No result below ten responses in the window. "
        "Without a tap, responses to clients that disconnect count as short ones.",
    ),
    service_check(
        "mix_by_version",
        "Do all versions and instances receive the same mix of prompts?",
        queries.mix_by_version,
        compares("<", "1.5"),
        "versions can be compared",
        "canary_mix",
        "The longest mean prompt of a version on an instance over the shortest, among those with "
        "more than 3 requests per minute.",
    ),
)
