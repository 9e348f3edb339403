"""Read YAML, JSON and Jsonnet with lines: values, limits and errors."""

from __future__ import annotations

import json
import os
import re
import string
import subprocess
import sys
import time
import tracemalloc
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from documents import composer
from slos import jsonnet
from slos.document import field_name, read_document
from slos.errors import InvalidFile
from tests.polling import wait_until

ROOT = Path(__file__).parent.parent
# Examples of a property share one folder: each overwrites its file.
one_folder = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(content, name="a.yaml", **options):
    Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_document(name, **options)


def refusals(content, name="a.yaml", **options):
    with pytest.raises(InvalidFile) as refused:
        read(content, name, **options)
    return str(refused.value).splitlines()


def test_values_carry_their_lines():
    text = "# a comment\na:\n  - x\n  - {y: 1}\nb: >\n  two\n  lines\n"
    found = read(text)
    assert found.value == {"a": ["x", {"y": 1}], "b": "two lines\n"}
    assert found.lines == {
        (): 2,
        ("a",): 2,
        ("a", 0): 3,
        ("a", 1): 4,
        ("a", 1, "y"): 4,
        ("b",): 5,
    }


@pytest.mark.parametrize(
    ("plain", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("y", "y"),
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        ("010", 10),
        ("0o17", 15),
        ("0x1F", 31),
        ("-7", -7),
        ("1:30", "1:30"),
        ("1_000", "1_000"),
        ("2026-01-01", "2026-01-01"),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("-.inf", float("-inf")),
        ("99.9%", "99.9%"),
        ("=", "="),
        ("'no'", "no"),
        ('"1"', "1"),
    ],
)
def test_plain_scalars_have_their_yaml_1_2_values(plain, value):
    found = read(f"k: {plain}\n").value["k"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("loader", [yaml.SafeLoader, yaml.CSafeLoader])
def test_both_parsers_of_pyyaml_read_the_same(loader, monkeypatch):
    monkeypatch.setattr(composer, "_LOADER", loader)
    found = read("a: [no, 'no', 1, \"1\", &x {k: ~}]\nb: *x\n'<<': 2\n")
    assert found.value == {"a": ["no", "no", 1, "1", {"k": None}], "b": {"k": None}, "<<": 2}
    assert found.lines["b", "k"] == 1


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", ["a.yaml: is empty. Fix: write the settings into it."]),
        ("# nothing\n---\n...\n", None),
        ("# nothing\n", ["a.yaml: is empty. Fix: write the settings into it."]),
        (
            "a: 1\nb: 2\na: 3\nb: 4\n",
            [
                'a.yaml:3: the key "a" is defined on line 1 already. Fix: delete one of them.',
                'a.yaml:4: the key "b" is defined on line 2 already. Fix: delete one of them.',
            ],
        ),
        (
            "a: !!python/object/apply:os.system [x]\nb: !x y\nc: ! z\n",
            [
                'a.yaml:1: the tag "!!python/object/apply:os.system" is not allowed. '
                "Fix: delete it.",
                'a.yaml:2: the tag "!x" is not allowed. Fix: delete it.',
                'a.yaml:3: the tag "!" is not allowed. Fix: delete it.',
            ],
        ),
        (
            "a: 1\na:\n  - !x b\n",
            [
                'a.yaml:2: the key "a" is defined on line 1 already. Fix: delete one of them.',
                'a.yaml:3: the tag "!x" is not allowed. Fix: delete it.',
            ],
        ),
        (
            "1: a\n~: b\n? [c]\n: d\n",
            [
                "a.yaml:1: a key is not text. Fix: quote the key.",
                "a.yaml:2: a key is not text. Fix: quote the key.",
                "a.yaml:3: a key is not text. Fix: quote the key.",
            ],
        ),
        (
            "a: &a {b: 1}\nc:\n  <<: *a\n",
            ["a.yaml:3: merge keys are not supported. Fix: write the keys out."],
        ),
        (
            "---\na: 1\n---\nb: 1\n",
            ["a.yaml:4: a second document starts. Fix: put each document into its own file."],
        ),
        ("a: *b\n", ["a.yaml:1: the alias *b has no value. Fix: write &b at its value."]),
        (
            "a: 1\nb: &x\n  - *x\n",
            ["a.yaml:3: the alias *x is inside its own value. Fix: remove it."],
        ),
        (
            "a:\n\t- b\n",
            [
                "a.yaml:2: is not valid YAML: found character that cannot start any token at "
                "column 1. Fix: quote the value, or indent with spaces."
            ],
        ),
        (
            "a: 1\nb: c: d\n",
            [
                "a.yaml:2: is not valid YAML: mapping values are not allowed in this context at "
                'column 5. Fix: check the indentation, and quote text that contains ": ".'
            ],
        ),
        (
            "a: 1\nb: [c,\nd: 2\n",
            [
                "a.yaml:2: is not valid YAML: did not find expected ',' or ']' at column 4. "
                "Fix: close the bracket, with a comma between entries."
            ],
        ),
        (
            "a: 1\na: 2\nb: 'c\n",
            [
                'a.yaml:2: the key "a" is defined on line 1 already. Fix: delete one of them.',
                "a.yaml:3: is not valid YAML: found unexpected end of stream at column 4. "
                "Fix: close the quotes.",
            ],
        ),
        (
            "a: 1\nb: \x1b[31m\n",
            [
                "a.yaml:2: the character U+001B is not allowed in YAML. Fix: delete it, or write "
                'it as an escape such as "\\u001b" in double quotes.'
            ],
        ),
        (
            "a: 1\nb: x\u2028y\n",
            [
                "a.yaml:2: the character U+2028 is not allowed in YAML. Fix: delete it, or write "
                'it as an escape such as "\\u001b" in double quotes.'
            ],
        ),
        (b"a: 1\nb: \xe9\n", ["a.yaml:2: is not UTF-8 text. Fix: save the file as UTF-8."]),
        (
            "a: 1\n".encode("utf-16"),
            ["a.yaml:1: is not UTF-8 text. Fix: save the file as UTF-8."],
        ),
        (
            "k: " + "9" * 50 + "\n",
            [f'a.yaml:1: "{"9" * 50}" is too long a number. Fix: put it in quotes.'],
        ),
        (
            "#" * (1 << 20) + "\n",
            ["a.yaml: is larger than 1 MiB. Fix: split it into several files."],
        ),
        ("[" * 500_000, ["a.yaml:1: is nested deeper than 32 levels. Fix: flatten it."]),
        (
            "- a\n" * 60_000,
            [
                "a.yaml:50000: holds more than 50,000 values, aliases counted. "
                "Fix: split it into several files."
            ],
        ),
    ],
)
def test_invalid_yaml_is_refused_with_line_and_fix(content, expected):
    if expected is None:
        assert read(content).value is None
    else:
        assert refusals(content) == expected


