"""The privilege that packet capture needs."""

from __future__ import annotations

import os
import socket

from lab.toolchain import UnavailableProgram


def need_capture() -> None:
    """Raise UnavailableProgram if packets cannot be captured, so that the test is skipped."""
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM).close()
    except PermissionError:
        raise UnavailableProgram(
            "packet capture", "CAP_NET_RAW is missing", "run as root"
        ) from None
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise UnavailableProgram("packet capture", reason, "run on Linux") from None
