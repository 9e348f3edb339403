"""Record what a real Envoy sends when it sheds, limits or times out requests.

``python -m tests.captures.record_envoy`` writes ``wire_envoy_SCENARIO.jsonl`` beside this file, or
into the folder given, in the format of :mod:`tests.captures.record_wire`.  A scenario is a virtual
host of Envoy.  It is requested over HTTP/1 and, as ``…_grpc``, by a gRPC client.
"""

from __future__ import annotations

import json
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import yaml

from bench import programs
from lab.process import HOST, ServerProcess, get, serve
from tests.captures.record_wire import LIMIT_SECONDS, Relay, post
from tests.grpc_connection import INFER
from tests.polling import wait_until

PATH = "/v1/chat/completions"
BODY: Mapping[str, object] = {"model": "m", "stream": True}
LIMIT = "0.2s"
_EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
_BEGINNING = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    b"%x\r\n%s\r\n" % (len(_EVENT), _EVENT)
)
_API = "type.googleapis.com/envoy"
_HTTP = f"{_API}.extensions.filters.http"
_OVER_LIMIT = b"\x08\x02"
"""A RateLimitResponse whose overall code is OVER_LIMIT."""
_LOCAL_LIMIT = {
    "@type": f"{_HTTP}.local_ratelimit.v3.LocalRateLimit",
    "stat_prefix": "limit",
    "token_bucket": {"max_tokens": 1, "tokens_per_fill": 1, "fill_interval": "3600s"},
    "filter_enabled": {"default_value": {"numerator": 100}},
    "filter_enforced": {"default_value": {"numerator": 100}},
}

Route = Mapping[str, Any]
ROUTES: Mapping[str, Route] = {
    "overflow": {"cluster": "full"},
    "request_timeout": {"cluster": "silent", "timeout": LIMIT},
    "idle_timeout": {"cluster": "silent", "timeout": "0s", "idle_timeout": LIMIT},
    "downstream_duration": {
        "cluster": "silent",
        "timeout": "0s",
        "max_stream_duration": {"max_stream_duration": LIMIT},
    },
    "upstream_duration": {"cluster": "brief", "timeout": "0s"},
    "connect_failure": {"cluster": "refusing"},
    "no_endpoints": {"cluster": "empty"},
    "stream_timeout": {"cluster": "stalling", "timeout": LIMIT},
    "stream_idle": {"cluster": "stalling", "timeout": "0s", "idle_timeout": LIMIT},
    "global_limit": {
        "cluster": "silent",
        "rate_limits": [{"actions": [{"generic_key": {"descriptor_value": "all"}}]}],
    },
    "local_limit": {"cluster": "silent", "timeout": LIMIT},
}
HTTP_ONLY = ("stream_timeout", "stream_idle")
OVERLOAD = "overload"


def _address(port: int) -> Mapping[str, Any]:
    return {"socket_address": {"address": HOST, "port_value": port}}


def _cluster(name: str, *ports: int, **more: object) -> Mapping[str, Any]:
    endpoints = [{"lb_endpoints": [{"endpoint": {"address": _address(port)}}]} for port in ports]
    assignment = {"cluster_name": name, "endpoints": endpoints}
    return {"name": name, "type": "STATIC", "load_assignment": assignment, **more}


def _protocol(**options: object) -> Mapping[str, Any]:
    kind = f"{_API}.extensions.upstreams.http.v3.HttpProtocolOptions"
    return {kind.removeprefix("type.googleapis.com/"): {"@type": kind, **options}}


def configuration(
    port: int, silent: int, stalling: int, refusing: int, limiter: int, pressure: Path
) -> Mapping[str, Any]:
    """Return the configuration: a virtual host for each scenario."""
    hosts = [
        {
            "name": name,
            "domains": [name],
            "routes": [
                {
                    "match": {"prefix": "/"},
                    "route": dict(route),
                    **(
                        {"typed_per_filter_config": {"local": _LOCAL_LIMIT}}
                        if name == "local_limit"
                        else {}
                    ),
                }
            ],
        }
        for name, route in ROUTES.items()
    ]
    ready = {"match": {"path": "/ready"}, "direct_response": {"status": 200}}
    hosts.append({"name": "any", "domains": ["*"], "routes": [ready]})
    filters: Sequence[tuple[str, Mapping[str, Any]]] = (
        (
            "local",
            {"@type": f"{_HTTP}.local_ratelimit.v3.LocalRateLimit", "stat_prefix": "limit"},
        ),
        (
            "global",
            {
                "@type": f"{_HTTP}.ratelimit.v3.RateLimit",
                "domain": "all",
                "rate_limit_service": {
                    "transport_api_version": "V3",
                    "grpc_service": {"envoy_grpc": {"cluster_name": "limiter"}},
                },
            },
        ),
        ("router", {"@type": f"{_HTTP}.router.v3.Router"}),
    )
    manager = {
        "@type": f"{_API}.extensions.filters.network"
        ".http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "gateway",
        "http_filters": [{"name": name, "typed_config": config} for name, config in filters],
        "route_config": {"virtual_hosts": hosts},
    }
    chain = {"filters": [{"name": "manager", "typed_config": manager}]}
    clusters = [
        _cluster(
            "full",
            silent,
            circuit_breakers={"thresholds": [{"max_pending_requests": 0}]},
        ),
        _cluster("silent", silent),
        _cluster(
            "brief",
            silent,
            typed_extension_protocol_options=_protocol(
                explicit_http_config={"http_protocol_options": {}},
                common_http_protocol_options={"max_stream_duration": LIMIT},
            ),
        ),
        _cluster("stalling", stalling),
        _cluster("refusing", refusing),
        _cluster("empty"),
        _cluster(
            "limiter",
            limiter,
            typed_extension_protocol_options=_protocol(
                explicit_http_config={"http2_protocol_options": {}}
            ),
        ),
    ]
    resource = "envoy.resource_monitors.injected_resource"
    return {
        "static_resources": {
            "listeners": [{"address": _address(port), "filter_chains": [chain]}],
            "clusters": clusters,
        },
        "overload_manager": {
            "refresh_interval": "0.1s",
            "resource_monitors": [
                {
                    "name": resource,
                    "typed_config": {
                        "@type": f"{_API}.extensions.resource_monitors"
                        ".injected_resource.v3.InjectedResourceConfig",
                        "filename": str(pressure),
                    },
                }
            ],
            "actions": [
                {
                    "name": "envoy.overload_actions.stop_accepting_requests",
                    "triggers": [{"name": resource, "threshold": {"value": 0.9}}],
                }
            ],
        },
    }


