"""Play one incident with the demo's live view, and end with its diagnosis."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from diagnosis.report_text import as_text
from lab import demo
from lab.incidents.incident import Column, Incident
from lab.incidents.play import IncidentRun, play
from lab.incidents.result import IncidentResult
from lab.incidents.stage import service_name
from lab.stack import locked_folder

_COLUMN: Column = "proxy"
_REFRESH_SECONDS = 1.0


class _LiveView:
    """The live view of a run, and its last state."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._shown = float("-inf")
        self.run: IncidentRun | None = None

    def observe(self, run: IncidentRun) -> None:
        if self.run is None and not self._live.console.is_terminal:
            self._live.console.print(demo.urls(run.stage.stack))
        self.run = run
        if not self._live.console.is_terminal or time.monotonic() < self._shown + _REFRESH_SECONDS:
            return
        self._shown = time.monotonic()
        if state := demo.read_state(run.stage.stack, service_name(_COLUMN)):
            view = Group(_phase(run), demo.live_view(state, run.stage.stack))
            self._live.update(view, refresh=True)


def run_incident(incident: Incident, seed: int, output: Path, console: Console) -> None:
    """Play an incident until its alerts fire and the diagnosis is made; Ctrl-C ends it earlier.

    The folder ``run`` of ``output`` gets the servers' files.  Progress goes to the terminal, or to
    standard error in a pipe.  Raises as :func:`lab.incidents.play.play`.
    """
    terminal = console if console.is_terminal else Console(stderr=True)
    screen = Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop")

    def progress(text: str) -> None:
        if terminal.is_terminal:
            terminal.print(f"[dim]·[/dim] {text}", highlight=False)

    with suppress(KeyboardInterrupt), locked_folder(output / "run"), screen as live:
        view = _LiveView(live)
        result = play(
            incident,
            seed,
            output / "run/stage",
            columns=(_COLUMN,),
            progress=progress,
            observe=view.observe,
        )
        live.stop()
        assert view.run is not None  # noqa: S101 - a run is observed at its end
        console.print(_summary(incident, result))
        console.print(
            as_text(view.run.diagnoses[_COLUMN][1]), highlight=False, markup=False, soft_wrap=True
        )


def _phase(run: IncidentRun) -> Text:
    if run.seconds < 0:
        return Text(f"healthy; the incident begins in {-run.seconds:.0f} s\n", style="green")
    text = f"{run.incident.title}, for {run.seconds:.0f} s\n"
    return Text(text, style="red" if run.incident.harmful else "green")


def _summary(incident: Incident, result: IncidentResult) -> Text:
    """List the alerts by time after the onset."""
    lines = [f"{incident.key}: {incident.title}"]
    lines += [f"  {name}: {value}" for name, value in result.parameters.items()]
    lines.append("Alerts, by seconds after the onset:")
    for alert in result.columns[_COLUMN].alerts:
        window = f" over {alert.window}" if alert.window else ""
        lines.append(f"  {alert.seconds:5.1f}  {alert.severity:6}  {alert.name}{window}")
    if not result.columns[_COLUMN].alerts:
        lines.append("  none")
    return Text("\n".join(lines) + "\n")
