"""``tokenslo generate``: files that it writes, keeps and removes, and its messages."""

from __future__ import annotations

import errno
import os
import re
import resource
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from tests import libyaml
from tokenslo.cli import main

SLO = """\
apiVersion: tokenslo/v1
service: {service}
selector: {{model: llama}}
objectives:
  - {{name: first-token, indicator: ttft, threshold: 800ms, target: 95%}}
  - {{name: availability, indicator: availability, target: 99.9%}}
"""
FIRST_TOKEN = "  - {name: first-token, indicator: ttft, threshold: 800ms, target: 95%}\n"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write("chat")
    return tmp_path


def write(service, change=lambda text: text):
    Path(f"{service}.yaml").write_text(change(SLO.format(service=service)))


def run(*arguments):
    with pytest.raises(SystemExit) as stopped:
        main(["generate", *map(str, arguments)])
    return stopped.value.code


def tree(folder="out"):
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file()
    }


def test_generate_writes_rules_a_dashboard_and_a_page_for_every_alert(capsys):
    assert run("chat.yaml", "-o", "out") == 0
    written = tree()
    assert [path for path in written if not path.startswith("runbooks/")] == [
        "alerts/alertmanager.yaml",
        "alerts/chat.causes.rules.yaml",
        "alerts/chat.causes.test.yaml",
        "alerts/chat.inhibit.yaml",
        "alerts/chat.route.yaml",
        "alerts/chat.rules.yaml",
        "alerts/chat.test.yaml",
        "alerts/chat.windows.test.yaml",
        "dashboards/chat-capacity.json",
        "dashboards/chat-engine.json",
        "dashboards/chat-error-budget.json",
        "dashboards/chat-rollout.json",
        "dashboards/chat-sidecar.json",
        "dashboards/chat-streams.json",
        "dashboards/chat-token-latency.json",
        "dashboards/overview.json",
        "mkdocs.yml",
    ]
    pages = [path.removeprefix("runbooks/") for path in written if path.startswith("runbooks/")]
    assert pages[0] == "README.md"
    assert [page.removeprefix("chat/") for page in pages[1:] if "/playbooks/" not in page] == [
        "BadVersion.md",
        "ChatAvailabilityErrorBudgetBurn.md",
        "ChatAvailabilityErrorBudgetExhausted.md",
        "ChatAvailabilityLowTrafficErrors.md",
        "ChatAvailabilityMetricAbsent.md",
        "ChatFirstTokenErrorBudgetBurn.md",
        "ChatFirstTokenErrorBudgetExhausted.md",
        "ChatFirstTokenLowTrafficErrors.md",
        "ChatFirstTokenMetricAbsent.md",
        "ClientDisconnectsAtTimeout.md",
        "DecodeStuck.md",
        "ExporterSourceDown.md",
        "GpuMemoryNearFull.md",
        "KvCachePressure.md",
        "ModelNotReady.md",
        "QueueGrowing.md",
        "README.md",
        "RetryStorm.md",
        "SignalUnavailable.md",
        "SlowVersion.md",
        "WastedWork.md",
    ]
    out, err = capsys.readouterr()
    *lines, summary = out.splitlines()
    assert sorted(lines) == [f"wrote out/{path}" for path in written]
    assert summary == f"{len(written)} files: {len(written)} written"
    assert err == ""


SITE = ("mkdocs.yml", "runbooks/README.md")


def test_every_file_names_its_source_and_the_version_that_made_it():
    run("chat.yaml", "-o", "out")
    for path, text in tree().items():
        shared = "alertmanager" in path or "overview" in path or path in SITE
        source = "SLO files" if shared else "chat.yaml"
        assert f"Made by tokenslo {version('tokenslo')} from {source}." in text


def test_generated_files_contain_no_path_of_this_machine(folder, monkeypatch):
    Path("work").mkdir()
    monkeypatch.chdir("work")
    assert run(folder / "chat.yaml", "-o", "out") == 0
    for path, text in tree().items():
        shared = "alertmanager" in path or "overview" in path or path in SITE
        source = "SLO files" if shared else "chat.yaml"
        assert f"Made by tokenslo {version('tokenslo')} from {source}." in text
        assert str(folder) not in text


