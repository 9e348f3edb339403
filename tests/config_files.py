"""Small configurations of LLM servers: one without faults, and changes that put one in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

ENGINE = """\
name: "tensorrt_llm"
backend: "tensorrtllm"
max_batch_size: 64
model_transaction_policy { decoupled: true }
dynamic_batching {
  max_queue_delay_microseconds: 0
  default_queue_policy: { max_queue_size: 12 }
}
instance_group [ { count: 1 kind: KIND_CPU } ]
model_warmup [ { name: "first" batch_size: 1 } ]
parameters: { key: "gpt_model_type" value: { string_value: "inflight_fused_batching" } }
parameters: { key: "gpt_model_path" value: { string_value: "/engines/llama" } }
parameters: { key: "enable_kv_cache_reuse" value: { string_value: "true" } }
parameters: { key: "cuda_graph_mode" value: { string_value: "true" } }
parameters: { key: "gpu_device_ids" value: { string_value: "0,1" } }
"""

BLS = """\
name: "tensorrt_llm_bls"
backend: "python"
model_transaction_policy { decoupled: True }
instance_group [ { count: 64 kind: KIND_CPU } ]
parameters: { key: "accumulate_tokens" value: { string_value: "true" } }
parameters: { key: "tensorrt_llm_model_name" value: { string_value: "tensorrt_llm" } }
dynamic_batching { default_queue_policy {
  timeout_action: REJECT
  default_timeout_microseconds: 1600000
  max_queue_size: 12
} }
"""

PRE = """\
name: "preprocessing"
backend: "python"
instance_group [ { count: 5 kind: KIND_CPU } ]
"""

ENSEMBLE = """\
name: "ensemble"
platform: "ensemble"
ensemble_scheduling { step [
  { model_name: "preprocessing" model_version: -1 },
  { model_name: "tensorrt_llm" model_version: -1 }
] }
"""

BUILT = """\
{
  "pretrained_config": {"mapping": {"tp_size": 2}},
  "build_config": {"max_batch_size": 64, "plugin_config": {"use_paged_context_fmha": true},
                   "max_input_len": 6000, "max_num_tokens": 8192, "max_seq_len": 10000}
}
"""

LLM_API = """\
model: llama
tensor_parallel_size: 2
max_batch_size: 32
num_postprocess_workers: 4
cuda_graph_config:
  batch_sizes: [1, 8, 32]
max_num_tokens: 8192
enable_iter_perf_stats: true
return_perf_metrics: true
"""

DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      terminationGracePeriodSeconds: 300
      containers:
        - name: triton
          image: nvcr.io/nvidia/tritonserver:24.12-trtllm-python-py3
          command: [tritonserver, --exit-timeout-secs=300]
          args: [--metrics-config, histogram_latencies=true]
          livenessProbe: {periodSeconds: 10}
          startupProbe: {periodSeconds: 10, failureThreshold: 60}
          lifecycle: {preStop: {sleep: {seconds: 15}}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
spec:
  rules:
    - timeouts: {request: 5m}
---
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: BackendTrafficPolicy
spec:
  timeout: {http: {streamIdleTimeout: 300s}}
  retry: {retryOn: {triggers: [connect-failure]}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
spec:
  http:
    - retries: {attempts: 1, retryOn: "connect-failure,refused-stream"}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  annotations:
    nginx.ingress.kubernetes.io/proxy-read-timeout: "300"
    nginx.ingress.kubernetes.io/proxy-buffering: "off"
spec: {ingressClassName: nginx}
"""

SLO = """\
apiVersion: tokenslo/v1
service: chat
objectives:
  - {name: first-token, indicator: ttft, threshold: 2s, target: 95%}
  - {name: token-pace, indicator: itl, threshold: 60ms, target: 99%}
"""

TOPOLOGY = """\
\tGPU0\tGPU1\tGPU2\tCPU Affinity
GPU0\t X \tNV4\tSYS\t0-15
GPU1\tNV4\t X \tSYS\t0-15
GPU2\tSYS\tSYS\t X \t16-31
"""

FILES: Mapping[str, str] = {
    "repository/tensorrt_llm/config.pbtxt": ENGINE,
    "repository/tensorrt_llm_bls/config.pbtxt": BLS,
    "repository/preprocessing/config.pbtxt": PRE,
    "repository/ensemble/config.pbtxt": ENSEMBLE,
    "repository/engines/llama/config.json": BUILT,
    "serve.yaml": LLM_API,
    "deployment.yaml": DEPLOYMENT,
    "slo.yaml": SLO,
    "topology.txt": TOPOLOGY,
}
"""A configuration without faults."""
LIMITS = ("--output-tokens", "4000", "--input-tokens", "6000")
"""Options of the longest request that it accepts."""


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Write files below a folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
