"""The rendered examples of ``deploy/``: valid, safe, and what kustomize and Helm render."""

from __future__ import annotations

import json
import shutil
import subprocess
from copy import deepcopy
from pathlib import Path

import pytest

from exporter.settings import load_settings
from slos.load import load_file
from tests.kubernetes_objects import (
    KINDS,
    RELEASES,
    Object,
    environment,
    objects,
    only,
    restricted_errors,
    schema_errors,
    schema_of,
    selects,
    sidecar,
)
from tools.kubernetes import limits
from tools.kubernetes.examples import EXAMPLES, RENDERED, MissingToolError

NAMES = tuple(EXAMPLES)
CAPTURES = tuple(name for name in NAMES if "capture" in name)
OTHERS = tuple(name for name in NAMES if "capture" not in name)
every_example = pytest.mark.parametrize("name", NAMES)


def example(name: str) -> list[Object]:
    return objects((RENDERED / f"{name}.yaml").read_text(encoding="utf-8"))


def pod_template(name: str) -> Object:
    template: Object = only(example(name), "Deployment")["spec"]["template"]
    return template


def pod_of(name: str) -> Object:
    pod: Object = pod_template(name)["spec"]
    return pod


def server_of(name: str) -> Object:
    (server,) = pod_of(name)["containers"]
    return dict(server)


@every_example
def test_an_example_is_what_its_tool_renders(name: str) -> None:
    try:
        rendered = EXAMPLES[name]()
    except MissingToolError as missing:
        pytest.skip(str(missing))
    assert objects(rendered) == example(name), "write it again: python -m tools.kubernetes"


def test_every_rendered_file_is_an_example() -> None:
    assert {path.stem for path in RENDERED.iterdir()} == set(NAMES)


# Schemas


@pytest.mark.parametrize("release", RELEASES)
@every_example
def test_an_example_is_valid_in_each_release(name: str, release: str) -> None:
    errors = [error for one in example(name) for error in schema_errors(one, release)]
    assert errors == []


@pytest.mark.parametrize("release", RELEASES)
def test_unknown_and_mistyped_fields_are_found(release: str) -> None:
    deployment = only(example("kustomize-scrape"), "Deployment")
    unknown, mistyped = deepcopy(deployment), deepcopy(deployment)
    sidecar(unknown["spec"]["template"]["spec"])["restartpolicy"] = "Always"
    sidecar(mistyped["spec"]["template"]["spec"])["ports"][0]["containerPort"] = "9464"
    assert "'restartpolicy' was unexpected" in "".join(schema_errors(unknown, release))
    assert "'9464' is not of type 'integer'" in "".join(schema_errors(mistyped, release))
    monitor = only(example("kustomize-scrape"), "PodMonitor")
    monitor["spec"]["podMetricsEndpoints"][0]["scrapeTimeOut"] = "10s"
    assert list(schema_errors(monitor, release))


@pytest.mark.skipif(not shutil.which("kubeconform"), reason="kubeconform is not installed")
@pytest.mark.parametrize("release", RELEASES)
def test_kubeconform_accepts_the_examples(release: str, tmp_path: Path) -> None:
    for kind in KINDS:
        (tmp_path / f"{kind.lower()}.json").write_text(json.dumps(schema_of(kind, release)))
    location = f"{tmp_path}/{{{{.ResourceKind}}}}.json"
    files = [str(RENDERED / f"{name}.yaml") for name in NAMES]
    done = subprocess.run(
        ["kubeconform", "-strict", "-schema-location", location, *files],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


# The sidecar


@every_example
def test_the_sidecar_starts_before_the_server_and_stops_after_it(name: str) -> None:
    first = pod_of(name)["initContainers"][0]
    assert (first["name"], first["restartPolicy"]) == ("tokenslo", "Always")


@every_example
def test_no_probe_of_the_sidecar_takes_the_model_out_of_service(name: str) -> None:
    container = sidecar(pod_of(name))
    assert "readinessProbe" not in container
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "tokenslo"}
    startup = container.get("startupProbe")
    assert bool(startup) == ("proxy" in name), "only a tap in the path of requests must be ready"
    assert not startup or startup["httpGet"]["path"] == "/healthz"


@every_example
def test_settings_are_those_that_the_exporter_accepts(name: str, tmp_path: Path) -> None:
    given = environment(sidecar(pod_of(name)))
    settings = load_settings({}, given)
    assert settings.listen.port == 9464
    ports = {one["containerPort"] for one in sidecar(pod_of(name))["ports"]}
    assert ports == {9464, *(tap.listen_port for tap in settings.tap if "proxy" in str(tap))}
    files = only([one for one in example(name) if "slo.yaml" in one.get("data", {})], "ConfigMap")
    slo = tmp_path / "slo.yaml"
    slo.write_text(files["data"]["slo.yaml"])
    assert load_file(slo, []).services
    assert settings.slo == ("/etc/tokenslo/slo.yaml",)
    (mount,) = sidecar(pod_of(name))["volumeMounts"]
    (volume,) = (one for one in pod_of(name)["volumes"] if one["name"] == mount["name"])
    assert volume["configMap"]["name"] == files["metadata"]["name"]


