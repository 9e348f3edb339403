"""Read metrics that Python code declares with prometheus_client or classes like its own.

A declaration is a call of something named like a metric type whose name is a constant with the
server's prefix.  Constants are followed through names, attributes, f-strings, sums, loops over
literals and imports; nothing is executed.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.catalogues.family import Declarations, DeclaredMetric, files

_KIND = re.compile(r"((?i:counter|gauge|histogram|summary)|Info$)")
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_MOST_VALUES = 64
_DEEPEST = 24

Parameters = Mapping[str, Any]
"""Values of function parameters that callers outside the declarations pass."""


@dataclass(frozen=True, slots=True)
class _Item:
    """An element of a loop's iterable: ``index`` selects from a tuple, None is all of it."""

    loop: ast.expr
    index: int | None


_Bindings = dict[str, list["ast.expr | _Item"]]


@dataclass(slots=True)
class _PythonSource:
    """One file: its constants, those of its classes, and where its imported names come from."""

    path: str
    tree: ast.Module
    names: _Bindings = field(default_factory=dict)
    classes: dict[str, _Bindings] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _PythonScope:
    """The scope of an expression: its file, class and enclosing functions, innermost first."""

    source: _PythonSource
    class_: str = ""
    functions: tuple[_Bindings, ...] = ()


