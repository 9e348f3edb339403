"""Arguments of benches: an unknown or invalid one exits with code 2 and one error."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bench import (
    autoscaling,
    command_growth,
    evaluation,
    fleet,
    gates,
    gateway,
    generate,
    growth,
    installation,
    paging,
    peers,
    rules,
    startup,
)


@pytest.mark.parametrize(
    ("main", "argument", "error"),
    [
        (
            rules.main,
            "sizes",
            "unknown table sizes; choose from peers, generated, written, others, costs",
        ),
        (peers.main, "costs", "unknown table costs; choose from sizes, pages"),
        (evaluation.main, "old", "unknown history old; choose from young, full"),
        (paging.main, "many", "SEEDS is 'many', not an integer of at least 1"),
        (installation.main, "0", "ROUNDS is '0', not an integer of at least 1"),
        (generate.main, "0", "COUNT is '0', not an integer of at least 1"),
        (startup.main, "0", "ROUNDS is '0', not an integer of at least 1"),
        (
            command_growth.main,
            "top",
            "unknown command top; choose from generate, explain, lint, backtest",
        ),
        (autoscaling.main, "0", "HOURS is '0', not an integer of at least 1"),
        (gates.main, "0", "CANARIES is '0', not an integer of at least 1"),
        (growth.main, "many", "unknown table many; choose from models, streams, tokens, series"),
    ],
)
def test_bad_argument_exits_with_code_2_and_one_error(
    main: Callable[[str], None], argument: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argument)
    assert (caught.value.code, *capsys.readouterr()) == (2, "", f"error: {error}\n")


@pytest.mark.parametrize(
    ("main", "arguments", "error"),
    [
        (fleet.main, ["--sidecars", "0"], "--sidecars is '0', not an integer of at least 1"),
        (
            fleet.main,
            ["--rules", "Nobl9"],
            "unknown rules Nobl9; choose from none, tokenslo, Sloth, Pyrra",
        ),
        (gateway.main, ["--requests", "x"], "--requests is 'x', not an integer of at least 1"),
    ],
)
def test_bad_option_exits_with_code_2_and_one_error(
    main: Callable[[], None],
    arguments: list[str],
    error: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.argv", ["bench", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    assert (caught.value.code, *capsys.readouterr()) == (2, "", f"error: {error}\n")
