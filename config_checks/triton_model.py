"""A Triton model: ``config.pbtxt``, ``model.yaml`` of the LLM API, ``config.json`` of the engine.

Defaults are those of Triton (model_config.proto) and of the TensorRT-LLM backend.
"""

from __future__ import annotations

from dataclasses import dataclass

from config_checks.setting import Setting

ENGINE = "tensorrtllm"
"""The C++ backend of TensorRT-LLM."""
_UNSET_INSTANCES = 1
_LLM_API_INPUT = "sampling_param_"


@dataclass(frozen=True, slots=True)
class TritonModel:
    """A model: ``config`` is the whole config.pbtxt; the other files may be absent."""

    name: str
    config: Setting
    options: Setting | None = None
    engine: Setting | None = None

    @property
    def backend(self) -> str:
        """The backend, ``ensemble`` for ensembles; an unfilled ``${triton_backend}`` is C++."""
        if self.steps or _text(self.config.get("platform")) == "ensemble":
            return "ensemble"
        backend = _text(self.config.get("backend"))
        return ENGINE if backend == "${triton_backend}" else backend

    @property
    def is_engine(self) -> bool:
        """Whether the model generates tokens itself, in C++ or with the LLM API."""
        if self.backend == ENGINE or self.options is not None:
            return True
        inputs = (one.get("name") for one in self.config.each("input"))
        return any(name is not None and name.text.startswith(_LLM_API_INPUT) for name in inputs)

    @property
    def is_bls(self) -> bool:
        """Whether the model calls an engine's model from Python."""
        return self.parameter("tensorrt_llm_model_name") is not None or self.name.endswith("_bls")

    @property
    def steps(self) -> list[str]:
        """The models of an ensemble."""
        scheduling = self.config.get("ensemble_scheduling")
        steps = scheduling.each("step") if scheduling else []
        return [_text(step.get("model_name")) for step in steps]

    def parameter(self, key: str) -> Setting | None:
        """Return the value of a parameter, in text format or as Triton serves it."""
        for entry in self.config.each("parameters"):
            if _text(entry.get("key")) == key:
                return entry.get("value", "string_value")
        return self.config.get("parameters", key, "string_value")

    def parameter_text(self, key: str) -> str:
        """Return a parameter as text; empty if it is absent or an unfilled template."""
        found = self.parameter(key)
        return "" if found is None or found.templates else found.text

    @property
    def decoupled(self) -> Setting | None:
        """The setting that decides whether responses are decoupled, None if it is absent."""
        own = self.config.get("model_transaction_policy", "decoupled")
        return own or (self.options.get("triton_config", "decoupled") if self.options else None)

    @property
    def max_batch_size(self) -> Setting | None:
        """The batch limit of Triton; that of model.yaml replaces it."""
        below = self.options.get("triton_config", "max_batch_size") if self.options else None
        return below or self.config.get("max_batch_size")

    @property
    def engine_batch_size(self) -> Setting | None:
        """The batch limit of the engine."""
        if self.options:
            return self.options.get("max_batch_size")
        return self.engine.get("build_config", "max_batch_size") if self.engine else None

    @property
    def instances(self) -> tuple[int, Setting]:
        """The number of instances, and the setting that states it or the whole configuration."""
        groups = self.config.each("instance_group")
        total, where = 0, self.config
        for group in groups:
            count = group.get("count")
            number = count.number if count else None
            gpus = max(len(group.each("gpus")), 1)
            total += int(number if number is not None else _UNSET_INSTANCES) * gpus
            where = count or group
        return (total, where) if groups else (_UNSET_INSTANCES, self.config)

    @property
    def device_sets(self) -> list[tuple[int, ...]]:
        """The GPUs of each instance from ``gpu_device_ids`` (``"0,1;2,3"``); empty if unset."""
        found = []
        for part in self.parameter_text("gpu_device_ids").split(";"):
            ids = [each.strip() for each in part.split(",")]
            if all(each.isdecimal() for each in ids):
                found.append(tuple(map(int, ids)))
        return found

    @property
    def tensor_parallel(self) -> Setting | None:
        """The setting of the size of a tensor-parallel group."""
        if self.options:
            return self.options.get("tensor_parallel_size")
        if self.engine:
            return self.engine.get("pretrained_config", "mapping", "tp_size")
        return None


def _text(setting: Setting | None) -> str:
    return setting.text if setting else ""


def batch_limit(model: TritonModel) -> tuple[int, Setting] | None:
    """Return how many sequences the engine's model runs at once, and where it is set."""
    for setting in (model.engine_batch_size, model.max_batch_size):
        if setting is not None and (number := setting.number) is not None and number >= 1:
            return int(number), setting
    return None
