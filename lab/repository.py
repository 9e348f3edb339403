"""Write the model `tensorrt_llm` as a Triton model repository, and read its settings.

An ensemble puts a tokenizing stage before the model and a detokenizing one behind it, as
tensorrtllm_backend does.

The model imports the engine from this package, which :mod:`lab.triton` puts on its path.  Every
setting is a string parameter of config.pbtxt, as Triton requires.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, get_args

from lab.backend_metrics import Publish
from lab.engine_settings import EngineSettings

_Settings = TypeVar("_Settings", EngineSettings, "ModelSettings")

_CONFIG = """\
# A simulated TensorRT-LLM engine behind the interface of the real model.
backend: "python"
max_batch_size: 0
{policy}model_transaction_policy {{ decoupled: true }}
input [
  {{ name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }},
  {{ name: "max_tokens" data_type: TYPE_INT32 dims: [ 1 ] }},
  {{ name: "stream" data_type: TYPE_BOOL dims: [ 1 ] optional: true }},
  {{ name: "return_perf_metrics" data_type: TYPE_BOOL dims: [ 1 ] optional: true }}
]
output [
  {{ name: "text_output" data_type: TYPE_STRING dims: [ 1 ] }},
  {{ name: "arrival_time_ns" data_type: TYPE_INT64 dims: [ 1 ] }},
  {{ name: "first_scheduled_time_ns" data_type: TYPE_INT64 dims: [ 1 ] }},
  {{ name: "first_token_time_ns" data_type: TYPE_INT64 dims: [ 1 ] }},
  {{ name: "last_token_time_ns" data_type: TYPE_INT64 dims: [ 1 ] }}
]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
{parameters}
"""
_STAGE = """\
backend: "python"
max_batch_size: 0
input [ {{ name: "{input}" data_type: TYPE_STRING dims: [ 1 ] }} ]
output [ {{ name: "{output}" data_type: TYPE_STRING dims: [ 1 ] }} ]
instance_group [ {{ kind: KIND_CPU count: {instances} }} ]
parameters {{ key: "faults_file" value {{ string_value: {faults_file} }} }}
"""
_ENSEMBLE = """\
platform: "ensemble"
max_batch_size: 0
input [
  {{ name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }},
  {{ name: "max_tokens" data_type: TYPE_INT32 dims: [ 1 ] }},
  {{ name: "stream" data_type: TYPE_BOOL dims: [ 1 ] }}
]
output [ {{ name: "text_output" data_type: TYPE_STRING dims: [ 1 ] }} ]
ensemble_scheduling {{
  step [
    {{
      model_name: "preprocessing" model_version: -1
      input_map {{ key: "query" value: "text_input" }}
      output_map {{ key: "prompt" value: "prompt" }}
    }},
    {{
      model_name: "{model}" model_version: -1
      input_map {{ key: "text_input" value: "prompt" }}
      input_map {{ key: "max_tokens" value: "max_tokens" }}
      input_map {{ key: "stream" value: "stream" }}
      output_map {{ key: "text_output" value: "tokens" }}
    }},
    {{
      model_name: "postprocessing" model_version: -1
      input_map {{ key: "tokens" value: "tokens" }}
      output_map {{ key: "text" value: "text_output" }}
    }}
  ]
}}
"""
_STAGES = (("preprocessing", "query", "prompt", 3), ("postprocessing", "tokens", "text", 1))
"""Stages of the ensemble: name, input, output, instances."""
_ALL_VERSIONS = "version_policy: { all {} }\n"
_PARAMETER = 'parameters {{ key: "{}" value {{ string_value: {} }} }}'


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Settings of the Triton model around the engine.

    ``publish`` selects the metric families (see :mod:`lab.backend_metrics`).  With ``freeze`` the
    gauges keep the values of the first record with active requests, as gauges of a dead thread do.
    ``first_response_buckets_ms`` are the boundaries of the first-response histogram that Triton has
    from 24.11 on (metric_model_reporter.cc: by default 100, 500, 2000, 5000); without boundaries
    the histogram is absent.
    """

    publish: Publish = "cpp"
    freeze: bool = False
    first_response_buckets_ms: tuple[int, ...] = (100, 500, 2000, 5000)

    def __post_init__(self) -> None:
        boundaries = self.first_response_buckets_ms
        if self.publish not in get_args(Publish):
            raise ValueError(f"publish {self.publish!r} is none of {', '.join(get_args(Publish))}")
        if list(boundaries) != sorted({*boundaries}) or min(boundaries, default=1) < 1:
            raise ValueError("first_response_buckets_ms must be positive and ascending")


def write_repository(
    folder: Path,
    name: str = "tensorrt_llm",
    engine: EngineSettings | None = None,
    model: ModelSettings | None = None,
    versions: Sequence[int] = (1,),
) -> Path:
    """Write the model `name` into the model repository `folder` and return the model's folder.

    A repository can hold several models, each with its own engine.  Several `versions` of a model
    are served at once, each with an engine of equal settings.
    """
    home = folder / name
    for version in versions:
        (home / f"{version}").mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(__file__).with_name("served_model.py"), home / f"{version}/model.py")
    settings = {**asdict(engine or EngineSettings()), **asdict(model or ModelSettings())}
    parameters = (_PARAMETER.format(key, _quoted(value)) for key, value in settings.items())
    policy = _ALL_VERSIONS if len(versions) > 1 else ""
    (home / "config.pbtxt").write_text(
        _CONFIG.format(policy=policy, parameters="\n".join(parameters))
    )
    return home


def write_ensemble(folder: Path, model: str, name: str = "ensemble", faults_file: str = "") -> None:
    """Write the ensemble `name` around `model`, and its other stages, into a model repository.

    `faults_file` is the stages' file of faults, with fields for model and version.
    """
    for stage, given, result, instances in _STAGES:
        (folder / stage / "1").mkdir(parents=True)
        shutil.copy(Path(__file__).with_name("served_stage.py"), folder / stage / "1/model.py")
        (folder / stage / "config.pbtxt").write_text(
            _STAGE.format(
                input=given, output=result, instances=instances, faults_file=_quoted(faults_file)
            )
        )
    (folder / name / "1").mkdir(parents=True)
    (folder / name / "config.pbtxt").write_text(_ENSEMBLE.format(model=model))


def read_settings(config: Mapping[str, Any]) -> tuple[EngineSettings, ModelSettings]:
    """Return the settings in a model configuration, as Triton passes it to the model in JSON."""
    texts = {key: value["string_value"] for key, value in config["parameters"].items()}
    return _read(EngineSettings, texts), _read(ModelSettings, texts)


def _quoted(value: object) -> str:
    return json.dumps(value if isinstance(value, str) else json.dumps(value))


def _read(kind: type[_Settings], texts: Mapping[str, str]) -> _Settings:
    given: dict[str, Any] = {
        field.name: _value(field.default, texts[field.name])
        for field in fields(kind)
        if field.name in texts
    }
    return kind(**given)


def _value(default: object, text: str) -> object:
    if isinstance(default, str):
        return text
    value = json.loads(text)
    return tuple(value) if isinstance(default, tuple) else value
