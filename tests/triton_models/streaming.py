"""A decoupled Triton model that streams ``max_tokens`` words from a thread, one per 20 ms.

``text_input`` may order a failure: ``raise`` before the request is accepted, ``error`` in place of
the first word, ``mid`` after two.  A stream ends early after a client disconnect.

The parameter ``publish`` adds metrics: ``vllm`` those of Triton's vLLM backend
(vllm_backend/src/utils/metrics.py), ``first_response`` the histogram that servers have from 24.11.
"""

import json
import threading
import time
from itertools import pairwise

import numpy as np
import triton_python_backend_utils as pb_utils

GAP_SECONDS = 0.02
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

FIRST_TOKEN = [
    *[0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08],
    *[0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10],
]
TOKEN_GAP = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5]
WHOLE = [1, 2.5, 5, 10, 15, 20, 30, 40, 50, 60]
TOKENS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000]
FAMILIES = {
    "": {},
    "vllm": {
        "vllm:prompt_tokens_total": ("Prompt tokens processed", None),
        "vllm:generation_tokens_total": ("Tokens generated", None),
        "vllm:time_to_first_token_seconds": ("Time to first token", FIRST_TOKEN),
        "vllm:time_per_output_token_seconds": ("Time between tokens", TOKEN_GAP),
        "vllm:e2e_request_latency_seconds": ("Time from arrival to end", WHOLE),
        "vllm:request_prompt_tokens": ("Prompt tokens of a request", TOKENS),
        "vllm:request_generation_tokens": ("Tokens generated for a request", TOKENS),
        "vllm:request_params_n": ("The parameter n of a request", [1, 2, 5, 10, 20]),
    },
    "first_response": {
        "nv_inference_first_response_histogram_ms": (
            "Duration from request to first response in milliseconds",
            [100, 500, 2000, 5000],
        ),
    },
}


class TritonPythonModel:
    """The class that Triton's Python backend loads from a model.py."""

    def initialize(self, args):
        config = json.loads(args["model_config"])
        publish = config.get("parameters", {}).get("publish", {"string_value": ""})["string_value"]
        labels = {"model": args["model_name"], "version": args["model_version"]}
        self.families = []  # a family vanishes with its last reference
        self.metrics = {}
        for name, (description, buckets) in FAMILIES[publish].items():
            api = pb_utils.MetricFamily
            kind = api.COUNTER if buckets is None else api.HISTOGRAM
            self.families.append(api(name=name, description=description, kind=kind))
            options = {} if buckets is None else {"buckets": [float(edge) for edge in buckets]}
            self.metrics[name] = self.families[-1].Metric(labels=labels, **options)

    def execute(self, requests):
        for request in requests:
            words, count = value(request, "text_input").decode(), int(value(request, "max_tokens"))
            if words == "raise":
                raise pb_utils.TritonModelException("raised as asked")
            sender = request.get_response_sender()
            threading.Thread(target=self.stream, args=(sender, words, count)).start()

    def stream(self, sender, words, count):
        times = [time.monotonic()]
        fails_at = {"error": 0, "mid": 2}.get(words)
        for index in range(count):
            time.sleep(GAP_SECONDS)
            if sender.is_cancelled():
                break
            if index == fails_at:
                failed = pb_utils.TritonError("an error as asked")
                sender.send(pb_utils.InferenceResponse(error=failed))
                break
            output = np.array([f"word{index} "], dtype=np.object_)
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("text_output", output)]))
            times.append(time.monotonic())
        self.publish(len(words.split()), times)
        sender.send(flags=FINAL)

    def publish(self, prompt, times):
        """Publish metrics of a stream: prompt tokens, arrival time and times of its words."""
        gaps = [after - before for before, after in pairwise(times)]
        first, words = gaps[:1], len(gaps)
        observed = {
            "nv_inference_first_response_histogram_ms": [int(gap * 1000) for gap in first],
            "vllm:time_to_first_token_seconds": first,
            "vllm:time_per_output_token_seconds": gaps[1:],
            "vllm:e2e_request_latency_seconds": [times[-1] - times[0]],
            "vllm:request_prompt_tokens": [prompt],
            "vllm:request_generation_tokens": [words],
            "vllm:request_params_n": [1],
        }
        counted = {"vllm:prompt_tokens_total": prompt, "vllm:generation_tokens_total": words}
        for name, metric in self.metrics.items():
            if name in counted:
                metric.increment(counted[name])
            for observation in observed.get(name, ()):
                metric.observe(observation)


def value(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1)[0]
