"""``tokenslo load`` against the simulated trtllm-serve."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest
from aiohttp import web

from tests.fake_server import fake_server, serving
from tests.polling import until
from tests.test_loadtest_client import look_alike
from tokenslo.cli import main

ROOT = Path(__file__).parent.parent
QUICK = (
    *("--duration", "300ms", "--warm-up", "100ms", "--cool-down", "0s", "--prompt-tokens", "8"),
    *("--output-tokens", "4", "--concurrency", "1,2"),
)
SLO = """\
apiVersion: tokenslo/v1
service: chat
selector: {model: tensorrt_llm}
objectives:
  - {name: first-token, indicator: ttft, threshold: 20s, target: 50%}
  - {name: goodput, indicator: goodput, clauses: {ttft: 20s, tpot: 20s}, target: 50%}
  - {name: kv, indicator: kv_headroom, threshold: 90%, target: 99%}
"""


def code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["load", *arguments])
    return int(end.value.code or 0)


async def run(*arguments: str) -> int:
    return await asyncio.to_thread(code, *arguments)


async def test_a_sweep_prints_and_writes_its_reports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slo = tmp_path / "slo.yaml"
    slo.write_text(SLO)
    out = tmp_path / "new/out"
    async with look_alike() as url:
        slos = ("--slo", str(slo), "--confidence", "50%")
        assert await run(url, *QUICK, *slos, "-o", str(out)) in (0, 1)
        captured = capsys.readouterr()
        assert await run(url, *QUICK, "-o", str(out)) == 2
        refused = capsys.readouterr()
    assert captured.err == ""  # silent in a pipe
    assert f"{url} (chat, model tensorrt_llm)" in captured.out
    assert "chat/first-token: " in captured.out
    assert "Not measured: chat/kv: clients cannot measure kv_headroom." in captured.out
    assert sorted(path.name for path in out.iterdir()) == ["load.csv", "load.html", "load.json"]
    found = json.loads((out / "load.json").read_text())
    levels = found["endpoints"][0]["levels"]
    assert [level["value"] for level in levels] == [1, 2]
    assert all(level["matched_work"]["matched"] == level["requests"] for level in levels)
    assert refused.err == f"tokenslo: {out}/load.json: exists. Fix: give --force to replace it.\n"


async def test_rates_search_presets_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    preset = ("--preset", "mlperf-llama3.1-405b-server", "--json")
    async with look_alike() as url:
        rate = ("--concurrency", "1", "--seed", "3", "--cancel", "50%")
        await run(url, *QUICK, *rate, *preset)
        swept = json.loads(capsys.readouterr().out)
        arguments = [*QUICK[:-2], "--search", "--search-from", "30", "--search-to", "30"]
        await run(url, *arguments, "--confidence", "60%", *preset)
        searched = json.loads(capsys.readouterr().out)
    outcomes = swept["endpoints"][0]["levels"][0]["outcomes"]
    assert set(outcomes) == {"ok", "client_disconnected"}
    assert "this is not an MLPerf result" in swept["notes"][0]
    assert "MLPerf runs at least 600 s" in swept["notes"][0]
    assert [each["limit"] for each in swept["endpoints"][0]["levels"][0]["objectives"]] == [
        "6000ms",
        "175ms",
    ]
    assert searched["confidence"] == 0.6
    assert searched["endpoints"][0]["levels"][0]["kind"] == "rate"
    assert (
        searched["highest_rate"]
        in (
            {"kept": 30.0, "missed": None},
            *({"kept": None, "missed": None},),
        )
        or searched["highest_rate"]["missed"]
    )


async def test_the_seed_is_random_unless_given_and_in_every_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with look_alike() as url:
        folders = [tmp_path / name for name in ("first", "second", "repeated")]
        short = (url, *QUICK[:-2], "--concurrency", "1", "-o")
        await run(*short, str(folders[0]))
        await run(*short, str(folders[1]))
        first, second = (seed_of(folder) for folder in folders[:2])
        await run(*short, str(folders[2]), "--seed", str(first))
    output = capsys.readouterr().out
    assert first != second
    assert seed_of(folders[2]) == first
    for seed, folder in ((first, folders[0]), (second, folders[1])):
        line = f"Seed: {seed}; --seed {seed} repeats prompts, arrivals and cancellations."
        assert line in output
        assert line in (folder / "load.html").read_text()


def seed_of(folder: Path) -> int:
    """Return the seed in a JSON report."""
    return int(json.loads((folder / "load.json").read_text())["workload"]["seed"])


async def test_two_servers_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    async with look_alike() as first, look_alike() as second:
        arguments = (*QUICK[:-2], "--concurrency", "1", "--against", second, "--rounds", "1")
        assert await run(first, *arguments) == 0
    output = capsys.readouterr().out
    assert "Equal work: " in output
    assert "Second / first at concurrency 1: output_tokens_per_second " in output


async def test_a_sidecar_with_other_requests_disagrees(capsys: pytest.CaptureFixture[str]) -> None:
    numbers = count(step=1000)

    async def metrics(_: web.Request) -> web.StreamResponse:
        sample = f'llm_requests_total{{model="tensorrt_llm",outcome="ok"}} {next(numbers)}'
        build = "# TYPE tokenslo_build_info gauge\ntokenslo_build_info 1\n"
        return web.Response(text=f"{build}# TYPE llm_requests_total counter\n{sample}\n")

    async with look_alike() as url, fake_server({"/metrics": metrics}) as sidecar:
        assert await run(url, *QUICK[:-2], "--concurrency", "1", "--sidecar", sidecar.url) == 1
    assert "Sidecar: disagrees with this client: " in capsys.readouterr().out


async def test_credentials_come_from_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = set()

    async def handle(request: web.Request) -> web.StreamResponse:
        seen.add(request.headers.get("Authorization"))
        return web.Response(status=401)

    (tmp_path / "token").write_text("abc\n")
    config = tmp_path / "http.yaml"
    config.write_text("authorization: {credentials_file: token}\n")
    async with serving(handle) as url:
        assert await run(url, *QUICK, "--model", "m", "--http-config", str(config)) == 2
        assert await run(url.replace("//", "//me:secret@"), *QUICK) == 2
    assert seen == {"Bearer abc"}
    first, second = capsys.readouterr().err.splitlines()
    assert first == (
        f"tokenslo: {url}: a first request failed (invalid: 401). Fix: give the credentials in "
        "--http-config FILE."
    )
    assert "a URL with credentials is visible in process lists" in second
    assert "secret" not in second


NOWHERE = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x"], "'x' is not an http or https URL, such as http://localhost:8000."),
        ([NOWHERE, "--rate", "1", "--search"], "Give one of --concurrency, --rate and --search."),
        ([NOWHERE, "--concurrency", "4,2"], "'4,2' does not ascend"),
        ([NOWHERE, "--concurrency", "1.5"], "'1.5' is not a whole number"),
        ([NOWHERE, "--rate", "0"], "is not a list of at most 64 numbers above 0"),
        ([NOWHERE, "--rate", "nan"], "'nan' is not a number"),
        ([NOWHERE, "--prompt-tokens", "8:0"], "'8:0' is not a length with an optional weight"),
        ([NOWHERE, "--prompt-tokens", "8,8"], "'8' is not a length"),
        ([NOWHERE, "--duration", "30"], '"30" has no unit'),
        ([NOWHERE, "--duration", "0s"], "--duration and --timeout must be above 0s."),
        ([NOWHERE, "--cancel", "100%"], "is not a share below 100%"),
        ([NOWHERE, "--confidence", "10%"], "--confidence at least 50%."),
        ([NOWHERE, "--search"], "--search needs objectives: give --slo FILE or --preset NAME."),
        ([NOWHERE, "--search", "--against", NOWHERE], "--search tests one server"),
        ([NOWHERE, "--extra-body", "missing.json"], "missing.json cannot be read: No such file"),
        ([NOWHERE, "--extra-body", "list.json"], "list.json is not a JSON object"),
        ([NOWHERE, "--extra-body", "broken.json"], "broken.json is not JSON in line 2."),
        ([NOWHERE, "--api", "generate"], "--api generate needs a model. Fix: give --model NAME."),
        ([NOWHERE], "http://127.0.0.1:1/v1/models refused the connection"),
        ([NOWHERE, "--model", "m"], "(error: unreachable). Fix: check the host and the port"),
        ([NOWHERE, "--model", "m", "--slo", "kv.yaml"], "no objective can be measured by a client"),
        (
            [NOWHERE, "--model", "m", "--driver", "aiperf", "--api", "grpc"],
            "aiperf has no API grpc",
        ),
        (
            [NOWHERE, "--model", "m", "--driver", "aiperf", "--prompt-tokens", "1,2"],
            "--cancel and several prompt lengths need the driver tokenslo.",
        ),
        ([NOWHERE, "--model", "m", "-o", "list.json/x"], "list.json: is not a folder."),
    ],
    ids=lambda value: " ".join(value[1:]) if isinstance(value, list) else "",
)
def test_bad_input_is_one_error_and_nothing_is_written(
    arguments: Sequence[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "broken.json").write_text("{\n}}")
    kv = [*SLO.splitlines()[:-3], SLO.splitlines()[-1]]
    (tmp_path / "kv.yaml").write_text("\n".join(kv))
    before = {*tmp_path.iterdir()}
    monkeypatch.chdir(tmp_path)
    assert code(*arguments, *([] if "-o" in arguments else ["-o", "out"])) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    [line] = captured.err.splitlines()
    assert message in line
    assert {*tmp_path.iterdir()} == before


@pytest.mark.parametrize("missing", ["aiperf"])
def test_aiperf_must_be_installed(
    missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert code(NOWHERE, "--model", "m", "--driver", missing) == 2
    assert capsys.readouterr().err == (
        "tokenslo: aiperf is not on the PATH. Fix: install it into an environment of its own, and "
        "add its bin folder to PATH.\n"
    )


async def test_ctrl_c_ends_with_a_report() -> None:
    async with look_alike() as url:
        command = [sys.executable, "-m", "tokenslo", "load", url, "--warm-up", "0s", "--json"]
        command += ["--output-tokens", "4", "--prompt-tokens", "8", "--concurrency", "2,4"]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        process = await asyncio.create_subprocess_exec(
            *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
        )
        await asyncio.sleep(0)
        from tests.test_loadtest_client import truth

        async def some_requests() -> bool:
            return len((await truth(url))["requests"]) > 3

        await until(some_requests)
        process.send_signal(signal.SIGINT)
        output, errors = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, errors) == (130, b"")
    found = json.loads(output)
    assert found["interrupted"] is True
    [level] = found["endpoints"][0]["levels"]
    assert level["requests"] > 0
    assert 0 < level["seconds"] < 30
