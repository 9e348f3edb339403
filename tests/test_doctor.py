"""`tokenslo doctor`: its text, JSON and exit code for live servers."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from aiohttp import ClientSession, web

from exporter.doctor import baseline, doctor
from exporter.doctor.doctor import DoctorReport, as_text
from exporter.doctor.server_config import FLAG
from exporter.samples import Missing, ModelInfo, Snapshot
from exporter.settings import Settings, load_settings
from exporter.sources.unavailable import OBSERVE
from exporter.store.store import Store
from slos import initial_file
from slos.errors import InvalidFile
from slos.signals import SIGNALS
from tests.fake_triton import FakeTriton, Handler, config, core, ensemble, fake_triton
from tests.load_reports import write_report
from tests.sarif_schema import validate_sarif
from tests.service_example import objective, service
from tests.test_exporter_command import FIRST_RESPONSE, GAUGE, eventually, sidecar
from tokenslo.cli import main

CAPACITY_SLO = """\
apiVersion: tokenslo/v1
service: chat
objectives:
  - {name: first-token, indicator: ttft, threshold: 2s, target: 95%}
  - {name: token-pace, indicator: itl, threshold: 60ms, target: 99%}
"""
SLO = """\
apiVersion: tokenslo/v1
service: chat
owner: inference
selector: {{model: chat}}
window: 28d
objectives:
  - {{name: first-token, indicator: ttft, threshold: {threshold}, target: 95%}}
"""
VLLM = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="llama"} 2
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="llama"} 0.5
"""


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "WAIT", 0.05)


def json_page(document: object, status: int = 200) -> Handler:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response(document, status=status)

    return answer


def text_page(text: str) -> Handler:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=text)

    return answer


@asynccontextmanager
async def triton(**answers: object) -> AsyncIterator[FakeTriton]:
    answers = {"metrics": core(ok=3) + GAUGE, "configs": {"chat": config("tensorrtllm")}} | answers
    async with fake_triton(**answers) as fake:
        about = {"name": "triton", "version": "2.51.0", "extensions": ["statistics"]}
        fake.instead["/v2"] = json_page(about)
        yield fake


@asynccontextmanager
async def pages(**answers: Handler) -> AsyncIterator[str]:
    """Serve these pages by name, and no others."""
    async with fake_triton() as fake:
        fake.instead |= {
            f"/{name.replace('__', '/')}": handler for name, handler in answers.items()
        }
        for path in ("/metrics", "/v2"):
            fake.instead.setdefault(path, json_page({}, 404))
        yield fake.url


async def diagnose(*urls: str, **more: Sequence[object]) -> DoctorReport:
    services = more.get("services", ())
    return await doctor.diagnose(urls, services, "1.2.3", {})  # type: ignore[arg-type]


async def run(*arguments: str) -> tuple[object, str, str]:
    """Run the command in a thread, beside the servers of this loop."""
    out, errors = StringIO(), StringIO()

    def command() -> object:
        with redirect_stdout(out), redirect_stderr(errors), pytest.raises(SystemExit) as stopped:
            main(["doctor", *arguments])
        return stopped.value.code

    return await asyncio.to_thread(command), out.getvalue(), errors.getvalue()


@asynccontextmanager
async def sidecar_of(fake: FakeTriton, *arguments: str) -> AsyncIterator[str]:
    """Run a sidecar until it has read its sources; yield its address."""
    async with sidecar(fake, *arguments) as (_, url):
        await eventually(f"{url}/metrics", lambda status, text: "tokenslo_signal_info{" in text)
        yield url


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        return f"http://127.0.0.1:{closed.getsockname()[1]}"


COMPRESSED = re.compile(r"tokenslo_tap_skipped_total\{.*reason=\"compressed\".*\} 1")

TEXT = """\
{url}          Triton 2.51.0
{url}/metrics  Triton's metrics

chat (version 1, tensorrtllm, streams)
  Time to first token             no        see 1
"""


