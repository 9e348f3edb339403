"""Generate streaming load on Triton or an OpenAI-compatible server, and measure at the clients.

Requests arrive as a Poisson process (open loop).  The limit of concurrent clients makes the load a
closed loop if the server is slower, or with an infinite rate.  No prompt and no response is stored.
"""

from lab.load.generator import Load, running_load
from lab.load.settings import LoadPhase, LoadSettings, LoadTarget
from lab.load.summary import OUTCOMES, LoadSummary, Outcome, Quantiles
from loadtest.apis import Protocol

__all__ = [
    "OUTCOMES",
    "Load",
    "LoadPhase",
    "LoadSettings",
    "LoadSummary",
    "LoadTarget",
    "Outcome",
    "Protocol",
    "Quantiles",
    "running_load",
]
