"""A real Triton with a generated queue policy rejects what its objectives cannot wait for."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import aiohttp
import pytest

from admission.capacity import MeasuredCapacity
from admission.limit import AdmissionSettings
from admission.plan import AdmissionPlan, admission_plan
from admission.triton_policy import queued_model_stanza
from exporter.doctor.config_findings import check_served
from lab.triton import Triton
from promql.http_client import FetchLimits
from slos.model import Objective
from tests.polling import until
from tests.service_example import service
from tests.triton_models import ARGUMENTS

pytestmark = pytest.mark.long
CONFIG = """\
backend: "python"
input { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] }
"""
MODEL = """\
import os, time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        assert len(requests) == 1
        text = pb_utils.get_input_tensor_by_name(requests[0], "text_input")
        if text.as_numpy().reshape(-1)[0] == b"hold":
            open("{folder}/started", "w").close()
            while not os.path.exists("{folder}/release"):
                time.sleep(0.01)
        output = pb_utils.Tensor("text_output", text.as_numpy())
        return [pb_utils.InferenceResponse([output])]
"""


def limits() -> AdmissionPlan:
    """Return limits of one running request, and of queues with room for 1 and 4."""
    objectives = (
        Objective("first-token", "ttft", Decimal("0.95"), Decimal("1.5")),
        Objective("token-pace", "itl", Decimal("0.95"), Decimal("0.06")),
    )
    rate = Decimal("0.084")
    capacity = MeasuredCapacity("load.json", "concurrency 1", rate, Decimal(1), Decimal("0.5"))
    found = admission_plan(
        service(*objectives, selector={"model": "chat"}),
        capacity,
        AdmissionSettings(100, 100, (Decimal("60.5"),)),
    )
    assert [(one.size, one.timeout) for one in found.queues] == [(1, 1), (4, 60)]
    return found


async def test_a_generated_policy_limits_queues_by_length_and_time(
    triton: Callable[..., Triton], tmp_path: Path
) -> None:
    plan = limits()
    model = tmp_path / "models/chat"
    (model / "1").mkdir(parents=True)
    (model / "1/model.py").write_text(MODEL.replace("{folder}", str(tmp_path)))
    (model / "config.pbtxt").write_text(CONFIG + queued_model_stanza(plan))
    with triton(tmp_path / "models", tmp_path, load=["chat"], arguments=ARGUMENTS) as server:
        async with aiohttp.ClientSession() as session:

            async def infer(text: str, **parameters: int) -> str:
                tensor = {"name": "text_input", "shape": [1, 1], "datatype": "BYTES"}
                body = {"inputs": [{**tensor, "data": [text]}], "parameters": parameters}
                async with session.post(
                    f"{server.url}/v2/models/chat/infer", json=body
                ) as response:
                    answer = await response.json(content_type=None)  # rejections are text/plain
                    return str(answer.get("error", response.status))

            running = asyncio.create_task(infer("hold", priority=1))
            await until((tmp_path / "started").exists)
            high = [asyncio.create_task(infer("high", priority=1)) for _ in range(2)]
            low = [asyncio.create_task(infer("low")) for _ in range(5)]  # the default priority
            await until(lambda: sum(one.done() for one in (*high, *low)) >= 2)
            await asyncio.sleep(1.1)  # above the timeout of the first priority
            (tmp_path / "release").touch()
            answers = [await asyncio.gather(*group) for group in ([running], high, low)]
        report = await check_served(server.url, [plan.service], FetchLimits(timeout=5.0), plan)
    shown = [Counter(one.rpartition("] ")[2] for one in group) for group in answers]
    assert shown == [
        {"200": 1},
        {"Request timeout expired": 1, "Exceeds maximum queue size": 1},
        {"200": 4, "Exceeds maximum queue size": 1},
    ]
    assert report is not None
    ours = {one.check for one in report.findings} & {"TC022", "TC023", "TC024", "TC025"}
    assert ours == set()