async def test_text_lists_signals_methods_and_fixes() -> None:
    async with triton() as fake:
        metrics = f"{fake.url}/metrics"
        text = as_text(await diagnose(fake.url, metrics))
    assert text.startswith(TEXT.format(url=fake.url))
    lines = text.splitlines()
    assert max(map(len, lines)) <= doctor.WIDTH
    row = "  Active sequences                exact     "
    assert f"{row}TensorRT-LLM's statistics of its last iteration" in lines
    why = lines.index("  1  Triton publishes no first-response histogram for this model")
    fix = "     Fix: start Triton (2.52, 24.11 or newer) with --metrics-config"
    assert lines[why + 1].startswith(fix)
    stanza = lines[why + 2 : why + 8]
    assert f"       {FLAG}" in stanza
    assert "       # 2. Add this to config.pbtxt of chat and load it again." in lines
    assert "\x1b" not in text
    assert lines[-2:] == [
        "To measure this, run",
        f"  tokenslo exporter --triton {fake.url} --triton-metrics {metrics}",
    ]


async def test_signals_of_streams_name_the_tap_that_measures_them() -> None:
    async with triton() as fake:
        lines = as_text(await diagnose(fake.url, f"{fake.url}/metrics")).splitlines()
    rows = ("Streams by outcome", "Streaming disconnects", "Wasted tokens", "Goodput")
    numbers = {line.split()[-1] for line in lines if line.strip().startswith(rows)}
    (number,) = numbers
    why = lines.index(f"  {number}  server metrics do not show single streams and their clients")
    fix = " ".join(line.strip() for line in lines[why + 1 : why + 4])
    assert fix.startswith(
        "Fix: observe the streams: give the sidecar --tap proxy=:9000=127.0.0.1:8000 and send "
        "clients to port 9000, or --tap capture=eth0:8000 where it may have CAP_NET_RAW"
    )


async def test_each_reason_is_printed_once_and_every_signal_has_a_line() -> None:
    async with triton() as fake:
        diagnosis = await diagnose(fake.url, f"{fake.url}/metrics")
    lines = as_text(diagnosis).splitlines()
    head, _, details = "\n".join(lines).partition("\n\n  1  ")
    titles = [SIGNALS[state.signal].title for state in diagnosis.view.signals]
    rows = [line[2:34].rstrip() for line in head.splitlines()[4:]]
    assert [title for title in rows if title] == titles
    numbers = {line.split("see ")[1] for line in head.splitlines() if "see " in line}
    referenced = {line.split()[0] for line in f"  1  {details}".splitlines() if line[2:3].isdigit()}
    assert numbers == referenced


async def test_the_thresholds_of_slo_files_are_in_the_stanza_and_the_exit_code_is_1(
    tmp_path: Path,
) -> None:
    slo = tmp_path / "slo.yaml"
    slo.write_text(SLO.format(threshold="800ms"))
    async with triton() as fake:
        metrics = f"{fake.url}/metrics"
        code, text, errors = await run(fake.url, metrics, "--slo", str(slo))
    assert (code, errors) == (1, "")
    assert "Boundaries are whole milliseconds.  From the SLO files: 800." in text
    assert "  chat/first-token on chat  CANNOT BE MEASURED  time to first token: Triton" in text


async def test_the_exit_code_is_0_if_all_objectives_can_be_measured(tmp_path: Path) -> None:
    (tmp_path / "vendor").mkdir()
    (tmp_path / "vendor" / "chat.yaml").write_text(SLO.format(threshold="500ms"))
    slo = tmp_path / "slo.jsonnet"
    slo.write_text("std.parseYaml(importstr 'chat.yaml')")
    options = ("--slo", str(slo), "-J", str(tmp_path / "vendor"), "--json")
    async with triton(metrics=core(ok=3) + FIRST_RESPONSE) as fake:
        code, text, errors = await run(fake.url, f"{fake.url}/metrics", *options)
    assert (code, errors) == (0, "")
    document = json.loads(text)
    assert document["complete"] is True
    assert document["settings"] == {"triton": fake.url, "triton-metrics": f"{fake.url}/metrics"}
    [chat] = document["models"]
    first_token = chat["signals"][0]
    assert (first_token["signal"], first_token["quality"], first_token["method"]) == (
        "ttft", "estimate", "triton_first_response"
    )  # fmt: skip
    assert chat["first_response"] is None
    [objective_] = document["objectives"]
    assert (objective_["objective"], objective_["quality"]) == ("first-token", "estimate")


