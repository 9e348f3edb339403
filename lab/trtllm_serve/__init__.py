"""A look-alike of trtllm-serve on the simulated engine, in each of the forms its releases took."""
