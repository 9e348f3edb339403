"""Packets' wall-clock times on the monotonic clock, also when the wall clock is set."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest

from exporter.taps.capture.packet_clock import PacketClock


@dataclass
class Clocks:
    """Fake clocks; ``late`` are the seconds between the next pairs of readings."""

    now: float = 50.0
    offset: float = 1_700_000_000.0
    late: tuple[float, ...] = ()

    def wall(self) -> float:
        if self.late:
            self.now += self.late[0]
            self.late = self.late[1:]
        return self.now + self.offset

    def monotonic(self) -> float:
        return self.now


def stamped(clocks: Clocks, age: float) -> tuple[int, int]:
    whole = int(clocks.now + clocks.offset - age)
    return whole, round((clocks.now + clocks.offset - age - whole) * 1e9)


def test_a_packet_of_now() -> None:
    clock = PacketClock()
    before = time.monotonic()
    seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
    after = time.monotonic()
    clock.synchronize()
    assert before - 1e-4 < clock.convert(seconds, nanoseconds) < after + 1e-4


def test_a_drifting_wall_clock_is_followed() -> None:
    clocks = Clocks()
    clock = PacketClock(clocks.wall, clocks.monotonic)
    for _ in range(100):
        clocks.now += 1
        clocks.offset += 0.0005
        clock.synchronize()
        assert clock.convert(*stamped(clocks, 0.004)) == pytest.approx(clocks.now - 0.004, abs=1e-6)


@pytest.mark.parametrize("step", [-100.0, -0.5, 0.5, 100.0])
def test_when_the_wall_clock_is_set_one_batch_is_off_by_its_age(step: float) -> None:
    clocks = Clocks()
    clock = PacketClock(clocks.wall, clocks.monotonic)
    clock.synchronize()
    before = clock.convert(*stamped(clocks, 0.0))
    clocks.now += 0.02
    waiting = [stamped(clocks, age) for age in (0.015, 0.01)]
    clocks.offset += step
    waiting.append(stamped(clocks, 0.005))
    clock.synchronize()
    times = [clock.convert(*each) for each in waiting]
    assert times == sorted(times)
    assert before <= times[0]
    assert times[-1] <= clocks.now
    clocks.now += 0.02
    clock.synchronize()
    assert clock.convert(*stamped(clocks, 0.01)) == pytest.approx(clocks.now - 0.01, abs=1e-6)


def test_clocks_read_apart_are_read_again() -> None:
    clocks = Clocks(late=(3.0, 0.0))
    clock = PacketClock(clocks.wall, clocks.monotonic)
    clock.synchronize()
    assert clock.convert(*stamped(clocks, 0.004)) == pytest.approx(clocks.now - 0.004, abs=1e-6)
