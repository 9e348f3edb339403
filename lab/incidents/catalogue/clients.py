"""Incidents of clients and gateways, and two changes of traffic without harm."""

from __future__ import annotations

import random
from dataclasses import replace

from lab.engine_settings import EngineSettings
from lab.gateway import CaddySettings, NginxSettings
from lab.incidents.faults import reconfigure_gateway, route_through_inner_gateway, switch_load
from lab.incidents.incident import (
    COMPLETIONS_LOAD,
    HEALTHY_LOAD,
    WITH_TAP,
    Column,
    ExpectedAlert,
    Incident,
    Script,
    ScriptStep,
    in_columns,
)
from lab.trtllm_serve.settings import ServeSettings

_COMPLETIONS = replace(COMPLETIONS_LOAD, include_usage=True)
_ROOMY = EngineSettings(
    max_batch_size=48, max_num_active_requests=96, kv_blocks=1200, sequence_seconds=0.0003
)
"""An engine with capacity for many long responses."""


def _timeout_storm(pick: random.Random) -> Script:
    """Let requests time out in a spike; retries sustain the overload after it."""
    rate, spike = round(pick.uniform(3.0, 3.4), 1), round(pick.uniform(2.6, 3.2), 1)
    timeout, retries = round(pick.uniform(4.5, 5.5), 1), pick.randint(3, 5)
    load = replace(
        HEALTHY_LOAD,
        rate=rate,
        concurrency=400,
        max_tokens=(60, 100),
        request_seconds=timeout,
        retries=retries,
        backoff_seconds=0.2,
        seed=pick.getrandbits(32),
    )
    return Script(
        {"rate": rate, "spike": spike, "timeout": timeout, "retries": retries},
        load=load,
        engine=EngineSettings(kv_blocks=300),
        steps=(
            ScriptStep(0.0, "a spike begins", switch_load(replace(load, rate=rate * spike))),
            ScriptStep(20.0, "the spike ends", switch_load(load)),
        ),
        fault_seconds=80.0,
    )


def _gateway_idle_timeout(pick: random.Random) -> Script:
    """Let a gateway expect data every 5 s from a server that sends long chunks less often."""
    rate, interval = round(pick.uniform(1.6, 2.2), 1), pick.randint(240, 280)
    load = replace(_COMPLETIONS, rate=rate, max_tokens=(180, 300, 340), seed=pick.getrandbits(32))
    return Script(
        {"rate": rate, "stream_interval": interval, "idle_seconds": 5},
        load=load,
        engine=_ROOMY,
        server="trtllm-serve",
        serve=ServeSettings(stream_interval=interval, iteration_stats=False),
        gateway=NginxSettings(),
        steps=(
            ScriptStep(
                0.0,
                "nginx is reloaded with a proxy_read_timeout of 5 s",
                reconfigure_gateway(NginxSettings(idle_seconds=5.0)),
            ),
        ),
        fault_seconds=80.0,
    )


def _gateway_total_timeout(pick: random.Random) -> Script:
    """Put a gateway into the path that ends responses after 5 s."""
    rate, longest = round(pick.uniform(1.6, 2.2), 1), pick.randint(260, 320)
    load = replace(
        HEALTHY_LOAD, rate=rate, max_tokens=(160, longest - 30, longest), seed=pick.getrandbits(32)
    )
    return Script(
        {"rate": rate, "max_tokens": longest, "total_seconds": 5},
        load=load,
        engine=_ROOMY,
        gateway=NginxSettings(),
        inner_gateway=CaddySettings(total_seconds=5.0),
        steps=(
            ScriptStep(
                0.0,
                "requests pass through Caddy, with a write timeout of 5 s",
                route_through_inner_gateway(NginxSettings()),
            ),
        ),
        fault_seconds=80.0,
    )


def _wasted_work(pick: random.Random) -> Script:
    """Let clients disconnect from a server behind an nginx that ignores it."""
    rate, share = round(pick.uniform(1.8, 2.2), 1), round(pick.uniform(0.7, 0.85), 2)
    load = replace(HEALTHY_LOAD, rate=rate, max_tokens=(260, 300), seed=pick.getrandbits(32))
    abandoning = replace(load, half_close_mid_stream=share, half_close_seconds=3.0)
    return Script(
        {"rate": rate, "half_close_share": share},
        load=load,
        engine=_ROOMY,
        server_gateway=NginxSettings(ignore_client_abort=True),
        steps=(
            ScriptStep(0.0, "clients half-close and disconnect 3 s later", switch_load(abandoning)),
        ),
        fault_seconds=80.0,
    )


def _slow_clients(pick: random.Random) -> Script:
    """Let clients read at a fraction of the speed at which the server writes."""
    rate, share = round(pick.uniform(1.0, 1.2), 2), round(pick.uniform(0.85, 1.0), 2)
    speed = pick.randint(3000, 3600)
    load = replace(
        _COMPLETIONS,
        rate=rate,
        protocol="chat",
        max_tokens=(380, 420),
        request_seconds=120.0,
        disconnect_mid_stream=0.0,
        seed=pick.getrandbits(32),
    )
    slow = replace(load, slow_readers=share, reader_bytes_per_second=speed)
    return Script(
        {"rate": rate, "slow_share": share, "bytes_per_second": speed},
        load=load,
        engine=_ROOMY,
        server="trtllm-serve",
        serve=ServeSettings(iteration_stats=False),
        steps=(ScriptStep(0.0, "clients read slowly", switch_load(slow)),),
        fault_seconds=80.0,
    )


