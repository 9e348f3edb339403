"""``python -m tools.kubernetes.schemas FILE…``: print the strict JSON Schema of a release.

``FILE`` is ``api/openapi-spec/swagger.json`` of Kubernetes, or several are the custom resource
definitions of Prometheus Operator, of Argo Rollouts and Flagger, of KEDA, or of Grafana Operator.
The schema has only the kinds that ``deploy/`` and ``generate`` use, without descriptions, and
refuses unknown fields.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

KINDS = (
    "io.k8s.api.apps.v1.Deployment",
    "io.k8s.api.apps.v1.StatefulSet",
    "io.k8s.api.autoscaling.v2.HorizontalPodAutoscaler",
    "io.k8s.api.core.v1.ConfigMap",
    "io.k8s.api.core.v1.Service",
    "io.k8s.api.networking.v1.NetworkPolicy",
)
LICENCE = (
    "Field names and types of the Kubernetes API, from api/openapi-spec/swagger.json of "
    "https://github.com/kubernetes/kubernetes, Copyright The Kubernetes Authors, Apache-2.0."
)
LICENCES = {
    "monitoring.coreos.com": "Field names and types of Prometheus Operator 0.93.0, from the custom "
    "resource definitions of https://github.com/prometheus-operator/prometheus-operator, Copyright "
    "The prometheus-operator Authors, Apache-2.0.",
    "argoproj.io": "Field names and types of Argo Rollouts 1.10.0-rc1, from the custom resource "
    "definitions of https://github.com/argoproj/argo-rollouts, Copyright The Argo Authors, "
    "Apache-2.0.",
    "grafana.integreatly.org": "Field names and types of Grafana Operator 5.24.0, from the custom "
    "resource definitions of https://github.com/grafana/grafana-operator, Copyright The "
    "grafana-operator Authors, Apache-2.0.",
    "keda.sh": "Field names and types of KEDA 2.20.2, from the custom resource definitions of "
    "https://github.com/kedacore/keda, Copyright The KEDA Authors, Apache-2.0.",
    "flagger.app": "Field names and types of Flagger 1.44.0, from the custom resource definitions "
    "of https://github.com/fluxcd/flagger, Copyright The Flux Authors, Apache-2.0.",
}
"""Origin of custom resource definitions, by their group."""
_REFERENCE = "#/definitions/"
_KEPT = frozenset(
    {"additionalProperties", "enum", "items", "pattern", "properties", "$ref", "required", "type"}
)
_SCALARS: dict[str, dict[str, Any]] = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {"type": ["string", "number"]},
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {"type": ["string", "integer"]},
}
"""Types with two forms in YAML, of which the specification names one."""


class _Loader(yaml.CSafeLoader):
    """Reads a plain ``=`` as text, as YAML 1.2 does: it is a value of enumerations."""


_Loader.add_constructor("tag:yaml.org,2002:value", _Loader.construct_yaml_str)


def strict_schema(swagger: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON Schema with a definition for each kind and all that it refers to."""
    wanted, found = list(KINDS), dict[str, Any]()
    while wanted:
        name = wanted.pop()
        if name not in found:
            found[name] = _SCALARS.get(name) or _strict(swagger["definitions"][name])
            wanted += _references(found[name])
    return {"$comment": LICENCE, "definitions": dict(sorted(found.items()))}


def strict_custom_schema(definitions: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a JSON Schema with a definition for each custom resource."""
    found = {
        definition["spec"]["names"]["kind"]: _strict(version["schema"]["openAPIV3Schema"])
        for definition in definitions
        for version in definition["spec"]["versions"]
        if version["storage"]
    }
    groups = dict.fromkeys(definition["spec"]["group"] for definition in definitions)
    comment = " ".join(LICENCES[group] for group in groups)
    return {"$comment": comment, "definitions": dict(sorted(found.items()))}


def _strict(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["string", "integer"]}
    kept = {
        key: {name: _strict(value) for name, value in part.items()}
        if key == "properties"
        else _strict(part)
        for key, part in schema.items()
        if key in _KEPT
    }
    if "properties" in kept:
        kept["additionalProperties"] = False
    return kept


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        for key, value in schema.items():
            if key == "$ref":
                yield value.removeprefix(_REFERENCE)
            else:
                yield from _references(value)
    elif isinstance(schema, list):
        for item in schema:
            yield from _references(item)


def main() -> None:
    """Print the schema of the files that the arguments name."""
    texts = (Path(file).read_bytes() for file in sys.argv[1:])
    documents = [one for text in texts for one in yaml.load_all(text, _Loader) if one]
    is_custom = documents[0].get("kind") == "CustomResourceDefinition"
    schema = strict_custom_schema(documents) if is_custom else strict_schema(documents[0])
    print(json.dumps(schema, separators=(",", ":")))


if __name__ == "__main__":
    main()
