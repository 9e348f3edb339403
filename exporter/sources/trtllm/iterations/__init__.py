"""TensorRT-LLM's iteration records: what they say, what they mean, what can be derived from them.

Nothing in this package does I/O or looks at a clock;
:mod:`exporter.sources.trtllm.iterations_source` fetches the records.
"""
