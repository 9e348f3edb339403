"""An SLO file that says everything there is to say."""

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
"""
