"""Supervise one server: `python process_supervisor.py GRACE COMMAND…`.

The parent process holds the other end of standard input. When that end closes, on purpose or
because the parent died, the server's process group gets SIGTERM and, after GRACE seconds, SIGKILL.
(PR_SET_PDEATHSIG is bound to the thread that started the server, signals one process of the group
and waits for none.)

Prints the server's process id; exits with the server's code, 128 + n after signal n.
"""

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress


def supervise(command: list[str], grace: float) -> int:
    """Run `command` until it exits or standard input closes; return its exit code."""
    try:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, process_group=0)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: _signal(server, number))
    with suppress(BrokenPipeError):  # the parent has died: its end of standard input is closed
        print(server.pid, flush=True)
    ended, holder = os.pidfd_open(server.pid), sys.stdin.fileno()
    select.select([ended, holder], [], [])
    _signal(server, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        server.wait(grace)
    _signal(server, signal.SIGKILL)  # also the rest of the group, which may outlive the server
    code = server.wait()
    return code if code >= 0 else 128 - code


def _signal(server: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(server.pid, number)


if __name__ == "__main__":
    sys.exit(supervise(sys.argv[2:], float(sys.argv[1])))
