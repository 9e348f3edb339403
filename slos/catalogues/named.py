"""Look up catalogues by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from promql.lint.catalogue import Catalogue, union
from slos.catalogues import dynamo as dynamo_names
from slos.catalogues import sglang as sglang_names
from slos.catalogues.own import own
from slos.catalogues.triton import FIRST, LAST, Release, triton, triton_llmapi
from slos.catalogues.trtllm import PREFIXES as TRTLLM_PREFIXES
from slos.catalogues.trtllm import trtllm_prefixed, trtllm_unprefixed
from slos.catalogues.vllm import PREFIXES as VLLM_PREFIXES
from slos.catalogues.vllm import vllm, vllm_before_013, vllm_router
from slos.errors import BadValue, quoted

_FIXED: Mapping[str, Callable[[], Catalogue]] = {
    "trtllm-1.1": lambda: trtllm_unprefixed("1.1"),
    "trtllm-1.2": lambda: trtllm_unprefixed("1.2"),
    "trtllm-1.3": lambda: trtllm_prefixed("1.3"),
    "trtllm-1.4": lambda: trtllm_prefixed("1.4"),
    "vllm-0.33": vllm,
    "vllm-router": vllm_router,
    "sglang-0.5": sglang_names.sglang,
    "dynamo-1.6": dynamo_names.dynamo,
    "tokenslo": own,
}
_BY_MONTH: Mapping[str, Callable[[Release], Catalogue]] = {
    "triton": triton,
    "triton-llmapi": triton_llmapi,
}
_MONTHLY = re.compile(rf"({'|'.join(_BY_MONTH)})-([0-9]{{2}})\.([0-9]{{2}})")

_OTHER_RELEASES = (
    *VLLM_PREFIXES, *TRTLLM_PREFIXES, *sglang_names.PREFIXES, *dynamo_names.PREFIXES,
)  # fmt: skip
"""Prefixes of servers with releases that lack a catalogue."""

_MONTHS = "{:02}.{:02} to {:02}.{:02}".format(*FIRST, *LAST)
NAMES = (*(f"{name}-YY.MM ({_MONTHS})" for name in _BY_MONTH), *_FIXED)
"""Names for :func:`named`."""


def named(name: str) -> Catalogue:
    """Return the catalogue of a name; raises :class:`~slos.errors.BadValue`."""
    if make := _FIXED.get(name):
        return make()
    found = _MONTHLY.fullmatch(name)
    release = (int(found[2]), int(found[3])) if found else (0, 0)
    if found and FIRST <= release <= LAST and 1 <= release[1] <= 12:
        return _BY_MONTH[found[1]](release)
    raise BadValue(f"no catalogue is called {quoted(name)}", f"give one of {', '.join(NAMES)}")


def everything() -> Catalogue:
    """Return the metrics of all known releases; ``renamed`` are metrics that all have dropped."""
    ends = (make(release) for make in _BY_MONTH.values() for release in ((24, 9), LAST))
    releases = union((*(make() for make in _FIXED.values()), *ends))
    older = union((releases, vllm_before_013()))
    return replace(
        older,
        title="any release of the catalogues",
        renamed=releases.renamed,
        partial=_OTHER_RELEASES,
    )
