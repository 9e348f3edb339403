"""The exposition parser on a running Triton; tests/captures has recorded ones."""

from __future__ import annotations

import json
from urllib.request import Request, urlopen

from exporter.sources.exposition.text_parser import read
from lab.triton import Triton
from tests.parser_comparison import as_prometheus_client, by_prometheus_client


def fetch(url: str, **body: object) -> bytes:
    request = Request(url, json.dumps(body).encode() if body else None)  # noqa: S310
    with urlopen(request) as response:  # noqa: S310
        return bytes(response.read())


def test_live_exposition_is_read_as_by_prometheus_client(test_triton: Triton) -> None:
    for model in ("streaming", "vllm_llm", "first_response"):
        url = f"{test_triton.url}/v2/models/{model}/generate_stream"
        fetch(url, text_input="two words", max_tokens=3)
    body = fetch(test_triton.metrics)
    families = read(body)
    assert as_prometheus_client(families) == by_prometheus_client(body)
    assert families["vllm:time_to_first_token_seconds"].type == "histogram"
    wanted = {"nv_inference_request_success", "nv_inference_first_response_histogram_ms"}
    assert read(body, wanted) == {name: families[name] for name in families if name in wanted}


def test_a_wrong_path_is_an_exposition_without_families(test_triton: Triton) -> None:
    assert read(fetch(f"{test_triton.metrics}/elsewhere")) == {}
