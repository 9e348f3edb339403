"""Report which signals live servers provide, by which method, and how to get the others.

Every server is scraped twice by the sidecar's own sources, through a store as in the sidecar, so
the report matches what the sidecar would serve.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from itertools import chain
from textwrap import wrap
from time import monotonic
from urllib.parse import urlsplit

from admission.plan import AdmissionPlan
from config_checks.findings import ConfigReport
from config_checks.rendering import as_sarif as config_sarif
from config_checks.rendering import finding_json, unchecked_json
from exporter.doctor.config_findings import check_served, configuration_rows, unseen
from exporter.doctor.server_config import FLAG, first_response_settings
from exporter.doctor.sidecar_client import read_sidecar
from exporter.methods import METHODS
from exporter.objectives.objective_status import ObjectiveState, evaluate
from exporter.objectives.unclassified_models import with_unclassified
from exporter.recording.model_metrics import WIRE_METHODS
from exporter.samples import Measurement, ModelInfo, SourceError
from exporter.settings import Settings, load_settings
from exporter.sources import Source
from exporter.sources.factory import configured
from exporter.sources.server_detection import TAP, DetectedServer, base, detect_servers
from exporter.sources.tap_source import MEASURED_BY_TAPS
from exporter.store.store import Store
from exporter.store.view import SignalState, View
from promql.http_client import FetchLimits, public
from slos.errors import InvalidFile, Problem
from slos.indicators import INDICATORS
from slos.model import Service
from slos.prompt_classes import shared_classes
from slos.signals import SIGNALS

WAIT = 3.0
"""Seconds between the two scrapes: trtllm-serve may withhold its statistics for 2 s."""
WIDTH = 100
COMPRESSED = (
    "responses at its taps have an unsupported compression: their tokens are unknown. "
    "Fix: have the gateway or the clients send Accept-Encoding: gzip, or identity"
)


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """The result of a diagnosis; ``settings`` are the sidecar's required settings, by name.

    ``measurements`` count since the servers started, the view since the first scrape.
    ``configuration`` is that of Triton's models, None without a Triton.
    """

    version: str
    servers: tuple[DetectedServer, ...]
    settings: Mapping[str, str]
    view: View
    objectives: tuple[ObjectiveState, ...]
    first_response: Mapping[str, str]
    measurements: tuple[Measurement, ...] = ()
    configuration: ConfigReport | None = None

    @property
    def complete(self) -> bool:
        """Whether every objective can be measured."""
        return all(state.quality != "unavailable" for state in self.objectives)


async def diagnose(
    urls: Sequence[str],
    services: Sequence[Service],
    version: str,
    options: Mapping[str, Sequence[str]],
    plan: AdmissionPlan | None = None,
) -> DoctorReport:
    """Diagnose servers; ``options`` are arguments of ``load_settings``.

    ``plan`` has the limits that the configuration of Triton's models is compared with.

    Raises InvalidFile if an address is wrong, or no known server responds.
    """
    for url in urls:
        load_settings({"triton": [url]}, {})
    limits = FetchLimits(load_settings({**options, "triton": [urls[0]]}, {}).timeout)
    if len(urls) == 1 and (sidecar := await read_sidecar(urls[0], limits, "doctor")):
        note = f"{sidecar.unreadable} {COMPRESSED}" if sidecar.unreadable else ""
        server = DetectedServer(public(urls[0]), "", f"tokenslo exporter {sidecar.version}", note)
        view = sidecar.view
        first_response = _first_response(view, services)
        return DoctorReport(version, (server,), {}, view, evaluate(services, view), first_response)
    servers = await detect_servers(urls, limits)
    settings = _settings(servers, urls)
    given = {name: [url] for name, url in settings.items() if name != TAP}
    view, measurements = View({}, (), (), {}), tuple[Measurement, ...]()
    if given:
        view, measurements = await _view(load_settings({**options, **given}, {}), services)
    configuration = await _configuration(servers, urls, services, limits, plan)
    objectives = evaluate(services, view)
    if TAP in settings and not given:
        objectives = tuple(_by_a_tap(state, settings[TAP]) for state in objectives)
    return DoctorReport(
        version,
        servers,
        {name: public(url) for name, url in settings.items()},
        view,
        objectives,
        _first_response(view, services),
        measurements,
        configuration,
    )


async def _configuration(
    servers: Sequence[DetectedServer],
    urls: Sequence[str],
    services: Sequence[Service],
    limits: FetchLimits,
    plan: AdmissionPlan | None,
) -> ConfigReport | None:
    for server, url in zip(servers, urls, strict=True):
        if server.setting == "triton":
            return await check_served(base(url), services, limits, plan)
    names = ", ".join(dict.fromkeys(server.what for server in servers))
    return unseen(f"{names} does not serve its configuration")


def _settings(servers: Sequence[DetectedServer], urls: Sequence[str]) -> dict[str, str]:
    """Return the sidecar's settings for these servers, with credentials."""
    found: dict[str, str] = {}
    for server, url in zip(servers, urls, strict=True):
        if server.setting in found:
            raise InvalidFile([_problem(server, "is a second server of its kind", "give one")])
        if server.setting == TAP:
            found[TAP] = f"proxy=:9000={_upstream(url)}"
        elif server.setting:
            metrics = server.setting == "triton-metrics"
            found[server.setting] = f"{base(url)}/metrics" if metrics else base(url)
    if not found:
        fix = (
            "give the address of a Triton, trtllm-serve, vLLM or OpenAI-compatible server that "
            "runs, or of a tokenslo exporter"
        )
        raise InvalidFile([Problem("tokenslo doctor", 0, "", one.what, fix) for one in servers])
    return found


