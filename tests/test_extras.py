"""The extras of the distribution, and the error about a missing one."""

from __future__ import annotations

import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tokenslo import cli
from tokenslo.extras import EXTRAS, missing_extra, require

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NOT_FOR_USERS = {"all", "test"}


def names(extra: str) -> set[str]:
    return {
        canonicalize_name(Requirement(text).name)
        for text in PROJECT["optional-dependencies"][extra]
    }


def test_every_library_of_an_extra_is_known() -> None:
    of_module = packages_distributions()
    for extra in {*PROJECT["optional-dependencies"]} - NOT_FOR_USERS:
        modules = [name for name, its_extra in EXTRAS.items() if its_extra == extra]
        found = {canonicalize_name(each) for name in modules for each in of_module[name]}
        assert names(extra) <= found, extra


def test_the_extra_all_has_every_extra() -> None:
    [every] = PROJECT["optional-dependencies"]["all"]
    assert Requirement(every).extras == {*PROJECT["optional-dependencies"]} - NOT_FOR_USERS
    assert {*EXTRAS.values()} == Requirement(every).extras


def test_a_missing_library_is_one_error_that_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(*_: object, **__: object) -> None:
        raise ModuleNotFoundError("No module named 'rich.live'", name="rich.live")

    monkeypatch.setattr(cli.cli, "main", missing)
    with pytest.raises(SystemExit) as stopped:
        cli.main([])
    assert stopped.value.code == 2
    assert capsys.readouterr().err == (
        "tokenslo: the library rich.live is not installed. Fix: pip install 'tokenslo[terminal]'\n"
    )


def test_a_missing_module_of_tokenslo_is_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise ModuleNotFoundError("No module named 'slos.x'", name="slos.x")

    monkeypatch.setattr(cli.cli, "main", missing)
    with pytest.raises(ModuleNotFoundError):
        cli.main([])


def test_require_finds_the_first_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    require("exporter", "generate")
    monkeypatch.setattr("tokenslo.extras.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError) as raised:
        require("exporter")
    assert (raised.value.name, missing_extra(raised.value)) == ("bcrypt", "exporter")
