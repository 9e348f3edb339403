"""Read packets from a ring buffer shared with the kernel (TPACKET_V3).

The kernel writes packets and their times into blocks, and hands a block over when it is full or
400 ms old: one wake-up for many packets, and no system call per packet.  The layout is
that of ``linux/if_packet.h``; see ``Documentation/networking/packet_mmap.rst`` of Linux.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
from mmap import mmap

SOL_PACKET = 263
PACKET_RX_RING, PACKET_STATISTICS, PACKET_VERSION, TPACKET_V3 = 5, 6, 10, 2
SO_ATTACH_FILTER = 26
ETH_P_ALL = 3
STATUS_KERNEL, STATUS_USER, STATUS_LOSING = 0, 1, 4

ANY = "any"
"""The name for all interfaces."""
BLOCK = 256 << 10
"""Bytes of a block.  The largest packets, segments before segmentation offload, take 64 KiB, and
192 KiB with "BIG TCP"; larger ones are truncated."""
BLOCKS = 16
"""4 MiB in all: half a second of 20,000 token chunks per second.  A block handed over for its age
may be almost empty, so at low traffic the ring holds 6.4 s."""
BLOCK_MILLISECONDS = 400
FRAME = 2048
"""Required by the kernel, without effect on this kind of ring."""

_STATUS = struct.Struct("=I")
_STATUS_AT = 8
_BLOCK_HEADER = struct.Struct("=8xIII")
_PACKET_HEADER = struct.Struct("=IIIIIIH")
CHECKSUM_PENDING, CHECKSUM_VALID = 8, 128
"""Status bits: the checksum is not computed yet; the kernel or the device verified it."""

Packet = tuple[int, int, int, int, int]
"""Seconds and nanoseconds of the wall clock, start and end in the buffer, and the status.  A packet
starts at its IP header, without link header and outer VLAN tag."""


class PacketRing:
    """The packets of an interface that pass a kernel filter.

    ``interface`` is a name or ``any``, ``program`` a classic BPF program.  No packet is received
    before the filter is attached.  Raises OSError: PermissionError without CAP_NET_RAW.
    """

    def __init__(self, interface: str, program: bytes) -> None:
        self._interface = interface
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM)  # no protocol: no packets
        self._block = self._place = self._remaining = 0
        self._held = False
        self.dropped = 0
        try:
            self._attach(program)
            self._socket.setsockopt(SOL_PACKET, PACKET_VERSION, TPACKET_V3)
            frames = BLOCK // FRAME * BLOCKS
            ring = struct.pack("=7I", BLOCK, BLOCKS, FRAME, frames, BLOCK_MILLISECONDS, 0, 0)
            self._socket.setsockopt(SOL_PACKET, PACKET_RX_RING, ring)
            self.buffer = mmap(self._socket.fileno(), BLOCK * BLOCKS)
            self.bind()
        except OSError:
            self._socket.close()
            raise

    def _attach(self, program: bytes) -> None:
        instructions = ctypes.create_string_buffer(program, len(program))
        filter_ = struct.pack("HP", len(program) // 8, ctypes.addressof(instructions))
        self._socket.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, filter_)

    def bind(self) -> None:
        """Bind to the interface, also again after it was down; raises OSError."""
        indexes = {name: index for index, name in socket.if_nameindex()} | {ANY: 0}
        index = indexes.get(self._interface)
        if index is None:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        # Python's own bind does not support index 0, which is all interfaces.
        address = struct.pack("=HHi12x", socket.AF_PACKET, socket.htons(ETH_P_ALL), index)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.bind(self._socket.fileno(), address, len(address)):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def fileno(self) -> int:
        """Return the file descriptor, which is readable when there are packets."""
        return self._socket.fileno()

    def failure(self) -> int:
        """Return the errno of an error of the interface since the last call, or 0."""
        return self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)

    def read(self, most: int) -> tuple[list[Packet], bool]:
        """Return at most ``most`` next packets in ``buffer``, valid until the next call.

        Also return whether the kernel dropped packets before them because the ring was full;
        ``dropped`` counts them.
        """
        losing = False
        if not self._remaining:
            losing = self._next_block()
        packets = []
        buffer, place, unpack = self.buffer, self._place, _PACKET_HEADER.unpack_from
        for _ in range(min(most, self._remaining)):
            following, seconds, nanoseconds, size, full, status, at = unpack(buffer, place)
            if size < full:
                status |= CHECKSUM_PENDING  # a truncated packet cannot be verified
            packets.append((seconds, nanoseconds, place + at, place + at + size, status))
            place += following
        self._place = place
        self._remaining -= len(packets)
        return packets, losing

    def _next_block(self) -> bool:
        """Return the current block to the kernel, and continue with the next if there is one."""
        if self._held:
            _STATUS.pack_into(self.buffer, self._block * BLOCK + _STATUS_AT, STATUS_KERNEL)
            self._block = (self._block + 1) % BLOCKS
        start = self._block * BLOCK
        status, self._remaining, first = _BLOCK_HEADER.unpack_from(self.buffer, start)
        self._held = bool(status & STATUS_USER)
        if not self._held:
            self._remaining = 0
            return False
        self._place = start + first
        if status & STATUS_LOSING:
            counts = self._socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 12)
            self.dropped += struct.unpack("=III", counts)[1]  # since the previous call
            return True
        return False

    def close(self) -> None:
        """Release the ring and the socket."""
        self.buffer.close()
        self._socket.close()