def _upstream(url: str) -> str:
    """Return host and port as a tap's specification has them."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _tap_quality(signal: str) -> str:
    """Return the quality of a signal at a tap, "" if a tap does not measure it."""
    if signal not in MEASURED_BY_TAPS:
        return ""
    return METHODS[WIRE_METHODS.get(signal, "wire")].quality


def _by_a_tap(state: ObjectiveState, tap: str) -> ObjectiveState:
    """Return the state of an objective on a server that only a tap can measure."""
    if not _tap_quality(INDICATORS[state.indicator].signals[0]):
        return replace(state, note="the streams do not show it", fix="drop the objective")
    fix = f"run `tokenslo exporter --tap {tap}` and send clients to port 9000"
    return replace(state, note="only a tap measures it here", fix=fix)


def _problem(server: DetectedServer, message: str, fix: str) -> Problem:
    return Problem("tokenslo doctor", 0, server.url, f"{message} ({server.what})", fix)


async def _view(
    config: Settings, services: Sequence[Service]
) -> tuple[View, tuple[Measurement, ...]]:
    store = Store(stale_after=60.0)
    async with AsyncExitStack() as stack:
        sources = [await stack.enter_async_context(one) for one in configured(config, services)]
        classes = bool(shared_classes(services).labels)
        await asyncio.gather(*(_read(source, store, classes) for source in sources))
        await asyncio.sleep(WAIT)
        read = await asyncio.gather(*(_read(source, store, classes) for source in sources))
    return store.view(monotonic()), tuple(chain.from_iterable(read))


async def _read(source: Source, store: Store, has_classes: bool) -> tuple[Measurement, ...]:
    began = monotonic()
    try:
        snapshot = await source.snapshot(began)
    except SourceError as error:
        store.fail(source.name, error, monotonic(), monotonic() - began)
        return ()
    if has_classes:
        snapshot = with_unclassified(snapshot)
    store.update(snapshot, monotonic(), monotonic() - began)
    return snapshot.measurements


def _first_response(view: View, services: Sequence[Service]) -> dict[str, str]:
    """Return, by model, the settings that enable Triton's first-response histogram."""
    return {
        state.model: first_response_settings(services, state.model)
        for state in view.signals
        if state.signal == "ttft" and FLAG in state.fix
    }


# For tools


def as_json(diagnosis: DoctorReport) -> str:
    """Return the diagnosis as one JSON object; keys are added, never removed or renamed.

    ::

        tokenslo
        complete                  false if an objective cannot be measured
        servers[]                 url, setting, what, note
        settings{}                of the sidecar, by name
        sources[]                 source, error
        models[]                  model, version, backend, decoupled, ready, reason, excluded
          signals[]               signal, metric, quality, method, note, fix
          first_response          flags and config.pbtxt for Triton, or null
        objectives[]              file, service, objective, indicator, good, target, model, version,
                                  quality, note, fix
        configuration           of Triton, or null
          findings[]            check, name, severity, file, line, path, evidence, indicators,
                                  objectives, costs, fix
          unchecked[]           check, name, reason
    """
    document = {
        "tokenslo": diagnosis.version,
        "complete": diagnosis.complete,
        "servers": [asdict(server) for server in diagnosis.servers],
        "settings": dict(diagnosis.settings),
        "sources": [{"source": one.source, "error": one.error} for one in diagnosis.view.sources],
        "models": [
            {
                **asdict(info),
                "signals": [_signal(state) for state in states],
                "first_response": diagnosis.first_response.get(info.model),
            }
            for info, states in _by_model(diagnosis.view)
        ],
        "objectives": [
            asdict(state) | {"target": state.target_text} for state in diagnosis.objectives
        ],
        "configuration": _configuration_json(diagnosis.configuration),
    }
    return json.dumps(document, indent=2) + "\n"


def as_sarif(diagnosis: DoctorReport) -> str:
    """Return the findings on the configuration as SARIF 2.1.0."""
    report = diagnosis.configuration or ConfigReport((), ())
    return config_sarif(report, diagnosis.version, "tokenslo doctor")


