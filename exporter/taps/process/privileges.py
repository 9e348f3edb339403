"""Drop the privileges of the process."""

from __future__ import annotations

import ctypes
import os
import struct

PR_SET_NO_NEW_PRIVS = 38
CAPABILITY_VERSION_3 = 0x20080522


def drop_capabilities() -> None:
    """Drop all capabilities of this thread and of its future children, irrevocably.

    Open sockets stay open.  Raises OSError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    own = struct.pack("=Ii", CAPABILITY_VERSION_3, 0)
    none = bytes(24)  # effective, permitted, inheritable; two words each
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.capset(own, none):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
