"""Queue policies of Triton as ``config.pbtxt`` stanzas.

A policy works only where requests wait in Triton: in front of a model that answers inside of
``execute()``.  An in-flight batching engine takes requests at once, and they wait inside of it; of
the policy, TensorRT-LLM's C++ backend then reads ``default_queue_policy.max_queue_size`` only
(``model_instance_state.cc``), and its LLM API model nothing.
"""

from __future__ import annotations

from admission.plan import AdmissionPlan
from admission.queues import PriorityQueue

_ENGINE = """\
# config.pbtxt of the model with the backend tensorrtllm. The backend passes max_queue_size to the
# engine and ignores the rest of the policy: timeouts and priorities have no effect there.
dynamic_batching {{
  max_queue_delay_microseconds: 0
  default_queue_policy {{ max_queue_size: {size} }}
}}
"""

_QUEUED = """\
# config.pbtxt of a model in front of the engine that answers inside of execute(), such as
# tensorrt_llm_bls: its requests wait in Triton. One request per execute(): a batch would run one
# after another.
{unmarked}max_batch_size: 1
instance_group [ {{ count: {running} kind: KIND_CPU }} ]
dynamic_batching {{
  max_queue_delay_microseconds: 0
{policies}
}}
"""

_UNMARKED = """\
# Requests without the parameter "priority" have the lowest one.
"""


def engine_stanza(plan: AdmissionPlan) -> str:
    """Return the stanza of the engine's model."""
    return _ENGINE.format(size=plan.queue_size)


def queued_model_stanza(plan: AdmissionPlan) -> str:
    """Return the stanza of a model whose requests wait in Triton."""
    first, *lower = plan.queues
    if not lower:
        return _QUEUED.format(
            running=plan.running, unmarked="", policies=_policy("default_queue_policy", first)
        )
    levels = len(plan.queues)
    lines = [
        f"  priority_levels: {levels}",
        f"  default_priority_level: {levels}",
        *(
            f"  priority_queue_policy {{\n    key: {queue.priority}\n"
            f"{_policy('value', queue, indent='    ')}\n  }}"
            for queue in plan.queues
        ),
    ]
    return _QUEUED.format(running=plan.running, unmarked=_UNMARKED, policies="\n".join(lines))


def _policy(name: str, queue: PriorityQueue, indent: str = "  ") -> str:
    fields = (
        "timeout_action: REJECT",
        f"default_timeout_microseconds: {int(queue.timeout * 1_000_000)}",
        "allow_timeout_override: true  # a request can only shorten it",
        f"max_queue_size: {queue.size}",
    )
    inner = "\n".join(f"{indent}  {field}" for field in fields)
    return f"{indent}{name} {{\n{inner}\n{indent}}}"
