"""The patches of ``deploy/nvidia`` on NVIDIA's own charts.

``TOKENSLO_NVIDIA_CHARTS`` is a folder with checkouts of triton-inference-server/server, of
triton-inference-server/tutorials and of NVIDIA/nim-deploy at a commit that has ``helm/nim-llm``.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.kubernetes_objects import KINDS, Object, objects, sidecar
from tests.test_deploy_kustomize import build
from tools.kubernetes.examples import helm

CHARTS = Path(os.environ.get("TOKENSLO_NVIDIA_CHARTS", "absent"))
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not CHARTS.is_dir(), reason="TOKENSLO_NVIDIA_CHARTS is not set"),
    pytest.mark.skipif(not shutil.which("helm"), reason="helm is not installed"),
]
TUTORIALS = "tutorials/Deployment/Kubernetes"


@dataclass(frozen=True)
class NvidiaChart:
    """A chart, the patches for it, and the options that it requires."""

    folder: str
    patch: str
    tap: str
    options: Sequence[str] = ()
    values: str = ""
    components: Sequence[str] = ("grpc-tap",)
    targets: Sequence[str] = ("http", "grpc")


def triton(name: str, *options: str) -> NvidiaChart:
    return NvidiaChart(f"server/deploy/{name}", "triton-server", "triton-server", options)


IMAGE = "--set=triton.image.name=triton"
TRITON_CHARTS = [
    *(triton(name) for name in ("aws", "gcp", "oci", "k8s-onprem")),
    triton("fleetcommand", "--set=image.serverArgs={--model-repository=/models}"),
    triton("gke-marketplace-app/server-deployer/chart/triton", "--set=image.ldPreloadPath=/lib.so"),
]
ALL = [
    *TRITON_CHARTS,
    NvidiaChart(
        f"{TUTORIALS}/TensorRT-LLM_Autoscaling_and_Load_Balancing/chart",
        "tensorrt-llm", "tensorrt-llm",
        (IMAGE, "--set=gpu={NVIDIA-H100}"), "gpt2_values.yaml",
    ),
    NvidiaChart(
        f"{TUTORIALS}/TensorRT-LLM_Multi-Node_Distributed_Models/chart",
        "tensorrt-llm-multi-node", "tensorrt-llm",
        (IMAGE, "--set=gpu=NVIDIA-H100", "--set=model.persistentVolumeClaim=models"),
        "llama-3-70b-instruct_values.yaml",
        ("grpc-tap", "service-account-token"),
    ),
    NvidiaChart(
        "nim-deploy/helm/nim-llm", "nim-llm", "nim-llm", components=("tap-only",), targets=("http",)
    ),
    NvidiaChart(
        "nim-deploy/helm/nim-llm", "nim-llm", "nim-llm", ("--set=statefulSet.enabled=false",),
        components=("tap-only",), targets=("http",),
    ),
]  # fmt: skip


def rendered(chart: NvidiaChart, folder: Path) -> list[Object]:
    """Return the objects of a chart, without those of the charts that it depends on."""
    copy = folder / "chart"
    shutil.copytree(CHARTS / chart.folder, copy)
    file = copy / "Chart.yaml"
    about = yaml.safe_load(file.read_text())
    about.pop("dependencies", None)
    file.write_text(yaml.safe_dump(about))
    values = [f"--values={copy / chart.values}"] if chart.values else []
    options = ["--kube-version=1.33.0", *values, *chart.options]
    return objects(helm("template", "chat", str(copy), *options))


@pytest.mark.parametrize("chart", ALL, ids=lambda chart: " ".join((chart.folder, *chart.options)))
def test_a_chart_gets_the_sidecar_its_taps_and_time_to_drain(
    chart: NvidiaChart, tmp_path: Path
) -> None:
    found = rendered(chart, tmp_path)
    server = yaml.safe_dump_all([one for one in found if one["kind"] in KINDS])
    patched = build(
        tmp_path / "patched",
        server,
        [
            f"nvidia/{chart.patch}",
            "kustomize/overlays/proxy-tap",
            *(f"kustomize/components/{name}" for name in chart.components),
            f"nvidia/{chart.tap}/tap",
        ],
    )
    workloads = [one for one in patched if one["kind"] in ("Deployment", "StatefulSet")]
    [measured] = [one for one in workloads if "tokenslo" in one["metadata"]["labels"]]
    pod = measured["spec"]["template"]["spec"]
    assert pod["initContainers"][0] == sidecar(pod)
    assert pod["terminationGracePeriodSeconds"] == 272
    assert pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "15"]
    if chart in TRITON_CHARTS:
        assert pod["containers"][0]["args"][-1] == "--exit-timeout-secs=247"
    ports = [
        [port["targetPort"] for port in one["spec"]["ports"]][: len(chart.targets)]
        for one in patched
        if one["kind"] == "Service" and "metrics" not in one["metadata"]["name"]
    ]
    assert ports
    assert all(each == [f"tokenslo-{target}" for target in chart.targets] for each in ports)
