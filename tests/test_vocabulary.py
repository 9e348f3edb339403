"""The vocabulary of everything that people read: banned words, summaries and class names."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import click
import pytest
from click.testing import CliRunner

from exporter.methods import METHODS
from slos.own_metrics import OWN_METRICS
from slos.signals import SIGNALS
from tokenslo.cli import cli

ROOT = Path(__file__).parent.parent
# The folders whose summaries, names of tests and class names are checked.
FOLDERS = (
    "admission",
    "alerts",
    "autoscaling",
    "bench",
    "config_checks",
    "dashboards",
    "diagnosis",
    "gates",
    "documents",
    "exporter",
    "lab",
    "loadtest",
    "usage",
    "promql",
    "runbooks",
    "slos",
    "tests",
    "tokenslo",
    "tools",
    "top",
)
LISTS = frozenset({"tests/test_vocabulary.py", "tests/test_runbooks.py"})
"""Modules with lists of banned words."""
# Class names that a library requires, so they may recur.
REQUIRED_NAMES = frozenset({"TritonPythonModel"})

# Personifications and private words, and the term to write instead.
BANNED = {
    r"told|tells?|telling": "report, return, distinguish",
    r"nobody|somebody|anybody": "name the person or component, or use the passive",
    r"vouch(?:es|ed)?": "guarantee",
    r"promis(?:e|es|ed|ing)": "objective",
    r"takes? in": "handle, read, receive",
    r"lets? go|letting go": "release, remove",
    r"is asked|are asked|asks for": "request, require, query",
    r"knows": "has, supports, records",
    r"so many": "a number of, at most N",
    r"roster": "model registry, connection table",
    r"ledger": "loss counter",
    r"likeness": "event template",
    r"first look": "baseline",
    r"befalls?|befell": "happen",
    r"passed[ _]over": "skipped",
    r"bucket edges?": "bucket boundary",
    r"trickle": "low traffic",
    r"stands? (?:in|inside|on|still|there)": "is defined, is allowed, is unchanged",
    r"unasked": "unsolicited",
    r"newborn|born late": "new series",
    r"naps?": "wake-up delays",
    r"surveys?": "scrape, snapshot",
    r"keepers?": "supervisor",
    r"surroundings": "context",
    r"stor(?:y|ies)": "scenario",
    r"asks|know": "request, require, query; has, supports, records",
    r"by then|in the same breath": "name the time or the event",
    r"not to be had": "unavailable",
    r"in their terms": "name the peer's terms",
    r"for ever": "endlessly",
}
PATTERN = re.compile(rf"\b(?:{'|'.join(BANNED)})\b", re.IGNORECASE)


# Code in backticks may have any word; "cannot tell" is a verdict of a diagnosis.
EXEMPT = re.compile(r"^```.*?^```$|`[^`\n]+`|\bcannot tell\b", re.MULTILINE | re.DOTALL)


def banned(text: str) -> list[str]:
    """Return the banned words of a text, with their context."""
    prose = EXEMPT.sub("", text)
    return [prose[max(0, m.start() - 30) : m.end() + 30] for m in PATTERN.finditer(prose)]


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, (*path, name))


@pytest.mark.parametrize("path", [*commands(cli)], ids=" ".join)
def test_help_has_no_banned_word(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(cli, [*path, "--help"])
    assert result.exit_code == 0
    assert banned(" ".join(result.output.split())) == []


def documents() -> Iterator[Path]:
    yield from (
        ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
    )
    yield from (ROOT / name for name in ("bench/README.md", "runbooks/evidence.yaml"))
    for folder in ("deploy", "lab"):
        yield from sorted((ROOT / folder).rglob("*.md"))
    yield from sorted((ROOT / "docs/man").iterdir())
    yield from sorted((ROOT / "docs").rglob("*.md"))
    for suffix in ("md", "yaml", "json"):
        yield from sorted((ROOT / "examples").rglob(f"*.{suffix}"))


@pytest.mark.parametrize("page", [*documents()], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_pages_and_generated_files_have_no_banned_word(page: Path) -> None:
    assert banned(page.read_text(encoding="utf-8")) == []


def test_help_of_metrics_and_methods_has_no_banned_word() -> None:
    texts = {
        **{f"{signal.metric} {signal.key}": signal.help for signal in SIGNALS.values()},
        **{name: help_ for name, (_, help_, _) in OWN_METRICS.items()},
        **{name: f"{method.description} {method.note}" for name, method in METHODS.items()},
    }
    assert {name: found for name, text in texts.items() if (found := banned(text))} == {}


DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Named(NamedTuple):
    """A text of a module, and its line."""

    line: int
    text: str


class ModuleTexts(NamedTuple):
    """What people read of a module; syntax trees of all modules would slow the collector down."""

    summaries: list[Named]
    """First docstring lines of the module, its classes and functions."""
    names_of_tests: list[Named]
    strings: list[Named]
    """Messages, names and docstrings."""
    classes: list[Named]
    identifiers: list[Named]
    """Names of functions, classes, arguments and variables, as words."""


# Where one word of an identifier ends: at an underscore, or at a change of case.
BETWEEN_WORDS = re.compile(r"_+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
# Names of standards, and of fields of other programs.
FOREIGN_NAMES = frozenset({"PUSH_PROMISE"})


def defined_name(node: ast.AST) -> str | None:
    """Return the name that a node defines, if it defines one."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            name = node.name
        case ast.arg():
            name = node.arg
        case ast.Name(ctx=ast.Store()):
            name = node.id
        case ast.Attribute(ctx=ast.Store()):
            name = node.attr
        case _:
            return None
    return None if name in FOREIGN_NAMES else name


