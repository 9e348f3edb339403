"""``tokenslo validate``: output and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tokenslo.commands.explain import explain
from tokenslo.commands.validate import validate

GOOD = """\
apiVersion: tokenslo/v1
service: {service}
objectives:
  - {{name: availability, indicator: availability, target: 99.9%}}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*files):
    result = CliRunner().invoke(validate, files)
    return result.exit_code, result.stdout, result.stderr


def test_example_is_valid():
    example = Path(__file__).parent.parent / "examples" / "chat" / "slo.yaml"
    assert run(str(example)) == (0, "ok: chat: 6 objectives\n", "")


def test_every_file_is_checked_despite_errors_in_others(folder):
    (folder / "a.yaml").write_text(GOOD.format(service="a"))
    (folder / "b.yaml").write_text(GOOD.format(service="B") + "onwer: me\n")
    (folder / "c.json").write_text('{"apiVersion": "tokenslo/v1", "service": "c"}')
    (folder / "d.jsonnet").write_text(
        "{apiVersion: 'tokenslo/v1', service: 'd', objectives: [\n"
        "  {name: k + '-headroom', indicator: k + '_headroom', threshold: '9%', target: '9%'}\n"
        "  for k in ['kv', 'sequence']\n"
        "]}"
    )
    assert run("a.yaml", "b.yaml", "c.json", "d.jsonnet", "gone.yaml") == (
        2,
        "ok: a: 1 objective\nok: d: 2 objectives\n",
        'b.yaml:2: service: "B" is not a name. Fix: write b.\n'
        "b.yaml:5: onwer: is not a known key. Fix: write owner.\n"
        "c.json:1: objectives: is missing. "
        "Fix: add objectives: [{name: …, indicator: …, target: …}].\n"
        "gone.yaml: cannot be read: No such file or directory. "
        "Fix: give the path of a file you may read.\n",
    )


def test_json_holds_services_and_problems(folder):
    (folder / "a.yaml").write_text(GOOD.format(service="a"))
    (folder / "b.yaml").write_text(GOOD.format(service="B"))
    code, out, err = run("a.yaml", "b.yaml", "--json")
    assert (code, err) == (2, "")
    assert json.loads(out) == {
        "files": [
            {
                "file": "a.yaml",
                "services": [{"service": "a", "objectives": 1}],
                "problems": [],
                "warnings": [],
            },
            {
                "file": "b.yaml",
                "services": [],
                "problems": [
                    {
                        "file": "b.yaml",
                        "line": 2,
                        "field": "service",
                        "message": '"B" is not a name',
                        "fix": "write b",
                    }
                ],
                "warnings": [],
            },
        ]
    }


def test_quiet_reports_problems_only(folder):
    (folder / "a.yaml").write_text(GOOD.format(service="a"))
    assert run("a.yaml", "-q") == (0, "", "")
    (folder / "a.yaml").write_text(GOOD.format(service="A"))
    assert run("a.yaml", "-q")[1:] == ("", 'a.yaml:2: service: "A" is not a name. Fix: write a.\n')


def test_standard_input_and_folders_are_checked(folder):
    result = CliRunner().invoke(validate, ["-"], input=GOOD.format(service="A"))
    assert (result.exit_code, result.stderr) == (
        2,
        'standard input:2: service: "A" is not a name. Fix: write a.\n',
    )
    (folder / "slos").mkdir()
    for name in "ab":
        (folder / f"slos/{name}.yaml").write_text(GOOD.format(service=name))
    assert run("slos")[:2] == (0, "ok: a: 1 objective\nok: b: 1 objective\n")


def test_no_file_is_a_usage_error():
    code, out, err = run()
    assert (code, out) == (2, "")
    assert "Missing argument 'FILE...'" in err


def test_jsonnet_imports_from_folders_that_are_given(tmp_path):
    library = tmp_path / "lib"
    library.mkdir()
    (library / "targets.libsonnet").write_text('{ high: "99.9%" }')
    file = tmp_path / "files/slo.jsonnet"
    file.parent.mkdir()
    file.write_text(
        "local targets = import 'targets.libsonnet';\n"
        "{ apiVersion: 'tokenslo/v1', service: 'chat', objectives: [\n"
        "  { name: 'up', indicator: 'availability', target: targets.high } ] }\n"
    )
    assert run(str(file))[0] == 2
    assert run("-J", str(library), str(file)) == (0, "ok: chat: 1 objective\n", "")


def test_two_services_of_one_name_are_refused_in_one_file_only(folder):
    """Files are checked by themselves: those of two environments may have the same service."""
    (folder / "a.yaml").write_text(GOOD.format(service="a"))
    (folder / "b.yaml").write_text("---\n".join(GOOD.format(service=name) for name in "aba"))
    assert run("a.yaml", "b.yaml", "a.yaml") == (
        2,
        "ok: a: 1 objective\n" * 2,
        'b.yaml:12: service: "a" is also the service of line 2 of this file. '
        "Fix: give every service a name of its own.\n",
    )
    twice = CliRunner().invoke(explain, ["a.yaml", "a.yaml"]).exception
    assert str(twice) == (
        'a.yaml:2: service: "a" is also the service of this file, which is given twice. '
        "Fix: give every service a name of its own."
    )
