"""The generated rules of prometheus-adapter in its own parser and its own templates."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from autoscaling.horizontal import DEMAND
from tests.go_program import build

pytestmark = pytest.mark.long

FOLDER = Path(__file__).parents[2] / "examples/chat/autoscaling"
RULES = (FOLDER / "chat.prometheus-adapter.yaml").read_text()
MODULES = ("sigs.k8s.io/prometheus-adapter@v0.12.0", "k8s.io/apimachinery@v0.30.0")
PROGRAM = """\
package main

import (
	"encoding/json"
	"io"
	"os"

	"k8s.io/apimachinery/pkg/labels"
	prom "sigs.k8s.io/prometheus-adapter/pkg/client"
	"sigs.k8s.io/prometheus-adapter/pkg/config"
	"sigs.k8s.io/prometheus-adapter/pkg/naming"
)

func check(err error) {
	if err != nil {
		os.Stderr.WriteString(err.Error())
		os.Exit(1)
	}
}

// Arguments: series, namespace, label selector. Prints the metric's name and its query.
func main() {
	text, err := io.ReadAll(os.Stdin)
	check(err)
	rules, err := config.FromYAML(text)
	check(err)
	namers, err := naming.NamersFromConfig(rules.ExternalRules, nil)
	check(err)
	selector, err := labels.Parse(os.Args[3])
	check(err)
	series := prom.Series{Name: os.Args[1]}
	found := [][]string{}
	for _, namer := range namers {
		if len(namer.FilterSeries([]prom.Series{series})) == 0 {
			continue
		}
		name, err := namer.MetricNameForSeries(series)
		check(err)
		query, err := namer.QueryForExternalSeries(series.Name, os.Args[2], selector)
		check(err)
		found = append(found, []string{string(namer.Selector()), name, string(query)})
	}
	check(json.NewEncoder(os.Stdout).Encode(found))
}
"""


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("adapter"), PROGRAM, *MODULES)


def run(adapter: Path, rules: str, selector: str) -> subprocess.CompletedProcess[str]:
    command = [str(adapter), DEMAND, "prod", selector]
    return subprocess.run(command, input=rules, capture_output=True, text=True)


def test_the_adapter_serves_the_metrics_of_the_autoscaler(adapter: Path) -> None:
    autoscaler = yaml.safe_load((FOLDER / "chat.hpa.yaml").read_text())
    metrics = [each["external"]["metric"] for each in autoscaler["spec"]["metrics"]]
    assert len(metrics) > 1
    for metric in metrics:
        labels = metric["selector"]["matchLabels"]
        done = run(adapter, RULES, ",".join(f"{name}={value}" for name, value in labels.items()))
        assert done.stderr == ""
        [[series, name, query]] = json.loads(done.stdout)
        assert series == f'{DEMAND}{{service="chat"}}'
        assert name == metric["name"]
        selected = ",".join(f'{name}="{value}"' for name, value in sorted(labels.items()))
        assert query == f"max({DEMAND}{{{selected}}})"


def test_the_adapter_refuses_unknown_fields(adapter: Path) -> None:
    done = run(adapter, RULES.replace("metricsQuery", "metricQuery"), "service=chat")
    assert (done.returncode, done.stdout) == (1, "")
    assert "field metricQuery not found" in done.stderr
