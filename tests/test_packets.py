"""Parse IP packets: valid, truncated and arbitrary bytes."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address
from mmap import mmap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.taps.capture.packets import Segment, is_intact, parse_segment, ports, reverse
from tests.tcp_segments import ACK, PSH, ipv4, ipv6, tcp, with_checksums

HOP_BY_HOP, ROUTING, FRAGMENT, DESTINATION, AUTHENTICATION = 0, 43, 44, 60, 51
NOTHING = bytes(6)


def read(packet: bytes) -> tuple[Segment, bytes]:
    found = parse_segment(packet, 0, len(packet))
    assert isinstance(found, Segment)
    return found, packet[found.start : found.end]


def test_ipv4() -> None:
    packet = ipv4(tcp(40000, 8000, seq=5, ack=7, flags=ACK | PSH, window=9, data=b"hello"))
    found, data = read(packet)
    assert (found.seq, found.ack, found.flags, found.window) == (5, 7, ACK | PSH, 9)
    assert data == b"hello"
    addresses = ip_address("192.0.2.10").packed + ip_address("192.0.2.20").packed
    assert found.key == addresses + (40000).to_bytes(2) + (8000).to_bytes(2)
    assert ports(found.key) == (40000, 8000)


@pytest.mark.parametrize("ip_options", [b"", b"\x94\x04\x00\x00"])
@pytest.mark.parametrize("tcp_options", [b"", b"\x01\x01\x08\x0a" + bytes(8)])
def test_options_are_stepped_over(ip_options: bytes, tcp_options: bytes) -> None:
    plain, _ = read(ipv4(tcp(data=b"x")))
    found, data = read(ipv4(tcp(seq=3, options=tcp_options, data=b"hello"), options=ip_options))
    assert (found.key, found.seq, data) == (plain.key, 3, b"hello")


def test_ipv6() -> None:
    found, data = read(ipv6(tcp(40000, 8000, seq=5, ack=7, window=9, data=b"hello")))
    assert (found.seq, found.ack, found.flags, found.window) == (5, 7, ACK, 9)
    assert data == b"hello"
    addresses = ip_address("2001:db8::10").packed + ip_address("2001:db8::20").packed
    assert found.key == addresses + (40000).to_bytes(2) + (8000).to_bytes(2)


@pytest.mark.parametrize(
    "extensions",
    [
        ((HOP_BY_HOP, NOTHING),),
        ((HOP_BY_HOP, NOTHING), (ROUTING, bytes(22)), (DESTINATION, bytes(14))),
        ((FRAGMENT, NOTHING),),  # "atomic": all of it in one piece
    ],
)
def test_extension_headers_are_stepped_over(extensions: tuple[tuple[int, bytes], ...]) -> None:
    plain, _ = read(ipv6(tcp()))
    found, data = read(ipv6(tcp(data=b"hello"), extensions=extensions))
    assert (found.key, data) == (plain.key, b"hello")


@pytest.mark.parametrize("options", [b"", bytes(4)])
@pytest.mark.parametrize("field", [0x2000, 0x2001, 0x0001])
def test_fragments_of_ipv4(field: int, options: bytes) -> None:
    packet = ipv4(tcp(data=b"x"), fragment=field, options=options)
    assert parse_segment(packet, 0, len(packet)) == "fragment"


@pytest.mark.parametrize("field", [b"\x00\x01", b"\x00\x08"])
def test_fragments_of_ipv6(field: bytes) -> None:
    packet = ipv6(tcp(data=b"x"), extensions=((FRAGMENT, field + bytes(4)),))
    assert parse_segment(packet, 0, len(packet)) == "fragment"


def test_packets_other_than_tcp_are_refused() -> None:
    udp = tcp(data=bytes(10))  # as far as the capture shows
    for packet in (
        ipv4(udp, protocol=17),
        ipv4(udp, protocol=17, options=bytes(4)),
        ipv6(udp, protocol=17),
        ipv6(tcp(), extensions=((AUTHENTICATION, NOTHING),)),
        b"\x00" * 60,
        b"",
    ):
        assert parse_segment(packet, 0, len(packet)) is None


def test_headers_longer_than_the_packet_are_refused() -> None:
    short = bytearray(tcp())
    short[12] = 0xF0  # 60 bytes of TCP header in 20
    nothing = bytearray(tcp())
    nothing[12] = 0x40  # less than the least
    for header in (bytes(short), bytes(nothing)):
        for packet in (ipv4(header), ipv4(header, options=bytes(4)), ipv6(header)):
            assert parse_segment(packet, 0, len(packet)) is None
    for packet in (ipv4(tcp(), total=39), ipv6(tcp(), length=19), ipv4(tcp(), options=bytes(4))):
        cut = packet[:43]
        assert parse_segment(cut, 0, len(cut)) is None
    headless = b"\x44" + ipv4(tcp())[1:]
    assert parse_segment(headless, 0, len(headless)) is None


def test_the_padding_of_short_frames_is_no_payload() -> None:
    assert read(ipv4(tcp(data=b"x")) + bytes(9))[1] == b"x"
    assert read(ipv4(tcp(data=b"x"), options=bytes(4)) + bytes(9))[1] == b"x"
    assert read(ipv6(tcp(data=b"x")) + bytes(9))[1] == b"x"


def test_packets_too_large_for_their_length_field() -> None:
    data = b"x" * 100_000
    assert read(ipv4(tcp(data=data), total=0))[1] == data
    assert read(ipv4(tcp(data=data), total=0, options=bytes(4)))[1] == data
    assert read(ipv6(tcp(data=data), length=0))[1] == data
    jumbo = (HOP_BY_HOP, b"\xc2\x04" + (100_020).to_bytes(4))
    assert read(ipv6(tcp(data=data), length=0, extensions=(jumbo,)))[1] == data


def test_truncated_packet_has_the_captured_payload() -> None:
    packet = ipv4(tcp(data=b"hello"))[:-2]
    assert read(packet)[1] == b"hel"


def test_in_the_middle_of_a_buffer() -> None:
    packet = ipv4(tcp(data=b"hello"))
    with mmap(-1, 4096) as buffer:
        buffer[100 : 100 + len(packet)] = packet
        found = parse_segment(buffer, 100, 100 + len(packet))
        assert isinstance(found, Segment)
        assert buffer[found.start : found.end] == b"hello"
        assert found.key == read(packet)[0].key


def test_the_other_direction() -> None:
    there, _ = read(ipv4(tcp(1, 2), "192.0.2.1", "192.0.2.2"))
    back, _ = read(ipv4(tcp(2, 1), "192.0.2.2", "192.0.2.1"))
    assert (reverse(there.key), reverse(back.key)) == (back.key, there.key)
    there, _ = read(ipv6(tcp(1, 2), "2001:db8::1", "2001:db8::2"))
    back, _ = read(ipv6(tcp(2, 1), "2001:db8::2", "2001:db8::1"))
    assert (reverse(there.key), reverse(back.key)) == (back.key, there.key)


@given(st.binary(max_size=120), st.sampled_from([b"", b"\x45", b"\x46", b"\x60"]))
def test_any_bytes_are_parsed_or_refused(noise: bytes, beginning: bytes) -> None:
    in_bounds(beginning + noise)


@given(st.data())
def test_any_changed_packet_is_parsed_or_refused(data: st.DataObject) -> None:
    packet = bytearray(
        data.draw(
            st.sampled_from(
                [
                    ipv4(tcp(data=b"hello")),
                    ipv4(tcp(data=b"hello"), options=bytes(8)),
                    ipv6(tcp(data=b"hello"), extensions=((0, NOTHING), (43, NOTHING))),
                ]
            )
        )
    )
    for _ in range(3):
        packet[data.draw(st.integers(0, len(packet) - 1))] = data.draw(st.integers(0, 255))
    in_bounds(bytes(packet[: data.draw(st.integers(0, len(packet)))]))


def in_bounds(packet: bytes) -> None:
    around = b"\xff" * 64
    found = parse_segment(around + packet, 64, 64 + len(packet))
    if isinstance(found, Segment):
        assert 64 + 40 <= found.start <= found.end <= 64 + len(packet)
        assert len(found.key) in (12, 36)
    else:
        assert found in (None, "fragment")


@pytest.mark.parametrize("wrap", [ipv4, ipv6])
@given(data=st.binary(max_size=9), options=st.sampled_from([b"", bytes(8)]), bit=st.integers(0))
def test_checksum_is_valid_for_the_sent_packet_only(
    wrap: Callable[[bytes], bytes], data: bytes, options: bytes, bit: int
) -> None:
    packet = with_checksums(wrap(tcp(seq=7, data=data, options=options)))
    buffer = b"before" + packet + b"after"
    end = 6 + len(packet)
    found = parse_segment(buffer, 6, end)
    assert isinstance(found, Segment)
    assert is_intact(buffer, 6, found)
    start = found.header
    at = start + bit // 8 % (end - start)
    broken = buffer[:at] + bytes((buffer[at] ^ 1 << bit % 8,)) + buffer[at + 1 :]
    assert not is_intact(broken, 6, found)


def test_a_broken_ip_header_is_not_intact() -> None:
    packet = with_checksums(ipv4(tcp()))
    broken = packet[:8] + b"\x01" + packet[9:]  # time to live
    found = parse_segment(broken, 0, len(broken))
    assert isinstance(found, Segment)
    assert not is_intact(broken, 0, found)