async def test_the_configuration_of_triton_is_checked(tmp_path: Path) -> None:
    slo = tmp_path / "slo.yaml"
    slo.write_text(SLO.format(threshold="500ms"))
    policy = {"default_queue_policy": {"max_queue_size": 0, "default_timeout_microseconds": "0"}}
    model = config(
        "tensorrtllm",
        decoupled=False,
        dynamic_batching={"max_queue_delay_microseconds": "100", **policy},
        parameters={"gpt_model_path": {"string_value": "${engine_dir}"}},
    )
    async with triton(configs={"chat": model}) as fake:
        _, text, _ = await run(fake.url, "--slo", str(slo), "--json")
        _, shown, _ = await run(fake.url, "--slo", str(slo))
        url = fake.url
    configuration = json.loads(text)["configuration"]
    found = {one["check"]: one for one in configuration["findings"]}
    assert {"TC001", "TC002", "TC006", "TC008"} <= set(found)
    assert found["TC002"]["objectives"] == ["chat/first-token"]
    assert found["TC002"]["file"] == f"{url}/v2/models/chat/config"
    assert {"TC012", "TC018", "TC020"} <= {one["check"] for one in configuration["unchecked"]}
    assert "TC006 queue-delay: max_queue_delay_microseconds of chat is 100" in shown
    assert "Not visible remotely: " in shown


async def test_findings_on_the_configuration_are_written_as_sarif() -> None:
    model = config("tensorrtllm", decoupled=False)
    async with triton(configs={"chat model": model}) as fake:
        _, text, _ = await run(fake.url, "--sarif")
        url = fake.url
    sarif = json.loads(text)
    validate_sarif(sarif, "TC")
    (sarif_run,) = sarif["runs"]
    assert sarif_run["tool"]["driver"]["name"] == "tokenslo doctor"
    (place,) = next(one for one in sarif_run["results"] if one["ruleId"] == "TC002")["locations"]
    address = place["physicalLocation"]["artifactLocation"]["uri"]
    assert address == f"{url}/v2/models/chat%20model/config"


async def test_two_formats_are_an_error() -> None:
    code, _, error = await run("http://localhost:1", "--json", "--sarif")
    assert code == 2
    assert "give --json or --sarif, not both" in error


async def test_queues_of_triton_are_compared_with_a_capacity(tmp_path: Path) -> None:
    slo = tmp_path / "slo.yaml"
    slo.write_text(CAPACITY_SLO)
    policy = {
        "timeout_action": "DELAY",
        "default_timeout_microseconds": 5000000,
        "allow_timeout_override": True,
        "max_queue_size": 64,
    }
    batching = {"default_queue_policy": policy, "priority_queue_policy": {"1": policy}}
    models = {
        "tensorrt_llm": config("tensorrtllm", dynamic_batching=batching),
        "tensorrt_llm_bls": config("python", dynamic_batching=batching),
    }
    capacity = ("--capacity", write_report(tmp_path / "load.json"))
    limits = ("--input-tokens", "6000", "--output-tokens", "2000")
    async with triton(configs=models) as fake:
        options = ("--slo", str(slo), *capacity, *limits)
        _, text, _ = await run(fake.url, *options, "--json")
        _, shown, _ = await run(fake.url, *options)
        _, _, refused = await run(fake.url, *capacity)
    found: dict[str, set[str]] = {}
    for one in json.loads(text)["configuration"]["findings"]:
        found.setdefault(one["check"], set()).add(one["path"].split(".", 1)[-1])
    assert found["TC022"] == {
        "default_queue_policy.max_queue_size",
        "priority_queue_policy.1.max_queue_size",
    }
    assert found["TC023"] == {
        "default_queue_policy.default_timeout_microseconds",
        "priority_queue_policy.1.default_timeout_microseconds",
    }
    assert len(found["TC024"]) == 6  # three fields of both policies of the engine
    assert len(found["TC025"]) == 2
    assert (
        "TC022 long-queue: default_queue_policy.max_queue_size of tensorrt_llm is 64: the last"
        in shown
    )
    assert "Fix: set the queue length of `tokenslo server-config --capacity`" in " ".join(
        shown.split()
    )
    assert "A capacity is that of one service, and 0 were given." in refused


