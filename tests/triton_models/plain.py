"""A Triton model that answers each request with its text, or executes the command in it.

``raise``, ``error``: fail by an exception, or by a response that is an error.
``sleep SECONDS``: answer late.  ``then TEXT``: answer TEXT, for the next step of an ensemble.
"""

import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """The class that Triton's Python backend loads from a model.py."""

    def execute(self, requests):
        return [answer(text(request)) for request in requests]


def text(request):
    tensor = pb_utils.get_input_tensor_by_name(request, "text_input")
    return tensor.as_numpy().reshape(-1)[0].decode()


def answer(words):
    order, _, rest = words.partition(" ")
    if order == "raise":
        raise pb_utils.TritonModelException("raised as asked")
    if order == "error":
        return pb_utils.InferenceResponse(error=pb_utils.TritonError("an error as asked"))
    if order == "sleep":
        time.sleep(float(rest))
    output = np.array([[rest if order == "then" else words]], dtype=np.object_)
    return pb_utils.InferenceResponse([pb_utils.Tensor("text_output", output)])
