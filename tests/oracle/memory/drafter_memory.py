"""Records the KV-cache groups, the KV blocks and the weights that vLLM gives to models with drafters on an H100.

    venv/bin/python tests/oracle/memory/drafter_memory.py CONFIGS > runtime/engine/model/tests/drafters.jsonl

As `model_memory.py`, with the same CONFIGS. Drafters that are models of the table are named by it; heads of EAGLE are
written here, in the shapes of published ones.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
from pathlib import Path

import model_memory
import torch
import vllm.distributed.parallel_state as parallel
from model_memory import build, weight_bytes
from vllm.config import set_current_vllm_config
from vllm.v1.core import kv_cache_utils


def head(hidden: int, heads: int, kv_heads: int, width: int, vocabulary: int, **more: object) -> dict[str, object]:
    """A head of EAGLE with one layer of Llama."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": width,
        "vocab_size": vocabulary,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-05,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
        **more,
    }


def third(*shape: int, **more: object) -> dict[str, object]:
    """A head of EAGLE-3."""
    return head(*shape, **{"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 32000, **more})


QWEN_8B = third(4096, 32, 8, 12288, 151936, head_dim=128)
QWEN_30B = third(2048, 32, 4, 12288, 151936, head_dim=128)
QWEN_235B = third(4096, 64, 4, 24576, 151936, head_dim=128)
GPT_OSS = third(2880, 64, 8, 17280, 201088, head_dim=64, draft_vocab_size=64000)
LLAMA_70B = third(6144, 48, 8, 16384, 128256, target_hidden_size=8192)
#: The model, vLLM's method, and the drafter: a model of the table, or a head.
CASES = (
    ("meta-llama--Meta-Llama-3.1-8B", "eagle", head(4096, 32, 8, 14336, 128256)),
    ("meta-llama--Meta-Llama-3.1-8B", "eagle3", third(4096, 32, 8, 14336, 128256)),
    ("meta-llama--Meta-Llama-3.1-70B", "eagle", head(8192, 64, 8, 28672, 128256)),
    ("meta-llama--Meta-Llama-3.1-70B", "eagle3", LLAMA_70B),
    ("meta-llama--Meta-Llama-3.1-70B", "draft_model", "meta-llama--Meta-Llama-3.1-8B"),
    ("Qwen--Qwen3-8B", "eagle3", QWEN_8B),
    ("Qwen--Qwen3-32B", "draft_model", "Qwen--Qwen3-0.6B"),
    ("Qwen--Qwen3-32B-FP8", "draft_model", "Qwen--Qwen3-1.7B"),
    ("Qwen--Qwen3-30B-A3B", "eagle3", QWEN_30B),
    ("Qwen--Qwen3-235B-A22B", "eagle3", QWEN_235B),
    ("openai--gpt-oss-20b", "eagle3", GPT_OSS),
    ("openai--gpt-oss-120b", "eagle3", GPT_OSS),
    ("meta-llama--Llama-4-Scout-17B-16E-Instruct", "eagle3", third(5120, 40, 8, 16384, 202048, head_dim=128)),
    ("deepseek-ai--DeepSeek-V3", "mtp", None),
    ("deepseek-ai--DeepSeek-V3.2", "mtp", None),
    ("zai-org--GLM-5", "mtp", None),
    ("zai-org--GLM-5-FP8", "mtp", None),
    ("Qwen--Qwen3.5-27B", "mtp", None),
    ("Qwen--Qwen3.5-35B-A3B", "mtp", None),
    ("Qwen--Qwen3.5-122B-A10B", "mtp", None),
    ("XiaomiMiMo--MiMo-V2-Flash", "mtp", None),
)
#: GPUs that share a layer, data type of the KV cache, and drafts.
VARIANTS = ((1, "auto", 3), (2, "auto", 1), (8, "fp8", 3))


def drafter_of(config: object, speculative: object) -> torch.nn.Module:
    """The drafter's model, as its proposer makes it."""
    if speculative.method != "draft_model":
        with set_current_vllm_config(speculative.apply_draft_overrides(config)):
            return build(config, model_config=speculative.draft_model_config)
    from vllm.config import replace

    own = replace(config, quant_config=None, model_config=speculative.draft_model_config)
    with set_current_vllm_config(own):
        return build(own, model_config=speculative.draft_model_config, prefix="draft_model")


def shared_weights(method: str, drafter: torch.nn.Module) -> str:
    """Names of the drafter's weights for which the model's own are used (`load_eagle_model`), where the checkpoint of a
    head has neither the embedding nor, for the same tokens, an output head."""
    if method == "draft_model":
        return "$^"
    has_own_head = method == "eagle3" and getattr(drafter, "draft_id_to_target_id", None) is not None
    return "embed_tokens|draft_id_to_target_id" if has_own_head else "embed_tokens|lm_head|shared_head.head"


def record(path: Path, tensor: int, dtype: str, speculative: dict[str, object]) -> dict[str, object]:
    config = model_memory.config_of(path, tensor, kv_cache_dtype=dtype, speculative_config=speculative)
    with set_current_vllm_config(config):
        parallel._TP.world_size = tensor
        model = build(config, model_config=config.model_config)
        drafter = drafter_of(config, config.speculative_config)
    specs = model_memory.layer_specs(config)
    groups = kv_cache_utils.get_kv_cache_groups(config, dict(specs))
    inner = model_memory.language_of(drafter)
    method = config.speculative_config.method
    return {
        "max_model_len": config.model_config.max_model_len,
        "in_flight_tokens": config.max_in_flight_tokens,
        "weight_bytes": weight_bytes(model_memory.language_of(model)),
        "drafter_weight_bytes": weight_bytes(inner, shared_weights(method, drafter)),
        "groups": [
            {**model_memory.group_of(group.kv_cache_spec, len(group.layer_names)), "drafter": group.is_eagle_group}
            for group in groups
        ],
        "bytes_per_block": kv_cache_utils._pool_bytes_per_block(config, groups),
        "pools": model_memory.pools_of(config, specs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", type=Path)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of cases; all without it")
    options = parser.parse_args()
    model_memory.start()
    for number, (name, method, drafter) in enumerate(CASES):
        if options.only and number not in options.only:
            continue
        for tensor, dtype, drafts in VARIANTS:
            written = drafter.replace("--", "/") if isinstance(drafter, str) else drafter
            case = {
                "model": name.replace("--", "/"),
                "method": method,
                "drafter": written,
                "tensor_parallel": tensor,
                "kv_cache_dtype": dtype,
                "num_speculative_tokens": drafts,
            }
            try:
                with tempfile.TemporaryDirectory() as folder:
                    speculative = {"method": method, "num_speculative_tokens": drafts}
                    if isinstance(drafter, str):
                        speculative["model"] = str(options.configs / drafter)
                    elif drafter:
                        (Path(folder) / "config.json").write_text(json.dumps(drafter))
                        speculative["model"] = folder
                    case |= record(options.configs / name, tensor, dtype, speculative)
            except Exception as error:  # noqa: BLE001
                case |= model_memory.refusal(error)
            print(json.dumps(case), flush=True)
            parallel._TP.world_size = 1
            gc.collect()


if __name__ == "__main__":
    main()
