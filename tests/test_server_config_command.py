"""``tokenslo server-config`` with a capacity: its whole output, its objects, bad input."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from admission.engine_options import SERVERS
from admission.rendering import PARTS
from config_checks.setting import Setting
from config_checks.text_proto import parse_text_proto
from tests.kubernetes_objects import objects, only, schema_errors
from tests.load_reports import level, write_report
from tokenslo.cli import main

SLO = """\
apiVersion: tokenslo/v1
service: chat
selector: {model: llama}
objectives:
  - {name: first-token, indicator: ttft, threshold: 2s, target: 95%}
  - {name: token-pace, indicator: itl, threshold: 60ms, target: 99%}
  - {name: stalls, indicator: max_gap, threshold: 10s, target: 99%}
quotas:
  - {tenant: acme, tokens: 50000000, per: day}
  - {tenant: initech, tokens: 5000000000, per: month}
"""
WORK = ("--input-tokens", "6000", "--output-tokens", "2000")
MEASURED = ("--capacity", "load.json", *WORK)
GIVEN = ("--rate", "7.5", "--concurrency", "30", "--unqueued-ttft", "400ms", *WORK)
EXPECTED = Path(__file__).parent / "expected/limits.txt"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("slo.yaml").write_text(SLO)
    write_report(Path("load.json"))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(["server-config", *arguments])
    captured = capsys.readouterr()
    return int(end.value.code or 0), captured.out, captured.err


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    code, text, errors = run(capsys, "slo.yaml", *arguments)
    assert (code, errors) == (0, "")
    return text


def test_the_whole_output(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--lower-priorities", "10s", "--replicas", "4", "--gateways", "2")
    names = ("--gateway", "public", "--host", "llm.prod.svc.cluster.local", "--namespace", "prod")
    tenants = ("--tenant-header", "x-tenant-id")
    assert printed(capsys, *MEASURED, *options, *names, *tenants) == EXPECTED.read_text()


def test_parts_make_up_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    whole = printed(capsys, *MEASURED)
    histogram = printed(capsys)
    parts = [printed(capsys, *MEASURED, "--only", part) for part in PARTS]
    assert "\n".join([histogram, *parts]) == whole


def test_given_numbers_are_a_capacity(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, *GIVEN, "--only", "limits")
    assert "the capacity in the options" in text
    assert re.search(r"# queue length +12 +1\.6s x 7\.5/s = 12\.0 +first-token \(ttft 2s\)\n", text)
    assert "# Note: max_num_tokens is unknown: the prefill rate was not measured." in text
    counted = printed(
        capsys, *GIVEN, "--mean-input-tokens", "900", "--mean-output-tokens", "250.5",
        "--only", "limits",
    )  # fmt: skip
    assert re.search(r"# tokens per iteration +135 +prefill 2250/s", counted)
    assert re.search(r"# gateway: token rate +517725 per minute", counted)


# The settings of servers


def policies(text: str) -> list[dict[str, Any]]:
    """Return the values of the stanzas of a model's configuration."""
    return [plain(Setting("", 0, "", parse_text_proto(text)))]


def plain(setting: Setting) -> Any:
    if setting.node.entries is None:
        return setting.text
    found = {}
    for key in setting.node.entries:
        values = [plain(each) for each in setting.each(key)]
        found[key] = values if len(values) > 1 else values[0]
    return found


def stanzas(text: str) -> list[dict[str, Any]]:
    parts = [part for part in text.split("\n\n") if "dynamic_batching" in part]
    return [policy for part in parts for policy in policies(part)]


def test_stanzas_have_the_fields_of_tritons_queue_policies(
    capsys: pytest.CaptureFixture[str],
) -> None:
    engine, queued = stanzas(
        printed(capsys, *MEASURED, "--lower-priorities", "10s", "--only", "server")
    )
    assert engine == {
        "dynamic_batching": {
            "max_queue_delay_microseconds": "0",
            "default_queue_policy": {"max_queue_size": "12"},
        }
    }
    batching = queued["dynamic_batching"]
    assert (batching["priority_levels"], batching["default_priority_level"]) == ("2", "2")
    assert [(one["key"], one["value"]) for one in batching["priority_queue_policy"]] == [
        (
            str(priority),
            {
                "timeout_action": "REJECT",
                "default_timeout_microseconds": microseconds,
                "allow_timeout_override": "true",
                "max_queue_size": size,
            },
        )
        for priority, microseconds, size in ((1, "1600000", "12"), (2, "9600000", "60"))
    ]
    assert queued["instance_group"]["count"] == "47"


