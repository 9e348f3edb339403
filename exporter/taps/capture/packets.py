"""Parse TCP segments in IP packets without link headers."""

from __future__ import annotations

import struct
from mmap import mmap
from typing import Literal, NamedTuple

FIN, SYN, RST, ACK = 0x01, 0x02, 0x04, 0x10

TCP, FRAGMENT = 6, 44
EXTENSIONS = (0, 43, 60)
"""IPv6 extension headers that are skipped: hop-by-hop, routing, destination options."""

_IPV4 = struct.Struct("!BxHxxHxB10x")
_IPV6 = struct.Struct("!B3xHB33x")
_TCP = struct.Struct("!HHIIBBH4x")
# Fast path: an IPv4 header without options, followed by TCP.
_IPV4_TCP = struct.Struct("!BxHxxHxB14xIIBBH4x")


class Segment(NamedTuple):
    """A TCP segment in a buffer.

    ``key`` is source address, destination address, source port and destination port: 12 bytes with
    IPv4 and 36 with IPv6.  ``seq``, ``ack``, ``flags`` and ``window`` (not
    scaled) are the header's.  The payload is ``buffer[start:end]``; it is cut where the buffer
    ends.  The TCP header starts at ``header``.
    """

    key: bytes
    seq: int
    ack: int
    flags: int
    window: int
    start: int
    end: int
    header: int


ParsedPacket = Segment | Literal["fragment"] | None
"""A segment, ``fragment``, or None if the packet is not TCP or is truncated."""


def parse_segment(buffer: bytes | mmap, start: int, end: int) -> ParsedPacket:
    """Parse the IP packet ``buffer[start:end]``; None if it has no complete TCP segment.

    A packet too long for its 16-bit length field has a 0 there, and ends with the buffer: the
    kernel delivers segments before segmentation and after merging.  Otherwise the field counts,
    because short Ethernet frames are padded.  Checksums are verified by :func:`is_intact`.
    """
    if end - start < 40:
        return None
    if buffer[start] == 0x45:
        _, total, fragment, protocol, seq, ack, offset, flags, window = _IPV4_TCP.unpack_from(
            buffer, start
        )
        if protocol != TCP:
            return None
        if fragment & 0x3FFF:
            return "fragment"
        payload = start + 20 + (offset >> 4 << 2)
        stop = start + total if total else end
        if stop > end:
            stop = end
        if offset < 0x50 or payload > stop:
            return None
        key = buffer[start + 12 : start + 24]
        return Segment(key, seq, ack, flags, window, payload, stop, start + 20)
    if buffer[start] >> 4 == 4:
        return _with_options(buffer, start, end)
    if buffer[start] >> 4 == 6:
        return _ipv6(buffer, start, end)
    return None


def is_intact(buffer: bytes | mmap, start: int, found: Segment) -> bool:
    """Return whether the TCP and IPv4 checksums of the packet at ``start`` are valid.

    The receiver drops a packet with invalid checksums.  The sum of RFC 1071 is 0 modulo 65,535.
    """
    if buffer[start] >> 4 == 4:
        size = (buffer[start] & 0x0F) << 2
        if int.from_bytes(buffer[start : start + size]) % 0xFFFF:
            return False
    segment = buffer[found.header : found.end]
    pseudo = found.key[:-4] + bytes((0, TCP)) + len(segment).to_bytes(4)
    return int.from_bytes(pseudo + segment + bytes(len(segment) & 1)) % 0xFFFF == 0


def reverse(key: bytes) -> bytes:
    """Return the key of the opposite direction."""
    size = (len(key) - 4) // 2
    return key[size : 2 * size] + key[:size] + key[-2:] + key[-4:-2]


def ports(key: bytes) -> tuple[int, int]:
    """Return source and destination port."""
    return int.from_bytes(key[-4:-2]), int.from_bytes(key[-2:])


def _with_options(buffer: bytes | mmap, start: int, end: int) -> ParsedPacket:
    first, total, fragment, protocol = _IPV4.unpack_from(buffer, start)
    length = (first & 0x0F) << 2
    if protocol != TCP or length < 20:
        return None
    if fragment & 0x3FFF:
        return "fragment"
    stop = min(start + total, end) if total else end
    return _tcp(buffer, buffer[start + 12 : start + 20], start + length, stop)


def _ipv6(buffer: bytes | mmap, start: int, end: int) -> ParsedPacket:
    _, total, header = _IPV6.unpack_from(buffer, start)
    stop = min(start + 40 + total, end) if total else end
    place = start + 40
    while header != TCP:
        if place + 8 > stop:
            return None
        if header == FRAGMENT:
            # A packet in one piece may carry this header too: no offset, and nothing follows.
            if int.from_bytes(buffer[place + 2 : place + 4]) & 0xFFF9:
                return "fragment"
        elif header not in EXTENSIONS:
            return None
        length = 8 if header == FRAGMENT else (buffer[place + 1] + 1) << 3
        header = buffer[place]
        place += length
    return _tcp(buffer, buffer[start + 8 : start + 40], place, stop)


def _tcp(buffer: bytes | mmap, addresses: bytes, start: int, stop: int) -> Segment | None:
    if start + 20 > stop:
        return None
    _, _, seq, ack, offset, flags, window = _TCP.unpack_from(buffer, start)
    payload = start + (offset >> 4 << 2)
    if offset < 0x50 or payload > stop:
        return None
    key = addresses + buffer[start : start + 4]
    return Segment(key, seq, ack, flags, window, payload, stop, start)