def test_outputs_do_not_depend_on_the_working_directory(folder, monkeypatch):
    assert run("chat.yaml", "-o", "out") == 0
    (folder / "work").mkdir()
    for cwd, path in (("work", "../chat.yaml"), ("/", folder / "chat.yaml")):
        monkeypatch.chdir(folder / cwd)
        assert run(path, "-o", folder / "out", "--check") == 0


def test_a_file_name_is_escaped_in_markdown():
    name = "a--><script>x.yaml"
    Path(name).write_text(Path("chat.yaml").read_text())
    assert run(name, "-o", "out") == 0
    assert not [path for path, text in tree().items() if "<script>" in text]


def test_standard_input_is_a_file(folder):
    command = [sys.executable, "-m", "tokenslo", "generate", "-", "-o", "out"]
    path = os.pathsep.join(filter(None, sys.path))
    text = (folder / "chat.yaml").read_text()
    done = subprocess.run(
        command, input=text, text=True, capture_output=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "from standard input." in tree()["alerts/chat.rules.yaml"]


def test_a_folder_is_its_slo_files(folder, capsys):
    (folder / "slos/deeper").mkdir(parents=True)
    (folder / "slos/README.md").write_text("no SLO file")
    (folder / "slos/shared.libsonnet").write_text("{}")
    (folder / "slos/deeper/not.yaml").write_text("no")
    write("slos/chat")
    (folder / "slos/chat.yaml").write_text(SLO.format(service="chat"))
    (folder / "slos/voice.yml").write_text(SLO.format(service="voice"))
    assert run("slos", "-o", "out") == 0
    assert {"alerts/chat.rules.yaml", "alerts/voice.rules.yaml"} <= set(tree())
    capsys.readouterr()
    (folder / "empty").mkdir()
    assert run("empty", "-o", "out") == 2
    assert capsys.readouterr().err == (
        "empty: is a folder without a file that ends in .json, .jsonnet, .yaml, .yml. "
        "Fix: give the path of an SLO file.\n"
    )


def test_rules_are_printed_as_yaml(capsys):
    assert run("chat.yaml", "--only", "alerts", "-o", "-") == 0
    documents = list(yaml.safe_load_all(capsys.readouterr().out))
    assert run("chat.yaml", "--only", "alerts", "-o", "out") == 0
    written = [libyaml.load(text) for text in tree().values()]
    assert sorted(map(str, documents)) == sorted(map(str, written))
    assert not Path("-").exists()
    capsys.readouterr()
    for more in ((), ("--only", "runbooks"), ("--only", "alerts", "--check")):
        assert run("chat.yaml", "-o", "-", *more) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert "Fix: give --only alerts or tests, without --check and --mixin." in err


def test_quiet_prints_only_differences(capsys):
    assert run("chat.yaml", "-o", "out", "--quiet") == 0
    assert run("chat.yaml", "-o", "out", "-q", "--check") == 0
    assert capsys.readouterr() == ("", "")
    Path("out/dashboards/chat-error-budget.json").write_text("{}\n")
    assert run("chat.yaml", "-o", "out", "-q", "--check") == 1
    assert capsys.readouterr().out.startswith("--- out/dashboards/chat-error-budget.json\n")


def test_a_terminal_is_shown_the_next_step(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert run("chat.yaml", "-o", "out") == 0
    assert capsys.readouterr().out.splitlines()[-4:] == [
        "Next:",
        "  - check the rules: promtool test rules out/alerts/*.test.yaml",
        "  - load them: rule_files: [out/alerts/*.rules.yaml] in prometheus.yml",
        "  - import the dashboards into Grafana: out/dashboards/*.json",
    ]
    assert run("chat.yaml", "-o", "out") == 0
    assert "Next" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "base", ["https://runbooks.example.com", "https://runbooks.example.com/{service}/"]
)
def test_runbook_urls_of_several_services_are_paths_of_the_output(base):
    shared = f"apiVersion: tokenslo/v1\nrunbooks: {base}\nservices:\n"
    one = "  - {{service: {}, objectives: [{{name: up, indicator: availability, target: 99%}}]}}\n"
    Path("both.yaml").write_text(shared + one.format("chat") + one.format("voice"))
    assert run("both.yaml", "-o", "out") == 0
    made = tree()
    for service in ("chat", "voice"):
        urls = set(re.findall(r"https://runbooks\S*?\.md", made[f"alerts/{service}.rules.yaml"]))
        assert urls
        paths = {url.replace("https://runbooks.example.com", "runbooks") for url in urls}
        assert paths <= made.keys()
        index = f"https://runbooks.example.com/{service}/README.md"
        assert index in made[f"dashboards/{service}-error-budget.json"]


def test_a_second_run_writes_nothing(capsys):
    run("chat.yaml", "-o", "out")
    before = {path: path.stat().st_mtime_ns for path in Path("out").rglob("*")}
    capsys.readouterr()
    assert run("chat.yaml", "-o", "out") == 0
    assert {path: path.stat().st_mtime_ns for path in Path("out").rglob("*")} == before
    count = len(tree())
    assert capsys.readouterr().out == f"{count} files: {count} current\n"


def test_only_changed_files_are_written(capsys):
    run("chat.yaml", "-o", "out")
    Path("out/dashboards/chat-error-budget.json").write_text("{}")
    capsys.readouterr()
    assert run("chat.yaml", "-o", "out") == 0
    assert capsys.readouterr().out.splitlines() == [
        "wrote out/dashboards/chat-error-budget.json",
        f"{len(tree())} files: {len(tree()) - 1} current, 1 written",
    ]


def test_the_same_input_gives_the_same_bytes_in_every_process():
    made = []
    for seed in ("1", "2"):
        command = [sys.executable, "-m", "tokenslo", "generate", "chat.yaml", "-o", seed]
        path = os.pathsep.join(filter(None, sys.path))
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
        subprocess.run(command, env=environment, check=True, capture_output=True)
        made.append(tree(seed))
    assert made[0] == made[1]


@pytest.mark.parametrize(
    ("only", "folders"),
    [
        ("alerts", {"alerts"}),
        ("tests", {"alerts"}),
        ("dashboards", {"dashboards"}),
        ("runbooks,alerts", {"alerts", "mkdocs.yml", "runbooks"}),
    ],
)
def test_only_the_requested_kinds_are_written(only, folders):
    assert run("chat.yaml", "-o", "out", "--only", only) == 0
    assert {path.name for path in Path("out").iterdir()} == folders


def test_tests_are_a_kind_of_their_own():
    assert run("chat.yaml", "-o", "rules", "--only", "alerts") == 0
    assert run("chat.yaml", "-o", "tests", "--only", "tests") == 0
    rules, tests = tree("rules"), tree("tests")
    assert "alerts/chat.rules.yaml" in rules
    assert not [path for path in rules if path.endswith(".test.yaml")]
    assert all(path.endswith(".test.yaml") for path in tests)
    assert run("chat.yaml", "-o", "both", "--only", "alerts,tests") == 0
    assert tree("both") == rules | tests


def test_an_unknown_kind_is_refused(capsys):
    assert run("chat.yaml", "-o", "out", "--only", "alerts,charts") == 2
    assert "'charts' is not one of alerts, tests, dashboards, runbooks" in capsys.readouterr().err
    assert not Path("out").exists()


def test_several_files_go_into_one_folder():
    write("search")
    assert run("chat.yaml", "search.yaml", "-o", "out") == 0
    assert {"dashboards/chat-error-budget.json", "dashboards/search-error-budget.json"} <= set(
        tree()
    )


def test_all_problems_of_all_files_are_reported_and_nothing_is_written(capsys):
    write("search", lambda text: text.replace("95%", "100%"))
    write("voice", lambda text: text.replace("800ms", "800"))
    assert run("chat.yaml", "search.yaml", "voice.yaml", "-o", "out") == 2
    out, err = capsys.readouterr()
    assert [line.split(": ")[0] for line in err.splitlines()] == ["search.yaml:5", "voice.yaml:5"]
    assert out == ""
    assert not Path("out").exists()


def test_two_files_about_the_same_service_are_refused(capsys):
    Path("again.yaml").write_text(Path("chat.yaml").read_text())
    assert run("chat.yaml", "again.yaml", "-o", "out") == 2
    assert capsys.readouterr().err == (
        'again.yaml:2: service: "chat" is also the service of chat.yaml. '
        "Fix: give every service a name of its own.\n"
    )
    assert not Path("out").exists()


def test_pages_of_removed_alerts_are_deleted_but_not_hand_written_ones(capsys):
    run("chat.yaml", "-o", "out")
    Path("out/runbooks/chat/Ours.md").write_text("# Ours\n")
    Path("out/runbooks/chat/notes.txt").write_text("<!-- Made by tokenslo -->\n")
    write("chat", lambda text: text.replace(FIRST_TOKEN, ""))
    capsys.readouterr()
    assert run("chat.yaml", "-o", "out", "--only", "alerts") == 0
    assert "removed" not in capsys.readouterr().out
    assert run("chat.yaml", "-o", "out") == 0
    removed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("removed")]
    assert removed == [
        f"removed out/runbooks/chat/{alert}.md"
        for alert in (
            "ChatFirstTokenErrorBudgetBurn",
            "ChatFirstTokenErrorBudgetExhausted",
            "ChatFirstTokenLowTrafficErrors",
            "ChatFirstTokenMetricAbsent",
            "ClientDisconnectsAtTimeout",
            "KvCachePressure",
            "QueueGrowing",
            "SlowVersion",
            "WastedWork",
        )
    ]
    assert {"runbooks/chat/Ours.md", "runbooks/chat/notes.txt"} <= set(tree())


