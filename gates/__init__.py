"""Rollout gates: compare a canary with its baseline, and decide on its promotion.

:mod:`gates.verdict` decides from counts, without I/O.  The command ``tokenslo gate`` reads the
counts from Prometheus (:mod:`gates.measurement`); for Argo Rollouts and Flagger,
:mod:`gates.recording_rules` and :mod:`gates.verdict_query` state the same decision in PromQL.
"""

from __future__ import annotations

from gates.manifests import files as files
from gates.manifests import groups as groups
from gates.manifests import patterns as patterns