class PythonSources:
    """Python files of a checkout, read once."""

    def __init__(
        self,
        root: Path,
        folders: Iterable[str],
        parameters: Parameters,
        lookups: Mapping[str, str],
    ) -> None:
        self._parameters, self._lookups = parameters, lookups
        self._texts = dict(files(root, folders, ".py"))
        self._sources: dict[str, _PythonSource] = {}

    def declarations(self, prefix: str, words: Iterable[str]) -> Declarations:
        """Return all families whose names begin with a pattern.

        Only files with one of the ``words`` are looked at for declarations.
        """
        families: list[DeclaredMetric] = []
        unread: list[str] = []
        wanted = re.compile(prefix)
        needles = tuple(words)
        for path, text in self._texts.items():
            if not any(needle in text for needle in needles):
                continue
            source = self._source(path)
            read: set[int] = set()  # an entry of a table is a call too
            for call, names, scope in _calls(source):
                found = _KIND.search(ast.unparse(call.func).rpartition(".")[2])
                if not found:
                    continue
                kind = found[1].lower()
                values = [
                    value
                    for name in names
                    for value in self._evaluate(name, scope)
                    if isinstance(value, str)
                ]
                matching = [each for each in values if wanted.match(each) and _NAME.fullmatch(each)]
                keywords = {each.arg: each.value for each in call.keywords}
                if matching:
                    read.add(id(call))
                elif not values and "labelnames" in keywords and id(call) not in read:
                    unread.append(f"{path}:{call.lineno}")
                direct = "name" in keywords or names == call.args[:1]
                families += (self._family(each, kind, call, scope, direct) for each in matching)
        return Declarations(tuple(families), tuple(unread))

    def _source(self, path: str) -> _PythonSource:
        if path not in self._sources:
            self._sources[path] = _index(path, self._texts[path])
        return self._sources[path]

    def _family(
        self, name: str, kind: str, call: ast.Call, scope: _PythonScope, direct: bool
    ) -> DeclaredMetric:
        """Return what a call declares; ``direct`` is False for an entry of a table."""
        keywords = {each.arg: each.value for each in call.keywords}
        labels = keywords.get("labelnames") or (call.args[2] if len(call.args) > 2 else None)
        buckets = keywords.get("buckets")
        known: tuple[str, ...] | None = () if direct else None
        if labels is not None and direct:
            lists = [[*each] for each in self._evaluate(labels, scope) if not isinstance(each, str)]
            texts = [str(label) for each in lists for label in each]
            known = tuple(dict.fromkeys(texts)) if lists else None
        boundaries: tuple[float, ...] | None = None
        if buckets is not None:
            choices = [tuple(each) for each in self._evaluate(buckets, scope) if _numbers(each)]
            boundaries = tuple(map(float, choices[0])) if len({*choices}) == 1 else None
        if kind == "counter" and not name.endswith("_total"):
            name += "_total"
        if kind == "info" and not name.endswith("_info"):
            name += "_info"
        return DeclaredMetric(name, kind, known, boundaries, scope.source.path)

    def _evaluate(self, node: ast.expr | _Item, scope: _PythonScope, depth: int = 0) -> list[Any]:
        """Return the values an expression may have, none where that is not known."""
        if depth > _DEEPEST:
            return []
        values = itertools.islice(self._values(node, scope, depth + 1), _MOST_VALUES)
        return [*values]

    def _values(self, node: ast.expr | _Item, scope: _PythonScope, depth: int) -> Iterator[Any]:
        def of(part: ast.expr | _Item) -> list[Any]:
            return self._evaluate(part, scope, depth)

        match node:
            case _Item(loop=loop, index=index):
                for all_ in of(loop):
                    for each in all_ if isinstance(all_, list | tuple) else ():
                        if index is None:
                            yield each
                        elif isinstance(each, list | tuple) and index < len(each):
                            yield each[index]
            case ast.Constant(value=value):
                yield value
            case ast.List() | ast.Tuple() | ast.Set():
                yield from self._sequence(node.elts, scope, depth)
            case ast.Dict():
                yield from self._mapping(node, scope, depth)
            case ast.JoinedStr(values=parts):
                inner = [
                    of(each.value if isinstance(each, ast.FormattedValue) else each)
                    for each in parts
                ]
                for each in itertools.product(*inner):
                    yield "".join(map(str, each))
            case ast.BinOp(op=ast.Add(), left=left, right=right):
                for one, other in itertools.product(of(left), of(right)):
                    if isinstance(one, str) and isinstance(other, str):
                        yield one + other
                    elif isinstance(one, list | tuple) and isinstance(other, list | tuple):
                        yield [*one, *other]
            case ast.BinOp(op=ast.Mult(), left=left, right=right):
                for one, other in itertools.product(of(left), of(right)):
                    if isinstance(one, int | float) and isinstance(other, int | float):
                        yield one * other
            case ast.UnaryOp(op=ast.USub(), operand=inner_):
                yield from (-each for each in of(inner_) if isinstance(each, int | float))
            case ast.IfExp(body=one, orelse=other):
                yield from (*of(one), *of(other))
            case ast.BoolOp(values=parts):
                yield from (value for each in parts for value in of(each) if value)
            case ast.Name(id=name):
                yield from self._name(name, scope, depth)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=attr):
                bound = scope.source.classes.get(scope.class_, {}).get(attr, ())
                yield from (value for each in bound for value in of(each))
            case ast.Attribute(value=ast.Name(id=class_), attr=attr):
                yield from self._attribute(class_, attr, scope, depth)
            case ast.Subscript(value=value, slice=at):
                for whole, key in itertools.product(of(value), of(at)):
                    if isinstance(whole, dict) and key in whole:
                        yield whole[key]
            case ast.Call():
                yield from self._call(node, scope, depth)

    def _sequence(
        self, elements: Sequence[ast.expr], scope: _PythonScope, depth: int
    ) -> Iterator[list[Any]]:
        values: list[Any] = []
        for each in elements:
            starred = isinstance(each, ast.Starred)
            found = self._evaluate(
                each.value if isinstance(each, ast.Starred) else each, scope, depth
            )
            if not found:
                return
            if starred:
                values += (item for some in found if not isinstance(some, str) for item in some)
            else:
                values.append(found[0])
        yield values

    def _mapping(self, node: ast.Dict, scope: _PythonScope, depth: int) -> Iterator[dict[Any, Any]]:
        values: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            found = self._evaluate(value, scope, depth)
            if key is None:
                if not found:
                    return
                values |= {
                    name: None for each in found if not isinstance(each, str) for name in each
                }
            elif names := self._evaluate(key, scope, depth):
                values |= dict.fromkeys(names, found[0] if found else None)
            else:
                return
        yield values

    def _name(self, name: str, scope: _PythonScope, depth: int) -> Iterator[Any]:
        for bindings in scope.functions:
            if name in bindings:
                for each in bindings[name]:
                    yield from self._evaluate(each, scope, depth)
                return
        if name in self._parameters:
            yield self._parameters[name]
            return
        source = scope.source
        if name in source.names:
            module = _PythonScope(source)
            for each in source.names[name]:
                yield from self._evaluate(each, module, depth)
        elif name in source.imports:
            origin, original = source.imports[name]
            for other in self._modules(origin):
                yield from self._evaluate(ast.Name(original), _PythonScope(other), depth)

    def _attribute(self, class_: str, attr: str, scope: _PythonScope, depth: int) -> Iterator[Any]:
        source = scope.source
        if class_ in source.imports and class_ not in source.classes:
            origin, original = source.imports[class_]
            for other in self._modules(origin):
                yield from self._attribute(original, attr, _PythonScope(other), depth)
            for other in self._modules(f"{origin}.{original}"):
                yield from self._evaluate(ast.Name(attr), _PythonScope(other), depth)
            return
        for each in source.classes.get(class_, {}).get(attr, ()):
            yield from self._evaluate(each, _PythonScope(source, class_), depth)

    def _call(self, node: ast.Call, scope: _PythonScope, depth: int) -> Iterator[Any]:
        match node:
            case ast.Call(func=ast.Attribute(value=mapping, attr="keys"), args=[]):
                for each in self._evaluate(mapping, scope, depth):
                    if isinstance(each, dict | list | tuple):
                        yield [*each]
            case ast.Call(func=ast.Name(id="list" | "tuple" | "sorted" | "dict"), args=[inner]):
                yield from self._evaluate(inner, scope, depth)
            case ast.Call(func=ast.Name(id=name), args=[ast.Constant(value=str(key)), *_]):
                if name in self._lookups:
                    constant = self._lookups[name].format(key.upper())
                    for path, text in self._texts.items():
                        if f"{constant}:" in text or f"{constant} =" in text:
                            yield from self._evaluate(
                                ast.Name(constant), _PythonScope(self._source(path)), depth
                            )

    def _modules(self, dotted: str) -> Iterator[_PythonSource]:
        tail = dotted.lstrip(".").replace(".", "/")
        for path in self._texts:
            if f"/{path}".endswith((f"/{tail}.py", f"/{tail}/__init__.py")):
                yield self._source(path)


