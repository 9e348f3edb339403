"""`tokenslo lint`: its outputs, exit codes and options."""

from __future__ import annotations

import asyncio
import json
from importlib.metadata import version
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from promql.lint.findings import CHECKS
from tests.fake_server import fake_server
from tests.lint_files import alert, dashboard, ids, panel, record, rules
from tests.sarif_schema import validate_sarif
from tokenslo.commands.generate import generate
from tokenslo.commands.lint import lint

ROOT = Path(__file__).parents[1]
CAPTURES = ROOT / "tests" / "captures"

BOARD = dashboard(
    panel("max(vllm:gpu_cache_usage_perc)", title="KV cache"),
    panel("rate(vllm:num_requests_waiting[5m])", "sum(x)", title='Waiting "now"'),
)


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(lint, [str(each) for each in arguments])


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("my board.json").write_text(BOARD)
    return "my board.json"


def exit_code(*arguments: str | Path) -> tuple[int, str]:
    """Run the whole command line; return the exit code and standard error."""
    from tokenslo.cli import main

    result = CliRunner()
    with result.isolation() as (_, errors, _), pytest.raises(SystemExit) as exited:
        main(["lint", *map(str, arguments)])
    return int(str(exited.value)), errors.getvalue().decode()


def test_text_output_is_as_expected(board: str) -> None:
    assert (
        invoke(board, "--catalogue", "vllm-0.33").stdout
        == """\
my board.json:14: error TL002 unknown-metric: panel "KV cache" (id 1), target A
    vllm:gpu_cache_usage_perc
    vllm:gpu_cache_usage_perc is not emitted by vLLM 0.33: 0.13 renamed it.
    Fix: write vllm:kv_cache_usage_perc.

my board.json:29: error TL011 gauge-rate: panel "Waiting \\"now\\"" (id 1), target A
    rate(vllm:num_requests_waiting[5m])
    vllm:num_requests_waiting is a gauge: every decrease counts as a restart, and so as an increase.
    Fix: show the gauge itself, or its deriv() or delta().

3 queries checked, 2 findings
"""
    )


def test_json_output_is_as_expected(board: str) -> None:
    output = json.loads(invoke(board, "--format", "json", "--disable", "TL002").stdout)
    assert output == {
        "tool": f"tokenslo {version('tokenslo')}",
        "queries": 3,
        "findings": [
            {
                "file": "my board.json",
                "line": 29,
                "place": 'panel "Waiting \\"now\\"" (id 1), target A',
                "path": "/panels/1/targets/0/expr",
                "check": "TL011",
                "severity": "error",
                "part": "rate(vllm:num_requests_waiting[5m])",
                "why": "vllm:num_requests_waiting is a gauge: every decrease counts as a restart, "
                "and so as an increase",
                "fix": "show the gauge itself, or its deriv() or delta()",
                "name": "gauge-rate",
            }
        ],
        "notes": [],
        "unreadable": [],
    }


def test_sarif_output_is_valid(board: str) -> None:
    sarif = json.loads(invoke(board, "--format", "sarif").stdout)
    validate_sarif(sarif, "TL")
    assert sarif["version"] == "2.1.0"
    assert sarif["$schema"].endswith("sarif-2.1.0.json")
    (run,) = sarif["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "tokenslo lint"
    assert [rule["id"] for rule in driver["rules"]] == list(CHECKS)
    for rule in driver["rules"]:
        assert rule["shortDescription"]["text"]
        assert rule["defaultConfiguration"]["level"] in ("error", "warning", "note")
    assert len(run["results"]) == 2
    for result in run["results"]:
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] == CHECKS[result["ruleId"]].severity
        (location,) = result["locations"]
        physical = location["physicalLocation"]
        assert physical["artifactLocation"] == {"uri": "my%20board.json"}
        assert physical["region"]["startLine"] in (14, 29)
        assert result["message"]["text"].endswith(".")
        assert location["logicalLocations"][0]["fullyQualifiedName"].startswith("/panels/")


