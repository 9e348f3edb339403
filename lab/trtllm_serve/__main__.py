"""Run the simulated trtllm-serve: ``python -m lab.trtllm_serve``, with a flag per setting."""

from __future__ import annotations

import os
from contextlib import ExitStack
from tempfile import TemporaryDirectory

from aiohttp import web

from lab.engine_faults import simulate_load
from lab.trtllm_serve.flags import read_flags

_SHUTDOWN_SECONDS = 1.0


def main() -> None:
    """Serve on loopback until stopped."""
    port, settings, engine = read_flags()
    simulate_load(engine.faults_file)
    with ExitStack() as stack:
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            folder = stack.enter_context(TemporaryDirectory(prefix="trtllm-serve-"))
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        # prometheus_client reads the variable once, at its import.
        from lab.trtllm_serve.server import SimulatedTrtllmServe

        web.run_app(
            SimulatedTrtllmServe(settings, engine).app(),
            host=settings.addresses,
            port=port,
            access_log=None,
            print=None,
            shutdown_timeout=_SHUTDOWN_SECONDS,
        )


if __name__ == "__main__":
    main()
