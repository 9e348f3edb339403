"""TensorRT-LLM's iteration records: parsing, engine state and derived measurements.

Nothing in this package does I/O or reads a clock;
:mod:`exporter.sources.trtllm.iterations_source` fetches the records.
"""
