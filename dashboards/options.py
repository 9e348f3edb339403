"""Options of the dashboards: which ones, in which formats, and with which changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from dashboards.dashboard_set import KINDS
from slos.names import UID_PREFIX

DashboardFormat = Literal["json", "provisioning", "configmap", "operator", "v2"]
FORMATS: tuple[DashboardFormat, ...] = ("json", "provisioning", "configmap", "operator", "v2")


@dataclass(frozen=True, slots=True)
class Overlay:
    """A Jsonnet file that changes every dashboard, and the folders of its imports."""

    file: str
    libraries: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class DashboardOptions:
    """Which dashboards to write, and how.

    ``folder`` is the title of the folder in Grafana, empty for its root.  ``datasource_uid`` is
    selected when a dashboard opens; empty for Grafana's default data source.  ``uid_prefix`` begins
    every uid, and ``tags`` are added to every dashboard.  ``namespace`` and ``labels`` are those of
    Kubernetes resources.
    """

    formats: tuple[DashboardFormat, ...] = ("json",)
    kinds: tuple[str, ...] = KINDS
    folder: str = ""
    datasource_uid: str = ""
    uid_prefix: str = UID_PREFIX
    tags: tuple[str, ...] = ()
    overlay: Overlay | None = None
    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
