"""Build the classic BPF program that filters packets of the capture tap in the kernel.

The filter gets packets from their IP header on, as a SOCK_DGRAM packet socket delivers them:
without link header and outer VLAN tag.  Of TCP over IPv4 and IPv6 to and from the ports of servers
it accepts:

- segments with payload, and those with SYN, FIN or RST;
- a client's bare acknowledgement only if it announces a window of zero.  All others carry no
  information, and are half of all packets of a token stream;
- the first fragment of a fragmented packet, to count it; later ones have no ports.

On loopback each packet appears twice, outgoing and incoming; the outgoing one is dropped.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence

from exporter.taps.capture.packets import EXTENSIONS, FRAGMENT, TCP

# Instructions, from linux/bpf_common.h: A is the accumulator, X the index register.
LOAD_WORD, LOAD_HALF, LOAD_BYTE = 0x20, 0x28, 0x30
LOAD_HALF_AT_X, LOAD_BYTE_AT_X = 0x48, 0x50
LOAD_LENGTH, LOAD_SAVED = 0x80, 0x60
X_IS, X_IS_HEADER_LENGTH, X_IS_SAVED, X_IS_A = 0x01, 0xB1, 0x61, 0x07
SAVE = 0x02
ADD, ADD_X, SUBTRACT_X, AND, SHIFT_LEFT, SHIFT_RIGHT = 0x04, 0x0C, 0x1C, 0x54, 0x64, 0x74
JUMP, IF_EQUAL, IF_ANY_BIT = 0x05, 0x15, 0x45
RETURN = 0x06

# Metadata of a packet, from linux/filter.h.
PACKET_TYPE, HARDWARE_TYPE = 0xFFFFF000 + 4, 0xFFFFF000 + 28
PACKET_OUTGOING, ARPHRD_LOOPBACK = 4, 772

MAX_EXTENSIONS = 4
"""A packet with more extension headers before TCP is dropped."""
MAX_PORTS = 256
"""Keeps the program below the kernel's limit of 4,096 instructions."""

WHOLE_PACKET = 0x40000
_TOTAL, _SCRATCH = 0, 1

Label = str
Step = Label | tuple[int, int] | tuple[int, Label] | tuple[int, int, Label, Label]
"""A label, an instruction, a jump, or a comparison with the targets for true and false (the next
instruction if empty)."""


def packet_filter(ports: Sequence[int]) -> bytes:
    """Return the program as an array of ``struct sock_filter``, for SO_ATTACH_FILTER."""
    return _assemble(
        (
            (LOAD_WORD, PACKET_TYPE),
            (IF_EQUAL, PACKET_OUTGOING, "", "ip"),
            (LOAD_WORD, HARDWARE_TYPE),
            (IF_EQUAL, ARPHRD_LOOPBACK, "drop", ""),
            "ip",
            (LOAD_BYTE, 0),
            (SHIFT_RIGHT, 4),
            (IF_EQUAL, 4, "ipv4", ""),
            (IF_EQUAL, 6, "ipv6", "drop"),
            *_ipv4(),
            *_ipv6(),
            *_tcp(ports),
            "keep",
            (RETURN, WHOLE_PACKET),
            "drop",
            (RETURN, 0),
        )
    )


def _ipv4() -> Iterator[Step]:
    """Save the total length, and set X to the start of the TCP header."""
    yield "ipv4"
    yield (LOAD_BYTE, 9)
    yield (IF_EQUAL, TCP, "", "drop")
    yield (LOAD_HALF, 6)
    yield (IF_ANY_BIT, 0x1FFF, "drop", "")
    yield (LOAD_HALF, 2)
    # Segments before segmentation offload may exceed this field, which is then 0.
    yield (IF_EQUAL, 0, "", "ipv4 total")
    yield (LOAD_LENGTH, 0)
    yield "ipv4 total"
    yield (SAVE, _TOTAL)
    yield (X_IS_HEADER_LENGTH, 0)
    yield (JUMP, "tcp")


def _ipv6() -> Iterator[Step]:
    """Do the same as `_ipv4`, skipping extension headers."""
    yield "ipv6"
    yield (LOAD_HALF, 4)
    yield (IF_EQUAL, 0, "ipv6 jumbo", "")
    yield (ADD, 40)
    yield (JUMP, "ipv6 total")
    yield "ipv6 jumbo"
    yield (LOAD_LENGTH, 0)
    yield "ipv6 total"
    yield (SAVE, _TOTAL)
    yield (X_IS, 40)
    yield (LOAD_BYTE, 6)
    for number in range(MAX_EXTENSIONS):
        step_over = f"extension {number}"
        yield (IF_EQUAL, TCP, "tcp", "")
        yield from ((IF_EQUAL, header, step_over, "") for header in EXTENSIONS)
        yield (IF_EQUAL, FRAGMENT, "", "drop")
        yield (LOAD_HALF_AT_X, 2)
        yield (IF_ANY_BIT, 0xFFF8, "drop", "")
        yield step_over
        yield (LOAD_BYTE_AT_X, 0)
        yield (SAVE, _SCRATCH)
        yield (LOAD_BYTE_AT_X, 1)  # its length in units of 8 bytes, less one; 0 in a fragment's
        yield (ADD, 1)
        yield (SHIFT_LEFT, 3)
        yield (ADD_X, 0)
        yield (X_IS_A, 0)
        yield (LOAD_SAVED, _SCRATCH)
    yield (IF_EQUAL, TCP, "tcp", "drop")


def _tcp(ports: Iterable[int]) -> Iterator[Step]:
    yield "tcp"
    yield (LOAD_HALF_AT_X, 2)
    yield from ((IF_EQUAL, port, "from client", "") for port in ports)
    yield (LOAD_HALF_AT_X, 0)
    yield from ((IF_EQUAL, port, "from server", "") for port in ports)
    yield (JUMP, "drop")
    yield "from client"
    yield (LOAD_HALF_AT_X, 14)
    yield (IF_EQUAL, 0, "keep", "")
    yield "from server"
    yield (LOAD_BYTE_AT_X, 13)
    yield (IF_ANY_BIT, 0b111, "keep", "")
    yield (LOAD_BYTE_AT_X, 12)
    yield (AND, 0xF0)
    yield (SHIFT_RIGHT, 2)
    yield (ADD_X, 0)
    yield (SAVE, _SCRATCH)
    yield (X_IS_SAVED, _SCRATCH)
    yield (LOAD_SAVED, _TOTAL)
    yield (SUBTRACT_X, 0)
    yield (IF_EQUAL, 0, "drop", "keep")


def _assemble(steps: Iterable[Step]) -> bytes:
    """Assemble the program; comparisons reach 255 instructions, so they continue with jumps."""
    places: dict[Label, int] = {}
    program: list[tuple[int, int, int, int | Label]] = []
    for step in steps:
        match step:
            case str(label):
                places[label] = len(program)
            case (code, operand):
                program.append((code, 0, 0, operand))
            case (code, value, then, ""):
                program += [(code, 0, 1, value), (JUMP, 0, 0, then)]
            case (code, value, "", otherwise):
                program += [(code, 1, 0, value), (JUMP, 0, 0, otherwise)]
            case (code, value, then, otherwise):
                program += [(code, 0, 1, value), (JUMP, 0, 0, then), (JUMP, 0, 0, otherwise)]
    return b"".join(
        struct.pack(
            "=HBBI",
            code,
            yes,
            no,
            places[operand] - place - 1 if isinstance(operand, str) else operand,
        )
        for place, (code, yes, no, operand) in enumerate(program)
    )
