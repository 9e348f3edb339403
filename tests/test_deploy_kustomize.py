"""The components of ``deploy/``, built by kustomize on servers of others."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from tests.kubernetes_objects import (
    FOLDER,
    RELEASES,
    Object,
    environment,
    objects,
    only,
    schema_errors,
    sidecar,
)
from tokenslo.commands.generate import generate
from tools.docs.pages import fences
from tools.kubernetes.examples import KUSTOMIZE, ROOT, MissingToolError, kustomized

CHART = (FOLDER / "triton-inference-server.yaml").read_text(encoding="utf-8")
SERVER = (KUSTOMIZE / "examples/triton/triton.yaml").read_text(encoding="utf-8")


def build(folder: Path, server: str, components: Sequence[str]) -> list[Object]:
    """Return the objects of a server with components of ``deploy/``; all must be valid."""
    shutil.copytree(ROOT / "deploy/kustomize", folder / "kustomize")
    shutil.copytree(ROOT / "deploy/nvidia", folder / "nvidia")
    shutil.copy(KUSTOMIZE / "examples/triton/slo.yaml", folder / "slo.yaml")
    (folder / "server.yaml").write_text(server)
    kustomization = {
        "resources": ["server.yaml"],
        "components": list(components),
        "configMapGenerator": [{"name": "tokenslo-slo", "files": ["slo.yaml"]}],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    found = kustomized_objects(folder)
    assert [error for one in found for error in schema_errors(one, RELEASES[0])] == []
    return found


def kustomized_objects(folder: Path) -> list[Object]:
    try:
        return objects(kustomized(folder))
    except MissingToolError as missing:
        pytest.skip(str(missing))


def pod_of(found: list[Object]) -> Object:
    workload = next(one for one in found if one["kind"] in ("Deployment", "StatefulSet"))
    pod: Object = workload["spec"]["template"]["spec"]
    return pod


def test_a_chart_of_nvidia_gets_the_sidecar_its_taps_and_time_to_drain(tmp_path: Path) -> None:
    components = [
        "nvidia/triton-server",
        "kustomize/overlays/proxy-tap",
        "kustomize/components/grpc-tap",
        "nvidia/triton-server/tap",
    ]
    found = build(tmp_path, CHART, components)
    pod = pod_of(found)
    server = pod["containers"][0]
    assert sidecar(pod)["restartPolicy"] == "Always"
    assert pod["terminationGracePeriodSeconds"] == 272
    assert server["lifecycle"]["preStop"] == {"exec": {"command": ["sleep", "15"]}}
    assert server["args"][-1] == "--exit-timeout-secs=247"
    targets = [port["targetPort"] for port in only(found, "Service")["spec"]["ports"]]
    assert targets == ["tokenslo-http", "tokenslo-grpc", "metrics"]


@pytest.mark.parametrize(
    ("server", "patches", "components", "targets"),
    [
        ("tensorrt-llm", ["tensorrt-llm"], ["grpc-tap"], ["http", "grpc"]),
        (
            "tensorrt-llm",
            ["tensorrt-llm-multi-node", "tensorrt-llm"],
            ["grpc-tap", "service-account-token"],
            ["http", "grpc"],
        ),
        ("nim-llm", ["nim-llm"], ["tap-only"], ["http"]),
    ],
)
def test_other_charts_of_nvidia_get_the_sidecar_and_its_taps(
    server: str, patches: list[str], components: list[str], targets: list[str], tmp_path: Path
) -> None:
    text = (FOLDER / f"{server}.yaml").read_text(encoding="utf-8")
    found = build(
        tmp_path,
        text,
        [
            f"nvidia/{patches[0]}",
            "kustomize/overlays/proxy-tap",
            *(f"kustomize/components/{one}" for one in components),
            f"nvidia/{patches[-1]}/tap",
        ],
    )
    pod = pod_of(found)
    assert pod["initContainers"][0]["name"] == "tokenslo"
    assert pod["terminationGracePeriodSeconds"] == 272
    assert pod["containers"][0]["lifecycle"]["preStop"]
    ports = only(found, "Service")["spec"]["ports"]
    assert [port["targetPort"] for port in ports][: len(targets)] == [
        f"tokenslo-{target}" for target in targets
    ]


def test_helm_renders_through_the_post_renderer(tmp_path: Path) -> None:
    if not shutil.which("kubectl"):
        pytest.skip("kubectl is not installed")
    build(tmp_path, CHART, ["nvidia/triton-server", "kustomize/overlays/scrape"])
    kustomization = yaml.safe_load((tmp_path / "kustomization.yaml").read_text())
    kustomization["resources"] = ["chart.yaml"]
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    done = subprocess.run(
        [ROOT / "deploy/nvidia/post-render", tmp_path],
        input=CHART,
        capture_output=True,
        text=True,
        check=True,
    )
    assert sidecar(pod_of(objects(done.stdout)))


def test_a_workload_without_the_label_stays_as_it_is(tmp_path: Path) -> None:
    found = build(tmp_path, CHART, ["kustomize/overlays/scrape"])
    [deployment] = [one for one in objects(CHART) if one["kind"] == "Deployment"]
    assert only(found, "Deployment") == deployment


def test_a_stateful_set_gets_the_sidecar(tmp_path: Path) -> None:
    server = SERVER.replace("kind: Deployment", "kind: StatefulSet").replace(
        "  replicas: 2\n", "  serviceName: triton\n"
    )
    found = build(tmp_path, server, ["kustomize/overlays/scrape"])
    assert sidecar(only(found, "StatefulSet")["spec"]["template"]["spec"])


def test_an_init_container_of_the_server_runs_after_the_sidecar(tmp_path: Path) -> None:
    containers = "      initContainers: [{name: download, image: busybox}]\n      containers:\n"
    server = SERVER.replace("      containers:\n", containers)
    pod = pod_of(build(tmp_path, server, ["kustomize/overlays/scrape"]))
    assert [one["name"] for one in pod["initContainers"]] == ["tokenslo", "download"]


def test_before_1_29_the_sidecar_is_an_ordinary_container(tmp_path: Path) -> None:
    components = ["kustomize/overlays/scrape", "kustomize/components/plain-container"]
    pod = pod_of(build(tmp_path, SERVER, components))
    assert "restartPolicy" not in sidecar(pod)
    assert [one["name"] for one in pod["containers"]] == ["triton", "tokenslo"]
    assert not pod.get("initContainers")


def test_a_server_keeps_its_token_without_the_sidecar_seeing_it(tmp_path: Path) -> None:
    components = ["kustomize/overlays/scrape", "kustomize/components/service-account-token"]
    pod = pod_of(build(tmp_path, SERVER, components))
    assert pod["automountServiceAccountToken"] is True
    [mount] = [one for one in sidecar(pod)["volumeMounts"] if "serviceaccount" in one["mountPath"]]
    assert {"name": mount["name"], "emptyDir": {}} in pod["volumes"]


def test_without_the_operator_annotations_name_the_port(tmp_path: Path) -> None:
    components = ["kustomize/overlays/scrape", "kustomize/components/scrape-annotations"]
    found = build(tmp_path, SERVER, components)
    template = only(found, "Deployment")["spec"]["template"]
    assert template["metadata"]["annotations"]["prometheus.io/port"] == "9464"
    assert "PodMonitor" not in {one["kind"] for one in found}


def test_a_tap_is_the_only_source_where_nothing_is_read(tmp_path: Path) -> None:
    components = ["kustomize/overlays/proxy-tap", "kustomize/components/tap-only"]
    variables = environment(sidecar(pod_of(build(tmp_path, SERVER, components))))
    assert "TOKENSLO_TRITON" not in variables
    assert variables["TOKENSLO_TAP"]


def test_the_page_for_kubernetes_builds_as_written(tmp_path: Path) -> None:
    page = (ROOT / "docs/how-to/deploy-on-kubernetes.md").read_text(encoding="utf-8")
    folder = tmp_path / "manifests"
    folder.mkdir()
    for fence in fences(page):
        if fence.title:
            (folder / fence.title).write_text(fence.body)
    (folder / "triton.yaml").write_text(SERVER)
    (tmp_path / "tokenslo").mkdir()
    shutil.copytree(ROOT / "deploy", tmp_path / "tokenslo/deploy")
    command = next(one for fence in fences(page) for one in fence.commands if "generate" in one)
    arguments = shlex.split(command)[2:]
    arguments[arguments.index("slo.yaml")] = str(folder / "slo.yaml")
    arguments[arguments.index("generated")] = str(folder / "generated")
    assert CliRunner().invoke(generate, arguments).exit_code == 0
    found = kustomized_objects(folder)
    assert [error for one in found for error in schema_errors(one, RELEASES[-1])] == []
    kinds = Counter(one["kind"] for one in found)
    assert (kinds["PrometheusRule"], kinds["PodMonitor"], kinds["NetworkPolicy"]) == (2, 1, 2)
    clients = next(one for one in found if one["metadata"]["name"] == "tokenslo-proxy-tap")
    assert "istio-ingress" in str(clients)
    assert {one["metadata"]["namespace"] for one in found} == {"llm"}


def test_users_and_tls_come_from_secrets(tmp_path: Path) -> None:
    components = [
        "kustomize/overlays/proxy-tap",
        "kustomize/components/prometheus-operator",
        "kustomize/components/web-config-proxy-tap",
    ]
    found = build(tmp_path, SERVER, components)
    container = sidecar(pod_of(found))
    variables = environment(container)
    assert "TOKENSLO_ALLOW_UNAUTHENTICATED" not in variables
    assert variables["TOKENSLO_WEB_CONFIG"] == "/etc/tokenslo-web/web.yml"
    for probe in ("livenessProbe", "startupProbe"):
        request = {"path": "/healthz", "port": "tokenslo", "scheme": "HTTPS"}
        assert container[probe]["httpGet"] == request
    [endpoint] = only(found, "PodMonitor")["spec"]["podMetricsEndpoints"]
    assert endpoint["scheme"] == "https"
    assert endpoint["basicAuth"]["password"] == {"name": "tokenslo-scrape", "key": "password"}
