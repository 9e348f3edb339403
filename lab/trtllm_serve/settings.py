"""Settings of the simulated trtllm-serve: every behaviour that differs between releases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Literal, get_args, get_type_hints

_PYTORCH_1_4 = ("attention_dp_ranks", "iteration_interval", "kv_iteration_interval")

Schema = Literal["tensorrt", "pytorch-1.2", "pytorch-1.4"]
Read = Literal["until-idle", "one-fetch", "tee"]
Names = Literal["none", "1.1", "1.3", "1.4"]
PerRequest = Literal["none", "endpoint", "headers"]


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Behaviour of a trtllm-serve; the defaults are those of 1.4 with metrics enabled.

    ``iteration_stats`` are off in PyTorch's executor unless enable_iter_perf_stats is set.
    ``schema`` selects the iteration records: the C++ executor's, PyTorch's up to 1.2, or PyTorch's
    from 1.3 on, whose scheduler may ``overlap``.  There are ``attention_dp_ranks`` records per
    iteration, for every ``iteration_interval``-th iteration.  ``host_blocks`` of the host's KV pool
    are added to the GPU's; with ``kv_manager_v2`` all KV blocks are 0.  KV deltas come every
    ``kv_iteration_interval`` iterations (0: never).

    ``read`` is the behaviour of GET /metrics: ``until-idle`` returns after 2 s without a record,
    ``one-fetch`` fetches once and waits 2 s, ``tee`` returns the records of a collector, which runs
    when a request completes and requires Prometheus metrics.  ``kept_records`` limits each buffer
    (0: no limit).  With ``tee``, ``record_copies`` readers can get every record, each at a loopback
    address of its own (127.0.0.1, 127.0.0.2, …), as if each had a server of its own.

    ``prometheus`` is the generation of metrics at /prometheus/metrics; ``dead_worker`` adds the
    gauges of a process that has exited.  ``per_request`` timing is at /perf_metrics, for at most
    ``perf_metrics_max_requests`` requests, or in headers, and in ``perf_metrics_output_dir`` if
    set.

    A chunk has the tokens of ``stream_interval`` iterations; the text of every ``withhold``-th
    token comes with the next one (0: none is withheld).
    """

    model: str = "tensorrt_llm"
    version: str = "1.4.0"
    iteration_stats: bool = True
    schema: Schema = "pytorch-1.4"
    overlap: bool = True
    attention_dp_ranks: int = 1
    iteration_interval: int = 1
    host_blocks: int = 0
    kv_manager_v2: bool = False
    kv_iteration_interval: int = 0
    read: Read = "tee"
    kept_records: int = 1000
    record_copies: int = 1
    prometheus: Names = "1.4"
    dead_worker: bool = False
    per_request: PerRequest = "headers"
    perf_metrics_max_requests: int = 0
    perf_metrics_output_dir: str = ""
    stream_interval: int = 1
    withhold: int = 0
    iterations_file: str = ""

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(ServeSettings).items():
            choices, value = get_args(kind), getattr(self, name)
            if choices and value not in choices:
                raise ValueError(f"{name} {value!r} is none of {', '.join(choices)}")
        intervals = (self.iteration_interval, self.stream_interval)
        if min(self.attention_dp_ranks, self.record_copies, *intervals) < 1:
            raise ValueError(
                "attention_dp_ranks, record_copies, iteration_interval and stream_interval must be "
                "at least 1"
            )
        counts = (self.host_blocks, self.kv_iteration_interval, self.kept_records, self.withhold)
        if min(*counts, self.perf_metrics_max_requests) < 0:
            raise ValueError("counts must not be negative")
        if self.schema != "pytorch-1.4":
            for field in fields(self):
                if field.name in _PYTORCH_1_4 and getattr(self, field.name) != field.default:
                    raise ValueError(f"{field.name} needs the schema pytorch-1.4")

    @property
    def addresses(self) -> list[str]:
        """The addresses to serve on, one for each copy of the records."""
        return [f"127.0.0.{number}" for number in range(1, 1 + self.record_copies)]

    @property
    def engine_type(self) -> str:
        """The value of the Prometheus label ``engine_type``."""
        return self.schema.split("-")[0]


_1_4 = ServeSettings()
_1_3 = replace(
    _1_4,
    version="1.3.0rc11",
    read="one-fetch",
    prometheus="1.3",
    per_request="endpoint",
    perf_metrics_max_requests=1000,
)
_1_2 = replace(_1_3, version="1.2.1", schema="pytorch-1.2", kept_records=0, prometheus="1.1")
_1_1 = replace(_1_2, version="1.1.0", read="until-idle")
_1_0 = replace(
    _1_1, version="1.0.0", prometheus="none", per_request="none", perf_metrics_max_requests=0
)
RELEASES: Mapping[str, ServeSettings] = {
    "1.0": _1_0,
    "1.1": _1_1,
    "1.2": _1_2,
    "1.3": _1_3,
    "1.4": _1_4,
}
"""Settings of each release with metrics enabled."""