def test_check_accepts_current_files(capsys):
    run("chat.yaml", "-o", "out")
    capsys.readouterr()
    assert run("chat.yaml", "-o", "out", "--check") == 0
    count = len(tree())
    assert capsys.readouterr().out == f"{count} files: {count} current\n"


def test_check_prints_stale_files_and_writes_nothing(capsys):
    run("chat.yaml", "-o", "out")
    write("chat", lambda text: text.replace(FIRST_TOKEN, "").replace("99.9%", "99.5%"))
    Path("out/runbooks/chat/README.md").unlink()
    before = tree()
    capsys.readouterr()
    assert run("chat.yaml", "-o", "out", "--check") == 1
    out, err = capsys.readouterr()
    assert tree() == before
    written = out.count("\n+++ out/")
    total = len(before) + 1 - 9
    assert err == f"{total} files: {total - written} current, {written} to write, 9 to remove\n"
    headers = [line.rstrip() for line in out.splitlines() if line.startswith(("--- ", "+++ "))]
    page = "out/runbooks/chat/ChatFirstTokenErrorBudgetBurn.md"
    assert headers[headers.index(f"--- {page}") + 1] == "+++ /dev/null"
    assert headers[headers.index("+++ out/runbooks/chat/README.md") - 1] == "--- /dev/null"
    for sign, target in (("-", "99.9%"), ("+", "99.5%")):
        assert re.search(rf"^\{sign}.*Objective: {target} of requests in 28d are good;", out, re.M)


