"""``tokenslo check-config``: each check with a fault and without, formats, bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from config_checks.table import CHECKS
from slos.indicators import INDICATORS
from tests.config_files import BLS, ENGINE, FILES, LIMITS, write
from tests.load_reports import SWEEP, level, write_report
from tests.sarif_schema import validate_sarif
from tokenslo.commands.check_config import check_config

LOADS = (level("rate", 1, 1.0, 3.2, 0.4), level("concurrency", 64, 7.5, 8.5, 1.1))
for load in LOADS:
    load["prompts"] = []  # without token counts there is no prefill rate
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
    (
        "TC008",
        "warning",
        ENGINE_FILE,
        "default_queue_policy: { max_queue_size: 12 }",
        "",
        5,
        "is not set",
    ),
    (
        "TC014",
        "warning",
        SERVE,
        "[1, 8, 32]",
        "[1, 8, 64]",
        6,
        "no graph is for a batch of 32, and enable_padding is not true",
    ),
    (
        "TC021",
        "warning",
        SERVE,
        "perf_stats: true",
        "perf_stats: false",
        8,
        "enable_iter_perf_stats is false: /metrics of trtllm-serve has no iteration records",
    ),
    ("TC021", "note", SERVE, "return_perf_metrics: true", "", 1, "is not set, so false: trtllm"),
    ("TC006", "warning", ENGINE_FILE, "microseconds: 0", "microseconds: 500", 6, "is 500"),
    ("TC007", "error", ENGINE_FILE, "inflight_fused_batching", "V1", 11, "is V1"),
    ("TC008", "warning", ENGINE_FILE, "max_queue_size: 12", "max_queue_size: 0", 7, "is 0"),
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
    ("TC020", "error", DEPLOY, "request: 5m", "request: 60s", 20, "60 s in total"),
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
    (
        "TC022",
        "warning",
        ENGINE_FILE,
        "max_queue_size: 12",
        "max_queue_size: 128",
        7,
        "the last request waits 128 / 7.5/s = 17.07s, first-token (ttft 2s) allows 1.6s",
    ),
    ("TC022", "warning", BLS_FILE, "max_queue_size: 12", "max_queue_size: 13", 10, "is 13: the"),
    ("TC022", "warning", BLS_FILE, "max_queue_size: 12", "max_queue_size: 1e300", 10, "is 1e300"),
    (
        "TC023",
        "warning",
        BLS_FILE,
        "1600000",
        "1600001",
        9,
        "(1.600001s), first-token (ttft 2s) allows 1.6s in the queue",
    ),
    (
        "TC024",
        "warning",
        ENGINE_FILE,
        "max_queue_size: 12",
        "max_queue_size: 12 default_timeout_microseconds: 1600000",
        7,
        "default_timeout_microseconds of tensorrt_llm is 1600000, but its requests do not wait in",
    ),
    (
        "TC024",
        "warning",
        ENGINE_FILE,
        "dynamic_batching {",
        "dynamic_batching { priority_levels: 2",
        5,
        "priority_levels of tensorrt_llm is 2, but",
    ),
    (
        "TC029",
        "note",
        BUILT_FILE,
        '"build_config": {"max_batch_size": 64',
        '"build_config": {"max_batch_size": 65',
        3,
        "build_config.max_batch_size is 65, the objectives were kept with 64 sequences",
    ),
    ("TC025", "warning", BLS_FILE, "REJECT", "DELAY", 8, "of tensorrt_llm_bls is DELAY"),
    (
        "TC026",
        "error",
        BUILT_FILE,
        '"max_input_len": 6000',
        '"max_input_len": 5999',
        4,
        "build_config.max_input_len is 5999, and the longest prompt has 6000 tokens",
    ),
    (
        "TC026",
        "error",
        BUILT_FILE,
        '"max_seq_len": 10000',
        '"max_seq_len": 9999',
        4,
        "the longest sequence has 6000 + 4000 tokens",
    ),
    (
        "TC026",
        "error",
        SERVE,
        "max_num_tokens: 8192",
        "max_num_tokens: 2048",
        7,
        "max_num_tokens is 2048, and a prompt of 6000 tokens is not chunked",
    ),
    (
        "TC027",
        "error",
        DEPLOY,
        "streamIdleTimeout: 300s",
        "streamIdleTimeout: 2s",
        25,
        "BackendTrafficPolicy: streamIdleTimeout: 2 s of silence, the longest gap is 2 s",
    ),
    (
        "TC028",
        "warning",
        DEPLOY,
        "triggers: [connect-failure]",
        "triggers: [retriable-status-codes], httpStatusCodes: [502, 503]",
        26,
        "BackendTrafficPolicy: retries on 503",
    ),
    (
        "TC028",
        "warning",
        DEPLOY,
        "connect-failure,refused-stream",
        "connect-failure, 5xx,unavailable",
        32,
        "VirtualService: retries on 5xx, unavailable",
    ),
    (
        "TC028",
        "note",
        DEPLOY,
        "retries: {attempts: 1, retryOn: ",
        "name: {a: ",
        32,
        "VirtualService: retries by default on unavailable",
    ),
    (
        "TC028",
        "note",
        DEPLOY,
        "{retryOn: {triggers: [connect-failure]}}",
        "{numRetries: 2}",
        26,
        "BackendTrafficPolicy: retries by default on unavailable, 503",
    ),
    (
        "TC027",
        "error",
        DEPLOY,
        '"300"',
        '"1"',
        38,
        "proxy-read-timeout: 1 s of silence, the longest",
    ),
    ("TC027", "note", DEPLOY, '"300"', '"60"', 38, "60 s of silence, a request without streaming"),
    ("TC031", "error", DEPLOY, '"off"', '"on"', 39, "proxy-buffering is on"),
    ("TC032", "error", DEPLOY, "seconds: 15", "seconds: 300", 14, "300 s of a grace period of 300"),
    ("TC032", "error", DEPLOY, "Seconds: 300", "Seconds: 250", 14, "requests come for 15 s"),
]
# TC009 needs a second engine, TC011 states the policy of every engine, TC030 a prefill rate.
OF_OTHER_TESTS = {"TC009", "TC011", "TC030"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, FILES)
    return tmp_path


def invoke(
    folder: Path, *options: str, paths: tuple[str, ...] = ("repository", SERVE, DEPLOY)
) -> Result:
    given = [str(folder / path) for path in paths]
    return CliRunner().invoke(check_config, [*given, *options], standalone_mode=False)


def findings(folder: Path, *options: str, measured: bool = True) -> list[dict[str, object]]:
    given = ["--slo", str(folder / "slo.yaml"), *LIMITS, "--topology", str(folder / "topology.txt")]
    if measured:
        given += ["--capacity", write_report(folder / "load.json", *LOADS)]
    done = invoke(folder, *given, "--json", *options)
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
    assert not [one for one in findings(folder, measured=False) if one["check"] == "TC002"]


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
    validate_sarif(sarif, "TC")
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
    assert "TC020 short-gateway-timeout, because the gateways set no limit" in done.stdout


# Object of a gateway, the check and its evidence.
GATEWAYS = [
    ("kind: GRPCRoute\nspec: {rules: [{timeouts: {backendRequest: 1s}}]}", "TC020", "1 s in total"),
    ("kind: AIGatewayRoute\nspec: {rules: [{}]}", "TC020", "timeouts.request: default: 60 s"),
    ("kind: AIGatewayRoute\nspec: {rules: [{streamIdleTimeout: 1s}]}", "TC027", "1 s of silence"),
    (
        "kind: VirtualService\nspec: {http: [{retries: {perTryTimeout: 2s}}]}",
        "TC020",
        "perTryTimeout: 2 s in total",
    ),
    (
        "kind: BackendTrafficPolicy\nspec: {timeout: {http: {maxStreamDuration: 1m30s}}}",
        "TC020",
        "maxStreamDuration: 90 s in total",
    ),
    (
        "kind: BackendTrafficPolicy\nspec: {retry: {perRetry: {timeout: 250ms}}}",
        "TC020",
        "timeout: 0.25 s in total",
    ),
    (
        "kind: ClientTrafficPolicy\nspec: {timeout: {http: {streamIdleTimeout: 1s}}}",
        "TC027",
        "1 s of silence",
    ),
    ("kind: BackendConfig\nspec: {}", "TC020", "without timeoutSec: default: 30 s in total"),
    (
        "kind: GCPBackendPolicy\nspec: {default: {timeoutSec: 40}}",
        "TC020",
        "timeoutSec: 40 s in total",
    ),
    (
        "kind: Ingress\nspec: {ingressClassName: alb}",
        "TC027",
        "Ingress of class alb: default: 60 s of silence, a request without streaming",
    ),
    (
        "kind: Ingress\nmetadata: {annotations: {alb.ingress.kubernetes.io/"
        "load-balancer-attributes: 'a=b,idle_timeout.timeout_seconds=1'}}",
        "TC027",
        "1 s of silence, the longest",
    ),
    (
        "kind: Ingress\nmetadata: {annotations: {nginx.org/proxy-read-timeout: 90s}}",
        "TC031",
        "nginx.org/proxy-buffering is not set, so true",
    ),
    (
        "kind: Service\nmetadata: {annotations: {konghq.com/read-timeout: '1500'}}",
        "TC027",
        "konghq.com/read-timeout: 1.5 s of silence, the longest",
    ),
    ("kind: ConfigMap\ndata: {proxy-read-timeout: '1'}", "TC027", "1 s of silence"),
    ("kind: ConfigMap\ndata: {proxy-buffering: 'True'}", "TC031", "proxy-buffering is True"),
]


@pytest.mark.parametrize(("text", "id_", "evidence"), GATEWAYS)
def test_a_limit_of_a_gateway_is_found(text: str, id_: str, evidence: str, folder: Path) -> None:
    write(folder, {"route.yaml": f"apiVersion: v1\n{text}\n"})
    slo = ("--slo", str(folder / "slo.yaml"), "--output-tokens", "4000", "--json")
    found = json.loads(invoke(folder, *slo, paths=("route.yaml",)).stdout)["findings"]
    assert [one["check"] for one in found if evidence in one["evidence"]] == [id_], found


@pytest.mark.parametrize(
    ("hook", "evidence"),
    [
        ('{exec: {command: [/bin/sh, -c, "date; sleep 5m; sleep 1"]}}', "sleeps 301 s"),
        ("{exec: {command: [sleep, '400']}}", "sleeps 400 s"),
    ],
)
def test_a_hook_that_runs_sleep_has_its_seconds(hook: str, evidence: str, folder: Path) -> None:
    text = FILES[DEPLOY].replace("{sleep: {seconds: 15}}", hook)
    write(folder, {DEPLOY: text})
    (found,) = [one for one in findings(folder) if one["check"] == "TC032"]
    assert evidence in str(found["evidence"])


@pytest.mark.parametrize(
    "hook", ["{httpGet: {path: /drain}}", "{exec: {command: [sh, -c, 'sleep $T']}}"]
)
def test_a_hook_of_unknown_duration_is_named_as_unchecked(hook: str, folder: Path) -> None:
    write(folder, {DEPLOY: FILES[DEPLOY].replace("{sleep: {seconds: 15}}", hook)})
    done = invoke(folder)
    assert "TC032 long-pre-stop, because the duration of the preStop hook" in done.stdout


def test_files_of_a_chart_with_templates_are_named_as_unchecked(folder: Path) -> None:
    write(folder, {"repository/chart/templates/a.yaml": "a: {{ .Values.a }}\n  {{- if b }}\n"})
    done = invoke(folder)
    assert "templates/a.yaml: not checked" in done.stdout
    assert done.return_value == 0


def test_a_policy_by_priority_is_compared(folder: Path) -> None:
    policies = "".join(
        f"priority_queue_policy {{ key: {key} value: {{ max_queue_size: {size} "
        f"default_timeout_microseconds: 9600000 timeout_action: DELAY }} }}\n"
        for key, size in ((1, 13), (2, 60))
    )
    batching = BLS.split("dynamic_batching")[0] + f"dynamic_batching {{\n{policies}}}\n"
    write(folder, {BLS_FILE: batching})
    found = [(one["check"], one["line"]) for one in findings(folder) if "bls" in str(one["file"])]
    assert found == [("TC022", 8), ("TC023", 8), ("TC025", 8), ("TC025", 9)]


def test_without_a_capacity_a_timeout_is_compared_with_the_threshold(folder: Path) -> None:
    write(folder, {BLS_FILE: BLS.replace("1600000", "2000001")})
    slo = ("--slo", str(folder / "slo.yaml"), "--json")
    report = json.loads(invoke(folder, *slo).stdout)
    (late,) = [one for one in report["findings"] if one["check"] == "TC023"]
    assert str(late["evidence"]).endswith("(2.000001s), the tightest TTFT threshold is 2s")
    assert {"check": "TC022", "name": "long-queue",
            "reason": "the capacity of a server is not known: give --capacity FILE"} in report[
        "unchecked"
    ]  # fmt: skip


def test_no_limit_of_the_queue_of_the_llm_api_has_an_effect(folder: Path) -> None:
    model = (
        'name: "llm"\nbackend: "python"\ninput { name: "sampling_param_max_tokens" }\n'
        "dynamic_batching { default_queue_policy { max_queue_size: 12 } }\n"
    )
    write(folder, {"repository/llm/config.pbtxt": model})
    found = [one for one in findings(folder) if str(one["file"]).endswith("llm/config.pbtxt")]
    assert ("TC024", 4) in [(one["check"], one["line"]) for one in found]
    assert "TC008" not in [one["check"] for one in found]


def test_chunked_prompts_may_exceed_an_iteration(folder: Path) -> None:
    chunked = FILES[SERVE].replace("8192", "2048") + "enable_chunked_prefill: true\n"
    write(folder, {SERVE: chunked})
    assert not [one for one in findings(folder) if one["check"] == "TC026"]


def test_disabled_retries_and_idle_timeouts_are_no_faults(folder: Path) -> None:
    deployment = (
        FILES[DEPLOY]
        .replace("attempts: 1", "attempts: 0")
        .replace('"connect-failure,refused-stream"', '"5xx"')
        .replace("{retryOn: {triggers: [connect-failure]}}", "{numRetries: 0}")
        .replace("streamIdleTimeout: 300s", "streamIdleTimeout: 0s")
    )
    write(folder, {DEPLOY: deployment})
    assert not [one for one in findings(folder) if one["check"] in ("TC027", "TC028")]


def test_a_capacity_needs_the_slo_file_of_its_service(folder: Path) -> None:
    capacity = ("--capacity", write_report(folder / "load.json"), *LIMITS)
    done = invoke(folder, *capacity)
    assert "A capacity is that of one service, and 0 were given" in str(done.exception)


def test_a_timeout_does_not_limit_the_queue_of_an_engine(folder: Path) -> None:
    timeout = ENGINE.replace("max_queue_size: 12", "default_timeout_microseconds: 100000")
    write(folder, {ENGINE_FILE: timeout})
    assert {"TC008", "TC024"} <= {one["check"] for one in findings(folder)}


def test_an_iteration_may_be_longer_than_the_pace_allows(folder: Path) -> None:
    capacity = ("--capacity", write_report(folder / "load.json", *SWEEP))
    slo = ("--slo", str(folder / "slo.yaml"), *LIMITS, "--json")
    report = json.loads(invoke(folder, *slo, *capacity).stdout)
    evidence = {str(one["evidence"]) for one in report["findings"] if one["check"] == "TC030"}
    allowed = "is 8192, token-pace (itl 60ms) allows 255 by the estimated prefill rate"
    assert evidence == {f"max_num_tokens {allowed}", f"build_config.max_num_tokens {allowed}"}


def test_loads_without_a_prefill_rate_say_so(folder: Path) -> None:
    capacity = ("--capacity", write_report(folder / "load.json", *LOADS))
    slo = ("--slo", str(folder / "slo.yaml"), *LIMITS)
    shown = invoke(folder, *slo, *capacity).stdout
    assert "TC030 long-iterations, because the capacity has no prefill rate\n" in shown


@pytest.mark.parametrize(
    ("workers", "in_file", "found"),
    [
        ("4", "", []),
        ("0", "", ["--num_postprocess_workers is 0"]),
        ("4", "num_postprocess_workers: 0\n", ["num_postprocess_workers is 0"]),
    ],
)
def test_workers_on_the_command_line_are_read(
    workers: str, in_file: str, found: list[str], folder: Path
) -> None:
    start = f"[trtllm-serve, llama, --num_postprocess_workers, '{workers}']"
    command = "[tritonserver, --exit-timeout-secs=300]"
    options = FILES[SERVE].replace("num_postprocess_workers: 4\n", in_file)
    write(folder, {DEPLOY: FILES[DEPLOY].replace(command, start), SERVE: options})
    evidence = [one["evidence"] for one in findings(folder) if one["check"] == "TC016"]
    assert evidence == found


def unchecked(folder: Path, id_: str) -> list[str]:
    rows = json.loads(invoke(folder, "--json").stdout)["unchecked"]
    return [one["reason"] for one in rows if one["check"] == id_]


TWO_INSTANCES = (("count: 1", "count: 2"), ('"0,1"', '"0,1;2,3"'))
TRITON = "command: [tritonserver, --exit-timeout-secs=300]"
SCRIPT = "command: [python3, scripts/launch_triton_server.py, --exit-timeout-secs=300{}]"
LLM_MODEL = """\
name: "tensorrt_llm"
backend: "python"
max_batch_size: 0
model_transaction_policy { decoupled: true }
instance_group [ { count: 2 kind: KIND_CPU } ]
model_warmup [ { name: "first" batch_size: 1 } ]
parameters: { key: "gpu_device_ids" value: { string_value: "0,1;2,3" } }
"""


def replaced(text: str, *pairs: tuple[str, str]) -> str:
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize(
    ("command", "found"),
    [
        (TRITON, ["no container sets --multi-model or TRTLLM_ORCHESTRATOR=1"]),
        (SCRIPT.format(", --multi-model"), []),
        (f"env: [{{name: TRTLLM_ORCHESTRATOR, value: '1'}}]\n          {TRITON}", []),
        ("command: [sh, -c, 'export TRTLLM_ORCHESTRATOR=1; tritonserver']", []),
        (
            "command: [sh, -c, 'TRTLLM_ORCHESTRATOR=0 tritonserver']",
            ["no container sets --multi-model or TRTLLM_ORCHESTRATOR=1"],
        ),
    ],
)
def test_instances_of_an_engine_need_the_orchestrator(
    command: str, found: list[str], folder: Path
) -> None:
    deployment = replaced(FILES[DEPLOY], (TRITON, command))
    write(folder, {ENGINE_FILE: replaced(ENGINE, *TWO_INSTANCES), DEPLOY: deployment})
    evidence = [str(one["evidence"]) for one in findings(folder) if one["check"] == "TC005"]
    assert [one.partition(", and ")[2] for one in evidence] == found


@pytest.mark.parametrize(
    ("command", "found"),
    [
        (TRITON, []),
        (SCRIPT.format(""), ["a container starts Triton with MPI, without --no-mpi"]),
        (SCRIPT.format(", --no-mpi"), []),
    ],
)
def test_instances_of_the_llm_api_need_no_mpi(command: str, found: list[str], folder: Path) -> None:
    files = {
        ENGINE_FILE: LLM_MODEL,
        "repository/tensorrt_llm/1/model.yaml": "model: llama\nmax_batch_size: 64\n",
        DEPLOY: replaced(FILES[DEPLOY], (TRITON, command)),
    }
    write(folder, files)
    evidence = [str(one["evidence"]) for one in findings(folder) if one["check"] == "TC005"]
    assert [one.partition(", and ")[2] for one in evidence] == found


def test_instances_without_a_container_are_named_as_unchecked(folder: Path) -> None:
    write(folder, {ENGINE_FILE: replaced(ENGINE, *TWO_INSTANCES)})
    done = invoke(folder, "--json", paths=("repository",))
    reasons = {one["check"]: one["reason"] for one in json.loads(done.stdout)["unchecked"]}
    assert reasons["TC005"].startswith("tensorrt_llm has 2 instances, and no container was given")


def test_batch_limits_of_the_llm_api_are_compared(folder: Path) -> None:
    limits = "model: llama\nmax_batch_size: 64\ntriton_config:\n  max_batch_size: {}\n"
    options = "repository/tensorrt_llm/1/model.yaml"
    write(folder, {ENGINE_FILE: LLM_MODEL, options: limits.format(96)})
    (found,) = (one for one in findings(folder) if one["check"] == "TC012")
    assert (found["severity"], found["line"]) == ("error", 4)
    assert str(found["evidence"]).startswith("max_batch_size of tensorrt_llm is 96, of its engine")
    write(folder, {options: limits.format(0)})  # Triton does not batch
    assert "TC012" not in {one["check"] for one in findings(folder)}


def test_an_unlimited_queue_of_the_llm_api_is_named(folder: Path) -> None:
    options = {"repository/tensorrt_llm/1/model.yaml": "model: llama\n"}
    write(folder, {ENGINE_FILE: LLM_MODEL, **options})
    expected = "the queue of tensorrt_llm is that of the LLM API, which has no limit"
    assert unchecked(folder, "TC008") == [expected]


def test_gpus_of_several_servers_are_named_as_unknown(folder: Path) -> None:
    assert unchecked(folder, "TC009") == [
        f"the GPUs of a server are not in its LLM options ({folder / SERVE})"
    ]


def test_the_tokenizer_of_an_ensemble_is_named_as_unknown(folder: Path) -> None:
    assert unchecked(folder, "TC013") == []
    step = '  { model_name: "tensorrt_llm" model_version: -1 }\n'
    more = step.replace("tensorrt_llm", "postprocessing") + "," + step
    write(folder, {ENSEMBLE_FILE: replaced(FILES[ENSEMBLE_FILE], (step, more))})
    (reason,) = unchecked(folder, "TC013")
    assert reason.startswith("the ensemble ensemble detokenizes each response alone")


def test_padded_graphs_need_no_graph_of_every_size(folder: Path) -> None:
    padded = replaced(FILES[SERVE], ("[1, 8, 32]", "[1, 8, 64]\n  enable_padding: true"))
    write(folder, {SERVE: padded})
    assert "TC014" not in {one["check"] for one in findings(folder)}


def test_workers_that_are_not_a_number_are_named(folder: Path) -> None:
    start = "command: [trtllm-serve, llama, --num_postprocess_workers, $WORKERS]"
    write(folder, {DEPLOY: replaced(FILES[DEPLOY], (TRITON, start))})
    (reason,) = unchecked(folder, "TC016")
    assert reason.endswith("is '$WORKERS', not a number")


def test_workers_of_an_image_with_an_entry_point_are_read(folder: Path) -> None:
    start = "args: [--num_postprocess_workers, '0']"
    options = replaced(FILES[SERVE], ("num_postprocess_workers: 4\n", ""))
    flags = "args: [--metrics-config, histogram_latencies=true]"
    deployment = replaced(FILES[DEPLOY], (f"{TRITON}\n          {flags}", start))
    write(folder, {DEPLOY: deployment, SERVE: options})
    evidence = [one["evidence"] for one in findings(folder) if one["check"] == "TC016"]
    assert evidence == ["--num_postprocess_workers is 0"]


def test_chunks_of_several_tokens_are_named_as_unknown(folder: Path) -> None:
    write(folder, {SERVE: FILES[SERVE] + "stream_interval: 8\n"})
    (reason,) = unchecked(folder, "TC013")
    assert reason.startswith(f"{folder / SERVE} sets stream_interval 8: whether the release loses")
    write(folder, {SERVE: FILES[SERVE] + "stream_interval: 1\n"})
    assert unchecked(folder, "TC013") == []


def test_flags_and_options_of_metrics_that_were_not_given_are_named(folder: Path) -> None:
    def reasons(*paths: str) -> list[str]:
        rows = json.loads(invoke(folder, "--json", paths=paths).stdout)["unchecked"]
        return [one["reason"] for one in rows if one["check"] == "TC021"]

    no_flags = "no container with the start command of Triton was given"
    assert reasons("repository", SERVE) == [no_flags]
    serve = "command: [trtllm-serve, llama]"
    write(folder, {DEPLOY: replaced(FILES[DEPLOY], (TRITON, serve))})
    no_options = "starts trtllm-serve, and no file of its options was given"
    assert reasons(DEPLOY) == [f"{folder / DEPLOY} {no_options}"]
    assert reasons(DEPLOY, SERVE) == []
