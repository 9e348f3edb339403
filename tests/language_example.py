"""An SLO file with every key, and a loader for files of one service."""

from __future__ import annotations

from pathlib import Path

from slos.load import load_file
from slos.model import Service


def load(path: str | Path) -> Service:
    """Read a file of one service."""
    [service] = load_file(path).services
    return service


FULL = """\
apiVersion: tokenslo/v1
service: chat
owner: inference-platform
description: Chat completions
selector: {namespace: prod}
window: 30d
labels: {team: inference}
runbooks: https://wiki.example.com/{alert}
dashboards: https://grafana.example.com
rollout:
  label: track
  margin: 50%
  window: 20m
  warm_up: 1m
  objectives: [up]
  guards: [sheds, errors]
  prometheus: http://prometheus:9090
budget_policy:
  - {when: 50%, do: No risky rollouts}
  - {when: 100%, do: Reliability work only}
alerting:
  page: {labels: {severity: critical}, annotations: {chat: "#inference"}}
  ticket: {labels: {severity: warning}}
  cause: {labels: {severity: info}}
  min_bad_events: 5
  disable: [absent, causes]
objectives:
  - name: first-token
    indicator: ttft
    threshold: 800ms
    target: 95%
    description: The first word comes quickly
    owner: chat-team
    selector: {model: llama}
    labels: {product: chat}
    group_by: [version, pod]
    alerting:
      page: {labels: {pager: chat}, annotations: {note: "{{ $value }}"}}
      min_bad_events: 3
      disable: [ticket]
  - {name: up, indicator: availability, target: 99.9%, group_by: [tenant]}
  - name: up-minutes
    indicator: availability
    target: 99.5%
    time_slices: {window: 1m, target: 95%}
  - {name: good, indicator: goodput, clauses: {ttft: 800ms, tpot: 60ms}, target: 95%}
  - {name: room, indicator: kv_headroom, threshold: 90%, target: 99%, group_by: [pod]}
  - name: shop
    indicator: {bad: 'shop_total{code=~"5.."}', total: shop_total}
    target: 99%
    group_by: [shop]
  - name: shop-minutes
    indicator: {good: 'sum(rate(ok_total[{window}]))', total: 'sum(rate(all_total[{window}]))'}
    target: 99%
    time_slices: {window: 5m, target: 90%}
  - name: shop-latency
    indicator: {histogram: shop_seconds, threshold: 400ms}
    target: 99%
  - name: shop-edge
    indicator: {histogram: shop_bytes, threshold: 1024}
    target: 99%
  - {name: door, indicator: {gauge: door_open}, target: 99%}
  - name: share
    indicator: {ratio: 'shop:errors:ratio', weight: 'sum(rate(x_total[{window}]))'}
    target: 99%
autoscaling:
  workload: StatefulSet/chat
  min_replicas: 0
  max_replicas: 9
  waiting: 4
  kv_cache: 70%
  tokens_in_flight: 50000
  goodput: good
  stream_p99: 4m
  wake: sum(gateway_queue_size)
  prometheus: http://prometheus:9090
"""

LEVELS = """\
apiVersion: tokenslo/v1
owner: platform
selector: {namespace: prod, cluster: eu, model: any}
labels: {team: inference, region: eu, product: llm}
window: 7d
alerting: {page: {labels: {severity: page}}}
budget_policy: [{when: 100%, do: All hands}]
runbooks: https://wiki.example.com
dashboards: https://grafana.example.com
histograms: classic
services:
  - service: chat
    description: Talks
    selector: {cluster: us, model: chat}
    labels: {region: us, product: chat}
    objectives:
      - name: up
        indicator: availability
        target: 99%
        selector: {model: canary}
        labels: {product: canary}
        alerting: {ticket: {labels: {product: tickets}}}
      - {name: slow, indicator: ttft, threshold: 1s, target: 99%}
  - service: search
    owner: search-team
    window: 30d
    alerting: {min_bad_events: 3}
    objectives: [{name: up, indicator: availability, target: 99%}]
"""
"""A file of services with shared keys."""