def test_check_finds_a_missing_newline_at_the_end(capsys):
    run("chat.yaml", "-o", "out")
    board = Path("out/dashboards/chat-error-budget.json")
    board.write_text(board.read_text().removesuffix("\n"))
    capsys.readouterr()
    assert run("chat.yaml", "-o", "out", "--check") == 1
    assert capsys.readouterr().out.endswith("-}\n\\ No newline at end of file\n+}\n")


def test_an_output_folder_that_is_a_file_is_one_clear_line(capsys):
    Path("out").write_text("")
    assert run("chat.yaml", "-o", "out") == 2
    assert capsys.readouterr().err == (
        "tokenslo: out/alerts/chat.rules.yaml: cannot be written: Not a directory. "
        "Fix: choose another place with --output.\n"
    )


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_an_output_that_is_no_regular_file_is_an_error(capsys, make):
    Path("out/alerts").mkdir(parents=True)
    make("out/alerts/chat.rules.yaml")
    assert run("chat.yaml", "-o", "out") == 2
    assert capsys.readouterr().err == (
        "tokenslo: out/alerts/chat.rules.yaml: cannot be written: it is not a regular file. "
        "Fix: choose another place with --output.\n"
    )
    assert not Path("out/alerts/chat.rules.yaml").is_file()
    assert tree() == {}


def test_a_pipe_among_the_runbook_pages_is_not_read(capsys):
    Path("out/runbooks/chat").mkdir(parents=True)
    os.mkfifo("out/runbooks/chat/notes.md")
    assert run("chat.yaml", "-o", "out") == 0
    assert Path("out/runbooks/chat/notes.md").is_fifo()