@pytest.mark.parametrize(
    ("name", "reason"), [("missing.yaml", "No such file or directory"), (".", "Is a directory")]
)
def test_files_that_cannot_be_opened_are_refused(name, reason):
    with pytest.raises(InvalidFile) as refused:
        read_document(name)
    assert str(refused.value) == (
        f"{name}: cannot be read: {reason}. Fix: give the path of a file you may read."
    )


@contextmanager
def writing(path, text, *, after=0.0):
    """Open a named pipe for writing in another process, and write into it after some seconds."""
    code = "import sys, time; f = open(sys.argv[1], 'w'); time.sleep(float(sys.argv[2]))"
    code += "; f.write(sys.argv[3])"
    with subprocess.Popen([sys.executable, "-c", code, path, str(after), text]) as writer:
        try:
            yield
        finally:
            writer.kill()


@pytest.mark.parametrize("name", ["pipe.yaml", "pipe.jsonnet"])
def test_a_pipe_without_a_writer_is_refused(name):
    os.mkfifo(name)
    with pytest.raises(InvalidFile) as refused:
        read_document(name)
    assert str(refused.value) == (
        f"{name}: is a pipe without a writer. Fix: give a file, or write into the pipe."
    )


@pytest.mark.parametrize("after", [0.0, 1.5])
def test_a_pipe_with_a_slow_writer_is_read(after):
    os.mkfifo("pipe")
    with writing("pipe", "a: 1\n", after=after):
        assert read_document("pipe").value == {"a": 1}


def test_a_process_substitution_is_read():
    reading, writing_ = os.pipe()
    try:
        os.write(writing_, b"a: 1\n")
        os.close(writing_)
        assert read_document(f"/dev/fd/{reading}").value == {"a": 1}
        with pytest.raises(InvalidFile, match="is a pipe without a writer"):
            read_document(f"/dev/fd/{reading}")
    finally:
        os.close(reading)


def test_a_byte_order_mark_is_harmless():
    assert read(b"\xef\xbb\xbfa: 1\n").value == {"a": 1}


