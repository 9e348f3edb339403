"""Native histograms in remote write, with the same observations as classic ones.

Good observations are in the bucket of 4 to 8 s and bad ones in that of 16 to 32 s, so a fraction
below 10 s is exact.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tests.rule_values.traffic import BOUNDARY, DURATION, ENDED, Labels, Points, Samples

# A message of 66 bytes: `Histogram` of prometheus/prompb/types.proto with counts as doubles.
HISTOGRAM = np.dtype(
    [
        ("head", "u1", 2),
        ("count_tag", "u1"),
        ("count", "<f8"),
        ("sum_tag", "u1"),
        ("sum", "<u8"),
        ("zero_tag", "u1"),
        ("zero", "<f8"),
        ("span", "u1", 6),
        ("buckets_tag", "u1", 2),
        ("buckets", "<f8", 3),
        ("time_tag", "u1"),
        ("time", "u1", 6),
    ]
)
_SPAN = (0x5A, 4, 0x08, 6, 0x10, 3)
"""Three buckets from number 3 (zigzag: 6), whose upper bound is 2 to the power of 3."""

_NONE = 1e-9
"""Zero observations as a float: Prometheus 2.42 reads a count of 0 as an integer histogram."""


def encoded(good: Points, total: Points, times: npt.NDArray[np.uint8]) -> bytes:
    """Encode the histograms of a counter of good observations and one of all, without labels."""
    (_, good_bits), (_, total_bits) = good, total
    ended = good_bits == np.uint64(ENDED)
    below, count = (np.where(ended, 0.0, bits.view(np.float64)) for bits in (good_bits, total_bits))
    made = np.empty(len(count), dtype=HISTOGRAM)
    made["head"] = 0x22, HISTOGRAM.itemsize - 2
    made["count_tag"], made["count"] = 0x11, count + _NONE
    made["sum_tag"] = 0x19
    # The sum does not matter here, except that Prometheus marks the end of a series in it.
    made["sum"] = np.where(ended, np.uint64(ENDED), count.view(np.uint64))
    made["zero_tag"], made["zero"] = 0x39, _NONE
    made["span"] = _SPAN
    made["buckets_tag"] = 0x6A, 24
    made["buckets"] = np.stack([below, np.zeros_like(count), count - below], axis=1)
    made["time_tag"], made["time"] = 0x78, times
    return made.tobytes()


def histograms(samples: Samples) -> Iterator[tuple[Labels, Points, Points]]:
    """Yield the native form of classic histograms: labels, good and all observations."""
    boundary = ("le", str(BOUNDARY))
    for labels, good in samples.items():
        named = dict(labels)
        if named["__name__"] == f"{DURATION}_bucket" and boundary in labels:
            plain = {name: value for name, value in labels if name != "le"}
            total = samples[tuple(sorted({**plain, "__name__": f"{DURATION}_count"}.items()))]
            yield tuple(sorted({**plain, "__name__": DURATION}.items())), good, total
