"""The conditions of generated AnalysisTemplates in the expression engine of Argo Rollouts."""

from __future__ import annotations

import json
import subprocess
from itertools import product
from pathlib import Path

import pytest

from gates.argo import FAILURE, SUCCESS
from tests.go_program import build

pytestmark = pytest.mark.long

MODULE = "github.com/expr-lang/expr@v1.17.8"  # as in the go.mod of Argo Rollouts 1.10
PROGRAM = """\
package main

import (
	"encoding/json"
	"math"
	"os"
	"strconv"

	"github.com/expr-lang/expr"
)

type check struct {
	Condition string
	Result    []string
}

func main() {
	var checks []check
	if err := json.NewDecoder(os.Stdin).Decode(&checks); err != nil {
		panic(err)
	}
	found := []string{}
	for _, each := range checks {
		values := []float64{}
		for _, text := range each.Result {
			value, err := strconv.ParseFloat(text, 64)
			if err != nil {
				panic(err)
			}
			values = append(values, value)
		}
		env := map[string]any{"result": values, "isNaN": math.IsNaN}
		program, err := expr.Compile(each.Condition, expr.Env(env))
		if err != nil {
			panic(err)
		}
		output, err := expr.Run(program, env)
		if err != nil {
			found = append(found, "error")
			continue
		}
		found = append(found, strconv.FormatBool(output.(bool)))
	}
	if err := json.NewEncoder(os.Stdout).Encode(found); err != nil {
		panic(err)
	}
}
"""
PROMOTED, ABORTED, HELD = ("true", "false"), ("false", "true"), ("false", "false")
RESULTS = {
    ("1",): PROMOTED,
    ("0",): ABORTED,
    ("-1",): HELD,
    ("NaN",): HELD,
    ("+Inf",): HELD,
    ("-Inf",): HELD,
    ("0.5",): HELD,
    (): HELD,
}
# What the guides of Argo Rollouts show.
NAIVE = "result[0] >= 0.95"
FAIL_OPEN = "all(result, # < 1000)"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("expr"), PROGRAM, MODULE)


def evaluated(engine: Path, checks: list[tuple[str, tuple[str, ...]]]) -> list[str]:
    given = [{"Condition": condition, "Result": result} for condition, result in checks]
    done = subprocess.run([engine], input=json.dumps(given), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_conditions_have_three_outcomes(engine: Path) -> None:
    found = iter(evaluated(engine, [(c, r) for r, c in product(RESULTS, (SUCCESS, FAILURE))]))
    assert dict(zip(RESULTS, zip(found, found, strict=True), strict=True)) == RESULTS


def test_conditions_of_the_guides_have_no_answer_without_data(engine: Path) -> None:
    checks = [(NAIVE, ()), (NAIVE, ("NaN",)), (FAIL_OPEN, ())]
    assert evaluated(engine, checks) == ["error", "false", "true"]