@contextmanager
def _server(response: bytes) -> Iterator[int]:
    """Accept connections; respond to their first bytes, and then wait.  Yields the port."""
    held = []

    def run(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                held.append(connection)
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

    def answer(connection: socket.socket) -> None:
        with suppress(OSError):
            if connection.recv(65536):
                connection.sendall(response)

    with socket.create_server((HOST, 0)) as listener:
        threading.Thread(target=run, args=(listener,), daemon=True).start()
        yield listener.getsockname()[1]
    for each in held:
        each.close()


@contextmanager
def _limiter() -> Iterator[int]:
    """Run a rate limit service that limits every request.  Yields the port."""
    handler = grpc.unary_unary_rpc_method_handler(lambda _request, _context: _OVER_LIMIT)
    server = grpc.server(ThreadPoolExecutor(1))
    service = "envoy.service.ratelimit.v3.RateLimitService"
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {"ShouldRateLimit": handler}),)
    )
    port = server.add_insecure_port(f"{HOST}:0")
    server.start()
    yield port
    server.stop(None).wait()


@contextmanager
def envoy(folder: Path) -> Iterator[tuple[ServerProcess, Path]]:
    """Start Envoy; yield it and the file that sets its memory pressure."""
    pressure = folder / "pressure"
    pressure.write_text("0")
    with (
        _server(b"") as silent,
        _server(_BEGINNING) as stalling,
        _limiter() as limiter,
        socket.socket() as bound,
    ):
        bound.bind((HOST, 0))  # refuses connections
        upstreams = (silent, stalling, bound.getsockname()[1], limiter)

        def command(ports: Sequence[int]) -> list[str | Path]:
            config = folder / "envoy.yaml"
            config.write_text(yaml.safe_dump(configuration(ports[0], *upstreams, pressure)))
            options = ("--concurrency", "1", "--log-level", "error", "--disable-hot-restart")
            return [programs.envoy(), "-c", config, *options]

        log = folder / "envoy.log"
        with serve(ServerProcess, "envoy", command, log, ready="/ready") as running:
            yield running, pressure


def over_http(port: int, host: str) -> Relay:
    """Send a request over HTTP/1 until Envoy's response ends or the connection does."""
    relay = Relay(port)
    request = post(PATH, BODY).replace(b"Host: %s" % HOST.encode(), b"Host: %s" % host.encode())
    with socket.create_connection(relay.address, timeout=LIMIT_SECONDS) as connection:
        connection.sendall(request)
        _response(connection)
    return relay


def _response(connection: socket.socket) -> None:
    got = b""
    while more := connection.recv(65536):
        got += more
        head, end, body = got.partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        if end and length and len(body) >= int(length):
            return


def over_grpc(port: int, host: str) -> Relay:
    """Make a gRPC call; its error is in the recording."""
    relay = Relay(port)
    options = [("grpc.default_authority", host), ("grpc.enable_retries", 0)]
    with (
        grpc.insecure_channel(":".join(map(str, relay.address)), options=options) as channel,
        suppress(grpc.RpcError),
    ):
        channel.unary_unary(INFER)(b"\x0a\x01m", timeout=LIMIT_SECONDS)
    return relay


def main(folder: Path) -> None:
    """Record every scenario into ``folder``."""
    with tempfile.TemporaryDirectory() as scratch, envoy(Path(scratch)) as (server, pressure):
        port = server.ports[0]
        over_http(port, "local_limit")  # takes the one token
        relays = {}
        for name in ROUTES:
            relays[name] = over_http(port, name)
            if name not in HTTP_ONLY:
                relays[f"{name}_grpc"] = over_grpc(port, name)
        raised = pressure.with_suffix(".new")
        raised.write_text("1")
        raised.rename(pressure)
        wait_until(lambda: get(port, "/ready")[0] == 503)
        relays[OVERLOAD] = over_http(port, "overflow")
        relays[f"{OVERLOAD}_grpc"] = over_grpc(port, "overflow")
        for name, relay in relays.items():
            lines = "".join(json.dumps(line) + "\n" for line in relay.join())
            (folder / f"wire_envoy_{name}.jsonl").write_text(lines)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parent)
