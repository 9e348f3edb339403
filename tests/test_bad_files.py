"""Bad files and sections: one error with file, line and fix, exit code 2, and nothing written."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from tokenslo.cli import cli, main
from tokenslo.file_name import FILE_NAME

PROMETHEUS = ("--prometheus", "http://127.0.0.1:9")
ARMS = ("--baseline", "version=1", "--canary", "version=2", "--for", "15m")
SERVER = "http://127.0.0.1:9"
# Command and parameter: the arguments with "?" for the bad file.
ARGUMENTS: dict[tuple[str, str], tuple[str, ...]] = {
    ("backtest", "files"): ("?", *PROMETHEUS),
    ("backtest", "http_config"): ("slo.yaml", *PROMETHEUS, "--http-config", "?"),
    ("check-config", "paths"): ("?",),
    ("check-config", "slo"): ("slo.yaml", "--slo", "?"),
    ("check-config", "capacity"): ("slo.yaml", "--slo", "slo.yaml", "--capacity", "?"),
    ("check-config", "topology"): ("slo.yaml", "--topology", "?"),
    ("convert", "file"): ("?", "-o", "out.yaml"),
    ("diagnose", "files"): (*PROMETHEUS, "--slo", "?"),
    ("diagnose", "http_config"): (*PROMETHEUS, "--http-config", "?"),
    ("diagnose", "sidecar_http"): (*PROMETHEUS, "--sidecar-http-config", "?"),
    ("doctor", "slo"): (SERVER, "--slo", "?"),
    ("doctor", "capacity"): (SERVER, "--slo", "slo.yaml", "--capacity", "?"),
    ("doctor", "http_config"): (SERVER, "--http-config", "?"),
    ("explain", "files"): ("?",),
    ("exporter", "config"): ("--config", "?"),
    ("exporter", "http_config"): ("--triton", SERVER, "--http-config", "?"),
    ("exporter", "slo"): ("--triton", SERVER, "--slo", "?"),
    ("exporter", "web_config"): ("--triton", SERVER, "--web-config", "?"),
    ("gate", "files"): ("?", *PROMETHEUS, *ARMS),
    ("gate", "http_config"): ("slo.yaml", *PROMETHEUS, *ARMS, "--http-config", "?"),
    ("generate", "files"): ("?", "-o", "out"),
    ("generate", "http_config"): (
        "slo.yaml",
        "-o",
        "out",
        "--metrics",
        SERVER,
        "--http-config",
        "?",
    ),
    ("generate", "metrics"): ("slo.yaml", "-o", "out", "--metrics", "?"),
    ("init", "http_config"): (SERVER, "-o", "out.yaml", "--http-config", "?"),
    ("lint", "files"): ("?",),
    ("lint", "http_config"): ("slo.yaml", "--metrics", SERVER, "--http-config", "?"),
    ("lint", "metrics"): ("slo.yaml", "--metrics", "?"),
    ("load", "slo"): (SERVER, "--model", "m", "-o", "out", "--slo", "?"),
    ("load", "http_config"): (SERVER, "--model", "m", "-o", "out", "--http-config", "?"),
    ("load", "sidecar_http"): (
        *(SERVER, "--model", "m", "-o", "out", "--sidecar", SERVER),
        *("--sidecar-http-config", "?"),
    ),
    ("load", "against_http"): (
        *(SERVER, "--model", "m", "-o", "out", "--against", SERVER),
        *("--against-http-config", "?"),
    ),
    ("report", "http_config"): (*PROMETHEUS, "--gpu-hour-price", "1", "--http-config", "?"),
    ("server-config", "files"): ("?",),
    ("server-config", "capacity"): ("slo.yaml", "--capacity", "?"),
    ("top", "http_config"): (SERVER, "--http-config", "?"),
    ("validate", "files"): ("?",),
    ("validate", "http_config"): ("slo.yaml", "--metrics", SERVER, "--http-config", "?"),
    ("validate", "metrics"): ("slo.yaml", "--metrics", "?"),
}
OF_OTHER_TESTS = {
    ("exporter", "jpath"): "a folder, which must exist",
    ("exporter", "tap_tls_certificate"): "OpenSSL reads it",
    ("exporter", "tap_tls_key"): "OpenSSL reads it",
    ("exporter", "tap_upstream_ca"): "OpenSSL reads it",
    ("exporter", "trtllm_iterations"): "a log that is followed, and may not exist yet",
}
BAD = ("missing", "empty", "latin", "number", "folder", "huge")
SLO = """\
apiVersion: tokenslo/v1
service: chat
selector: {model: llama}
objectives:
  - {name: a, indicator: availability, target: 99%}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("bad")
    (place / "slo.yaml").write_text(SLO)
    (place / "empty.yaml").touch()
    (place / "latin.yaml").write_bytes(b"# one\nservice: caf\xe9\n")
    (place / "number.yaml").write_text("7\n")
    (place / "folder.yaml").mkdir()
    with (place / "huge.yaml").open("wb") as file:
        file.truncate(300 << 20)
    return place


def file_parameters() -> set[tuple[str, str]]:
    """Return the parameters of all commands that name a file."""
    context = click.Context(cli)
    return {
        (name, str(parameter.name))
        for name in cli.list_commands(context)
        for parameter in getattr(cli.get_command(context, name), "params", ())
        if parameter.type is FILE_NAME
    }


def test_every_file_of_a_command_is_in_the_table() -> None:
    assert file_parameters() == {*ARGUMENTS, *OF_OTHER_TESTS}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("parameter", ARGUMENTS, ids=" ".join)
def test_a_bad_file_is_one_error_with_a_fix(
    parameter: tuple[str, str],
    bad: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    name = f"{bad}.yaml"
    before = sorted(folder.iterdir())
    arguments = [name if each == "?" else each for each in ARGUMENTS[parameter]]
    with pytest.raises(SystemExit) as ended:
        main([parameter[0], *arguments])
    printed = capsys.readouterr()
    assert ended.value.code == 2, printed.err
    (error,) = [line for line in printed.err.splitlines() if name in line]
    assert error.startswith(f"{name}:2: " if bad == "latin" else name), error
    assert " Fix: " in error
    assert "Traceback" not in printed.err
    assert sorted(folder.iterdir()) == before


WRONG = ("null", "''", "7", "true", "[null]", "[[1]]", "{x: 1}", "1e999", ".nan", "text")


@pytest.mark.parametrize("value", WRONG)
@pytest.mark.parametrize("section", ["prompt_classes", "rollout", "autoscaling", "quotas"])
def test_a_section_of_a_wrong_type_is_refused_at_its_line(
    section: str,
    value: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("slo.yaml").write_text(f"{SLO}{section}: {value}\n")
    with pytest.raises(SystemExit) as ended:
        main(["generate", "slo.yaml", "-o", "out"])
    errors = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert errors
    for error in errors:
        assert error.startswith(f"slo.yaml:6: {section}"), error
        assert " Fix: " in error
    assert [*tmp_path.iterdir()] == [tmp_path / "slo.yaml"]