async def test_an_ensemble_that_states_no_policy_is_not_compared() -> None:
    steps = {"bls": config("tensorrtllm"), "chat": ensemble("bls", decoupled=False)}
    async with triton(configs=steps) as fake:
        diagnosis = await diagnose(fake.url)
    assert diagnosis.configuration is not None
    assert "TC003" not in {one.check for one in diagnosis.configuration.findings}


async def test_unreachable_servers_are_an_error() -> None:
    url = closed_port()
    code, text, errors = await run(url)
    assert (code, text) == (2, "")
    assert errors == (
        f"tokenslo doctor: {url}/v2 refused the connection: nothing listens there. "
        "Fix: give the address of a Triton, trtllm-serve, vLLM or OpenAI-compatible server that "
        "runs, or of a tokenslo exporter.\n"
    )


async def test_one_unreachable_server_of_two_is_reported() -> None:
    url = closed_port()
    async with triton() as fake:
        diagnosis = await diagnose(fake.url, url)
    assert f"{url}/v2 refused the connection: nothing listens there" in as_text(diagnosis)
    assert diagnosis.settings == {"triton": fake.url}


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://host"])
async def test_an_invalid_address_is_refused(url: str) -> None:
    code, _, errors = await run(url)
    assert code == 2
    assert errors == (
        "tokenslo doctor: URL: is not an http or https address. "
        "Fix: write an address such as http://127.0.0.1:8000.\n"
    )


async def test_a_server_of_another_kind_is_an_error() -> None:
    async with pages() as url:
        code, _, errors = await run(url)
    assert code == 2
    assert "answers, but is not a supported server" in errors


async def test_two_servers_of_a_kind() -> None:
    async with triton() as one, triton() as other:
        code, _, errors = await run(one.url, other.url)
    assert code == 2
    assert f"{other.url}: is a second server of its kind (Triton 2.51.0)" in errors


MODELS = json_page({"data": [{"id": "llama"}]})


async def test_vllm_is_recognised_and_measured() -> None:
    version = json_page({"version": "0.33.0"})
    async with pages(v1__models=MODELS, version=version, metrics=text_page(VLLM)) as url:
        diagnosis = await diagnose(url + "/v1/")
    assert [(server.setting, server.what) for server in diagnosis.servers] == [
        ("vllm", "vLLM 0.33.0")
    ]
    shown = {state.signal: state.samples for state in diagnosis.view.signals if state.samples}
    assert shown["kv_utilization"] == {(): 0.5}


async def test_trtllm_serve_is_recognised_before_its_metrics_are_read() -> None:
    async with fake_triton() as fake:
        cards = {"data": [{"id": "llama", "owned_by": "tensorrt_llm"}]}
        fake.instead |= {"/v1/models": json_page(cards), "/metrics": json_page([])}
        diagnosis = await diagnose(fake.url)
        [server] = diagnosis.servers
        assert (server.setting, server.what) == ("trtllm", "trtllm-serve")
        assert "once" in server.note
        shown = " ".join(as_text(diagnosis).split())
        assert "tokenslo exporter --trtllm" in shown
        assert "Not visible remotely: all checks. Fix: run `tokenslo check-config`" in shown
        assert fake.requested.index("/health") < fake.requested.index("/metrics")


async def test_trtllm_serve_is_recognised_by_its_json() -> None:
    async with pages(v1__models=MODELS, metrics=json_page([])) as url:
        diagnosis = await diagnose(url)
    assert diagnosis.settings == {"trtllm": url}


