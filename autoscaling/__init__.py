"""Autoscaling: objects of KEDA, of Kubernetes and of prometheus-adapter from an SLO file.

:mod:`autoscaling.policy` has the signals and times as data, :mod:`autoscaling.queries` computes the
demand for replicas from each signal in PromQL, and :mod:`autoscaling.manifests` writes the files.
"""

from __future__ import annotations

from autoscaling.manifests import files as files
from autoscaling.manifests import groups as groups
from autoscaling.manifests import patterns as patterns
