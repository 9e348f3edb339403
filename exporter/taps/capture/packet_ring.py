"""Packets of network interfaces, from a ring buffer that the kernel shares (TPACKET_V3).

The kernel writes packets and their times into blocks, and hands a block over when it is full or
forty milliseconds old: one wake-up for many packets, and no system call for any.  The layout is
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
"""Stands for every interface."""
BLOCK = 256 << 10
"""Bytes of a block.  The largest packets, segments not cut up yet, take 64 KiB of one, and 192 KiB
where networks are set up for "BIG TCP"; of a larger one the end is missing."""
BLOCKS = 16
"""4 MiB in all: half a second of 20,000 token chunks per second.  A block that is handed over for
its age is gone however little is in it, so of less traffic the ring holds 640 ms."""
BLOCK_MILLISECONDS = 40
FRAME = 2048
"""Without effect on this kind of ring, but asked for."""

_STATUS = struct.Struct("=I")
_STATUS_AT = 8
_BLOCK_HEADER = struct.Struct("=8xIII")
_PACKET_HEADER = struct.Struct("=IIIIIIH")
CHECKSUM_PENDING, CHECKSUM_VALID = 8, 128
"""Of a packet's status: its checksum is filled in later, or was verified by kernel or device."""

Packet = tuple[int, int, int, int, int]
"""Seconds and nanoseconds of the wall clock, where in the buffer it starts and ends: at its IP
header, whatever the link, its outer VLAN tag taken off; and the status."""


class PacketRing:
    """Reads what passes an interface and a kernel filter.

    ``interface`` is a name or ``any``, ``program`` a classic BPF program.  Nothing comes in before
    the filter is in its place.  Raises OSError: PermissionError without CAP_NET_RAW.
    """

    def __init__(self, interface: str, program: bytes) -> None:
        self._interface = interface
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM)  # no protocol: no packets
        self._block = self._place = self._left = 0
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
        """Begin to read the interface, also after it was away; raises OSError."""
        indexes = {name: index for index, name in socket.if_nameindex()} | {ANY: 0}
        index = indexes.get(self._interface)
        if index is None:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        # Python's own bind takes no interface but one with a name.
        address = struct.pack("=HHi12x", socket.AF_PACKET, socket.htons(ETH_P_ALL), index)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.bind(self._socket.fileno(), address, len(address)):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def fileno(self) -> int:
        """Return the descriptor that is readable when there are packets."""
        return self._socket.fileno()

    def failure(self) -> int:
        """Return the errno of what befell the interface since the last call, 0 if nothing did."""
        return self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)

    def read(self, most: int) -> tuple[list[Packet], bool]:
        """Return the next packets in ``buffer``, good until the next call, at most ``most``.

        None if there are none now.  Also returns whether the kernel had to drop packets before
        them for want of room; ``dropped`` is how many so far.
        """
        losing = False
        if not self._left:
            losing = self._next_block()
        packets = []
        buffer, place, unpack = self.buffer, self._place, _PACKET_HEADER.unpack_from
        for _ in range(min(most, self._left)):
            following, seconds, nanoseconds, size, full, status, at = unpack(buffer, place)
            if size < full:
                status |= CHECKSUM_PENDING  # it cannot be verified without the packet's end
            packets.append((seconds, nanoseconds, place + at, place + at + size, status))
            place += following
        self._place = place
        self._left -= len(packets)
        return packets, losing

    def _next_block(self) -> bool:
        """Give the block back that was read, and go on to the next if there is one."""
        if self._held:
            _STATUS.pack_into(self.buffer, self._block * BLOCK + _STATUS_AT, STATUS_KERNEL)
            self._block = (self._block + 1) % BLOCKS
        start = self._block * BLOCK
        status, self._left, first = _BLOCK_HEADER.unpack_from(self.buffer, start)
        self._held = bool(status & STATUS_USER)
        if not self._held:
            self._left = 0
            return False
        self._place = start + first
        if status & STATUS_LOSING:
            counts = self._socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 12)
            self.dropped += struct.unpack("=III", counts)[1]  # since it was last asked
            return True
        return False

    def close(self) -> None:
        """Read no more."""
        self.buffer.close()
        self._socket.close()