def _broken_streams(pick: random.Random) -> Script:
    """Let a share of streams end with an error after some tokens."""
    rate, share = round(pick.uniform(2.5, 3.5), 1), round(pick.uniform(0.65, 0.8), 2)
    load = replace(HEALTHY_LOAD, rate=rate, seed=pick.getrandbits(32))
    breaking = replace(load, failing_mid_stream=share)
    return Script(
        {"rate": rate, "failing_share": share},
        load=load,
        steps=(ScriptStep(0.0, "streams break", switch_load(breaking)),),
    )


def _traffic_x3(pick: random.Random) -> Script:
    rate = round(pick.uniform(1.0, 1.3), 2)
    load = replace(HEALTHY_LOAD, rate=rate, seed=pick.getrandbits(32))
    tripled = replace(load, rate=3 * rate)
    return Script(
        {"rate": rate},
        load=load,
        steps=(ScriptStep(0.0, "traffic triples", switch_load(tripled)),),
    )


def _night_traffic(pick: random.Random) -> Script:
    """Let traffic fall to a few requests per minute, with a disconnect now and then."""
    rate, night = round(pick.uniform(1.5, 2.5), 1), round(pick.uniform(0.06, 0.12), 2)
    load = replace(HEALTHY_LOAD, rate=rate, seed=pick.getrandbits(32))
    few = replace(load, rate=night, disconnect_mid_stream=0.1)
    return Script(
        {"rate": rate, "night_rate": night},
        load=load,
        steps=(ScriptStep(0.0, "the night begins", switch_load(few)),),
    )


_INVISIBLE_WITHOUT_TAP: dict[Column, tuple[str, ...]] = {"scrape": ()}
_STORM_WITHOUT_TAP: dict[Column, tuple[str, ...]] = {"scrape": ("timeout_storm", "overload")}
"""Without a tap, retries are requests like any others."""
_NO_ITERATION_STATS = {
    "SignalUnavailable": "trtllm-serve runs without iteration statistics, which are off by default"
}

INCIDENTS = (
    Incident(
        key="timeout-storm",
        title="requests time out, and clients retry them",
        script=_timeout_storm,
        alerts=(
            ExpectedAlert("FirstTokenErrorBudgetBurn", 45),
            ExpectedAlert("RetryStorm", 60, WITH_TAP),
        ),
        symptoms=("retries", "disconnects_up"),
        diagnosis=in_columns("timeout_storm", columns=WITH_TAP) | _STORM_WITHOUT_TAP,
        confusions={
            "QueueGrowing": "the retries make the queue grow",
            "ClientDisconnectsAtTimeout": "the clients' own timeout, at 5 s and more",
        },
    ),
    Incident(
        key="gateway-idle-timeout",
        title="a gateway cuts streams that are silent for 5 s",
        script=_gateway_idle_timeout,
        alerts=(
            ExpectedAlert("DisconnectsErrorBudgetBurn", 60, WITH_TAP),
            ExpectedAlert("ClientDisconnectsAtTimeout", 75, WITH_TAP),
        ),
        symptoms=("ages", "disconnects_up"),
        diagnosis=in_columns("gateway_timeout", columns=WITH_TAP) | _INVISIBLE_WITHOUT_TAP,
        confusions=_NO_ITERATION_STATS,
    ),
    Incident(
        key="gateway-total-timeout",
        title="a gateway cuts streams that are older than 5 s",
        script=_gateway_total_timeout,
        alerts=(
            ExpectedAlert("DisconnectsErrorBudgetBurn", 60, WITH_TAP),
            ExpectedAlert("ClientDisconnectsAtTimeout", 75, WITH_TAP),
        ),
        symptoms=("ages", "disconnects_up"),
        diagnosis=in_columns("gateway_timeout", columns=WITH_TAP) | _INVISIBLE_WITHOUT_TAP,
    ),
    Incident(
        key="wasted-work",
        title="the server works for clients that have disconnected",
        script=_wasted_work,
        alerts=(
            ExpectedAlert("DisconnectsErrorBudgetBurn", 60, WITH_TAP),
            ExpectedAlert("WastedWork", 75, WITH_TAP),
        ),
        symptoms=("wasted", "disconnects_up"),
        diagnosis=in_columns("wasted_work", columns=WITH_TAP) | _INVISIBLE_WITHOUT_TAP,
    ),
    Incident(
        key="slow-clients",
        title="clients read slowly and block their streams",
        script=_slow_clients,
        alerts=(
            # A proxy reads the server's tokens on time, whatever the client does.
            ExpectedAlert("GoodputErrorBudgetBurn", 80, ("capture",)),
            ExpectedAlert("SlowClients", 80, WITH_TAP),
        ),
        symptoms=("reading",),
        diagnosis=in_columns("slow_clients", columns=WITH_TAP) | _INVISIBLE_WITHOUT_TAP,
        confusions=_NO_ITERATION_STATS,
    ),
    Incident(
        key="broken-streams",
        title="streams break after their first token",
        script=_broken_streams,
        alerts=(
            ExpectedAlert("AvailabilityErrorBudgetBurn", 30, WITH_TAP),
            ExpectedAlert("CompletionErrorBudgetBurn", 65, WITH_TAP),
        ),
        symptoms=("broken",),
        diagnosis=in_columns("broken_streams", columns=WITH_TAP) | _INVISIBLE_WITHOUT_TAP,
    ),
    Incident(
        key="traffic-x3",
        title="traffic triples within the capacity",
        script=_traffic_x3,
        harmful=False,
    ),
    Incident(
        key="night-traffic",
        title="traffic falls to a few requests per minute",
        script=_night_traffic,
        harmful=False,
    ),
)
