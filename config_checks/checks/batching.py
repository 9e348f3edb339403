"""Checks of queues, batches and instances."""

from __future__ import annotations

from collections.abc import Iterator

from config_checks.configuration import Configuration
from config_checks.findings import ConfigFault, Unseen
from config_checks.setting import Setting
from config_checks.triton_model import ENGINE, TritonModel, batch_limit

ENOUGH_INSTANCES = 5
"""Instances of pre- and post-processing that keep up with an engine."""


def too_few_instances(config: Configuration) -> Iterator[ConfigFault | Unseen]:
    """Find Python models around an engine that have fewer instances than its batch."""
    limits = [found for model in config.engines if (found := batch_limit(model))]
    if not limits:
        yield Unseen("no batch limit of an engine was found")
        return
    limit, where = max(limits, key=lambda found: found[0])
    steps = {step for model in config.models for step in model.steps}
    for model in config.models:
        if model.is_engine or model.backend != "python":
            continue
        if not (model.is_bls or model.name in steps or _processes(model)):
            continue
        needed = limit if model.is_bls else min(limit, ENOUGH_INSTANCES)
        count, setting = model.instances
        if _has_template(setting) or count >= needed:
            continue
        yield ConfigFault(
            setting,
            f"{model.name} has {count} instance{'s' * (count != 1)}, the engine runs {limit} "
            f"sequences ({where.path} in {where.file}), so {needed} are needed",
        )


def _processes(model: TritonModel) -> bool:
    return model.name in ("preprocessing", "postprocessing")


def _has_template(setting: Setting) -> bool:
    return bool(setting.templates)


def instances_without_devices(config: Configuration) -> Iterator[ConfigFault | Unseen]:
    """Find several instances of an engine without a set of GPUs for each, or an orchestrator."""
    # docs/llama_multi_instance.md of tensorrtllm_backend
    for model in config.engines:
        count, setting = model.instances
        sets = len(model.device_sets)
        if count < 2:
            continue
        if sets != count:
            evidence = f"{model.name} has {count} instances and {sets} sets in gpu_device_ids"
            yield ConfigFault(setting, evidence)
        elif not config.containers:
            yield Unseen(
                f"{model.name} has {count} instances, and no container was given: whether its "
                "start command fits them is not known"
            )
        elif model.backend == ENGINE:
            if not any(container.orchestrates for container in config.containers):
                evidence = "no container sets --multi-model or TRTLLM_ORCHESTRATOR=1"
                yield ConfigFault(setting, f"{model.name} has {count} instances, and {evidence}")
        elif any(container.starts_mpi for container in config.containers):
            evidence = "a container starts Triton with MPI, without --no-mpi"
            yield ConfigFault(setting, f"{model.name} has {count} instances, and {evidence}")


def queue_delay(config: Configuration) -> Iterator[ConfigFault]:
    """Find a queue delay in front of in-flight batching."""
    for model in config.engines:
        delay = model.config.get("dynamic_batching", "max_queue_delay_microseconds")
        if delay is not None and delay.number and not _is_v1(model):
            evidence = f"max_queue_delay_microseconds of {model.name} is {delay.text}"
            yield ConfigFault(delay, evidence)


def v1_batching(config: Configuration) -> Iterator[ConfigFault]:
    """Find static batching."""
    for model in config.cpp_engines:
        kind = model.parameter("gpt_model_type")
        if kind is not None and _is_v1(model):
            yield ConfigFault(kind, f"gpt_model_type of {model.name} is {kind.text}")


def _is_v1(model: TritonModel) -> bool:
    return model.parameter_text("gpt_model_type").lower() == "v1"


def unbounded_queue(config: Configuration) -> Iterator[ConfigFault | Unseen]:
    """Find queues of engines without a limit of length; a timeout has no effect on them."""
    for model in config.engines:
        if model.backend != ENGINE:
            yield Unseen(f"the queue of {model.name} is that of the LLM API, which has no limit")
            continue
        batching = model.config.get("dynamic_batching")
        size = batching.get("default_queue_policy", "max_queue_size") if batching else None
        if size is not None and (size.templates or size.number):
            continue
        state = "not set" if size is None else size.text or "empty"
        where = size or batching or model.config
        yield ConfigFault(where, f"max_queue_size of {model.name} is {state}")


def batch_limits_differ(config: Configuration) -> Iterator[ConfigFault | Unseen]:
    """Find Triton's batch limit that is not the engine's."""
    for model in config.engines:
        own, engine = model.max_batch_size, model.engine_batch_size
        if model.options and not (own and own.number):
            continue  # the LLM API batches by itself
        if engine is None or engine.number is None:
            missing = "its config.json was not found"
            if model.options:
                missing = f"{model.options.file} does not set max_batch_size"
            yield Unseen(f"the batch limit of the engine of {model.name} is not known: {missing}")
        elif own is not None and own.number is not None and own.number != engine.number:
            evidence = (
                f"max_batch_size of {model.name} is {own.text}, of its engine {engine.text} "
                f"({engine.file}:{engine.line})"
            )
            yield ConfigFault(own, evidence, "error" if own.number > engine.number else None)


def scheduler_policy(config: Configuration) -> Iterator[ConfigFault]:
    """State the scheduler's policy and its cost."""
    for model in config.cpp_engines:
        found = model.parameter("batch_scheduler_policy")
        yield from _policy(found, found or model.config, model.name)
    for options in config.llm_options:
        found = options.get("scheduler_config", "capacity_scheduler_policy")
        yield from _policy(found, found or options, options.file)


def _policy(setting: Setting | None, where: Setting, name: str) -> Iterator[ConfigFault]:
    policy = setting.text.lower() if setting is not None and not setting.templates else ""
    if policy == "max_utilization":
        yield ConfigFault(where, f"{name}: max_utilization pauses sequences when KV blocks run out")
    elif policy in ("", "guaranteed_no_evict"):
        state = "guaranteed_no_evict" + ("" if policy else " (default)")
        yield ConfigFault(where, f"{name}: {state} queues requests until their longest answer fits")
