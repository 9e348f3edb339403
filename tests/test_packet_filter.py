"""The packet filter, run by the kernel on the traffic of a socket pair."""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Callable, Iterator

import pytest

from exporter.taps.capture.packet_filter import MAX_PORTS, packet_filter
from tests.tcp_segments import ACK, FIN, PSH, RST, SYN, ipv4, ipv6, tcp

SO_ATTACH_FILTER = 26
NOTHING = bytes(6)
PORTS = (8000, 8001)

Wrap = Callable[[bytes], bytes]


class Sieve:
    """What comes through a program."""

    def __init__(self, program: bytes) -> None:
        self.ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        instructions = ctypes.create_string_buffer(program, len(program))
        address = struct.pack("HP", len(program) // 8, ctypes.addressof(instructions))
        self.ends[1].setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, address)
        self.ends[1].setblocking(False)

    def passes(self, packet: bytes) -> bool:
        self.ends[0].send(packet)
        try:
            came = self.ends[1].recv(1 << 18)
        except BlockingIOError:
            return False
        assert came == packet, "a part of it"
        return True


@pytest.fixture(scope="module")
def sieve() -> Iterator[Sieve]:
    sieve = Sieve(packet_filter(PORTS))
    yield sieve
    for end in sieve.ends:
        end.close()


WRAPS: dict[str, Wrap] = {
    "ipv4": ipv4,
    "ipv4 with options": lambda payload: ipv4(payload, options=bytes(8)),
    "ipv6": ipv6,
    "ipv6 with a header": lambda payload: ipv6(payload, extensions=((0, NOTHING),)),
    "ipv6 with headers": lambda payload: ipv6(
        payload, extensions=((0, NOTHING), (60, bytes(14)), (43, bytes(22)), (44, NOTHING))
    ),
}
wrapped = pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS.keys())
with_options = pytest.mark.parametrize("options", [b"", bytes(12)], ids=["", "tcp options"])
TO_SERVER, TO_CLIENT = (40000, 8000), (8001, 40000)
directed = pytest.mark.parametrize("ports", [TO_SERVER, TO_CLIENT], ids=["up", "down"])


@wrapped
@with_options
@directed
def test_payload_passes(sieve: Sieve, wrap: Wrap, options: bytes, ports: tuple[int, int]) -> None:
    assert sieve.passes(wrap(tcp(*ports, flags=ACK | PSH, options=options, data=b"x")))


@wrapped
@with_options
@directed
def test_a_bare_acknowledgement_does_not(
    sieve: Sieve, wrap: Wrap, options: bytes, ports: tuple[int, int]
) -> None:
    assert not sieve.passes(wrap(tcp(*ports, options=options)))


@wrapped
@directed
@pytest.mark.parametrize("flags", [SYN, SYN | ACK, FIN | ACK, RST, RST | ACK])
def test_segments_with_syn_fin_or_rst_pass(
    sieve: Sieve, wrap: Wrap, ports: tuple[int, int], flags: int
) -> None:
    assert sieve.passes(wrap(tcp(*ports, flags=flags)))


@wrapped
def test_only_zero_windows_of_clients_pass(sieve: Sieve, wrap: Wrap) -> None:
    assert sieve.passes(wrap(tcp(*TO_SERVER, window=0)))
    assert not sieve.passes(wrap(tcp(*TO_CLIENT, window=0)))


@wrapped
def test_other_ports_do_not_pass(sieve: Sieve, wrap: Wrap) -> None:
    for ports in ((40000, 8002), (8002, 40000), (40000, 80)):
        assert not sieve.passes(wrap(tcp(*ports, flags=SYN, data=b"x")))


def test_other_protocols_do_not_pass(sieve: Sieve) -> None:
    payload = tcp(flags=SYN, data=b"x")
    for packet in (
        ipv4(payload, protocol=17),
        ipv6(payload, protocol=17),
        ipv6(payload, protocol=17, extensions=((0, NOTHING),)),
        ipv6(payload, extensions=((51, NOTHING),)),
        ipv6(payload, extensions=((0, NOTHING),) * 5),
        b"\x00" + ipv4(payload)[1:],
        b"\x45",
        b"",
    ):
        assert not sieve.passes(packet)


def test_of_fragments_the_first_passes_to_be_counted(sieve: Sieve) -> None:
    payload = tcp(data=b"x")
    assert sieve.passes(ipv4(payload, fragment=0x2000))
    assert not sieve.passes(ipv4(payload, fragment=0x2001))
    assert not sieve.passes(ipv4(payload, fragment=0x0001))
    assert sieve.passes(ipv6(payload, extensions=((44, b"\x00\x01" + bytes(4)),)))
    assert not sieve.passes(ipv6(payload, extensions=((44, b"\x00\x08" + bytes(4)),)))


def test_the_padding_of_short_frames_is_no_payload(sieve: Sieve) -> None:
    assert not sieve.passes(ipv4(tcp()) + bytes(6))
    assert not sieve.passes(ipv6(tcp()) + bytes(6))


def test_packets_too_large_for_their_length_field_pass(sieve: Sieve) -> None:
    data = b"x" * 66_000
    assert sieve.passes(ipv4(tcp(data=data), total=0))
    assert sieve.passes(ipv6(tcp(data=data), length=0))


def test_many_ports() -> None:
    many = tuple(range(1000, 1000 + MAX_PORTS))
    sieve = Sieve(packet_filter(many))
    for wrap in (ipv4, ipv6):
        for port in (many[0], many[-1]):
            assert sieve.passes(wrap(tcp(40000, port, data=b"x")))
            assert sieve.passes(wrap(tcp(port, 40000, data=b"x")))
        assert not sieve.passes(wrap(tcp(40000, 1000 + MAX_PORTS, data=b"x")))
    for end in sieve.ends:
        end.close()
