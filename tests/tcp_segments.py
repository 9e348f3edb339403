"""Hand-made TCP segments, as a packet socket delivers them: from the IP header on."""

from __future__ import annotations

import struct
from ipaddress import ip_address

FIN, SYN, RST, PSH, ACK = 0x01, 0x02, 0x04, 0x08, 0x10

CLIENT_ADDRESS, SERVER_ADDRESS = "192.0.2.10", "192.0.2.20"
CLIENT_PORT, SERVER_PORT = 40_000, 8000


def tcp(
    source: int = CLIENT_PORT,
    destination: int = SERVER_PORT,
    *,
    seq: int = 0,
    ack: int = 0,
    flags: int = ACK,
    window: int = 500,
    options: bytes = b"",
    data: bytes = b"",
) -> bytes:
    assert len(options) % 4 == 0
    offset = (20 + len(options)) // 4 << 4
    header = struct.pack("!HHIIBBHHH", source, destination, seq, ack, offset, flags, window, 0, 0)
    return header + options + data


def ipv4(
    payload: bytes,
    source: str = CLIENT_ADDRESS,
    destination: str = SERVER_ADDRESS,
    *,
    options: bytes = b"",
    fragment: int = 0x4000,
    protocol: int = 6,
    total: int | None = None,
) -> bytes:
    assert len(options) % 4 == 0
    size = 20 + len(options)
    header = struct.pack(
        "!BBHHHBBH4s4s",
        0x40 | size // 4,
        0,
        size + len(payload) if total is None else total,
        7,
        fragment,
        64,
        protocol,
        0,
        ip_address(source).packed,
        ip_address(destination).packed,
    )
    return header + options + payload


def ipv6(
    payload: bytes,
    source: str = "2001:db8::10",
    destination: str = "2001:db8::20",
    *,
    extensions: tuple[tuple[int, bytes], ...] = (),
    protocol: int = 6,
    length: int | None = None,
) -> bytes:
    """Return an IPv6 packet; ``extensions`` are the types and contents of extension headers."""
    after = b""
    following = protocol
    for kind, content in reversed(extensions):
        assert (len(content) + 2) % 8 == 0
        # A fragment header has a reserved byte in place of the length.
        units = 0 if kind == 44 else (len(content) + 2) // 8 - 1
        after = bytes([following, units]) + content + after
        following = kind
    after += payload
    header = struct.pack(
        "!IHBB16s16s",
        0x60000000,
        len(after) if length is None else length,
        following,
        64,
        ip_address(source).packed,
        ip_address(destination).packed,
    )
    return header + after


def with_checksums(packet: bytes) -> bytes:
    """Fill in the checksums of a packet without IPv6 extension headers, by RFC 1071."""
    if packet[0] >> 4 == 4:
        size = (packet[0] & 0x0F) * 4
        head = packet[:10] + bytes(2) + packet[12:size]
        head = head[:10] + _checksum(head) + head[12:]
        addresses = packet[12:20]
    else:
        head, addresses = packet[:40], packet[8:40]
    segment = packet[len(head) :]
    segment = segment[:16] + bytes(2) + segment[18:]
    pseudo = addresses + struct.pack("!HH", 6, len(segment) & 0xFFFF)
    return head + segment[:16] + _checksum(pseudo + segment) + segment[18:]


def _checksum(data: bytes) -> bytes:
    total = sum(int.from_bytes(data[at : at + 2].ljust(2, b"\0")) for at in range(0, len(data), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return (~total & 0xFFFF).to_bytes(2)
