"""A fault of the matrix, its result, and the verdict on it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lab.faults.setup import FaultSetup


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss of a fault: ``count`` by the clients or servers, ``counted`` by the sidecar.

    ``counter`` names the metric that counts it.  ``allowed`` of them may be uncounted, for the
    ``reason``.
    """

    what: str
    count: int
    counted: int = 0
    counter: str = ""
    allowed: int = 0
    reason: str = ""

    @property
    def uncounted(self) -> int:
        """The number that is in no counter; negative if too many are counted."""
        return self.count - self.counted

    @property
    def is_expected(self) -> bool:
        """Whether everything lost is counted, except what may be uncounted."""
        return 0 <= self.uncounted <= self.allowed


@dataclass(frozen=True, slots=True)
class Expectation:
    """A condition with the measured value in its ``text``, and whether it ``holds``."""

    text: str
    holds: bool


@dataclass(frozen=True, slots=True)
class FaultEffect:
    """The measured effect of a fault.

    ``injected`` describes the fault as it was; ``recovery`` what ended its effect, and ``seconds``
    the time from the end of the fault, or from the fault itself if it is an instant.
    """

    injected: str
    losses: tuple[Loss, ...]
    recovery: str
    seconds: float
    expectations: tuple[Expectation, ...] = ()

    def json(self) -> dict[str, Any]:
        """Return the effect as JSON."""
        return asdict(self)


def read_effect(data: Mapping[str, Any]) -> FaultEffect:
    """Return the effect in a JSON form."""
    return FaultEffect(
        **{
            **data,
            "losses": tuple(Loss(**each) for each in data["losses"]),
            "expectations": tuple(Expectation(**each) for each in data["expectations"]),
        }
    )


@dataclass(frozen=True, slots=True)
class Fault:
    """A row of the matrix.

    ``inject`` starts the servers, injects the fault and measures its effect, which must end within
    ``recovers_within`` seconds.
    """

    key: str
    family: str
    title: str
    inject: Callable[[FaultSetup], Awaitable[FaultEffect]]
    recovers_within: float


def failures(fault: Fault, effect: FaultEffect) -> Iterator[str]:
    """Yield the expectations that the effect violates."""
    if effect.seconds > fault.recovers_within:
        yield f"recovered after {effect.seconds:.1f} s instead of {fault.recovers_within:g} s"
    for loss in effect.losses:
        if not loss.is_expected:
            allowed = f", {loss.allowed:,} may be" if loss.allowed else ""
            yield f"{loss.uncounted:,} of {loss.count:,} {loss.what} are in no counter{allowed}"
    for each in effect.expectations:
        if not each.holds:
            yield each.text
