"""A simulated trtllm-serve, with the behaviour of each of its releases."""
