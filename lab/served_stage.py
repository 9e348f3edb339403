"""A stage of the ensemble around the engine: a Python-backend model that returns its input.

It stands for tokenizing or detokenizing, and can be slow (see :mod:`lab.engine_faults`).
:func:`lab.repository.write_ensemble` copies this file into a model repository as ``model.py``.
"""

from __future__ import annotations

import json
import time
from typing import Any

import triton_python_backend_utils as pb_utils

from lab.engine_faults import FaultsFile


class TritonPythonModel:
    """The class that Triton's Python backend loads from a model.py."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the names of the tensors and the path of the faults."""
        config = json.loads(args["model_config"])
        self._input, self._output = config["input"][0]["name"], config["output"][0]["name"]
        path = config["parameters"]["faults_file"]["string_value"]
        path = path.format(model=args["model_name"], version=args["model_version"])
        self._faults = FaultsFile(path)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Return each request's input as its output."""
        return [self._response(request) for request in requests]

    def _response(self, request: Any) -> Any:
        time.sleep(self._faults.read().stage_seconds)
        text = pb_utils.get_input_tensor_by_name(request, self._input).as_numpy()
        return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor(self._output, text)])
