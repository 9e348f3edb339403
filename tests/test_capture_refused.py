"""A capture tap that cannot start reports the reason and the fix."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from exporter.taps.capture.capture_tap import CaptureTap
from exporter.taps.tap import CaptureSpec
from slos.errors import InvalidFile
from tests.recording_observer import RecordingObserver

ROOT = Path(__file__).parent.parent


async def test_capture_with_too_many_ports_is_refused() -> None:
    with pytest.raises(InvalidFile, match="names more than 256 ports"):
        await CaptureTap(CaptureSpec("lo", tuple(range(1, 258))), RecordingObserver, print).start()


def test_capture_without_the_privilege_is_refused() -> None:
    script = """
        import asyncio
        from exporter.taps.capture.capture_tap import CaptureTap
        from exporter.taps.process.privileges import drop_capabilities
        from exporter.taps.tap import CaptureSpec
        drop_capabilities()
        tap = CaptureTap(CaptureSpec("eth0", (8000, 8001)), None, None)
        try:
            asyncio.run(tap.start())
        except ValueError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", dedent(script)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == (
        "tokenslo exporter: tap: capture=eth0:8000,8001 needs the capability CAP_NET_RAW. Fix: run "
        "the container as root with securityContext.capabilities.add: [NET_RAW], or run `setcap "
        f"cap_net_raw+ep {Path(sys.executable).resolve()}`, or use a tap without privileges: --tap "
        "proxy=LISTEN=UPSTREAM.\n"
    )