@every_example
def test_the_image_has_the_version_of_the_project(name: str) -> None:
    from importlib.metadata import version

    assert sidecar(pod_of(name))["image"].endswith(f"tokenslo:{version('tokenslo')}")


@every_example
def test_no_token_of_the_kubernetes_api_is_mounted(name: str) -> None:
    assert pod_of(name)["automountServiceAccountToken"] is False


@pytest.mark.parametrize("name", OTHERS)
def test_a_pod_without_capture_is_restricted(name: str) -> None:
    assert list(restricted_errors(pod_of(name))) == []
    context = sidecar(pod_of(name))["securityContext"]
    assert context["readOnlyRootFilesystem"] is True
    assert context["runAsUser"] == 65532


@pytest.mark.parametrize("name", CAPTURES)
def test_a_capture_requests_one_capability_and_the_user_that_gets_it(name: str) -> None:
    assert list(restricted_errors(pod_of(name))) == [
        "tokenslo runAsNonRoot",
        "tokenslo runAsUser",
        "tokenslo capabilities.add",
    ]
    capabilities = sidecar(pod_of(name))["securityContext"]["capabilities"]
    assert capabilities == {"drop": ["ALL"], "add": ["NET_RAW"]}


# Network


@every_example
def test_only_prometheus_and_the_gateway_reach_the_pod(name: str) -> None:
    labels = pod_template(name)["metadata"]["labels"]
    reached: dict[str, set[int]] = {}
    for policy in (one for one in example(name) if one["kind"] == "NetworkPolicy"):
        spec = policy["spec"]
        assert spec["policyTypes"] == ["Ingress"]
        assert selects(spec["podSelector"], labels)
        for rule in spec["ingress"]:
            (peer,) = rule["from"]
            namespace = peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
            reached.setdefault(namespace, set()).update(port["port"] for port in rule["ports"])
    taps = {tap.listen_port for tap in load_settings({}, environment(sidecar(pod_of(name)))).tap
            if "proxy" in str(tap)}  # fmt: skip
    assert reached == {"monitoring": {9464, 8002}, "gateway": taps or {8000, 8001}}


@pytest.mark.parametrize("name", [name for name in NAMES if "proxy" in name])
def test_the_service_sends_clients_to_the_tap(name: str) -> None:
    declared = {port["name"] for port in sidecar(pod_of(name))["ports"]}
    ports = only(example(name), "Service")["spec"]["ports"]
    assert {port["targetPort"] for port in ports} == declared - {"tokenslo"}


@every_example
def test_port_names_are_unique_in_the_pod(name: str) -> None:
    names = [
        port["name"]
        for container in (sidecar(pod_of(name)), server_of(name))
        for port in container["ports"]
    ]
    assert len(names) == len(set(names))


# Scrapes and shutdown


@every_example
def test_the_pod_monitor_selects_the_declared_port(name: str) -> None:
    spec = only(example(name), "PodMonitor")["spec"]
    assert selects(spec["selector"], pod_template(name)["metadata"]["labels"])
    (endpoint,) = spec["podMetricsEndpoints"]
    assert endpoint["port"] in {port["name"] for port in sidecar(pod_of(name))["ports"]}
    assert spec["labelLimit"] == limits.label_limit()
    # The chart reads the SLO files, which have no prompt classes.
    limit = limits.sample_limit(256, 3, 0) if "helm" in name else limits.sample_limit(256, 20)
    assert spec["sampleLimit"] == limit


@every_example
def test_the_grace_period_covers_the_longest_stream_of_the_objectives(
    name: str, tmp_path: Path
) -> None:
    (files,) = (one for one in example(name) if "slo.yaml" in one.get("data", {}))
    slo = tmp_path / "slo.yaml"
    slo.write_text(files["data"]["slo.yaml"])
    longest = limits.longest_stream(load_file(slo, []).services)
    assert longest == 247
    assert pod_of(name)["terminationGracePeriodSeconds"] == limits.grace_period(longest)
    sleep = server_of(name)["lifecycle"]["preStop"]["exec"]["command"]
    assert sleep == ["sleep", str(limits.ENDPOINT_REMOVAL)]
    if "trtllm" not in name:
        assert f"--exit-timeout-secs={longest}" in server_of(name)["args"]
    settings = load_settings({}, environment(sidecar(pod_of(name))))
    if "proxy" in name:
        assert settings.tap_drain < limits.SIDECAR_EXIT
