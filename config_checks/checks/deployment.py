"""Checks of start commands, probes and the end of pods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeGuard

from config_checks.configuration import Configuration
from config_checks.findings import ConfigFault, ConfigSeverity, Unseen
from config_checks.setting import Setting
from config_checks.workloads import ServerContainer

DEFAULT_GRACE = 30.0
"""Seconds of ``terminationGracePeriodSeconds`` and of Triton's ``--exit-timeout-secs``."""
ENDPOINT_REMOVAL = 15.0
"""Seconds after the deletion of a pod until no client sends requests to it any more."""
_METRICS_OPTIONS: Mapping[str, tuple[ConfigSeverity, str]] = {
    "enable_iter_perf_stats": ("warning", "/metrics of trtllm-serve has no iteration records"),
    "return_perf_metrics": ("note", "trtllm-serve has no /prometheus/metrics"),
}
"""Options of trtllm-serve without which a page is empty or absent; both are false by default."""
_FALSE = ("false", "0", "no", "off")


def metrics_off(config: Configuration) -> Iterator[ConfigFault | Unseen]:
    """Find flags and options that switch metrics off, and the histogram an objective needs."""
    for container in config.containers:
        if not container.words:
            yield Unseen(f"{container.container.file} has no start command")
            continue
        for value, where in container.flags("allow-metrics"):
            if value.lower() in _FALSE:
                yield ConfigFault(where, f"--allow-metrics={value}")
        settings = container.flags("metrics-config")
        for value, where in settings:
            if value.replace(" ", "").lower() in [f"counter_latencies={no}" for no in _FALSE]:
                yield ConfigFault(
                    where, f"--metrics-config {value} freezes all request counters at 0"
                )
        histogram = any(value.startswith("histogram_latencies=") for value, _ in settings)
        if container.is_triton and not histogram and config.objectives(("ttft",)):
            evidence = "--metrics-config histogram_latencies=true is missing"
            yield ConfigFault(container.words[0][1], evidence, "warning")
    if not config.containers and not config.options:
        yield Unseen("no container of a server and no options of trtllm-serve were given")
    elif config.models and not config.containers:
        yield Unseen("no container with the start command of Triton was given")
    for container in config.containers if not config.options else ():
        if container.is_trtllm_serve:
            file = container.container.file
            yield Unseen(f"{file} starts trtllm-serve, and no file of its options was given")
    for options in config.options:
        for key, (severity, page) in _METRICS_OPTIONS.items():
            setting = options.get(key)
            if setting is not None and setting.templates:
                continue
            if setting is None or not setting.true:
                state = "not set, so false" if setting is None else setting.text or "empty"
                yield ConfigFault(setting or options, f"{key} is {state}: {page}", severity)


def no_startup_probe(config: Configuration) -> Iterator[ConfigFault]:
    """Find a liveness probe that runs while the engine loads."""
    for container in config.containers:
        liveness = container.container.get("livenessProbe")
        if not _is_probe(liveness):
            continue
        if not _is_probe(container.container.get("startupProbe")):
            yield ConfigFault(
                liveness, f"livenessProbe without startupProbe: killed {_patience(liveness)}"
            )


def _is_probe(setting: Setting | None) -> TypeGuard[Setting]:
    """Whether a probe is set; charts disable one with ``enabled: false``."""
    if setting is None or not setting.node.entries:
        return False
    enabled = setting.get("enabled")
    return enabled is None or enabled.true


def _patience(probe: Setting) -> str:
    """Return when the kubelet restarts a container that does not answer."""
    numbers = {"initialDelaySeconds": 0.0, "periodSeconds": 10.0, "failureThreshold": 3.0}
    for key in numbers:
        setting = probe.get(key)
        if setting is not None and setting.number is not None:
            numbers[key] = setting.number
    delay, period, failures = numbers.values()
    return f"after {delay + period * failures:g} s of loading"


def short_grace_period(config: Configuration) -> Iterator[ConfigFault | Unseen]:
    """Find grace periods that end before the longest answer."""
    answer = config.longest_answer
    if answer is None:
        return
    for container in config.containers:
        seconds, grace = _grace(container)
        if seconds < answer.seconds:
            state = f"{seconds:g} s" + ("" if grace else " (default)")
            evidence = f"terminationGracePeriodSeconds is {state}, the longest answer {answer}"
            yield ConfigFault(grace or container.container, evidence)
        if not container.words:
            file = container.container.file
            yield Unseen(f"{file} has no start command: the exit timeout of Triton is not known")
        if not container.is_triton:
            continue
        flags = container.flags("exit-timeout-secs")
        value, where = flags[-1] if flags else ("", container.words[0][1])
        timeout = float(value) if value.isdecimal() else DEFAULT_GRACE
        if timeout < answer.seconds:
            state = f"{timeout:g} s" + ("" if flags else " (default)")
            yield ConfigFault(where, f"--exit-timeout-secs is {state}, the longest answer {answer}")


def long_pre_stop(config: Configuration) -> Iterator[ConfigFault | Unseen]:
    """Find preStop hooks that leave too little of the grace period for the longest answer."""
    answer = config.longest_answer
    for container in config.containers:
        found = container.pre_stop
        if found is None:
            continue
        hook, sleeps = found
        grace, _ = _grace(container)
        if sleeps is None:
            yield Unseen(f"the duration of the preStop hook in {hook.file} is not known")
        elif sleeps >= grace:
            evidence = f"preStop sleeps {sleeps:g} s of a grace period of {grace:g} s"
            yield ConfigFault(hook, f"{evidence}: the server is killed without SIGTERM before")
        elif answer and answer.seconds <= grace:
            late = min(sleeps, ENDPOINT_REMOVAL)
            if late + answer.seconds > grace:
                yield ConfigFault(
                    hook,
                    f"requests come for {late:g} s of the grace period of {grace:g} s, during "
                    f"preStop; the longest answer {answer}",
                )


def _grace(container: ServerContainer) -> tuple[float, Setting | None]:
    """Return the grace period of a pod in seconds, and its setting if it is not the default."""
    grace = container.pod.get("terminationGracePeriodSeconds")
    if grace is None:
        grace = next(_found(container.pod, "terminationGracePeriodSeconds"), None)
    return (DEFAULT_GRACE if grace is None or grace.number is None else grace.number), grace


def _found(root: Setting, key: str) -> Iterator[Setting]:
    for part in root.walk():
        yield from part.each(key)
