"""The rendered examples and generated resources in server-side dry runs of a real API server.

It is a kube-apiserver with etcd, without nodes and controllers: it validates, defaults and admits.
"""

from __future__ import annotations

import http.client
import json
import ssl
import subprocess
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lab.process import HOST, ServerProcess, free_ports, serve
from tests.kubernetes_objects import Object, objects, only, schema_of, sidecar
from tests.polling import wait_until
from tokenslo.commands.generate import generate
from tools.kubernetes.examples import EXAMPLES, RENDERED

pytestmark = [pytest.mark.long, pytest.mark.needs("etcd", "kube-apiserver")]
TOKEN = "token-of-the-test"
RESTRICTED, PRIVILEGED = "restricted", "privileged"
CAPTURES = {name for name in EXAMPLES if "capture" in name}
CUSTOM_KINDS = {"PodMonitor": "podmonitors", "PrometheusRule": "prometheusrules"}
GROUP = "monitoring.coreos.com"


@dataclass(frozen=True)
class ApiServer:
    """A running API server."""

    port: int
    certificate: Path

    def request(
        self, method: str, path: str, body: Object | None = None, kind: str = "application/json"
    ) -> tuple[int, Any]:
        """Return status and document of a response."""
        tls = ssl.create_default_context(cafile=self.certificate)
        connection = http.client.HTTPSConnection(HOST, self.port, context=tls, timeout=30)
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": kind}
        connection.request(method, path, body and json.dumps(body), headers)
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        is_json = (response.getheader("Content-Type") or "").startswith("application/json")
        return response.status, json.loads(text) if is_json else text

    def create(self, path: str, body: Object) -> None:
        """Create an object for real."""
        status, answer = self.request("POST", path, body)
        assert status == 201, answer

    def path(self, one: Object, namespace: str) -> str:
        """Return the path of the resources of an object's kind in a namespace."""
        group = one["apiVersion"]
        base = f"/apis/{group}" if "/" in group else f"/api/{group}"
        resources = self.request("GET", base)[1]["resources"]
        [name] = [
            each["name"]
            for each in resources
            if each["kind"] == one["kind"] and "/" not in each["name"]
        ]
        return f"{base}/namespaces/{namespace}/{name}"

    def dry_run(self, one: Object, namespace: str) -> tuple[int, Any]:
        """Apply an object as ``kubectl apply --server-side --dry-run=server`` does."""
        one = deepcopy(one)
        one["metadata"]["namespace"] = namespace
        options = "dryRun=All&fieldManager=tokenslo&fieldValidation=Strict"
        path = f"{self.path(one, namespace)}/{one['metadata']['name']}?{options}"
        return self.request("PATCH", path, one, "application/apply-patch+yaml")

    def admit(self, pod: Object, namespace: str) -> tuple[int, Any]:
        """Create a pod from a template in a dry run."""
        pod = {"apiVersion": "v1", "kind": "Pod", **deepcopy(pod)}
        pod["metadata"]["name"] = "server-0"
        return self.request("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", pod)


def etcd(program: Path, folder: Path) -> ServerProcess:
    def command(ports: Any) -> list[str | Path]:
        client, peer = (f"http://{HOST}:{port}" for port in ports)
        return [
            *(program, f"--data-dir={folder / 'etcd'}", "--unsafe-no-fsync"),
            *(f"--listen-client-urls={client}", f"--advertise-client-urls={client}"),
            *(f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"),
            f"--initial-cluster=default={peer}",
        ]

    return serve(ServerProcess, "etcd", command, folder / "etcd.log", ready="/health", ports=2)


@pytest.fixture(scope="module")
def api(
    part: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApiServer]:
    folder = tmp_path_factory.mktemp("cluster")
    key = folder / "service-accounts.key"
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
    (folder / "tokens.csv").write_text(f"{TOKEN},admin,1,system:masters\n")
    [port] = free_ports(1)
    log = folder / "kube-apiserver.log"
    with etcd(part("etcd"), folder) as store, log.open("w") as output:
        command = [
            *(part("kube-apiserver"), f"--etcd-servers={store.url}"),
            *(f"--bind-address={HOST}", f"--secure-port={port}", f"--cert-dir={folder}"),
            *("--authorization-mode=RBAC", f"--token-auth-file={folder / 'tokens.csv'}"),
            *("--service-account-issuer=https://kubernetes.default.svc",),
            *(f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}"),
            *("--service-cluster-ip-range=10.0.0.0/24", "--endpoint-reconciler-type=none"),
        ]
        with subprocess.Popen(command, stdout=output, stderr=output) as process:
            try:
                server = ApiServer(port, folder / "apiserver.crt")
                wait_until(lambda: _ready(server) or process.poll(), seconds=120, pause=0.2)
                assert process.poll() is None, log.read_text()[-3000:]
                _prepare(server)
                yield server
            finally:
                process.terminate()


def _ready(server: ApiServer) -> bool:
    try:
        return server.request("GET", "/readyz")[0] == 200
    except OSError:
        return False


def _prepare(server: ApiServer) -> None:
    """Create the namespaces, their accounts and the kinds of Prometheus Operator."""
    for name in (RESTRICTED, PRIVILEGED):
        labels = {"pod-security.kubernetes.io/enforce": name}
        namespace = {"kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        server.create("/api/v1/namespaces", {"apiVersion": "v1", **namespace})
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        server.create(f"/api/v1/namespaces/{name}/serviceaccounts", account)
    for kind in CUSTOM_KINDS:
        server.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition(kind))
    for kind, plural in CUSTOM_KINDS.items():
        version = "v1"
        path = f"/apis/{GROUP}/{version}/namespaces/{RESTRICTED}/{plural}"
        wait_until(lambda path=path: server.request("GET", path)[0] == 200)  # type: ignore[misc]
        assert kind


def definition(kind: str) -> Object:
    """Return a custom resource definition with the fields of Prometheus Operator's."""
    plural = CUSTOM_KINDS[kind]
    schema = {"openAPIV3Schema": structural(schema_of(kind, "")["definitions"][kind])}
    names = {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]},
    }