def test_sarif_and_json_report_unreadable_files(board: str, tmp_path: Path) -> None:
    Path("broken.json").write_text('{"panels": [}')
    Path("library.json").write_text(dashboard({"title": "Ä", "libraryPanel": {}}))
    files = (board, "broken.json", "library.json", tmp_path / board)
    sarif = json.loads(invoke(*files, "--format", "sarif").stdout)
    validate_sarif(sarif, "TL")
    (run,) = sarif["runs"]
    (invocation,) = run["invocations"]
    assert invocation["executionSuccessful"] is False
    levels = [each["level"] for each in invocation["toolExecutionNotifications"]]
    assert levels == ["note", "error"]
    places = [each["locations"][0]["physicalLocation"] for each in run["results"]]
    uris = {each["artifactLocation"]["uri"] for each in places}
    assert uris == {"my%20board.json", f"{tmp_path.as_uri()}/my%20board.json"}
    assert json.loads(invoke(*files, "--format", "json").stdout)["unreadable"] == [
        {
            "file": "broken.json",
            "line": 1,
            "message": "is not valid JSON: Expecting value",
            "fix": "correct it",
        }
    ]


def test_standard_input_is_linted(board: str) -> None:
    text = Path(board).read_text()
    result = CliRunner().invoke(lint, ["-"], input=text, standalone_mode=False)
    assert result.return_value == 1
    assert result.stdout.startswith("<stdin>:14: error TL002")


def test_a_folder_is_linted_with_all_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in (
        ("a/values.yaml", "replicas: 1\n"),
        ("a/b/board.json", BOARD),
        ("a/b/rules.yml", rules(alert("vllm:mine > 1"))),
        ("a/b/more.yaml", rules(record("sum(rate(vllm:prompt_tokens_total[5m]))", "vllm:mine"))),
        ("a/.hidden/board.json", BOARD),
        ("a/notes.txt", "("),
        ("none/values.yaml", "replicas: 1\n"),
    ):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
    lines = invoke("a").stdout.splitlines()
    assert [line.split(":")[0] for line in lines if " error " in line] == ["a/b/board.json"] * 2
    assert lines[-2:] == [
        "note: a: 1 file without dashboards or rules skipped",
        "5 queries checked, 2 findings",
    ]
    code, errors = exit_code("none")
    assert (code, errors.split(".")[0]) == (2, "none: is a folder without any query")


def test_exit_codes_are_0_1_and_2(board: str, tmp_path: Path) -> None:
    Path("clean.json").write_text(dashboard(panel("sum(x)")))
    assert exit_code("clean.json") == (0, "")
    assert exit_code("clean.json", board) == (1, "")
    code, errors = exit_code("clean.json", "none.json", board)
    assert code == 2
    assert errors.startswith("none.json: cannot be read: ")


def test_findings_are_reported_although_a_file_cannot_be_read(board: str) -> None:
    result = invoke("none.json", board)
    assert result.stderr.count("\n") == 1
    assert "3 queries checked, 2 findings" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--disable", "TL999"), "--disable: there is no check TL999."),
        (("--scrape-interval", "soon"), "--scrape-interval: give a duration such as 30s."),
        (("--catalogue", "vllm"), '--catalogue: no catalogue is called "vllm"; give one of '),
        (("--catalogue", "triton-25.13"), 'no catalogue is called "triton-25.13"'),
        (("--catalogue", "triton-22.12"), 'no catalogue is called "triton-22.12"'),
        (("--metrics", "none.txt"), "none.txt: cannot be read: No such file"),
        (("--metrics", "my board.json"), "my board.json:1: is not an exposition"),
        (("--metrics", "/dev/null"), "/dev/null: has no metrics. Fix: "),
        (("--metrics", "http://127.0.0.1:1/metrics"), "127.0.0.1:1"),
    ],
)
def test_invalid_options_are_refused(board: str, arguments: tuple[str, ...], message: str) -> None:
    code, errors = exit_code(board, *arguments)
    assert (code, errors.count("\n")) == (2, 1)
    assert message in errors


def test_several_catalogues_are_merged(tmp_path: Path) -> None:
    text = dashboard(panel("vllm:kv_cache_usage_perc"), panel("nv_gpu_utilization"))
    assert ids(tmp_path, text, "--catalogue", "vllm-0.33") == ["TL002"]
    assert ids(tmp_path, text, "--catalogue", "triton-25.04") == ["TL002"]
    both = ("--catalogue", "vllm-0.33", "--catalogue", "triton-25.04")
    assert ids(tmp_path, text, *both) == []


