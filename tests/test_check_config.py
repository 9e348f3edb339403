"""``tokenslo check-config``: each check with a fault and without, formats, bad input."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner, Result

from config_checks.table import CHECKS
from slos.indicators import INDICATORS
from tests.config_files import ENGINE, FILES, write
from tests.test_lint_command import SARIF
from tokenslo.commands.check_config import check_config

ENGINE_FILE = "repository/tensorrt_llm/config.pbtxt"
BLS_FILE = "repository/tensorrt_llm_bls/config.pbtxt"
PRE_FILE = "repository/preprocessing/config.pbtxt"
ENSEMBLE_FILE = "repository/ensemble/config.pbtxt"
BUILT_FILE = "repository/engines/llama/config.json"
SERVE, DEPLOY = "serve.yaml", "deployment.yaml"
SECOND = ENGINE.replace('name: "tensorrt_llm"', 'name: "draft"')

# Check, severity, file with the fault, text to replace, replacement, line, part of the evidence.
FAULTS = [
    (
        "TC001",
        "error",
        ENGINE_FILE,
        '"/engines/llama"',
        '"${engine_dir}"',
        12,
        "${engine_dir}",
    ),
    (
        "TC001",
        "error",
        ENGINE_FILE,
        "max_batch_size: 64",
        "max_batch_size: ${n}",
        3,
        "${n} not",
    ),
    ("TC002", "error", ENGINE_FILE, "decoupled: true", "decoupled: false", 4, "is false"),
    ("TC003", "error", BLS_FILE, "decoupled: True", "decoupled: False", 3, "tensorrt_llm_bls"),
    (
        "TC004",
        "warning",
        PRE_FILE,
        "count: 5",
        "count: 1",
        3,
        "has 1 instance, the engine runs 64",
    ),
    ("TC004", "warning", BLS_FILE, "count: 64", "count: 8", 4, "64 are needed"),
    ("TC005", "error", ENGINE_FILE, "count: 1", "count: 2", 9, "2 instances and 1 sets"),
    ("TC006", "warning", ENGINE_FILE, "microseconds: 0", "microseconds: 500", 6, "is 500"),
    ("TC007", "error", ENGINE_FILE, "inflight_fused_batching", "V1", 11, "is V1"),
    ("TC008", "warning", ENGINE_FILE, "max_queue_size: 128", "max_queue_size: 0", 7, "is 0"),
    (
        "TC010",
        "warning",
        BUILT_FILE,
        'fmha": true',
        'fmha": false',
        13,
        "use_paged_context_fmha",
    ),
    (
        "TC012",
        "warning",
        ENGINE_FILE,
        "batch_size: 64",
        "batch_size: 32",
        3,
        "is 32, of its engine 64",
    ),
    (
        "TC012",
        "error",
        ENGINE_FILE,
        "batch_size: 64",
        "batch_size: 96",
        3,
        "is 96, of its engine 64",
    ),
    ("TC013", "warning", BLS_FILE, 'value: "true"', 'value: "false"', 5, "is false"),
    (
        "TC014",
        "warning",
        SERVE,
        "[1, 8, 32]",
        "[1, 8]",
        6,
        "a batch of 8, max_batch_size is 32",
    ),
    (
        "TC014",
        "warning",
        SERVE,
        "\n  batch_sizes: [1, 8, 32]",
        " null",
        5,
        "CUDA graphs are off",
    ),
    (
        "TC014",
        "note",
        ENGINE_FILE,
        'mode" value: { string_value: "true',
        'mode" value: { string_value: "false',
        14,
        "is false",
    ),
    (
        "TC015",
        "note",
        ENGINE_FILE,
        'model_warmup [ { name: "first" batch_size: 1 } ]',
        "",
        1,
        "no model_warmup",
    ),
    (
        "TC015",
        "error",
        ENSEMBLE_FILE,
        'platform: "ensemble"',
        'platform: "ensemble" model_warmup { name: "x" }',
        2,
        "on the ensemble",
    ),
    ("TC016", "note", SERVE, "workers: 4", "workers: 0", 4, "is 0"),
    (
        "TC017",
        "warning",
        ENGINE_FILE,
        '"0,1"',
        '"0,2"',
        2,
        "GPU0 and GPU2 are connected by SYS",
    ),
    (
        "TC018",
        "error",
        DEPLOY,
        "          startupProbe: {periodSeconds: 10, failureThreshold: 60}\n",
        "",
        12,
        "after 30 s of loading",
    ),
    (
        "TC019",
        "error",
        DEPLOY,
        "Seconds: 300",
        "Seconds: 60",
        6,
        "is 60 s, the longest answer 2 s + 4000 tokens x 0.06 s = 242 s",
    ),
    ("TC019", "error", DEPLOY, ", --exit-timeout-secs=300", "", 10, "is 30 s (default)"),
    ("TC020", "error", DEPLOY, "request: 5m", "request: 60s", 19, "60 s in total"),
    (
        "TC021",
        "error",
        DEPLOY,
        "tritonserver, ",
        "tritonserver, --allow-metrics=false, ",
        10,
        "--allow-metrics=false",
    ),
    (
        "TC021",
        "warning",
        DEPLOY,
        "histogram_latencies=true",
        "summary_latencies=true",
        10,
        "is missing",
    ),
    (
        "TC021",
        "error",
        DEPLOY,
        "histogram_latencies=true",
        "counter_latencies=false",
        11,
        "freezes",
    ),
]
# TC009 needs a second engine and TC011 states the policy of every engine.
OF_OTHER_TESTS = {"TC009", "TC011"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, FILES)
    return tmp_path


def invoke(
    folder: Path, *options: str, paths: tuple[str, ...] = ("repository", SERVE, DEPLOY)
) -> Result:
    given = [str(folder / path) for path in paths]
    return CliRunner().invoke(check_config, [*given, *options], standalone_mode=False)


def findings(folder: Path, *options: str) -> list[dict[str, object]]:
    slo = ("--slo", str(folder / "slo.yaml"), "--output-tokens", "4000")
    done = invoke(folder, *slo, "--topology", str(folder / "topology.txt"), "--json", *options)
    assert done.exception is None, done.output
    found: list[dict[str, object]] = json.loads(done.stdout)["findings"]
    return found


def test_a_configuration_without_faults_has_no_findings(folder: Path) -> None:
    assert {one["check"] for one in findings(folder)} == {"TC011"}
    assert findings(folder, "--disable", "TC011") == []


@pytest.mark.parametrize(("id_", "severity", "file", "old", "new", "line", "evidence"), FAULTS)
def test_a_fault_has_a_finding(
    id_: str, severity: str, file: str, old: str, new: str, line: int, evidence: str, folder: Path
) -> None:
    text = FILES[file]
    assert text.count(old) == 1 or id_ in ("TC012", "TC006")
    write(folder, {file: text.replace(old, new, 1)})
    found = [one for one in findings(folder) if one["check"] == id_]
    assert found, (id_, file)
    (first, *_) = [one for one in found if evidence in str(one["evidence"])]
    assert (first["severity"], first["line"]) == (severity, line)
    assert str(first["file"]).startswith(str(folder))


def test_every_check_has_a_fault() -> None:
    assert {fault[0] for fault in FAULTS} | OF_OTHER_TESTS == set(CHECKS)


def test_indicators_of_checks_exist() -> None:
    for row in CHECKS.values():
        assert set(row.indicators) <= set(INDICATORS)
        assert row.indicators


def test_an_ensemble_is_not_compared_as_triton_sets_its_policy(folder: Path) -> None:
    stated = FILES[ENSEMBLE_FILE] + "model_transaction_policy { decoupled: false }\n"
    write(folder, {ENSEMBLE_FILE: stated})
    assert not [one for one in findings(folder) if one["check"] == "TC003"]


def test_engines_on_the_same_gpus_share_memory(folder: Path) -> None:
    write(folder, {"repository/draft/config.pbtxt": SECOND})
    found = [one for one in findings(folder) if one["check"] == "TC009"]
    assert ["1.8 in total" in str(one["evidence"]) for one in found] == [True, True]
    apart = SECOND.replace('"0,1"', '"2,3"')
    write(folder, {"repository/draft/config.pbtxt": apart})
    assert not [one for one in findings(folder) if one["check"] == "TC009"]


def test_the_policy_of_the_scheduler_is_stated(folder: Path) -> None:
    policy = (
        'parameters: { key: "batch_scheduler_policy" value: { string_value: "max_utilization" } }\n'
    )
    write(folder, {ENGINE_FILE: ENGINE + policy})
    stated = [one["evidence"] for one in findings(folder) if one["check"] == "TC011"]
    assert any("max_utilization pauses" in str(one) for one in stated)


def test_findings_name_the_threatened_objectives(folder: Path) -> None:
    write(folder, {ENGINE_FILE: ENGINE.replace("decoupled: true", "decoupled: false")})
    (found,) = [one for one in findings(folder) if one["check"] == "TC002"]
    assert found["objectives"] == ["chat/first-token", "chat/token-pace"]


def test_streams_are_not_expected_without_an_objective_on_them(folder: Path) -> None:
    slo = FILES["slo.yaml"].split("  - ")[0] + "  - {name: a, indicator: availability, target: 99%}"
    write(
        folder,
        {"slo.yaml": slo, ENGINE_FILE: ENGINE.replace("decoupled: true", "decoupled: false")},
    )
    assert not [one for one in findings(folder) if one["check"] == "TC002"]


def test_missing_inputs_are_named(folder: Path) -> None:
    done = invoke(folder, paths=(SERVE,))
    assert done.return_value == 0
    for id_, part in (
        ("TC001", "no config.pbtxt was given"),
        ("TC017", "--topology FILE"),
        ("TC018", "no Kubernetes manifest"),
        ("TC020", "the longest answer is not known"),
    ):
        (line,) = [
            one for one in done.stdout.splitlines() if one.startswith(f"not checked: {id_} ")
        ]
        assert part in line


def test_every_check_is_made_or_named_as_unchecked(folder: Path) -> None:
    """No input at all but a route: every check that needs more is listed."""
    route = FILES[DEPLOY].split("---\n")[1]
    write(folder, {"route.yaml": route})
    document = json.loads(invoke(folder, "--json", paths=("route.yaml",)).stdout)
    assert {one["check"] for one in document["unchecked"]} == set(CHECKS)


def test_an_engine_config_outside_the_folder_is_not_read(folder: Path) -> None:
    write(folder, {"secret/config.json": FILES[BUILT_FILE]})
    outside = ENGINE.replace('"/engines/llama"', '"../../secret"')
    write(folder, {ENGINE_FILE: outside})
    unchecked = json.loads(invoke(folder, "--json").stdout)["unchecked"]
    assert "TC012" in {one["check"] for one in unchecked}


def test_exit_codes_follow_the_severity(folder: Path) -> None:
    assert invoke(folder).return_value == 0  # a note
    assert invoke(folder, "--fail-on", "note").return_value == 1
    write(folder, {PRE_FILE: FILES[PRE_FILE].replace("5", "1")})
    assert invoke(folder).return_value == 1
    assert invoke(folder, "--fail-on", "error").return_value == 0


def test_sarif_is_valid(folder: Path) -> None:
    write(folder, {PRE_FILE: FILES[PRE_FILE].replace("5", "1")})
    sarif = json.loads(invoke(folder, "--sarif").stdout)
    schema = json.loads(json.dumps(SARIF).replace("^TL", "^TC"))
    jsonschema.validate(sarif, schema)
    (run,) = sarif["runs"]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == list(CHECKS)
    result = next(one for one in run["results"] if one["ruleId"] == "TC004")
    assert CHECKS["TC004"].fix in result["message"]["text"]
    assert result["locations"][0]["physicalLocation"]["region"]["startLine"] == 3


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("config.pbtxt", 'name: "a\n', ":1: is not protobuf text format"),
        ("config.pbtxt", "a {\n", ":2: ends inside a message"),
        ("config.pbtxt", "name 5\n", ":1: has a field without a value"),
        ("values.yaml", "a: [\n", "is not valid YAML"),
        ("values.yaml", "a: 1\n", "has no LLM options"),
    ],
)
def test_bad_input_is_one_error_with_a_fix(
    name: str, text: str, message: str, tmp_path: Path
) -> None:
    write(tmp_path, {name: text})
    with pytest.raises(ValueError, match="Fix: ") as raised:
        CliRunner().invoke(
            check_config, [str(tmp_path / name)], standalone_mode=False, catch_exceptions=False
        )
    assert message in str(raised.value)


def test_a_folder_without_configuration_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is a folder without a config\.pbtxt"):
        CliRunner().invoke(
            check_config, [str(tmp_path)], standalone_mode=False, catch_exceptions=False
        )


def test_a_topology_without_matrix_is_an_error(folder: Path) -> None:
    done = invoke(folder, "--topology", str(folder / "slo.yaml"))
    assert "has no matrix of GPUs" in str(done.exception)


def test_helm_values_are_read(folder: Path) -> None:
    values = "server:\n  livenessProbe: {periodSeconds: 5}\nterminationGracePeriodSeconds: 30\n"
    write(folder, {"values.yaml": values})
    options = ("--slo", str(folder / "slo.yaml"), "--output-tokens", "4000", "--json")
    found = json.loads(invoke(folder, *options, paths=("values.yaml",)).stdout)["findings"]
    assert [(one["check"], one["line"]) for one in found] == [("TC018", 2), ("TC019", 3)]


def test_a_disabled_probe_is_none(folder: Path) -> None:
    off = "livenessProbe: {enabled: false, periodSeconds: 5}\n"
    write(folder, {"values.yaml": off})
    done = invoke(folder, "--json", paths=("values.yaml",))
    assert json.loads(done.stdout)["findings"] == []


def test_routes_without_limit_are_named_as_unchecked(folder: Path) -> None:
    route = FILES[DEPLOY].split("---\n")[1].replace("timeouts: {request: 5m}", "name: a")
    write(folder, {"route.yaml": route})
    slo = ("--slo", str(folder / "slo.yaml"), "--output-tokens", "100")
    done = invoke(folder, *slo, paths=("route.yaml",))
    assert "TC020 short-gateway-timeout, because the routes set no limit" in done.stdout


def test_files_of_a_chart_with_templates_are_named_as_unchecked(folder: Path) -> None:
    write(folder, {"repository/chart/templates/a.yaml": "a: {{ .Values.a }}\n  {{- if b }}\n"})
    done = invoke(folder)
    assert "templates/a.yaml: not checked" in done.stdout
    assert done.return_value == 0