def structural(schema: Any) -> Any:
    """Return a strict schema of ``tests/kubernetes`` as a structural one, which is strict too."""
    if isinstance(schema, list):
        return [structural(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == ["string", "integer"]:
        return {"x-kubernetes-int-or-string": True}
    return {
        key: {name: structural(one) for name, one in value.items()}
        if key == "properties"
        else structural(value)
        for key, value in schema.items()
        if (key, value) != ("additionalProperties", False)
    }


def example(name: str) -> list[Object]:
    return objects((RENDERED / f"{name}.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_server_accepts_every_object_of_an_example(api: ApiServer, name: str) -> None:
    refused = {}
    for one in example(name):
        status, answer = api.dry_run(one, PRIVILEGED if name in CAPTURES else RESTRICTED)
        if status not in (200, 201):
            refused[f"{one['kind']} {one['metadata']['name']}"] = answer
    assert refused == {}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_pods_of_an_example_are_admitted_at_their_level(api: ApiServer, name: str) -> None:
    pod = only(example(name), "Deployment")["spec"]["template"]
    status, answer = api.admit(pod, RESTRICTED)
    if name in CAPTURES:
        assert status == 403, answer
        assert 'violates PodSecurity "restricted' in answer["message"]
        assert "NET_RAW" in answer["message"]
        status, answer = api.admit(pod, PRIVILEGED)
    assert status == 201, answer
    assert sidecar(answer["spec"])["restartPolicy"] == "Always"


def test_the_server_refuses_unknown_fields(api: ApiServer) -> None:
    deployment = only(example("kustomize-scrape"), "Deployment")
    sidecar(deployment["spec"]["template"]["spec"])["restartpolicy"] = "Always"
    monitor = only(example("kustomize-scrape"), "PodMonitor")
    monitor["spec"]["podMetricsEndpoints"][0]["scrapeTimeOut"] = "10s"
    for one, field in ((deployment, "restartpolicy"), (monitor, "scrapeTimeOut")):
        # Server-side apply answers 500 where a field is not in the schema, other requests 400.
        status, answer = api.dry_run(one, RESTRICTED)
        assert status >= 400
        assert field in answer["message"]


def test_the_server_accepts_generated_rules_and_dashboards(api: ApiServer, tmp_path: Path) -> None:
    slo = Path("examples/chat/slo.yaml").resolve()
    options = ["--format", "operator", "--dashboard-format", "configmap"]
    done = CliRunner().invoke(generate, [str(slo), "-o", str(tmp_path), *options])
    assert done.exit_code == 0, done.output
    files = [*tmp_path.rglob("*.prometheusrule.yaml"), *tmp_path.rglob("*.configmap.yaml")]
    found = [one for file in files for one in objects(file.read_text(encoding="utf-8"))]
    assert {one["kind"] for one in found} == {"ConfigMap", "PrometheusRule"}
    refused = [answer for one in found for status, answer in [api.dry_run(one, RESTRICTED)]
               if status not in (200, 201)]  # fmt: skip
    assert refused == []
