"""Queries of usage reports, evaluated by Prometheus over a gap and a reset."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests import libyaml
from tools.docs.pages import every_fence
from usage.usage_queries import usage_queries

SECONDS = 7_200
# A counter of 10 a minute that restarts after an hour.
COUNTER = "0+10x60 0+10x60"
PAGE = "docs/how-to/usage-and-cost.md"
[BLOCK_SECONDS] = (fence.body.strip() for page, fence in every_fence("promql") if page == PAGE)


def test_queries_count_minutes_and_tokens(promtool: Path, tmp_path: Path) -> None:
    of = 'instance="a"'
    model = f'{of},model="llama"'
    series = {
        f"up{{{of}}}": "1x99 0x19 1x1",
        f"tokenslo_build_info{{{of}}}": "1x99 stale _x19 1",
        f"llm_live_streams{{{model}}}": "0x59 3x60",
        f'llm_sequences{{{model},state="active"}}': "0x29 1x90",
        f'llm_tenant_tokens_total{{{model},tenant="acme",direction="output"}}': COUNTER,
        f'llm_tenant_wasted_tokens_total{{{model},tenant="acme"}}': COUNTER,
        f'llm_tenant_kv_cache_token_seconds_total{{{model},tenant="acme"}}': COUNTER,
        f"llm_kv_cache_block_tokens{{{model}}}": "32x120",
        f'tokenslo_signal_info{{{model},signal="output_tokens",quality="exact"}}': "1x120",
        'DCGM_FI_DEV_GPU_UTIL{gpu="0"}': "5x120",
        'DCGM_FI_DEV_GPU_UTIL{gpu="1"}': "5x120",
    }
    queries = usage_queries(SECONDS, server_label="instance", dcgm=())
    minutes = {"measured": 120, "present": 100, "observed": 120, "busy": 91, "unscraped": 20}
    checks = [(queries[key], '{instance="a"}', value) for key, value in minutes.items()]
    checks[0] = (queries["measured"], "{}", 120)
    checks += [
        (queries["gpus"], "{}", 240),
        (queries["quality"], '{model="llama",quality="exact",signal="output_tokens"}', 1),
        (f"round({queries['tenant_wasted_tokens']}, 100)", f'{{{model},tenant="acme"}}', 1_200),
        (f"round({queries['tenant_kv_token_seconds']}, 100)", f'{{{model},tenant="acme"}}', 1_200),
        (f"round({BLOCK_SECONDS}, 2.5)", '{model="llama",tenant="acme"}', 1_200 / 32),
        (
            f"round({queries['tenant_tokens']}, 100)",
            f'{{{model},tenant="acme",direction="output"}}',
            1_200,
        ),
    ]
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": text} for name, text in series.items()],
        "promql_expr_test": [
            {
                "expr": expr,
                "eval_time": f"{SECONDS}s",
                "exp_samples": [{"labels": labels, "value": value}],
            }
            for expr, labels, value in checks
        ],
    }
    (tmp_path / "tests.yaml").write_text(libyaml.dump({"rule_files": [], "tests": [test]}))
    command = [promtool, "test", "rules", "tests.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
