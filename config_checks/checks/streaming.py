"""Checks of what clients receive: templates, decoupled responses, detokenization, warm-up."""

from __future__ import annotations

from collections.abc import Iterator

from config_checks.configuration import Configuration
from config_checks.findings import ConfigFault, Unseen
from config_checks.triton_model import TritonModel

_SHOWN = 4
_WORKERS = ("num_postprocess_workers", "num-postprocess-workers")


def unfilled_template(config: Configuration) -> Iterator[ConfigFault]:
    """Find ``${…}`` that was not filled in, once per model."""
    for model in config.models:
        parts = (*model.config.walk(), *(model.options.walk() if model.options else ()))
        found = [(one, name) for one in parts for name in one.templates]
        if found:
            names = list(dict.fromkeys(name for _, name in found))
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            yield ConfigFault(found[0][0], f"{', '.join(names[:_SHOWN])}{more} not filled in")


def _path_of_tokens(config: Configuration) -> Iterator[TritonModel]:
    """Yield the models that pass tokens on, one by one."""
    yield from (model for model in config.models if model.is_engine or model.is_bls)


def not_decoupled(config: Configuration) -> Iterator[ConfigFault]:
    """Find models that cannot stream although objectives need streams."""
    if not config.streaming_expected:
        return
    assumed = "" if config.services else " (no SLO file given: streaming is assumed)"
    severity = None if config.services else "warning"
    for model in _path_of_tokens(config):
        setting = model.decoupled
        if setting is not None and setting.templates:
            continue  # TC001
        if setting is None or not setting.true:
            state = "not set, so false" if setting is None else setting.text
            evidence = f"decoupled of {model.name} is {state}{assumed}"
            yield ConfigFault(setting or model.config, evidence, severity)  # type: ignore[arg-type]


def decoupled_differs(config: Configuration) -> Iterator[ConfigFault]:
    """Find a path of models of which only some are decoupled."""
    # Triton sets that of an ensemble from its steps, whatever its file states (ensemble_utils.cc).
    path = list(_path_of_tokens(config))
    stated = [m for m in path if m.decoupled is None or not m.decoupled.templates]
    states = {m.name: m.decoupled is not None and m.decoupled.true for m in stated}
    if len(set(states.values())) == 2:
        streams = ", ".join(sorted(name for name, state in states.items() if state))
        for model in stated:
            if not states[model.name]:
                evidence = f"decoupled is true in {streams}, and false in {model.name}"
                yield ConfigFault(model.decoupled or model.config, evidence)


def no_accumulated_tokens(config: Configuration) -> Iterator[ConfigFault | Unseen]:
    """Find streams that are detokenized one token, or one chunk, at a time."""
    # TensorRT-LLM#14312: spaces are lost between chunks of several tokens.
    for options in config.llm_options:
        interval = options.get("stream_interval")
        if interval is not None and interval.number is not None and interval.number > 1:
            yield Unseen(
                f"{options.file} sets stream_interval {interval.text}: whether the release loses "
                "spaces between such chunks is not in the files"
            )
    streams = {model.name for model in config.engines if model.decoupled and model.decoupled.true}
    for model in config.models:
        if model.backend == "ensemble" and streams & set(model.steps) and _detokenizes(model):
            yield Unseen(
                f"the ensemble {model.name} detokenizes each response alone, and only a BLS has "
                "accumulate_tokens: whether its tokenizer needs it is not in the files"
            )
        if model.is_bls and model.decoupled is not None and model.decoupled.true:
            setting = model.parameter("accumulate_tokens")
            if setting is None or not (setting.templates or setting.true):
                state = "not set, so false" if setting is None else setting.text or "empty"
                where = setting or model.config
                yield ConfigFault(where, f"accumulate_tokens of {model.name} is {state}")


def _detokenizes(ensemble: TritonModel) -> bool:
    return "postprocessing" in ensemble.steps


def no_warmup(config: Configuration) -> Iterator[ConfigFault]:
    """Find engines without warm-up, and ensembles with one."""
    for model in config.models:
        warmup = model.config.each("model_warmup")
        if model.backend == "ensemble" and warmup:
            yield ConfigFault(warmup[0], f"model_warmup on the ensemble {model.name}", "error")
        elif model.is_engine and not warmup:
            yield ConfigFault(model.config, f"{model.name} has no model_warmup")


def few_postprocess_workers(config: Configuration) -> Iterator[ConfigFault | Unseen]:
    """Find trtllm-serve with detokenization in the server's own process."""
    by_server = [
        own
        for container in config.containers
        if (own := [flag for name in _WORKERS for flag in container.flags(name)])
        or container.is_trtllm_serve
    ]
    flags = [flag for own in by_server for flag in own]
    for value, where in flags:
        if not value.isdecimal():
            yield Unseen(f"--num_postprocess_workers of {where.file} is {value!r}, not a number")
        elif not int(value):
            yield ConfigFault(where, f"--num_postprocess_workers is {value}")
    if not config.options and not flags:
        yield Unseen("the option belongs to trtllm-serve, and none of its option files was given")
    # Which one wins where both are given depends on the release.
    by_flags = bool(by_server) and all(by_server)
    for options in config.options:
        setting = options.get("num_postprocess_workers")
        if setting is not None and setting.number == 0:
            yield ConfigFault(setting, "num_postprocess_workers is 0")
        elif setting is None and flags and not by_flags:
            yield Unseen(f"which server reads {options.file}, without num_postprocess_workers")
        elif setting is None and not flags:
            yield ConfigFault(options, "num_postprocess_workers is not set, so 0")
