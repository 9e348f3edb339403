"""Small models for a real Triton, one for each behaviour that the sidecar distinguishes.

========================  =======================================================================
plain                     answers at once
failing                   the same code, for requests that fail: ``raise``, ``error``
slow                      takes ``sleep 0.3``; rejects what has queued for 100 ms
bounded                   rejects what finds one request in the queue
cached                    answers from Triton's response cache
pipeline                  an ensemble of plain and failing; ``then raise`` fails its second step
streaming                 decoupled, streams from a thread; ``raise``, ``error``, ``mid`` fail
vllm_llm                  streaming that publishes what Triton's vLLM backend does
first_response            streaming that publishes the first-response histogram of 24.11
========================  =======================================================================

Each takes ``text_input``, the streaming ones ``max_tokens`` as well; all give ``text_output``.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path

_PLAIN = """\
backend: "python"
max_batch_size: 1
input { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] }
instance_group { kind: KIND_CPU count: 1 }
"""
_STREAMING = """\
backend: "python"
model_transaction_policy { decoupled: true }
input { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }
input { name: "max_tokens" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] }
instance_group { kind: KIND_CPU count: 1 }
"""
_QUEUE = "dynamic_batching {{ default_queue_policy {{ {} }} }}\n"
_PUBLISH = 'parameters {{ key: "publish" value {{ string_value: "{}" }} }}\n'
_PIPELINE = """\
platform: "ensemble"
max_batch_size: 1
input { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] }
ensemble_scheduling {
  step {
    model_name: "plain" model_version: -1
    input_map { key: "text_input" value: "text_input" }
    output_map { key: "text_output" value: "between" }
  }
  step {
    model_name: "failing" model_version: -1
    input_map { key: "text_input" value: "between" }
    output_map { key: "text_output" value: "text_output" }
  }
}
"""

# Model: the file that is its model.py (an ensemble has none), its configuration.
_MODELS = {
    "plain": ("plain.py", _PLAIN),
    "failing": ("plain.py", _PLAIN),
    "slow": (
        "plain.py",
        _PLAIN + _QUEUE.format("timeout_action: REJECT default_timeout_microseconds: 100000"),
    ),
    "bounded": ("plain.py", _PLAIN + _QUEUE.format("max_queue_size: 1")),
    "cached": ("plain.py", _PLAIN + "response_cache { enable: true }\n"),
    "pipeline": ("", _PIPELINE),
    "streaming": ("streaming.py", _STREAMING),
    "vllm_llm": ("streaming.py", _STREAMING + _PUBLISH.format("vllm")),
    "first_response": ("streaming.py", _STREAMING + _PUBLISH.format("first_response")),
}
MODELS = tuple(_MODELS)
ARGUMENTS = ("--cache-config=local,size=1048576", "--metrics-interval-ms=200")
"""Triton's arguments that these models require."""


def write_models(repository: Path, models: Collection[str] = MODELS) -> None:
    """Write the models into a model repository."""
    for model in models:
        source, config = _MODELS[model]
        version = repository / model / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(config)
        if source:
            shutil.copy(Path(__file__).parent / source, version / "model.py")