async def test_metrics_of_triton_alone_are_recognised_from_the_port_or_the_page() -> None:
    async with pages(metrics=text_page(core(ok=1))) as url:
        for given in (url, f"{url}/metrics"):
            diagnosis = await diagnose(given)
            assert diagnosis.settings == {"triton-metrics": f"{url}/metrics"}


async def test_passwords_in_arguments_are_refused_and_not_shown() -> None:
    async with triton() as fake:
        url = fake.url.replace("//", "//me:secret@")
        with pytest.raises(InvalidFile, match="holds credentials, which process lists") as refused:
            await diagnose(url, f"{url}/metrics", services=[service(objective("ttft"))])
    assert "secret" not in str(refused.value)


def owned_by(owner: str) -> Handler:
    return json_page({"data": [{"id": "chat", "owned_by": owner}]})


NOT_READ = {
    "vLLM with --disable-log-stats": (
        {
            "v1__models": owned_by("vllm"),
            "version": json_page({"version": "0.33.0"}),
            "metrics": text_page("# TYPE http_requests_total counter\n"),
        },
        "vLLM 0.33.0",
        "its statistics are off: start vLLM without --disable-log-stats; a tap measures its",
    ),
    "SGLang": (
        {"v1__models": owned_by("sglang")},
        "SGLang",
        "its metrics are off: start SGLang with --enable-metrics; a tap measures its streams",
    ),
    "Dynamo": (
        {
            "v1__models": owned_by("nvidia"),
            "metrics": text_page("# TYPE dynamo_frontend_requests_total counter"),
        },
        "Dynamo's frontend",
        "its metrics are not read; a tap measures its streams",
    ),
    "orchestrator": (
        {
            "cluster_info": json_page({"is_ready": True}),
            "version": json_page({"version": "1.4"}),
        },
        "the orchestrator of a disaggregated trtllm-serve",
        "its metrics count requests, not tokens; a tap measures its streams",
    ),
    "another": (
        {"v1__models": owned_by("someone")},
        "an OpenAI-compatible server",
        "a tap measures its streams",
    ),
}


@pytest.mark.parametrize("server", NOT_READ)
async def test_a_server_without_a_source_is_measured_by_a_tap(server: str, tmp_path: Path) -> None:
    answers, what, why = NOT_READ[server]
    slo = tmp_path / "slo.yaml"
    slo.write_text(SLO.format(threshold="800ms"))
    async with pages(**answers) as url:
        code, text, errors = await run(url, "--slo", str(slo))
    assert (code, errors) == (1, "")
    joined = " ".join(text.split())
    assert f"{url} {what} " in joined
    assert why in joined
    tap = f"--tap proxy=:9000={url.removeprefix('http://')}"
    assert text.endswith(f"  tokenslo exporter {tap}\nand send clients to port 9000.\n")
    assert "  Time to first token " in text
    assert "KV cache" not in text
    assert (
        "chat/first-token CANNOT BE MEASURED only a tap measures it here Fix: run `tokenslo"
        in joined
    )


async def test_the_named_tap_option_starts_a_sidecar() -> None:
    async with pages(v1__models=owned_by("sglang")) as url:
        diagnosis = await diagnose(url)
    config = load_settings({name: [value] for name, value in diagnosis.settings.items()}, {})
    assert [str(spec) for spec in config.tap] == [diagnosis.settings["tap"]]


OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")


async def test_named_options_exist() -> None:
    existing = {f"--{name.replace('_', '-')}" for name in Settings.__dataclass_fields__}
    async with triton() as fake:
        for urls in ((fake.url,), (fake.url, f"{fake.url}/metrics"), (f"{fake.url}/metrics",)):
            text = as_text(await diagnose(*urls))
            ours = re.findall(r"give (?:the sidecar )?(--[a-z-]+)", " ".join(text.split()))
            assert {*ours} <= existing
            assert not re.search(r"give --", " ".join(text.split()))
            [command] = [line for line in text.splitlines() if "tokenslo exporter" in line]
            assert {*OPTION.findall(command)} <= existing


