"""Methods to obtain each signal, with their ranks, qualities and known errors.

The same counter can be good evidence from one backend and poor evidence from another; it is then
two methods.  Quality belongs to the method, never to a single value.
"""

from __future__ import annotations

from collections.abc import Mapping

from exporter.methods import sglang, taps, triton, trtllm, vllm
from exporter.methods.method import Method

METHODS: Mapping[str, Method] = {
    **taps.METHODS,
    **vllm.METHODS,
    **sglang.METHODS,
    **trtllm.METHODS,
    **triton.METHODS,
}
"""Methods by the key that sources put into measurements."""

__all__ = ["METHODS", "Method"]