def test_metrics_of_a_scrape_are_accepted(tmp_path: Path) -> None:
    text = dashboard(panel("rate(nv_inference_count[5m])"), panel("nv_gpu_utilization"))
    scrape = str(CAPTURES / "triton_idle.txt")
    assert ids(tmp_path, text, "--metrics", scrape) == ["TL002"]
    both = ("--metrics", scrape, "--catalogue", "triton-25.04")
    assert ids(tmp_path, text, *both) == []


EXPOSITION = """\
# TYPE vllm:e2e_request_latency_seconds histogram
vllm:e2e_request_latency_seconds_bucket{model_name="m",le="0.7"} 1
vllm:e2e_request_latency_seconds_bucket{model_name="m",le="2.0"} 1
vllm:e2e_request_latency_seconds_bucket{model_name="m",le="+Inf"} 1
vllm:e2e_request_latency_seconds_sum{model_name="m"} 1
vllm:e2e_request_latency_seconds_count{model_name="m"} 1
# TYPE vllm:of_our_own gauge
vllm:of_our_own{shade="red"} 1
"""


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ('rate(vllm:e2e_request_latency_seconds_bucket{le="0.7"}[5m])', []),
        ('rate(vllm:e2e_request_latency_seconds_bucket{le="0.8"}[5m])', ["TL005"]),
        ('rate(vllm:e2e_request_latency_seconds_bucket{le="2.0"}[5m])', []),
        ('rate(vllm:e2e_request_latency_seconds_bucket{le="2"}[5m])', ["TL006"]),
        ('vllm:of_our_own{shade="red"}', []),
        ("rate(vllm:of_our_own[5m])", ["TL011"]),
        ("vllm:num_requests_running", ["TL002"]),
    ],
)
def test_metrics_of_a_live_server_are_accepted(
    query: str, found: list[str], tmp_path: Path
) -> None:
    async def check() -> list[str]:
        async with fake_server({"/metrics": EXPOSITION}) as server:
            options = ("--metrics", f"{server.url}/metrics")
            return await asyncio.to_thread(ids, tmp_path, dashboard(panel(query)), *options)

    assert asyncio.run(check()) == found


def test_generated_examples_have_no_findings() -> None:
    files = sorted(
        path
        for pattern in ("*.rules.yaml", "dashboards/*.json")
        for path in (ROOT / "examples").rglob(pattern)
    )
    assert len(files) >= 2
    assert invoke(*files).stdout.endswith(" queries checked, no findings\n")
    # One alert reads Triton's own metrics of its GPUs.
    own = invoke(*files, "--catalogue", "tokenslo", "--catalogue", "triton-25.04")
    assert own.stdout.endswith(" queries checked, no findings\n")


def test_every_format_of_generated_rules_has_no_findings(tmp_path: Path) -> None:
    every = ("--format", "prometheus,operator,mimir", "--min-prometheus", "3")
    source = str(ROOT / "examples" / "chat" / "slo.yaml")
    done = CliRunner().invoke(generate, [source, "-o", str(tmp_path), *every])
    assert done.exit_code == 0, done.output
    output = invoke(tmp_path).stdout.splitlines()[-1]
    assert output.endswith(" queries checked, no findings")
    assert int(output.split()[0]) > 300  # three times the rules, and the dashboard


def test_a_wrong_metric_in_generated_rules_is_found(tmp_path: Path) -> None:
    text = (ROOT / "examples/chat/dashboards/chat-sidecar.json").read_text()
    wrong = text.replace("tokenslo_source_up", "tokenslo_source_upp")
    assert ids(tmp_path, wrong) == ["TL002"]
    assert ids(tmp_path, text.replace("version)", "model_name)")) == ["TL003"]


def test_a_finding_may_be_ignored(tmp_path: Path) -> None:
    text = rules(alert("sum(vllm:kv_cache_usage_perc) > 90"))
    assert ids(tmp_path, text) == ["TL022", "TL031"]
    assert ids(tmp_path, text, "--disable", "TL022") == ["TL031"]
    assert ids(tmp_path, text, "--disable", "TL022", "--disable", "TL031") == []
