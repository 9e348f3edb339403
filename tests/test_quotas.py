"""Token quotas: the key of the SLO file, and what follows from it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import alerts
import runbooks
from slos.errors import InvalidFile
from slos.load import load_file
from slos.model import TokenQuota
from slos.plan import Plan, plan
from slos.quotas import QUOTA_ALERTS
from tests import libyaml
from tokenslo.cli import cli

FILE = """\
apiVersion: tokenslo/v1
service: chat
selector: {{model: llama}}
objectives: [{{name: up, indicator: availability, target: 99%}}]
quotas: {quotas}
"""
BOTH = "[{tenant: acme, tokens: 50M, per: day}, {tenant: acme, tokens: 2B, per: month}]"


def planned(folder: Path, quotas: str = BOTH) -> Plan:
    (folder / "slo.yaml").write_text(FILE.format(quotas=quotas))
    (service,) = load_file(folder / "slo.yaml").services
    return plan(service)


def test_quotas_are_read_with_their_units(tmp_path: Path) -> None:
    quotas = planned(tmp_path, "[{tenant: a, tokens: 7, per: day}, {tenant: b, tokens: 2B, per: "
                     "month}]").service.quotas  # fmt: skip
    assert quotas == (TokenQuota("a", 7, "day"), TokenQuota("b", 2_000_000_000, "month"))


@pytest.mark.parametrize(
    ("quotas", "message"),
    [
        ("[]", "5: quotas: has no quota. Fix: add one"),
        ("[{tenant: a, tokens: 5k, per: day}]", 'quotas[0].tokens: "5k" is not a number of tok'),
        ("[{tenant: a, tokens: 0, per: day}]", 'quotas[0].tokens: "0" is not a number of tokens'),
        ("[{tenant: a, tokens: 999999999999B, per: day}]", "is above 1,000,000,000,000,000"),
        ("[{tenant: a, tokens: 5M, per: week}]", "quotas[0].per: is not a period. Fix: write day"),
        ("[{tokens: 5M, per: day}]", "quotas[0].tenant: is missing"),
        (
            "[{tenant: a, tokens: 5M, per: day}, {tenant: a, tokens: 6M, per: day}]",
            'quotas[1].tenant: is the second quota of "a" per day. Fix: delete one of them',
        ),
    ],
)
def test_invalid_quotas_are_refused(quotas: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidFile) as refused:
        planned(tmp_path, quotas)
    assert message in str(refused.value)


def test_a_selector_without_tokens_of_tenants_is_refused(tmp_path: Path) -> None:
    text = FILE.format(quotas=BOTH).replace("{model: llama}", "{tenant: acme}")
    (tmp_path / "slo.yaml").write_text(text)
    with pytest.raises(InvalidFile, match="5: quotas: the selector of the service has tenant"):
        load_file(tmp_path / "slo.yaml")


def test_every_alert_has_a_page_and_a_route(tmp_path: Path) -> None:
    made = planned(tmp_path)
    texts = alerts.files(made, source="slo.yaml", version="0.1.0")
    rules = libyaml.load(texts["alerts/chat.rules.yaml"])["groups"][-1]
    names = [rule["alert"] for rule in rules["rules"] if "alert" in rule]
    assert names == [f"Chat{alert.suffix}" for alert in QUOTA_ALERTS]
    pages = runbooks.files(made, source="slo.yaml", version="0.1.0")
    for name in names:
        assert f"# {name}\n" in pages[f"runbooks/chat/{name}.md"]
        assert f"({name}.md)" in pages["runbooks/chat/README.md"]
    routes = libyaml.load(texts["alerts/chat.route.yaml"])["routes"]
    assert 'quota!=""' in routes[-1]["matchers"]


def test_tests_of_deleted_quotas_are_deleted(tmp_path: Path) -> None:
    planned(tmp_path)
    given = ["generate", str(tmp_path / "slo.yaml"), "-o", str(tmp_path), "--only", "tests", "-q"]
    file = tmp_path / "alerts/chat.quotas.test.yaml"
    assert CliRunner().invoke(cli, given).exit_code == 0
    assert file.exists()
    (tmp_path / "slo.yaml").write_text(FILE.format(quotas=BOTH).partition("quotas:")[0])
    assert CliRunner().invoke(cli, given).exit_code == 0
    assert not file.exists()


def test_without_quotas_nothing_changes(tmp_path: Path) -> None:
    (tmp_path / "slo.yaml").write_text(FILE.format(quotas=BOTH).partition("quotas:")[0])
    (service,) = load_file(tmp_path / "slo.yaml").services
    texts = alerts.files(plan(service), source="slo.yaml", version="0.1.0")
    # The tests of rules also have requests with the outcome quota.
    rules = [text for path, text in texts.items() if not path.endswith(".test.yaml")]
    assert "quota" not in "".join((*texts, *rules))