def test_json_is_yaml():
    value = {"a": [1, 2.5, None, True, "x\n\t\"'é"], "b": {}}
    assert read(json.dumps(value, indent="\t"), "a.json").value == value


BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
TOWER = "x0: &x0 [a]\n" + "".join(f"x{i + 1}: &x{i + 1} [*x{i}]\n" for i in range(300))


@pytest.mark.parametrize(
    ("bomb", "line", "message"),
    [(BOMB, 5, "holds more than 50,000 values, aliases counted"), (TOWER, 31, "is nested deeper")],
)
def test_alias_bombs_are_bounded_in_time_and_memory(bomb, line, message):
    tracemalloc.start()
    started = time.process_time()
    (problem,) = refusals(bomb)
    seconds, (_, peak) = time.process_time() - started, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert problem.startswith(f"a.yaml:{line}: {message}")
    assert seconds < 2
    assert peak < 16 << 20


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ((), ""),
        (("objectives", 1, "target"), "objectives[1].target"),
        (("labels", "a b"), 'labels["a b"]'),
        (("labels", "x\n"), 'labels["x\\n"]'),
    ],
)
def test_fields_are_named_on_one_line(path, name):
    assert field_name(path) == name


texts = st.text(
    st.characters(exclude_categories=["Cc", "Cs", "Cn", "Zl", "Zp"], exclude_characters="\ufeff"),
    max_size=20,
)
trees = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda children: st.lists(children, max_size=4) | st.dictionaries(texts, children, max_size=4),
    max_leaves=20,
)


@one_folder
@given(trees, st.sampled_from([None, 1]))
def test_json_is_read_as_by_the_json_module(tree, indent):
    assert read(json.dumps(tree, ensure_ascii=False, indent=indent)).value == tree


def problems(content):
    try:
        found = read(content)
    except InvalidFile as refused:
        return [str(problem) for problem in refused.problems]
    assert found.line(()) >= 1
    return []


@one_folder
@given(
    st.binary(max_size=200)
    | st.text(string.printable, max_size=200).map(str.encode)
    | st.text("ab12:-? []{},&*!|>'\"%@`#<\n\t", max_size=60)
)
def test_any_text_is_read_or_refused_in_one_line(content):
    assert all(len(problem.splitlines()) == 1 for problem in problems(content))


def test_jsonnet_is_evaluated(folder):
    (folder / "lib").mkdir()
    (folder / "lib" / "base.libsonnet").write_text("{ target(t): '%s%%' % t }")
    found = read(
        "local base = import 'lib/base.libsonnet';\n{ a: base.target(99), b: [{ c: 1 }] }",
        "a.jsonnet",
    )
    assert found.value == {"a": "99%", "b": [{"c": 1}]}
    assert found.line(("a",)) == 0


def test_jsonnet_libraries_are_imported_from_the_given_folders(folder):
    (folder / "here").mkdir()
    (folder / "vendor").mkdir()
    (folder / "vendor" / "x.libsonnet").write_text("{ x: 1 }")
    found = read("import 'x.libsonnet'", "here/a.jsonnet", libraries=[folder / "vendor"])
    assert found.value == {"x": 1}


OUTSIDE = "it is outside of the file's folder and the library folders. Fix: correct the Jsonnet."


@pytest.mark.parametrize("target", ["/etc/hostname", "../secret", "link/secret", "secret-link"])
def test_jsonnet_imports_from_other_folders_are_refused(target, folder):
    (folder / "secret").write_text("1")
    (folder / "here").mkdir()
    (folder / "here" / "link").symlink_to(folder)
    (folder / "here" / "secret-link").symlink_to(folder / "secret")
    for keyword in ("import", "importstr", "importbin"):
        assert refusals(f"{{\n  a: {keyword} '{target}',\n}}", "here/a.jsonnet") == [
            f'here/a.jsonnet:2: couldn\'t open import "{target}": {OUTSIDE}'
        ]


