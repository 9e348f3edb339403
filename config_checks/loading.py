"""Read configuration files and folders.  Nothing that they name is executed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from admission.plan import AdmissionPlan
from config_checks.configuration import Configuration
from config_checks.gateways import is_gateway
from config_checks.gpu_topology import GpuTopology, parse_topology
from config_checks.setting import Setting
from config_checks.text_proto import parse_text_proto
from config_checks.triton_model import TritonModel
from config_checks.workloads import ServerContainer, is_manifest, server_containers
from documents.composer import compose_json, compose_yaml
from documents.files import Flaw, UnreadableText, read_text
from documents.nodes import ComposeOptions, Node, Scalar
from slos.errors import InvalidFile, Problem
from slos.model import Service

MAX_BYTES = 4 << 20
MAX_FILES = 2_000
_YAML = (".yaml", ".yml")
_OPTIONS = ComposeOptions(
    lambda scalar: _value(scalar),
    200_000,
    64,
    strict=False,
    syntax_fix="correct it; of a Helm chart, give the output of `helm template`",
)
_LLM_KEYS = frozenset(
    (
        *("kv_cache_config", "tensor_parallel_size", "cuda_graph_config", "triton_config"),
        *("use_cuda_graph", "num_postprocess_workers", "scheduler_config", "max_num_tokens"),
        *("enable_chunked_prefill", "pipeline_parallel_size", "enable_iter_perf_stats"),
        "return_perf_metrics",
    )
)


def _value(scalar: Scalar) -> object:
    plain_null = not scalar.style and scalar.text in ("", "~", "null", "Null", "NULL")
    return None if plain_null else scalar.text


@dataclass(slots=True)
class _Collected:
    models: list[TritonModel] = field(default_factory=list)
    options: list[Setting] = field(default_factory=list)
    containers: list[ServerContainer] = field(default_factory=list)
    gateways: list[Setting] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def load(
    paths: Sequence[str],
    *,
    topology: str | None = None,
    services: tuple[Service, ...] = (),
    output_tokens: int = 0,
    input_tokens: int = 0,
    plan: AdmissionPlan | None = None,
) -> tuple[Configuration, tuple[str, ...]]:
    """Read files and folders; return the configuration and notes on files that were skipped.

    Raises InvalidFile with the problems of all files.
    """
    found = _Collected()
    for path in paths:
        if Path(path).is_dir():
            _folder(Path(path), found)
        else:
            _file(Path(path), found)
    matrix = _topology(topology, found) if topology else None
    if found.problems:
        raise InvalidFile(found.problems)
    config = Configuration(
        tuple(found.models),
        tuple(found.options),
        tuple(found.containers),
        tuple(found.gateways),
        matrix,
        services,
        output_tokens,
        input_tokens,
        plan,
    )
    return config, tuple(found.notes)


def _folder(folder: Path, found: _Collected) -> None:
    """Read the models, manifests and values below a folder."""
    files = list(_files(folder))
    if len(files) >= MAX_FILES:
        fix = "give the folder of the model repository or of the manifests"
        found.problems.append(
            Problem(str(folder), 0, "", f"has more than {MAX_FILES:,} files", fix)
        )
        return
    configs = [path for path in files if path.name == "config.pbtxt"]
    yamls = [path for path in files if path.suffix in _YAML]
    if not configs and not yamls:
        fix = "give a model repository (MODEL/config.pbtxt), a model.yaml, manifests or Helm values"
        message = "is a folder without a config.pbtxt or a YAML file"
        found.problems.append(Problem(str(folder), 0, "", message, fix))
        return
    of_models: set[Path] = set()
    for config in configs:
        options = sorted(
            path for path in yamls if path.name == "model.yaml" and _below(path, config)
        )
        of_models.update(options)
        engines = [path for path in files if path.name == "config.json"]
        _model(config, options[-1] if options else None, engines, folder, found)
    for path in yamls:
        if path not in of_models:
            _yaml(path, found, given=False)


def _below(path: Path, config: Path) -> bool:
    """Whether a file is in a version folder of the model of a config.pbtxt."""
    return path.parent.parent == config.parent and path.parent.name.isdecimal()


def _files(folder: Path) -> Iterator[Path]:
    count = 0
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if name in ("config.pbtxt", "config.json") or name.endswith(_YAML):
                yield Path(place, name)
                count += 1
                if count >= MAX_FILES:
                    return


def _file(path: Path, found: _Collected) -> None:
    if path.suffix == ".pbtxt":
        below = [*path.parent.glob("[0-9]*/model.yaml")]
        engines = [*path.parent.glob("[0-9]*/config.json")]
        _model(path, max(below, default=None), engines, path.parent, found)
    else:
        _yaml(path, found, given=True)


def _model(
    path: Path, options: Path | None, engines: Sequence[Path], root: Path, found: _Collected
) -> None:
    config = _parsed(path, lambda text: [(1, parse_text_proto(text))], found)
    if not config:
        return
    name = config[0].get("name")
    model_name = name.text if name and name.text and not name.templates else path.parent.name
    parsed = _parsed(options, _yaml_roots, found) if options else []
    model = TritonModel(model_name, config[0], parsed[0] if parsed else None)
    place = _engine_file(model, path.parent, engines, root)
    engine = (
        _parsed(place, lambda text: [(1, compose_json(text, _OPTIONS))], found) if place else []
    )
    found.models.append(TritonModel(model_name, model.config, model.options, *engine[:1]))


def _engine_file(
    model: TritonModel, folder: Path, engines: Sequence[Path], root: Path
) -> Path | None:
    """Return config.json of an engine: at gpt_model_path or in a version folder.

    Files outside ``root`` are not read.
    """
    given = model.parameter_text("gpt_model_path")
    places = [folder / given / "config.json", root / given.lstrip("/") / "config.json"]
    inside = root.resolve()
    for place in places if given else ():
        if place.resolve().is_relative_to(inside) and place.is_file():
            return place
    own = [path for path in engines if _below(path, folder / "config.pbtxt")]
    return own[-1] if own else None


def _yaml(path: Path, found: _Collected, *, given: bool) -> None:
    """Read manifests, Helm values or LLM options; by content, not by name."""
    before = len(found.problems)
    documents = _parsed(path, _yaml_roots, found)
    if len(found.problems) > before and not given:
        problem = found.problems.pop()
        found.notes.append(f"{path}: not checked: {problem.message} (line {problem.line})")
        return
    used = False
    for document in documents:
        keys = set(document.node.entries or ())
        if is_gateway(document):
            found.gateways.append(document)
            used = True
        elif not is_manifest(document) and keys & _LLM_KEYS:
            found.options.append(document)
            used = True
        else:
            containers = list(server_containers(document))
            found.containers += containers
            used = used or bool(containers)
    if not used and len(found.problems) == before:
        message = "has no LLM options, no container of an LLM server and no limits of a gateway"
        if given:
            fix = "give a config.pbtxt, a model.yaml, Kubernetes manifests or Helm values"
            found.problems.append(Problem(str(path), 0, "", message, fix))
        else:
            found.notes.append(f"{path}: not checked: {message}")


def _yaml_roots(text: str) -> Iterable[tuple[int, Node]]:
    if text.lstrip().startswith("{") and not text.lstrip().startswith("{{"):
        return [(1, compose_json(text, _OPTIONS))]
    return compose_yaml(text, _OPTIONS)[0]


def _parsed(path: Path, parse: object, found: _Collected) -> list[Setting]:
    """Parse a file; add its flaws to the problems."""
    try:
        roots = parse(read_text(path, MAX_BYTES))  # type: ignore[operator]
    except UnreadableText as unreadable:
        found.problems += [_problem(path, flaw) for flaw in unreadable.flaws]
        return []
    return [Setting(str(path), line, "", root) for line, root in roots]


def _problem(path: Path, flaw: Flaw) -> Problem:
    return Problem(str(path), flaw.line, "", flaw.message, flaw.fix)


def _topology(file: str, found: _Collected) -> GpuTopology | None:
    try:
        return parse_topology(read_text(Path(file), MAX_BYTES), file)
    except UnreadableText as unreadable:
        found.problems += [_problem(Path(file), flaw) for flaw in unreadable.flaws]
        return None


def served_model(url: str, name: str, document: object) -> TritonModel | None:
    """Return a model from the response of ``GET /v2/models/NAME/config``; None if it is none."""
    if not isinstance(document, dict):
        return None
    try:
        root = compose_json(json.dumps(document), _OPTIONS)
    except UnreadableText:
        return None
    return TritonModel(name, Setting(url, 0, "", _without_lines(root)))


def _without_lines(node: Node) -> Node:
    """Return a node without lines: those of our own JSON mean nothing."""
    if node.items is not None:
        return Node(items=[(0, _without_lines(child)) for _, child in node.items])
    if node.entries is not None:
        entries = {key: (0, _without_lines(child)) for key, (_, child) in node.entries.items()}
        return Node(entries=entries)
    return node
