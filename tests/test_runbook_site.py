"""Runbooks as a site: MkDocs and TechDocs build it, and local notes are part of its pages."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from runbooks import with_notes
from tokenslo.cli import main

SLO = """\
apiVersion: tokenslo/v1
service: {service}
selector: {{model: {service}}}
objectives:
  - {{name: first-token, indicator: ttft, threshold: 800ms, target: 95%}}
"""
BURN = "ChatFirstTokenErrorBudgetBurn"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for service in ("chat", "search"):
        Path(f"{service}.yaml").write_text(SLO.format(service=service))
    return tmp_path


def generate(*arguments, service="chat"):
    with pytest.raises(SystemExit) as end:
        main(["generate", f"{service}.yaml", "-o", "out", "--only", "runbooks", "-q", *arguments])
    return end.value.code


def write_notes(name, text, service="chat"):
    path = Path(f"out/runbooks/{service}/local/{name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def page(name, service="chat"):
    return Path(f"out/runbooks/{service}/{name}").read_text(encoding="utf-8")


def build(config="mkdocs.yml"):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", "../site"]
    return subprocess.run(
        [*command, "-f", config], cwd="out", capture_output=True, text=True, check=False
    )


def test_mkdocs_builds_the_site_without_a_warning():
    assert generate() == 0
    write_notes("playbooks/kv-pressure.md", "# Ours\n\nSee [the page](../README.md#by-symptom).\n")
    assert generate() == 0
    Path("out/site.yml").write_text("INHERIT: mkdocs.yml\nsite_name: Runbooks of Acme\n")
    done = build("site.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    site = Path("site/chat")
    assert 'id="triage-in-five-minutes"' in (site / BURN / "index.html").read_text()
    kv = (site / "playbooks/kv-pressure/index.html").read_text()
    assert '<pre class="mermaid">' in kv
    assert 'href="../../#by-symptom"' in kv
    assert not (site / "local").exists()
    home = Path("site/index.html").read_text()
    assert 'href="chat/"' in home
    assert "Runbooks of Acme" in home


def test_mkdocs_refuses_a_broken_anchor():
    generate()
    shutil.rmtree("out/runbooks")
    Path("out/runbooks").mkdir()
    Path("out/runbooks/README.md").write_text("# Ours\n\n[nowhere](#nowhere)\n")
    done = build()
    assert done.returncode == 1
    assert "'#nowhere'" in done.stderr


def test_each_run_keeps_what_runs_for_other_services_have_written():
    assert generate() == 0
    assert generate(service="search") == 0
    for service in ("chat", "search", "chat"):
        assert generate("--check", service=service) == 0
    home = Path("out/runbooks/README.md").read_text()
    assert re.findall(r"^- (.*)$", home, re.M) == [
        "[chat](chat/README.md)",
        "[search](search/README.md)",
    ]
    Path("out/runbooks/Ours").mkdir()
    Path("out/runbooks/Ours/README.md").write_text("# Ours\n")
    assert generate("--check") == 0


def test_a_configuration_of_another_origin_is_kept():
    Path("out/runbooks").mkdir(parents=True)
    for name in ("mkdocs.yml", "runbooks/README.md"):
        Path("out", name).write_text("site_name: Ours\n")
    assert generate() == 0
    assert generate("--check") == 0
    for name in ("mkdocs.yml", "runbooks/README.md"):
        assert Path("out", name).read_text() == "site_name: Ours\n"


def test_a_changed_configuration_is_not_current():
    generate()
    config = Path("out/mkdocs.yml")
    config.write_text(config.read_text().replace("Runbooks\n", "Other\n"))
    assert generate("--check") == 1
    assert generate() == 0
    assert "site_name: Runbooks\n" in config.read_text()


def test_pages_of_playbooks_that_are_gone_are_removed():
    generate()
    gone = Path("out/runbooks/chat/playbooks/gone.md")
    gone.write_text("<!-- Made by tokenslo 0.0.1 from chat.yaml. Do not edit. -->\n")
    ours = gone.with_name("ours.md")
    ours.write_text("# Ours\n")
    assert generate("--check") == 1
    assert generate() == 0
    assert not gone.exists()
    assert ours.exists()


NOTES = """\
# Dashboards

