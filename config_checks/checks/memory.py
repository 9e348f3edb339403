"""Checks of KV cache, CUDA graphs and GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from config_checks.configuration import Configuration
from config_checks.findings import ConfigFault, Unseen
from config_checks.setting import Setting
from config_checks.triton_model import ENGINE, TritonModel

DEFAULT_FRACTION = 0.9
"""Share of the free GPU memory that TensorRT-LLM reserves for the KV cache by default."""


def _fraction(model: TritonModel) -> tuple[float, Setting] | None:
    """Return the KV cache's share of memory; None if tokens bound it, or it is not served."""
    if model.options:
        cache = model.options.get("kv_cache_config")
        if cache and (limit := cache.get("max_tokens")) and limit.number:
            return None
        setting = cache.get("free_gpu_memory_fraction") if cache else None
    else:
        if model.backend != ENGINE or model.parameter_text("max_tokens_in_paged_kv_cache"):
            return None
        setting = model.parameter("kv_cache_free_gpu_mem_fraction")
    if setting is None or setting.number is None:
        return DEFAULT_FRACTION, setting or model.options or model.config
    return setting.number, setting


def shared_kv_memory(config: Configuration) -> Iterator[ConfigFault | Unseen]:
    """Find engines on the same GPUs whose shares of memory exceed it."""
    if config.options and len(config.options) + len(config.engines) > 1:
        files = ", ".join(options.file for options in config.options)
        yield Unseen(f"the GPUs of a server are not in its LLM options ({files})")
    sized = [(model, found) for model in config.engines if (found := _fraction(model))]
    for model, (fraction, setting) in sized:
        gpus = {gpu for group in model.device_sets for gpu in group}
        others = [
            (other, share)
            for other, (share, _) in sized
            if other is not model and _meet(gpus, other)
        ]
        total = fraction + sum(share for _, share in others)
        if others and total > 1:
            names = ", ".join(other.name for other, _ in others)
            where = "the same GPUs" if gpus else "the same GPUs, as gpu_device_ids is not set"
            yield ConfigFault(
                setting,
                f"{model.name} takes {fraction:g} of the free memory, with {names} on {where}: "
                f"{total:g} in total",
            )


def _meet(gpus: set[int], other: TritonModel) -> bool:
    own = {gpu for group in other.device_sets for gpu in group}
    return not gpus or not own or bool(gpus & own)


def reuse_without_paged_context(config: Configuration) -> Iterator[ConfigFault | Unseen]:
    """Find KV reuse or chunked context that the engine was not built for."""
    for model in config.cpp_engines:
        for key in ("enable_kv_cache_reuse", "enable_chunked_context"):
            setting = model.parameter(key)
            if setting is None or setting.templates or not setting.true:
                continue
            engine = model.engine
            plugin = engine.get("build_config", "plugin_config") if engine else None
            paged = plugin.get("use_paged_context_fmha") if plugin else None
            if paged is None:
                yield Unseen(f"config.json of the engine of {model.name} was not found")
            elif not paged.true:
                yield ConfigFault(
                    setting,
                    f"{key} of {model.name} is true, and use_paged_context_fmha is "
                    f"{paged.text or 'null'} ({paged.file}:{paged.line})",
                )


def cuda_graphs(config: Configuration) -> Iterator[ConfigFault | Unseen]:
    """Find CUDA graphs that are off or do not cover the batch limit."""
    for options in config.llm_options:
        old = options.get("use_cuda_graph")
        if old is not None and not old.true:
            yield ConfigFault(old, "use_cuda_graph is false")
            continue
        if not options.each("cuda_graph_config"):
            yield Unseen(f"{options.file} does not set cuda_graph_config: the release decides")
            continue
        graphs = options.each("cuda_graph_config")[0]
        if graphs.node.entries is None:
            yield ConfigFault(graphs, "cuda_graph_config is null, so CUDA graphs are off")
            continue
        limit = options.get("max_batch_size")
        sizes = graphs.each("batch_sizes")
        largest = graphs.get("max_batch_size")
        numbers = [one.number for one in sizes if one.number is not None]
        top = max(numbers) if numbers else largest.number if largest else None
        if limit is None or limit.number is None or top is None:
            yield Unseen(
                f"{options.file} does not set both batch sizes of graphs and of the engine"
            )
        elif top < limit.number:
            where = sizes[-1] if sizes else largest or graphs
            evidence = (
                f"the largest graph is for a batch of {top:g}, max_batch_size is {limit.text}"
            )
            yield ConfigFault(where, evidence)
        elif numbers and limit.number not in numbers and not _pads(graphs):
            evidence = f"no graph is for a batch of {limit.text}, and enable_padding is not true"
            yield ConfigFault(sizes[-1], evidence)
    for model in config.cpp_engines:
        setting = model.parameter("cuda_graph_mode")
        if setting is not None and not setting.templates and not setting.true:
            evidence = f"cuda_graph_mode of {model.name} is {setting.text or 'empty'}"
            yield ConfigFault(setting, evidence, "note")


def _pads(graphs: Setting) -> bool:
    """Whether a batch without a graph of its size is padded to the next; the default is no."""
    padding = graphs.get("enable_padding")
    return padding is not None and (padding.true or bool(padding.templates))


def parallel_without_nvlink(config: Configuration) -> Iterator[ConfigFault | Unseen]:
    """Find tensor-parallel groups with a pair of GPUs that NVLink does not connect."""
    topology = config.topology
    if topology is None:
        return
    groups: list[tuple[str, Setting, list[tuple[int, ...]]]] = []
    for model in config.engines:
        size = model.tensor_parallel
        if size is None or size.number is None:
            yield Unseen(f"the size of the tensor-parallel group of {model.name} is not known")
            continue
        count = int(size.number)
        groups.append((model.name, size, model.device_sets or [tuple(range(count))]))
    for options in config.options:
        size = options.get("tensor_parallel_size")
        if size is not None and size.number is not None:
            groups.append((options.file, size, [tuple(range(int(size.number)))]))
    for name, setting, sets in groups:
        for gpus in sets:
            if apart := topology.not_nvlink(gpus):
                a, b, link = apart[0]
                yield ConfigFault(
                    setting,
                    f"{name} is parallel over GPUs {', '.join(map(str, gpus))}: GPU{a} and GPU{b} "
                    f"are connected by {link} ({topology.file}:{topology.lines.get(a, 0)})",
                )
