"""Checks of queue policies and engine limits against what the objectives need."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from config_checks.configuration import Configuration
from config_checks.findings import ConfigFault, Unseen
from config_checks.setting import Setting
from config_checks.triton_model import TritonModel, batch_limit
from promql.expr import decimal_text
from slos.durations import format_duration

_MICROSECONDS = 1_000_000
_MOST = 1e15
_FIELDS_OF_TRITON = ("default_timeout_microseconds", "timeout_action", "allow_timeout_override")


def long_queue(config: Configuration) -> Iterator[ConfigFault]:
    """Find queues in which the last request waits longer than its threshold allows."""
    plan = config.plan
    if plan is None:
        return
    allowed = format_duration(plan.queues[0].timeout)
    served = plan.service.selector.get("model")
    for model in config.models:
        limits = model in config.cpp_engines or model.is_bls or model.name == served
        highest = 0 if model in config.cpp_engines else 1  # the C++ backend reads the default only
        for priority, policy in _policies(model) if limits else ():
            size = policy.get("max_queue_size")
            number = _number(size)
            if size is None or number <= plan.queue_size or priority > highest:
                continue
            wait = (number / plan.capacity.rate).quantize(Decimal("0.01"))
            yield ConfigFault(
                size,
                f"{_field(size)} of {model.name} is {size.text}: the last request waits {size.text}"
                f" / {decimal_text(plan.capacity.rate)}/s = {format_duration(wait)}, "
                f"{plan.thresholds.ttft} allows {allowed}",
            )


def large_batch(config: Configuration) -> Iterator[ConfigFault | Unseen]:
    """Find engines that run more sequences than the objectives were kept with."""
    plan = config.plan
    if plan is None:
        return
    limits = [found for model in config.engines if (found := batch_limit(model))]
    if not limits:
        yield Unseen("no batch limit of an engine was found")
    for limit, setting in limits:
        if limit > plan.running:
            evidence = (
                f"{setting.path} is {limit}, the objectives were kept with {plan.running} sequences"
            )
            yield ConfigFault(setting, evidence)


def long_iterations(config: Configuration) -> Iterator[ConfigFault | Unseen]:
    """Find engines whose iterations can be longer than the pace of tokens allows."""
    plan = config.plan
    if plan is None:
        return
    if plan.max_num_tokens is None:
        yield Unseen("the capacity has no prefill rate")
        return
    settings = [limits.get("max_num_tokens") for limits, _ in _token_limits(config)]
    found = [setting for setting in settings if setting is not None]
    if not found:
        yield Unseen("no max_num_tokens in LLM options or in config.json of an engine was found")
    for setting in found:
        if _number(setting) > plan.max_num_tokens:
            evidence = (
                f"{setting.path} is {setting.text}, {plan.thresholds.pace} allows "
                f"{plan.max_num_tokens} by the estimated prefill rate"
            )
            yield ConfigFault(setting, evidence)


def late_queue_timeout(config: Configuration) -> Iterator[ConfigFault]:
    """Find queue timeouts that reject a request after it missed its threshold."""
    thresholds = config.thresholds("ttft")
    if not thresholds:
        return
    needed = f"the tightest TTFT threshold is {format_duration(min(thresholds))}"
    longest = min(thresholds)
    if config.plan is not None:
        longest = config.plan.queues[0].timeout
        needed = f"{config.plan.thresholds.ttft} allows {format_duration(longest)} in the queue"
    for model in config.models:
        for priority, policy in _policies(model) if _queues(model) else ():
            timeout = policy.get("default_timeout_microseconds")
            seconds = _number(timeout) / _MICROSECONDS
            if timeout is not None and priority <= 1 and seconds > longest:
                evidence = (
                    f"{_field(timeout)} of {model.name} is {timeout.text} "
                    f"({format_duration(seconds)}), {needed}"
                )
                yield ConfigFault(timeout, evidence)


def ineffective_policy(config: Configuration) -> Iterator[ConfigFault]:
    """Find parts of queue policies that an in-flight batching engine ignores."""
    for model in config.engines:
        batching = model.config.get("dynamic_batching")
        if batching is None:
            continue
        ignored = [batching.get("priority_levels")]
        fields: tuple[str, ...] = _FIELDS_OF_TRITON
        if model not in config.cpp_engines:
            fields = (*fields, "max_queue_size")
        ignored += [policy.get(field) for _, policy in _policies(model) for field in fields]
        for setting in ignored:
            if setting is not None and setting.text not in ("", "0", "false", "REJECT"):
                evidence = (
                    f"{_field(setting)} of {model.name} is {setting.text}, but its requests do not "
                    "wait in Triton"
                )
                yield ConfigFault(setting, evidence)


def delayed_requests(config: Configuration) -> Iterator[ConfigFault]:
    """Find requests that are served after their timeout instead of rejected."""
    for model in config.models:
        for _, policy in _policies(model) if _queues(model) else ():
            action = policy.get("timeout_action")
            if action is not None and action.text in ("DELAY", "1"):
                yield ConfigFault(action, f"{_field(action)} of {model.name} is DELAY")


def short_token_limits(config: Configuration) -> Iterator[ConfigFault | Unseen]:
    """Find engines whose limits refuse the longest prompt or sequence."""
    prompt, answer = config.input_tokens, config.output_tokens
    sequence = prompt + answer if answer else 0
    found = False
    for limits, chunked in _token_limits(config):
        found = True
        tokens = limits.get("max_num_tokens")
        for setting, needed, what in (
            (limits.get("max_input_len"), prompt, f"the longest prompt has {prompt} tokens"),
            (tokens, 0 if chunked else prompt, f"a prompt of {prompt} tokens is not chunked"),
            (
                limits.get("max_seq_len"),
                sequence,
                f"the longest sequence has {prompt} + {answer} tokens",
            ),
        ):
            if setting is not None and 0 < _number(setting) < needed:
                yield ConfigFault(setting, f"{setting.path} is {setting.text}, and {what}")
    if not found:
        yield Unseen("no LLM options and no config.json of an engine were found")


def _token_limits(config: Configuration) -> Iterator[tuple[Setting, bool]]:
    """Yield settings with limits of tokens, and whether prompts are chunked."""
    for options in config.llm_options:
        chunked = options.get("enable_chunked_prefill")
        yield options, chunked is not None and chunked.true
    for model in config.cpp_engines:
        built = model.engine.get("build_config") if model.engine else None
        if built is not None:
            chunked = model.parameter("enable_chunked_context")
            yield built, chunked is not None and chunked.true


def _queues(model: TritonModel) -> bool:
    """Whether requests wait in Triton, in front of a model that answers inside of execute()."""
    return not model.is_engine and model.backend not in ("ensemble", "vllm")


def _policies(model: TritonModel) -> Iterator[tuple[int, Setting]]:
    """Yield the queue policies with their priority, 0 for the default one.

    A served configuration has them by priority, config.pbtxt as entries with key and value.
    """
    batching = model.config.get("dynamic_batching")
    if batching is None:
        return
    default = batching.get("default_queue_policy")
    if default is not None:
        yield 0, default
    for entry in batching.each("priority_queue_policy"):
        key, value = entry.get("key"), entry.get("value")
        if key is not None and value is not None:
            yield int(_number(key)), value
            continue
        for name in entry.node.entries or ():
            served = entry.get(name)
            if name.isdecimal() and served is not None:
                yield int(name), served


def _field(setting: Setting) -> str:
    return setting.path.removeprefix("dynamic_batching.")


def _number(setting: Setting | None) -> Decimal:
    """Return the number of a setting up to a bound, 0 if it has none."""
    number = setting.number if setting is not None else None
    return Decimal(str(min(number, _MOST))) if number is not None and number >= 0 else Decimal(0)