def test_a_jsonnet_file_may_be_a_symlink_next_to_its_imports(folder):
    # Kubernetes mounts a ConfigMap as links through a folder `..data`.
    (folder / "..data").mkdir()
    for name, text in (("a.jsonnet", "import 'x.libsonnet'"), ("x.libsonnet", "{ x: 1 }")):
        (folder / "..data" / name).write_text(text)
        (folder / name).symlink_to(f"..data/{name}")
    assert read_document("a.jsonnet").value == {"x": 1}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{\n  a: x,\n}", "a.jsonnet:2: Unknown variable: x."),
        ("{\n  a: error 'no\\nway',\n}", "a.jsonnet:2: no way."),
        ("{\n  a: '%d' % 'x',\n}", "a.jsonnet:2: Format required number at 0, got string."),
        ("import 'bad.libsonnet'", "bad.libsonnet:3: Unknown variable: y."),
        ("import 'gone.libsonnet'", 'a.jsonnet:1: couldn\'t open import "gone.libsonnet": no such '
         "file."),
        ("{\n  a: import 'folder',\n}", 'a.jsonnet:2: couldn\'t open import "folder": it is not a '
         "regular file."),
        ("importstr 'pipe'", 'a.jsonnet:1: couldn\'t open import "pipe": it is not a regular '
         "file."),
        ("error ''", "a.jsonnet:1: fails without saying why."),
        (r"error 'red \u001b[31m'", r"a.jsonnet:1: red \u001b[31m."),
        ("std.trace('look', error 'boom')", "a.jsonnet:1: boom."),
        ("std.extVar('HOME')", "a.jsonnet:1: undefined external variable: HOME."),
        ("local f(x) = f(x + 1) + 1;\nf(1)", "a.jsonnet:1: max stack frames exceeded."),
        ("local f(s, n) = if n == 0 then s else f(s + s, n - 1);\nf('x', 21)",
         "a.jsonnet: its output is larger than 1 MiB."),
    ],
)  # fmt: skip
def test_jsonnet_errors_name_file_and_line(source, expected, folder):
    (folder / "bad.libsonnet").write_text("{\n\n  x: y,\n}")
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    assert refusals(source, "a.jsonnet") == [f"{expected} Fix: correct the Jsonnet."]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("std.foldl(function(a, _) [a], std.range(1, 40), 1)", "is nested deeper than 32 levels."),
        (
            "std.range(1, 60000)",
            "holds more than 50,000 values, aliases counted.",
        ),
    ],
)
def test_jsonnet_output_has_the_limits_of_yaml(source, expected):
    (problem,) = refusals(source, "a.jsonnet")
    assert problem.startswith(f"a.jsonnet: {expected}")


def test_an_endless_jsonnet_program_is_stopped(monkeypatch):
    monkeypatch.setattr(jsonnet, "SECONDS", 0.5)
    source = "local f(n) = if n == 0 then 0 else f(n - 1) tailstrict; f(1e12)"
    assert refusals(source, "a.jsonnet") == [
        "a.jsonnet: Jsonnet did not finish within 0.5 s. Fix: correct the Jsonnet."
    ]


def test_memory_of_a_jsonnet_program_is_bounded():
    source = (
        "local a = std.makeArray(1e8, function(i) std.toString(i)); std.length(std.join('', a))"
    )
    assert refusals(source, "a.jsonnet") == [
        "a.jsonnet: Jsonnet crashed or needed more than 512 MiB of memory. "
        "Fix: correct the Jsonnet."
    ]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            "local s = std.repeat('x', 1e5);\n"
            "std.foldl(function(n, i) std.trace(s, n + i), std.range(1, 500), 0) + error 'end'",
            "a.jsonnet:2: end. Fix: correct the Jsonnet.",
        ),
        ("error std.repeat('x', 2e5)", f"a.jsonnet:1: {'x' * 1000}"),
    ],
    ids=["traces", "a message"],
)
def test_output_of_a_jsonnet_program_is_bounded(source, expected):
    tracemalloc.start()
    (problem,) = refusals(source, "a.jsonnet")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert problem.startswith(expected)
    assert len(problem) < 5_000
    assert peak < 8 << 20


def test_a_jsonnet_program_limits_its_own_cpu_time():
    """A killed caller cannot stop it; the kernel does."""
    command = [sys.executable, "-I", jsonnet.__file__, "a.jsonnet"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
        child.stdin.write(b"local f(n) = f(n + 1) tailstrict; f(0)")
        child.stdin.close()
        limits = Path(f"/proc/{child.pid}/limits")

        def limit():
            found = re.search(r"Max cpu time +(\S+)", limits.read_text())[1]
            return found if found != "unlimited" else ""

        try:
            assert wait_until(limit) == f"{jsonnet.SECONDS + 1:.0f}"
        finally:
            child.kill()


def test_yaml_needs_no_jsonnet():
    code = "import sys, slos.document; sys.exit('_jsonnet' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
