"""A parsed configuration: everything that the checks read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from admission.plan import AdmissionPlan
from config_checks.gateways import GatewayLimit, gateway_limits
from config_checks.gpu_topology import GpuTopology
from config_checks.retries import RouteRetries, route_retries
from config_checks.setting import Setting
from config_checks.triton_model import ENGINE, TritonModel
from config_checks.workloads import ServerContainer
from slos.model import Objective, Service

TOKEN_INDICATORS = ("itl", "tpot", "ttft", "max_gap", "stream_completion", "disconnects")
"""Indicators that need streams."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """The parts of a deployment to check; a part that was not given is empty.

    ``options`` are LLM options outside a model repository, such as those of trtllm-serve.
    ``gateways`` are objects that limit the time of a request, buffer its response or repeat it.
    ``input_tokens`` and ``output_tokens`` are those of the longest prompt and answer, 0 if unknown.
    ``plan`` has the limits of a measured capacity.
    """

    models: tuple[TritonModel, ...] = ()
    options: tuple[Setting, ...] = ()
    containers: tuple[ServerContainer, ...] = ()
    gateways: tuple[Setting, ...] = ()
    topology: GpuTopology | None = None
    services: tuple[Service, ...] = ()
    output_tokens: int = 0
    input_tokens: int = 0
    plan: AdmissionPlan | None = None

    @property
    def engines(self) -> list[TritonModel]:
        """The models that generate tokens."""
        return [model for model in self.models if model.is_engine]

    @property
    def cpp_engines(self) -> list[TritonModel]:
        """The models of the C++ backend."""
        return [model for model in self.models if model.backend == ENGINE]

    @property
    def llm_options(self) -> list[Setting]:
        """All LLM options: of models, and files of their own."""
        return [*(model.options for model in self.models if model.options), *self.options]

    def objectives(self, indicators: Sequence[str]) -> list[tuple[Service, Objective]]:
        """Return the objectives on one of these indicators, also as clauses of goodput."""
        return [
            (service, objective)
            for service in self.services
            for objective in service.objectives
            if objective.indicator in indicators
            or any(key in indicators for key in objective.clauses)
        ]

    @property
    def streaming_expected(self) -> bool:
        """Whether an objective needs streams; without SLO files it is assumed."""
        return not self.services or bool(self.objectives(TOKEN_INDICATORS))

    def thresholds(self, *indicators: str) -> list[Decimal]:
        """Return the thresholds of objectives and clauses in seconds."""
        found = []
        for _, objective in self.objectives(indicators):
            if objective.indicator in indicators and objective.threshold is not None:
                found.append(objective.threshold)
            found += [value for key, value in objective.clauses.items() if key in indicators]
        return found

    @property
    def gateway_limits(self) -> list[GatewayLimit]:
        """The time limits of all gateways."""
        return [limit for each in self.gateways for limit in gateway_limits(each)]

    @property
    def retries(self) -> list[RouteRetries]:
        """The retries of all gateways."""
        return [retries for each in self.gateways for retries in route_retries(each)]

    @property
    def longest_gap(self) -> Decimal:
        """The longest silence of a stream within its objectives, 0 if it is unknown."""
        return max(self.thresholds("ttft", "max_gap"), default=Decimal(0))

    @property
    def longest_answer(self) -> LongestAnswer | None:
        """The longest time that an answer may take within its objectives."""
        pace = _largest(self, ("itl", "tpot"))
        if not pace or not self.output_tokens:
            return None
        return LongestAnswer(self.output_tokens, pace, _largest(self, ("ttft",)))


@dataclass(frozen=True, slots=True)
class LongestAnswer:
    """``tokens`` at ``pace`` seconds each, after ``first`` seconds."""

    tokens: int
    pace: float
    first: float

    @property
    def seconds(self) -> float:
        """The duration."""
        return self.first + self.tokens * self.pace

    def __str__(self) -> str:
        first = f"{self.first:g} s + " if self.first else ""
        return f"{first}{self.tokens} tokens x {self.pace:g} s = {self.seconds:g} s"


def _largest(config: Configuration, indicators: Sequence[str]) -> float:
    """Return the largest threshold of these indicators in seconds, 0 without one."""
    return float(max(config.thresholds(*indicators), default=0))


def threatened(config: Configuration, indicators: Sequence[str]) -> Mapping[str, list[str]]:
    """Return the objectives that each indicator has, as ``service/objective``."""
    return {
        key: [
            f"{service.service}/{objective.name}" for service, objective in config.objectives([key])
        ]
        for key in indicators
    }
