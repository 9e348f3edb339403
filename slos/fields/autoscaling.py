"""Read how the replicas of a service are scaled."""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal

from promql.query import InvalidQuery, read_query
from slos.durations import parse_duration
from slos.errors import BadValue, quoted
from slos.fields.values import NAME_SHAPE, URL_SHAPE, read_bounded, read_name, read_ratio, read_url
from slos.model import WORKLOADS, Autoscaling, Objective
from slos.schema import (
    DURATION,
    MAX_TEXT,
    SHARE,
    Field,
    Place,
    expect,
    integer,
    nearest,
    read_mapping,
)

MAX_REPLICAS = 10_000
_MAX_WAITING, _MAX_TOKENS = 100_000, 1_000_000_000
_WORKLOAD = re.compile(rf"({'|'.join(WORKLOADS)})/([a-z0-9](?:[a-z0-9.-]{{0,251}}[a-z0-9])?)")
_COUNTED = WORKLOADS[:2]
"""Kinds whose replicas kube-state-metrics reports."""


def read_autoscaling(value: object, place: Place) -> Autoscaling | None:
    """Read the autoscaling of a service."""
    before = len(place.problems)
    read = read_mapping(AUTOSCALING, value, place)
    return Autoscaling(**read) if len(place.problems) == before else None


def check_autoscaling(
    autoscaling: Autoscaling, objectives: Iterable[Objective], place: Place
) -> None:
    """Refuse contradicting replicas, a wake-up that cannot work, and an unknown objective."""
    least, most = autoscaling.min_replicas, autoscaling.max_replicas
    if least > most:
        message = f"{least} is above max_replicas, {most}"
        place.at("min_replicas").refuse(message, f"write at most {most}")
    if least == 0 and not autoscaling.wake:
        message = "0 replicas report no load, so nothing would start the first one"
        fix = "add wake, a query of requests that wait at the gateway, or write 1"
        place.at("min_replicas").refuse(message, fix)
    kind = autoscaling.workload.partition("/")[0]
    if least == 0 and kind not in _COUNTED:
        message = f"kube-state-metrics does not count the replicas of a {kind}"
        place.at("min_replicas").refuse(message, "write 1")
    if least and autoscaling.wake:
        message = f"is not needed: min_replicas is {least}"
        place.at("wake").refuse(message, "delete it, or write min_replicas: 0")
    known = [each.name for each in objectives if each.indicator == "goodput"]
    if autoscaling.goodput and autoscaling.goodput not in known:
        near = nearest(autoscaling.goodput, known)
        fix = f"write {near}" if near else f"use one of {', '.join(known) or 'none'}, or delete it"
        message = f"{quoted(autoscaling.goodput)} is not a goodput objective"
        place.at("goodput").refuse(message, fix)


def _workload(value: object, _: Place) -> str:
    wanted = f"KIND/NAME, such as Deployment/chat; KIND is one of {', '.join(WORKLOADS)}"
    text: str = expect(str, wanted, value)
    if not _WORKLOAD.fullmatch(text):
        raise BadValue(f"{quoted(text)} is not a workload", f"write {wanted}")
    return text


def _stream_p99(value: object, _: Place) -> Decimal:
    return read_bounded(value, parse_duration, "0s", "6h", "at most 6h, such as 4m")


def _wake(value: object, _: Place) -> str:
    text: str = expect(str, "a query, such as sum(gateway_queue_size)", value)
    try:
        return read_query(text).text
    except InvalidQuery as problem:
        raise BadValue(str(problem), "write an instant vector, such as sum(queue)") from None


AUTOSCALING = (
    Field(
        "workload",
        _workload,
        required="Deployment/chat",
        about=f"The scaled object as KIND/NAME; KIND is one of {', '.join(WORKLOADS)}.",
        shape={"type": "string", "pattern": f"^{_WORKLOAD.pattern}$"},
    ),
    Field(
        "max_replicas",
        integer(1, MAX_REPLICAS),
        required="8",
        about="The maximum number of replicas.",
        shape={"type": "integer", "minimum": 1, "maximum": MAX_REPLICAS},
    ),
    Field(
        "prometheus",
        read_url,
        required="http://prometheus.monitoring:9090",
        about="URL of Prometheus for KEDA.",
        shape=URL_SHAPE,
    ),
    Field(
        "min_replicas",
        integer(0, MAX_REPLICAS),
        about="The minimum number of replicas; 0 needs wake.",
        shape={"type": "integer", "minimum": 0, "maximum": MAX_REPLICAS, "default": 1},
    ),
    Field(
        "waiting",
        integer(1, _MAX_WAITING),
        about="Waiting sequences for which one more replica is added.",
        shape={"type": "integer", "minimum": 1, "maximum": _MAX_WAITING, "default": 8},
    ),
    Field(
        "kv_cache",
        read_ratio,
        about="Share of its KV cache that a replica should use at most.",
        shape={**SHARE, "default": "80%"},
    ),
    Field(
        "tokens_in_flight",
        integer(1, _MAX_TOKENS),
        about="Tokens in the KV cache that a replica should hold at most.",
        shape={"type": "integer", "minimum": 1, "maximum": _MAX_TOKENS},
    ),
    Field(
        "goodput",
        read_name,
        about="The goodput objective to scale on, by name.",
        shape=NAME_SHAPE,
    ),
    Field(
        "stream_p99",
        _stream_p99,
        about="Measured 99th percentile of the duration of requests, at most 6h.",
        shape=DURATION,
    ),
    Field(
        "wake",
        _wake,
        about="A query above 0 while requests wait and there are 0 replicas.",
        shape={"type": "string", "minLength": 1, "maxLength": MAX_TEXT},
    ),
)
