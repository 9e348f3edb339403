"""Read metrics that Rust code declares with the ``prometheus`` crate or Dynamo's wrappers of it.

Constants (``mod names { pub const X: &str = "…"; }``) are followed through ``format!``, functions
and closures that build names.  This reads text, not Rust: what it does not understand is reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tools.catalogues.family import Declarations, DeclaredMetric, files

_NEW = re.compile(r"\b\w*?(Counter|Gauge|Histogram)(Vec)?::(?:new|with_opts)\(")
_CREATE = re.compile(r"\.create_(?:int)?(counter|gauge|histogram)(vec)?\(")
_CONSTANT = re.compile(r'const\s+(\w+)\s*:\s*&(?:\'static\s+)?str\s*=\s*"((?:[^"\\]|\\.)*)"\s*;')
_MODULE = re.compile(r"\bmod\s+(\w+)\s*\{|[{}]|" + _CONSTANT.pattern)
_IMPORT = re.compile(r"\b(\w+)\s+as\s+(\w+)")
_BUILDER = re.compile(
    r"(?:\blet\s+(?P<closure>\w+)\s*=\s*(?:move\s*)?\|(?P<given>[^|]*)\|"
    r"|\bfn\s+(?P<function>\w+)\s*(?:<[^>]*>)?\((?P<taken>[^)]*)\))"
)
_TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')
_NUMBERS = re.compile(r"vec!\[([0-9eE.,\s_+-]*)\]")
_METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_DEEPEST = 8


@dataclass(slots=True)
class _RustFile:
    path: str
    text: str
    constants: dict[str, str] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Prefixes and labels that ``.create_…`` adds in some files: Dynamo's component metrics."""

    prefix: str
    labels: tuple[str, ...]


def declarations(
    root: Path,
    folders: Iterable[str],
    variables: Mapping[str, str],
    hierarchies: Mapping[str, Hierarchy],
) -> Declarations:
    """Return all families.

    ``variables`` are values that callers pass; ``hierarchies`` are by the beginning of the file's
    name, "" for the others.
    """
    sources = [_read(path, text) for path, text in files(root, folders, ".rs")]
    shared: dict[str, str] = {}
    for source in sources:
        shared |= {name: value for name, value in source.constants.items() if "::" in name}
    families: list[DeclaredMetric] = []
    unread: list[str] = []
    for source in sources:
        reader = _Reader(source, {**shared, **source.constants, **variables})
        name = source.path.rpartition("/")[2]
        hierarchy = next(
            (each for start, each in hierarchies.items() if start and name.startswith(start)),
            hierarchies[""],
        )
        for found in (*_NEW.finditer(source.text), *_CREATE.finditer(source.text)):
            declared = [*reader.declared(found, hierarchy)]
            if declared:
                families += declared
            elif reader.counts(found):
                unread.append(f"{source.path}:{source.text.count(chr(10), 0, found.start()) + 1}")
    return Declarations(tuple(families), tuple(unread))


def _read(path: str, text: str) -> _RustFile:
    text = re.split(r"#\[cfg\(test\)\]\s*(?:pub\s+)?mod\s", text)[0]
    text = re.sub(r"(?m)^[ \t]*//.*$", "", text)
    source = _RustFile(path, text)
    around: list[str] = []
    for found in _MODULE.finditer(text):
        if found[1]:
            around.append(found[1])
        elif found[0] == "{":
            around.append("")
        elif found[0] == "}":
            around = around[:-1]
        else:
            module = next((each for each in reversed(around) if each), "")
            source.constants[f"{module}::{found[2]}" if module else found[2]] = found[3]
            source.constants.setdefault(found[2], found[3])
    source.aliases = {new: old for old, new in _IMPORT.findall(text)}
    return source