def _numbers(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(each, int | float) for each in value)


def _index(path: str, text: str) -> _PythonSource:
    try:
        tree = ast.parse(text)
    except SyntaxError:
        tree = ast.Module([], [])
    source = _PythonSource(path, tree, _bindings(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                source.imports[alias.asname or alias.name] = (node.module or "", alias.name)
        elif isinstance(node, ast.ClassDef):
            attributes = _bindings(node)
            for inner in ast.walk(node):
                targets = inner.targets if isinstance(inner, ast.Assign) else []
                for target in targets:
                    match target:
                        case ast.Attribute(value=ast.Name(id="self"), attr=attr):
                            attributes.setdefault(attr, []).append(inner.value)  # type: ignore[attr-defined]
            source.classes[node.name] = attributes
    return source


def _bindings(scope: ast.AST) -> _Bindings:
    """Return the values assigned to names in a scope, without the scopes inside it."""
    bound: _Bindings = {}
    waiting = [*ast.iter_child_nodes(scope)]
    while waiting:
        node = waiting.pop(0)
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                continue
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    if isinstance(target, ast.Name):
                        bound.setdefault(target.id, []).append(value)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                bound.setdefault(name, []).append(value)
            case ast.AugAssign(target=ast.Name(id=name), value=value):
                both = [
                    ast.BinOp(each, ast.Add(), value)
                    for each in bound.get(name, ())
                    if isinstance(each, ast.expr)
                ]
                bound.setdefault(name, []).extend(both)
            case ast.For(target=target, iter=loop) | ast.comprehension(target=target, iter=loop):
                names = target.elts if isinstance(target, ast.Tuple) else [target]
                for index, each in enumerate(names):
                    if isinstance(each, ast.Name):
                        at = index if isinstance(target, ast.Tuple) else None
                        bound.setdefault(each.id, []).append(_Item(loop, at))
        waiting += ast.iter_child_nodes(node)
    return bound


def _calls(source: _PythonSource) -> Iterator[tuple[ast.Call, list[ast.expr], _PythonScope]]:
    """Yield every call with the expressions that may be its metric's name, and its scope."""

    def inside(
        node: ast.AST, scope: _PythonScope
    ) -> Iterator[tuple[ast.Call, list[ast.expr], _PythonScope]]:
        for child in ast.iter_child_nodes(node):
            here = scope
            if isinstance(child, ast.ClassDef):
                here = _PythonScope(source, child.name, ())
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                here = _PythonScope(source, scope.class_, (_bindings(child), *scope.functions))
            match child:
                case ast.Call():
                    named = [each.value for each in child.keywords if each.arg in ("name", "_name")]
                    yield child, named or child.args[:1], here
                case ast.Dict(keys=keys, values=values):
                    for key, value in zip(keys, values, strict=True):
                        if key is not None and isinstance(value, ast.Call):
                            yield value, [key], here
                case ast.Assign(targets=[ast.Subscript(slice=key)], value=ast.Call() as value):
                    yield value, [key], here
            yield from inside(child, here)

    yield from inside(source.tree, _PythonScope(source))