def test_a_folder_that_cannot_be_written_is_one_clear_line(capsys):
    assert run("chat.yaml", "-o", "/proc/tokenslo") == 2
    err = capsys.readouterr().err
    assert err.startswith("tokenslo: /proc/tokenslo")
    assert err.count("\n") == 1


def test_if_one_file_cannot_be_written_none_is_changed(monkeypatch, capsys):
    assert run("chat.yaml", "-o", "out") == 0
    before = tree()
    write("chat", lambda text: text.replace("99.9%", "99.5%"))
    opened = Path.open

    def full(path, *arguments, **more):
        if path.name.startswith(".ChatAvailabilityErrorBudgetBurn"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return opened(path, *arguments, **more)

    monkeypatch.setattr(Path, "open", full)
    assert run("chat.yaml", "-o", "out") == 2
    monkeypatch.setattr(Path, "open", opened)
    assert "cannot be written: No space left on device. Fix: " in capsys.readouterr().err
    assert tree() == before


def test_all_files_are_written_if_the_output_pipe_is_closed(folder):
    measurement, writing = os.pipe()
    os.close(measurement)
    command = [sys.executable, "-m", "tokenslo", "generate", "chat.yaml", "-o", "out"]
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, env=environment)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")
    assert run("chat.yaml", "-o", "out", "--check") == 0


def test_without_standard_output_everything_is_written(folder):
    path = os.pathsep.join(filter(None, sys.path))
    command = f"{sys.executable} -m tokenslo generate chat.yaml -o out >&-"
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, env=environment)
    assert (done.returncode, done.stderr) == (0, b"")
    assert run("chat.yaml", "-o", "out", "--check") == 0


def test_a_full_disk_keeps_the_old_file():
    run("chat.yaml", "-o", "out")
    rules = Path("out/alerts/chat.rules.yaml").read_text()
    write("chat", lambda text: text.replace("99.9%", "99.5%"))
    done = subprocess.run(
        [sys.executable, "-m", "tokenslo", "generate", "chat.yaml", "-o", "out"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, 1_000)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == (
        "tokenslo: out/alerts/chat.rules.yaml: cannot be written: File too large. "
        "Fix: choose another place with --output.\n"
    )
    assert Path("out/alerts/chat.rules.yaml").read_text() == rules
    assert not [path for path in Path("out").rglob("*") if path.name.startswith(".")]


def test_temporary_files_of_a_killed_run_are_replaced():
    """Runs in containers have the same process id, hence the same temporary names."""
    leftover = Path(f"out/alerts/.chat.rules.yaml.{os.getpid()}.tmp")
    leftover.parent.mkdir(parents=True)
    leftover.write_text("half")
    assert run("chat.yaml", "-o", "out") == 0
    assert not leftover.exists()


def test_compat_adds_series_of_the_tool_and_without_it_removes_them(capsys):
    assert run("chat.yaml", "-o", "out", "--only", "alerts", "--compat", "sloth", "-q") == 0
    compat = tree()
    rules = libyaml.load(compat["alerts/chat.sloth.rules.yaml"])["groups"]
    assert [group["name"] for group in rules] == [
        "chat/first-token/sloth",
        "chat/availability/sloth",
    ]
    alerts = [
        rule
        for group in libyaml.load(compat["alerts/chat.rules.yaml"])["groups"]
        for rule in group["rules"]
        if "alert" in rule
    ]
    assert {alert["labels"]["sloth_severity"] for alert in alerts} == {"page", "ticket"}
    assert {alert["labels"]["sloth_slo"] for alert in alerts} == {"first-token", "availability"}
    assert run("chat.yaml", "-o", "out", "--only", "alerts") == 0
    assert "removed out/alerts/chat.sloth.rules.yaml" in capsys.readouterr().out
    assert "sloth" not in "".join(tree().values())


def test_an_unknown_tool_to_be_compatible_with_is_refused(capsys):
    assert run("chat.yaml", "-o", "out", "--compat", "pyrra") == 2
    error = capsys.readouterr().err
    assert "'--compat': 'pyrra' is not 'sloth'" in error
    assert not Path("out").exists()