def _configuration_json(report: ConfigReport | None) -> dict[str, object] | None:
    if report is None:
        return None
    findings = [finding_json(each) for each in report.findings]
    return {"findings": findings, "unchecked": unchecked_json(report)}


def _signal(state: SignalState) -> dict[str, str]:
    return {
        "signal": state.signal,
        "metric": SIGNALS[state.signal].metric,
        "quality": state.quality,
        "method": state.method,
        "note": state.note,
        "fix": state.fix,
    }


def _by_model(view: View) -> list[tuple[ModelInfo, list[SignalState]]]:
    states = view.by_model
    return [
        (info, list(states.get((info.model, info.version), {}).values())) for info in view.models
    ]


# For people


def as_text(diagnosis: DoctorReport) -> str:
    """Return the diagnosis as aligned text of at most WIDTH columns, unless names are longer."""
    blocks = [_servers(diagnosis)]
    for info, states in _by_model(diagnosis.view):
        if not info.excluded:
            blocks.append(_signals(info, states, diagnosis.first_response))
    excluded = [info for info in diagnosis.view.models if info.excluded]
    rows = [(info.model, info.excluded) for info in excluded]
    blocks += [_titled("Models that are not reported on", _table(rows))]
    if TAP in diagnosis.settings:
        rows = [(SIGNALS[key].title, _tap_quality(key)) for key in SIGNALS if _tap_quality(key)]
        blocks += [_titled("What a tap measures on the streams", _table(rows))]
    blocks += [_titled("Objectives", _objectives(diagnosis.objectives))]
    if diagnosis.configuration is not None:
        rows = configuration_rows(diagnosis.configuration)
        blocks += [_titled("Configuration", _table(rows))]
    flags = " ".join(f"--{name} {url}" for name, url in diagnosis.settings.items())
    if flags:
        blocks += [["To measure this, run", f"  tokenslo exporter {flags}"]]
    if TAP in diagnosis.settings:
        blocks[-1] += ["and send clients to port 9000."]
    return "\n".join("\n".join(block) + "\n" for block in blocks if block)


def _servers(diagnosis: DoctorReport) -> list[str]:
    rows = [(server.url, server.what) for server in diagnosis.servers]
    rows += [("", server.note) for server in diagnosis.servers if server.note]
    rows += [(one.source, one.error) for one in diagnosis.view.sources if one.error]
    return _table(rows, indent=0)


def _signals(
    info: ModelInfo, states: Sequence[SignalState], first_response: Mapping[str, str]
) -> list[str]:
    """Return a model's signals; unavailable ones refer to a numbered reason and fix."""
    facts = (
        f"version {info.version}" if info.version else "",
        info.backend,
        "streams" if info.decoupled else "",
        "" if info.ready else f"not ready: {info.reason}",
    )
    missing = [state for state in states if state.quality == "unavailable"]
    numbers = {
        gap: str(number) for number, gap in enumerate(dict.fromkeys(map(_reason, missing)), start=1)
    }
    rows = [
        (SIGNALS[state.signal].title, "no", f"see {numbers[_reason(state)]}")
        if state.quality == "unavailable"
        else (SIGNALS[state.signal].title, state.quality, METHODS[state.method].description)
        for state in states
    ]
    lines = _table(rows)
    for (reason, fix), number in numbers.items():
        lines += ["", *_table([(number, reason), ("", f"Fix: {fix}" if fix else "")])]
        if FLAG in fix and info.model in first_response:
            lines += [f"       {line}".rstrip() for line in first_response[info.model].splitlines()]
    described = ", ".join(filter(None, facts))
    return _titled(f"{info.model} ({described})" if described else info.model, lines)


def _reason(state: SignalState) -> tuple[str, str]:
    return state.note, state.fix


def _objectives(states: Iterable[ObjectiveState]) -> list[str]:
    rows: list[tuple[str, ...]] = []
    for state in states:
        quality = "CANNOT BE MEASURED" if state.quality == "unavailable" else state.quality
        on = f" on {state.model}" if state.model else ""
        rows.append((f"{state.service}/{state.objective}{on}", quality, state.note))
        if state.fix and state.quality == "unavailable":
            rows.append(("", "", f"Fix: {state.fix}"))
    return _table(rows)


def _titled(title: str, lines: list[str]) -> list[str]:
    return [title, *lines] if lines else []


def _table(rows: Sequence[tuple[str, ...]], indent: int = 2) -> list[str]:
    """Return rows as lines in aligned columns; the last column is wrapped to the width."""
    widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:-1]]
    return [line for row in rows for line in _wrapped(row, widths, " " * indent)]


def _wrapped(row: tuple[str, ...], widths: Sequence[int], indent: str) -> Iterator[str]:
    *cells, last = row
    start = indent + "".join(
        f"{cell:<{width}}  " for cell, width in zip(cells, widths, strict=True)
    )
    room = max(30, WIDTH - len(start))
    for position, part in enumerate(wrap(last, room) or [""]):
        yield ((" " * len(start) if position else start) + part).rstrip()