async def test_a_sidecars_address_shows_its_measurements(tmp_path: Path) -> None:
    slo = tmp_path / "slo.yaml"
    slo.write_text(SLO.format(threshold="500ms"))
    async with triton(metrics=core(ok=3) + FIRST_RESPONSE) as fake, sidecar_of(fake) as address:
        code, text, errors = await run(address, "--slo", str(slo), "--json")
        for form in (address, f"{address}/metrics"):
            seen = await diagnose(form)
            assert [server.what.split()[:2] for server in seen.servers] == [
                ["tokenslo", "exporter"]
            ]
            assert "To measure this" not in as_text(seen)
    assert (code, errors) == (0, "")
    document = json.loads(text)
    assert document["settings"] == {}
    [objective_] = document["objectives"]
    assert (objective_["objective"], objective_["quality"]) == ("first-token", "estimate")


async def test_compressed_responses_that_a_tap_cannot_read_have_a_fix() -> None:
    async def answer(_: web.Request) -> web.Response:
        headers = {"Content-Encoding": "br", "Content-Type": "application/json"}
        return web.Response(body=b"\x8b\x00", headers=headers)

    async with triton() as fake, serving_at("/v1/completions", answer) as server:
        port = closed_port().rpartition(":")[2]
        tap = f"proxy=127.0.0.1:{port}={server.removeprefix('http://')}"
        async with sidecar_of(fake, "--tap", tap) as address, ClientSession() as session:
            assert "Accept-Encoding" not in as_text(await diagnose(address))
            url = f"http://127.0.0.1:{port}/v1/completions"
            async with session.post(url, json={}, auto_decompress=False) as got:
                await got.read()
            await eventually(
                f"{address}/metrics", lambda _, text: COMPRESSED.search(text) is not None
            )
            joined = " ".join(as_text(await diagnose(address)).split()).replace("- ", "-")
        assert "1 responses at its taps have an unsupported compression" in joined
        assert "send Accept-Encoding: gzip, or identity" in joined


@asynccontextmanager
async def serving_at(path: str, handler: Handler) -> AsyncIterator[str]:
    """Serve one path; yield the address."""
    app = web.Application()
    app.router.add_post(path, handler)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_no_fix_names_a_tap_if_there_is_one() -> None:
    async with triton() as fake:
        host, port = fake.url.removeprefix("http://"), closed_port().rpartition(":")[2]
        async with sidecar_of(fake, "--tap", f"proxy=127.0.0.1:{port}={host}") as address:
            text = as_text(await diagnose(address))
            models = await baseline.measure_baseline([address], "1.2.3", {})
        joined = " ".join(text.split())
        assert "--tap " not in joined
        assert "--tap " not in initial_file.text(models, about="")


async def test_unknown_models_are_not_in_an_initial_file() -> None:
    async with triton() as fake, ClientSession() as session:
        host, port = fake.url.removeprefix("http://"), closed_port().rpartition(":")[2]
        async with sidecar_of(fake, "--tap", f"proxy=127.0.0.1:{port}={host}") as address:
            url = f"http://127.0.0.1:{port}/v1/chat/completions"
            async with session.post(url, json={"model": "x", "messages": []}) as answer:
                await answer.read()
            other = 'llm_requests_total{model="other"'
            await eventually(f"{address}/metrics", lambda _, text: other in text)
            models = await baseline.measure_baseline([address], "1.2.3", {})
    assert {model.name for model in models} == {"chat"}


def test_the_fix_of_a_missing_signal_depends_on_whether_there_is_a_tap() -> None:
    gap = Missing("itl", "chat", "1", "no metric has it", f"{OBSERVE}; or wait")
    info = ModelInfo("chat", "1")
    for tapped, fix in ((False, OBSERVE), (True, "send the requests of this model through the")):
        store = Store(10.0, tapped=tapped)
        store.update(Snapshot(source="triton", missing=(gap,), models=(info,)), 0.0, 0.0)
        [state] = [one for one in store.view(1.0).signals if one.signal == "itl"]
        assert state.fix.startswith(fix)
        assert state.fix.endswith("; or wait")
        assert ("--tap" in state.fix) is not tapped
