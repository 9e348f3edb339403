"""The playbooks by key: causes of incidents with their diagnosis and mitigations."""

from __future__ import annotations

from collections.abc import Mapping

from runbooks.playbook import Playbook
from runbooks.playbooks.clients import CLIENTS
from runbooks.playbooks.engine import ENGINE
from runbooks.playbooks.ensemble import ENSEMBLE
from runbooks.playbooks.failures import FAILURES
from runbooks.playbooks.gateways import GATEWAYS
from runbooks.playbooks.generic import GENERIC
from runbooks.playbooks.kv_cache import KV_CACHE
from runbooks.playbooks.latency import LATENCY
from runbooks.playbooks.loading import LOADING
from runbooks.playbooks.measurement import MEASUREMENT
from runbooks.playbooks.rollout import ROLLOUT
from runbooks.playbooks.scheduling import SCHEDULING
from runbooks.playbooks.slo_files import SLO_FILES

PLAYBOOKS: Mapping[str, Playbook] = {
    playbook.key: playbook
    for playbook in (
        *LATENCY,
        *KV_CACHE,
        *SCHEDULING,
        *ENGINE,
        *ENSEMBLE,
        *ROLLOUT,
        *LOADING,
        *CLIENTS,
        *GATEWAYS,
        *FAILURES,
        *GENERIC,
        *MEASUREMENT,
        *SLO_FILES,
    )
}