On [our wall](https://example.com/wall).

Pager
-----

```sh
# not a heading
kubectl get pods
```
"""


@pytest.mark.parametrize("name", [f"{BURN}.md", "playbooks/kv-pressure.md", "README.md"])
def test_local_notes_are_part_of_the_page_and_survive(name):
    assert generate() == 0
    before = page(name)
    notes = write_notes(name, NOTES)
    assert generate("--check") == 1
    assert generate() == 0
    assert generate("--check") == 0
    assert notes.read_text() == NOTES
    text = page(name)
    assert text.endswith(
        "\n## Local notes\n\n### Dashboards\n\nOn [our wall](https://example.com/wall).\n\n"
        "#### Pager\n\n```sh\n# not a heading\nkubectl get pods\n```\n"
    )
    assert "\n\nThis page has [local notes](#local-notes).\n\n" in text
    notes.unlink()
    assert generate("--check") == 1
    assert generate() == 0
    assert page(name) == before


def test_notes_without_a_page_are_an_error_that_names_the_file(capsys):
    generate()
    write_notes("ChatFirstTokenErrorBudgetBurning.md", "x\n")
    write_notes("playbooks/binary.md", "x\n").write_bytes(b"\xff\xfe")
    write_notes("playbooks/kv-pressure.md", "x\n").write_bytes(b"\xff\xfe")
    for arguments in ((), ("--check",)):
        assert generate(*arguments) == 2
        assert capsys.readouterr().err.splitlines() == [
            "out/runbooks/chat/local/ChatFirstTokenErrorBudgetBurning.md: there is no page "
            "runbooks/chat/ChatFirstTokenErrorBudgetBurning.md. Fix: rename the file after its "
            f"page, such as runbooks/chat/{BURN}.md, or remove it.",
            "out/runbooks/chat/local/playbooks/binary.md: there is no page "
            "runbooks/chat/playbooks/binary.md. Fix: rename the file after its page, such as "
            "runbooks/chat/playbooks/canary-mix.md, or remove it.",
            "out/runbooks/chat/local/playbooks/kv-pressure.md: is not UTF-8. Fix: save it as "
            "UTF-8.",
        ]


def test_other_files_beside_notes_are_ignored():
    generate()
    write_notes("wall.png", "")
    write_notes("empty.txt", "")
    write_notes("README.md", " \n\n")
    assert generate("--check") == 0


PAGE = "# Title\n\nText.\n\n## Verify\n\nText.\n"
LINES = st.sampled_from(
    ["# One", "###### Six", "Two", "===", "---", "- item", "> quote", "```", "~~~~", "~~~", "", "x"]
)


@settings(max_examples=50)
@given(st.lists(LINES, max_size=12))
def test_headings_of_notes_are_below_their_section(lines):
    """The same text in a document of its own and in the page has the same headings, deeper."""
    parser = MarkdownIt("commonmark")

    def headings(text):
        tokens = parser.parse(text)
        return [
            (int(token.tag[1:]), tokens[index + 1].content.replace("\n", " "))
            for index, token in enumerate(tokens)
            if token.type == "heading_open" and token.level == 0
        ]

    own = headings("\n".join(lines))
    text = with_notes(PAGE, "\n".join(lines))
    if text == PAGE:
        assert not "".join(lines).strip()
        return
    expected = [(min(level + 2, 6), title) for level, title in own]
    assert headings(text) == [(1, "Title"), (2, "Verify"), (2, "Local notes"), *expected]


def test_the_configuration_is_yaml_that_names_the_pages():
    generate()
    text = Path("out/mkdocs.yml").read_text().replace("!!python/name:", "")
    assert yaml.safe_load(text)["docs_dir"] == "runbooks"