def words_of(identifier: str) -> str:
    return BETWEEN_WORDS.sub(" ", identifier).strip()


def module_texts(source: str) -> ModuleTexts:
    texts = ModuleTexts([], [], [], [], [])
    for node in ast.walk(ast.parse(source)):
        if name := defined_name(node):
            texts.identifiers.append(Named(getattr(node, "lineno", 1), words_of(name)))
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                texts.strings.append(Named(node.lineno, node.value))
        elif isinstance(node, DEFINITIONS):
            line = getattr(node, "lineno", 1)
            summary = (ast.get_docstring(node) or "").partition("\n")[0]
            texts.summaries.append(Named(line, summary))
            if isinstance(node, ast.ClassDef):
                texts.classes.append(Named(line, node.name))
            elif not isinstance(node, ast.Module) and node.name.startswith("test_"):
                texts.names_of_tests.append(Named(line, node.name.replace("_", " ")))
    return texts


@cache
def read_texts(path: Path) -> ModuleTexts:
    return module_texts(path.read_text(encoding="utf-8"))


def modules(folders: Iterable[str]) -> Iterator[tuple[str, ModuleTexts]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), read_texts(path)


def banned_words(
    folders: Iterable[str], kind: Callable[[ModuleTexts], Iterable[Named]]
) -> dict[str, list[str]]:
    """Return the banned words of one kind of text by place."""
    return {
        f"{name}:{each.line}": words
        for name, texts in modules(folders)
        for each in kind(texts)
        if (words := banned(each.text))
    }


def test_summaries_have_no_banned_word() -> None:
    assert banned_words(FOLDERS, attrgetter("summaries")) == {}


def test_names_of_tests_have_no_banned_word() -> None:
    assert banned_words(FOLDERS, attrgetter("names_of_tests")) == {}


def test_identifiers_have_no_banned_word() -> None:
    assert banned_words(FOLDERS, attrgetter("identifiers")) == {}


def test_strings_have_no_banned_word() -> None:
    found = banned_words(FOLDERS, attrgetter("strings"))
    assert {at: words for at, words in found.items() if at.partition(":")[0] not in LISTS} == {}


def repeated(classes: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the places of every class name that occurs more than once."""
    places = defaultdict(list)
    for name, place in classes:
        places[name].append(place)
    return {name: found for name, found in places.items() if len(found) > 1}


def classes(folders: Iterable[str]) -> Iterator[tuple[str, str]]:
    for name, texts in modules(folders):
        for line, class_name in texts.classes:
            if class_name not in REQUIRED_NAMES:
                yield class_name.lstrip("_"), f"{name}:{line}"


def test_class_names_are_unique() -> None:
    assert repeated(classes(FOLDERS)) == {}


def test_a_banned_word_or_a_repeated_class_name_is_found() -> None:
    assert banned("The server tells\nthe client.") == ["The server tells\nthe client."]
    assert banned("`tells`, storytelling and a\n```\nledger\n```\n") == []
    assert module_texts('"""Nobody\n\nbut me."""\n').summaries == [(1, "Nobody")]
    functions = module_texts("def test_it_is_told(): ...\ndef help(): ...")
    assert functions.names_of_tests == [(1, "test it is told")]
    assert banned("test it is told")
    assert module_texts('x = f"{y} stands on line 1"\n').strings == [(1, " stands on line 1")]
    assert banned(" stands on line 1")
    assert module_texts("class A:\n    class B: ...").classes == [(1, "A"), (2, "B")]
    defined = module_texts("class ToldAll:\n  def f(self, a_ledger): self.x, HTTPStory = 1, 2")
    assert [name.text for name in defined.identifiers if banned(name.text)] == [
        "Told All",
        "a ledger",
        "HTTP Story",
    ]
    assert repeated([("A", "a.py:1"), ("B", "b.py:1"), ("A", "c.py:1")]) == {
        "A": ["a.py:1", "c.py:1"]
    }