OPTIONS = {
    "triton": "--max_input_len 6000 --max_seq_len 8000 --max_batch_size 47 --max_num_tokens 255 "
    "--use_paged_context_fmha enable",
    "triton-llm-api": "max_batch_size: 47\nmax_input_len: 6000\nmax_seq_len: 8000\n"
    "max_num_tokens: 255\nenable_chunked_prefill: true",
    "trtllm-serve": "--max_batch_size 47 --max_seq_len 8000 --max_num_tokens 255 "
    "--enable_chunked_prefill",
    "vllm": "--max-num-seqs 47 --max-model-len 8000 --max-num-batched-tokens 255 "
    "--max-num-queued-reqs 59",
    "sglang": "--max-running-requests 47 --context-length 8000 --chunked-prefill-size 255 "
    "--max-queued-requests 12",
}


@pytest.mark.parametrize("server", SERVERS)
def test_each_server_gets_its_own_options(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, *MEASURED, "--server", server, "--only", "server")
    assert f"\n{OPTIONS[server]}\n" in text
    unknown = printed(capsys, *GIVEN, "--server", server, "--only", "server")
    assert not re.search("num.tokens|batched-tokens|chunked|paged", unknown)


# Objects of gateways


@pytest.mark.parametrize("part", ["envoy-gateway", "envoy-ai-gateway", "istio"])
@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--retries", "0%"),
        ("--replicas", "1000000", "--lower-priorities", "5s,1h", "--retries", "2.5%"),
        ("--namespace", "prod", "--tenant-header", "x-tenant-id", "--gateways", "1000000"),
        ("--output-tokens", "1000000"),
    ],
)
def test_objects_are_valid(
    part: str, options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    made = objects(printed(capsys, *MEASURED, *options, "--only", part))
    assert len(made) == 2
    assert [error for one in made for error in schema_errors(one, "1.33")] == []


def test_a_wrong_field_of_an_object_would_be_found(capsys: pytest.CaptureFixture[str]) -> None:
    made = objects(printed(capsys, *MEASURED, "--only", "envoy-gateway"))
    policy = only(made, "BackendTrafficPolicy")
    policy["spec"]["timeout"]["http"] |= {"requestTimeout": "2.5s", "idle": "1s"}
    assert len([*schema_errors(policy, "1.33")]) == 2


def test_timeouts_of_gateways_are_those_of_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    table = printed(capsys, *MEASURED, "--only", "limits")
    values = dict(re.findall(r"^# ((?:idle )?timeout: \w+)  +(\S+)", table, re.MULTILINE))
    assert values == {
        "timeout: server": "2m15s",
        "timeout: gateway": "2m28s",
        "timeout: client": "2m41s",
        "idle timeout: gateway": "40s",
        "idle timeout: client": "53s",
    }
    envoy = only(objects(printed(capsys, *MEASURED, "--only", "envoy-gateway")),
                 "BackendTrafficPolicy")["spec"]["timeout"]["http"]  # fmt: skip
    assert envoy == {"requestTimeout": "148s", "streamIdleTimeout": "40s"}
    (rule,) = only(objects(printed(capsys, *MEASURED, "--only", "envoy-ai-gateway")),
                   "AIGatewayRoute")["spec"]["rules"]  # fmt: skip
    assert (rule["timeouts"], rule["streamIdleTimeout"]) == ({"request": "148s"}, "40s")
    (route,) = only(objects(printed(capsys, *MEASURED, "--only", "istio")),
                    "VirtualService")["spec"]["http"]  # fmt: skip
    assert route["timeout"] == "148s"


def test_quotas_are_limits_of_tenants(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, *MEASURED, "--tenant-header", "x-org", "--only", "envoy-ai-gateway")
    limits = only(objects(text), "BackendTrafficPolicy")["spec"]["rateLimit"]["global"]["rules"]
    assert [(one.get("clientSelectors"), one["limit"]) for one in limits] == [
        (None, {"requests": 517500, "unit": "Minute"}),
        (
            [{"headers": [{"type": "Exact", "name": "x-org", "value": "acme"}]}],
            {"requests": 50000000, "unit": "Day"},
        ),
    ]
    assert "Quotas above 4294967295 tokens are left out: initech." in text


# Bad input


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            ("slo.yaml", "--only", "istio"),
            "tokenslo server-config: --only needs a capacity. Fix: give --capacity FILE, or --rate,"
            " --concurrency and --unqueued-ttft. Try `tokenslo server-config --help`.",
        ),
        (("slo.yaml", "--rate", "8"), "tokenslo server-config: The capacity is missing. Fix: give"),
        (
            ("slo.yaml", *MEASURED, "--rate", "8"),
            "tokenslo server-config: Give --capacity or --rate, not both.",
        ),
        (
            ("slo.yaml", "other.yaml", *MEASURED),
            "tokenslo server-config: A capacity is that of one service, and 2 were given. Fix: give"
            " one SLO file.",
        ),
        (
            ("slo.yaml", "--capacity", "absent.json"),
            "absent.json: cannot be read: No such file or directory. Fix: give the path of a file",
        ),
        (("slo.yaml", "--capacity", "slo.yaml"), "slo.yaml:1: is not valid JSON: "),
        (("slo.yaml", *GIVEN, "--rate", "0"), "--rate': '0' is not a rate such as 7.5, from 0.001"),
        (("slo.yaml", *GIVEN, "--rate", "fast"), "--rate': 'fast' is not a rate such as 7.5"),
        (("slo.yaml", *GIVEN, "--unqueued-ttft", "0s"), "'0s' is not a time above 0s and up to 1h"),
        (("slo.yaml", *GIVEN, "--unqueued-ttft", "9"), "has no unit; write a number with its unit"),
        (("slo.yaml", *GIVEN, "--retries", "60%"), "'60%' is above 50%"),
        (("slo.yaml", *GIVEN, "--host", "a b"), "'a b' is not the name of a Kubernetes object or"),
        (("slo.yaml", *GIVEN, "--tenant-header", "a:b"), "'a:b' is not the name of a header"),
        (
            ("slo.yaml", *GIVEN, "--lower-priorities", "1s"),
            "--lower-priorities: the TTFT threshold",
        ),
        (("slo.yaml", *GIVEN, "--input-tokens", "0"), "0 is not in the range 1<=x<=1000000"),
    ],
)
def test_bad_input_is_one_error(
    arguments: tuple[str, ...], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("other.yaml").write_text(SLO.replace("service: chat", "service: other"))
    code, text, errors = run(capsys, *arguments)
    assert (code, text) == (2, "")
    assert problem in errors
    assert errors.count("\n") == 1


def test_all_problems_of_a_service_without_thresholds_are_reported(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = [line for line in SLO.splitlines() if "ttft" not in line and "itl" not in line]
    Path("slo.yaml").write_text("\n".join(lines))
    code, _, errors = run(capsys, "slo.yaml", *GIVEN)
    assert code == 2
    assert [
        line.split("has a threshold for ")[1].split(";")[0] for line in errors.splitlines()
    ] == [
        "ttft",
        "itl or tpot",
    ]


def test_a_capacity_of_other_limits_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    one = level("rate", 8, 7.5, 4.0, 0.4)
    one["objectives"] = [{"name": "chat/first-token", "limit": "1s"}]
    write_report(Path("load.json"), one)
    code, text, errors = run(capsys, "slo.yaml", *MEASURED)
    assert (code, text) == (2, "")
    assert errors == (
        'load.json: chat/first-token: was measured with the limit "1s", slo.yaml has "2s". '
        "Fix: run `tokenslo load --slo slo.yaml` again.\n"
    )
