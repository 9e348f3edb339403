"""TensorRT-LLM as a source: trtllm-serve, its request timing and iteration records."""