class _Reader:
    """The declarations of one file."""

    def __init__(self, source: _RustFile, constants: Mapping[str, str]) -> None:
        self._source, self._text, self._constants = source, source.text, constants

    def counts(self, found: re.Match[str]) -> bool:
        """Whether a place must be a declaration: not the definition of a wrapper itself."""
        before = self._text[max(0, found.start() - 30) : found.start()]
        return "fn " not in before and bool(_arguments(self._text, found.end()))

    def declared(self, found: re.Match[str], hierarchy: Hierarchy) -> Iterator[DeclaredMetric]:
        arguments = _arguments(self._text, found.end())
        if not arguments:
            return
        wrapped = found[0].startswith(".create_")
        kind, vector = found[1].lower(), bool(found[2])
        first = arguments[0]
        if not wrapped and (options := re.search(r"(?:Opts|opts!?)(?:::new)?\(", first)):
            first = (_arguments(first, options.end()) or [first])[0]
        buckets = None
        if kind == "histogram" and (listed := _NUMBERS.search(" ".join(arguments))):
            buckets = tuple(
                float(each) for each in listed[1].replace("_", "").split(",") if each.strip()
            )
        labels: tuple[str, ...] | None = ()
        if vector:
            labels = self._labels(arguments[2 if wrapped else 1 :])
        if ".const_label" in arguments[0] and labels is not None:
            inner = re.findall(r"\.const_label\(([^,]+),", arguments[0])
            extra = [self._evaluate(each, found.start()) for each in inner]
            labels = None if [] in extra else (*labels, *(each[0] for each in extra))
        constant = arguments[3 if vector else 2 : 4 if vector else 3] if wrapped else ["&[]"]
        if constant != ["&[]"]:
            labels = None
        for name in dict.fromkeys(self._evaluate(first, found.start())):
            full = f"{hierarchy.prefix}{name}" if wrapped else name
            if _METRIC.fullmatch(full):
                added = hierarchy.labels if wrapped else ()
                whole = None if labels is None else (*added, *labels)
                yield DeclaredMetric(full, kind, whole, buckets, self._source.path)

    def _labels(self, arguments: list[str]) -> tuple[str, ...] | None:
        listed = re.fullmatch(r"&\[(.*)\]", arguments[0], re.DOTALL) if arguments else None
        if not listed:
            return None
        values = [self._evaluate(each, 0) for each in _split(listed[1])]
        return None if [] in values else tuple(each[0] for each in values)

    def _evaluate(self, expression: str, at: int, depth: int = 0) -> list[str]:
        """Return the strings an expression at a place may be, none where that is not known."""
        text = expression.strip().lstrip("&").strip()
        text = re.sub(r"\.(?:to_string|into|as_str|clone|to_owned)\(\)$", "", text)
        if depth > _DEEPEST:
            return []
        if quoted := _TEXT.fullmatch(text):
            return [quoted[1]]
        if text.startswith("format!("):
            return self._formatted(_arguments(text, len("format!(")), at, depth)
        if re.fullmatch(r"\w+(::\w+)*", text):
            return self._named(text, at, depth)
        if call := re.match(r"(?:\w+::)*(\w+)\(", text):
            return self._built(call[1], _arguments(text, call.end()), depth)
        return []

    def _named(self, path: str, at: int, depth: int) -> list[str]:
        *modules, name = path.split("::")
        if modules:
            module = self._source.aliases.get(modules[-1], modules[-1])
            value = self._constants.get(f"{module}::{name}")
            return [] if value is None else [value]
        if name in self._constants:
            return [self._constants[name]]
        if name.isupper():
            used = re.compile(rf"\b(\w+)::(?:\*|{name}\b|\{{[^{{}}]*\b{name}\b)")
            modules = [f"{found[1]}::{name}" for found in used.finditer(self._text)]
            return [self._constants[each] for each in modules if each in self._constants][:1]
        before = [*re.finditer(rf"\blet\s+{name}\s*=\s*", self._text[:at])]
        builder = next(reversed([*_BUILDER.finditer(self._text[:at])]), None)
        if before and (not builder or before[-1].start() > builder.start()):
            start = before[-1].end()
            return self._evaluate(_statement(self._text, start), start, depth + 1)
        if not builder:
            return []
        # A parameter of what is around: what its callers in the file pass.
        given = (builder["given"] or builder["taken"] or "").split(",")
        names = [each.split(":")[0].strip() for each in given if "self" not in each]
        if name not in names:
            return []
        index = names.index(name)
        called = builder["closure"] or builder["function"]
        values: list[str] = []
        for call in re.finditer(rf"(?<!fn )\b{called}\(", self._text):
            arguments = _arguments(self._text, call.end())
            if index < len(arguments) and not arguments[index].startswith(name):
                values += self._evaluate(arguments[index], call.start(), depth + 1)
        return values

    def _formatted(self, arguments: list[str], at: int, depth: int) -> list[str]:
        template = _TEXT.fullmatch(arguments[0].strip()) if arguments else None
        if not template:
            return []
        rest, values = iter(arguments[1:]), [""]
        for piece in re.split(r"(\{\w*\})", template[1]):
            if not re.fullmatch(r"\{\w*\}", piece):
                inner = [piece]
            else:
                inner = self._evaluate(piece[1:-1] or next(rest, ""), at, depth + 1)
            values = [one + other for one in values for other in inner]
        return values

    def _built(self, function: str, arguments: list[str], depth: int) -> list[str]:
        """Return the strings that a function of this file builds from its arguments."""
        for builder in _BUILDER.finditer(self._text):
            if function in (builder["closure"], builder["function"]):
                body = self._text[builder.end() : builder.end() + 400]
                made = re.search(r"format!\(", body)
                given = (builder["given"] or builder["taken"] or "").split(",")
                names = [each.split(":")[0].strip() for each in given]
                if made and len(names) >= len(arguments) > 0:
                    inner = _Reader(self._source, dict(self._constants))
                    bound = dict(self._constants)
                    for name, argument in zip(names, arguments, strict=False):
                        found = self._evaluate(argument, builder.start(), depth + 1)
                        if found:
                            bound[name] = found[0]
                    inner = _Reader(self._source, bound)
                    return inner._formatted(_arguments(body, made.end()), 0, depth + 1)
        return []


def _arguments(text: str, start: int) -> list[str]:
    """Return the arguments of a call whose parenthesis ends before ``start``."""
    depth, at, quoted = 1, start, False
    while at < len(text) and depth:
        character = text[at]
        if quoted:
            at += character == "\\"
            quoted = character != '"'
        elif character == '"':
            quoted = True
        else:
            depth += (character in "([{") - (character in ")]}")
        at += 1
    return _split(text[start : at - 1])


def _split(text: str) -> list[str]:
    parts, depth, quoted, begin = [], 0, False, 0
    for at, character in enumerate(text):
        if character == '"' and text[at - 1 : at] != "\\":
            quoted = not quoted
        elif not quoted:
            depth += (character in "([{") - (character in ")]}")
            if character == "," and depth == 0:
                parts.append(text[begin:at].strip())
                begin = at + 1
    parts.append(text[begin:].strip())
    return [each for each in parts if each]


def _statement(text: str, start: int) -> str:
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] in "([{") - (text[at] in ")]}")
        if text[at] == ";" and depth <= 0:
            return text[start:at]
    return ""
