"""Run all checks over a configuration."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from config_checks.configuration import Configuration, threatened
from config_checks.findings import ConfigFault, ConfigFinding, ConfigReport
from config_checks.table import CHECKS, INPUTS


def check(
    config: Configuration, *, disabled: Collection[str] = (), notes: Sequence[str] = ()
) -> ConfigReport:
    """Return findings by file and line, and the checks that could not be made."""
    findings: list[ConfigFinding] = []
    unchecked: dict[tuple[str, str], None] = {}
    for id_, row in CHECKS.items():
        if id_ in disabled:
            continue
        missing = [INPUTS[key][1] for key in row.needs if not INPUTS[key][0](config)]
        if missing:
            unchecked[id_, "; ".join(missing)] = None
            continue
        for found in row.run(config):
            if isinstance(found, ConfigFault):
                findings.append(
                    ConfigFinding(
                        id_,
                        found.severity or row.severity,
                        found.setting.file,
                        found.setting.line,
                        found.setting.path,
                        found.evidence,
                        threatened(config, row.indicators),
                    )
                )
            else:
                unchecked[id_, found.reason] = None
    findings.sort(key=lambda one: (one.file, one.line, one.check))
    unique = {(one.check, one.file, one.line, one.evidence): one for one in findings}
    return ConfigReport(tuple(unique.values()), tuple(unchecked), tuple(notes))
