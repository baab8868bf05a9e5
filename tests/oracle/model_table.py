"""Writes the table of models, `runtime/engine/model/models.toml`, from published `config.json` files.

    python3 tests/oracle/model_table.py CONFIGS > runtime/engine/model/models.toml

CONFIGS is a folder with a folder for each model, named as it is published with `--` for `/`. Only
facts of shape are kept. Models that the reader refuses, or whose quantisation differs by layer, are
left out by name.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

LEFT_OUT = re.compile(
    "DeepSeek-V4|Kimi-K3|MiniMax-M3|Step-3|Nemotron-Super-49B|Nemotron-3-Super|Ultra-550B-A55B-(FP8|NVFP4)"
    "|Lightning|NVFP4|Static-PerTensor|Thinking|GLM-5.[123]|sgl-project|MiMo-7B"
)
ALIASES = {
    "Meta-Llama-3.1": ("Llama-3.1",),
    "Llama-3.1-70B-Instruct-FP8": (),
    "Llama-3.2-": ("Llama-3.2-",),
    "Llama-3.3-70B-Instruct": ("Llama-3.3-70B",),
    "Mistral-7B-v0.3": ("Mistral-7B", "Mistral-7B-Instruct-v0.3"),
}
KEPT = (
    "num_hidden_layers hidden_size intermediate_size num_attention_heads num_key_value_heads head_dim vocab_size "
    "tie_word_embeddings max_position_embeddings rope_scaling sliding_window use_sliding_window layer_types dtype "
    "torch_dtype attention_chunk_size interleave_moe_layer_step intermediate_size_mlp no_rope_layers kv_lora_rank "
    "q_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim index_head_dim index_n_heads indexer_types "
    "n_routed_experts num_experts num_local_experts moe_intermediate_size shared_expert_intermediate_size "
    "moe_shared_expert_intermediate_size n_shared_experts first_k_dense_replace moe_layer_freq decoder_sparse_step "
    "num_experts_per_tok top_k_experts moe_latent_size hybrid_override_pattern layers_block_type mamba_num_heads "
    "mamba_head_dim ssm_state_size conv_kernel n_groups mamba_ssm_cache_dtype mamba_ssm_dtype linear_num_key_heads "
    "linear_num_value_heads linear_key_head_dim linear_value_head_dim linear_conv_kernel_dim full_attention_interval "
    "attn_output_gate global_head_dim num_global_key_value_heads attention_k_eq_v hybrid_layer_pattern "
    "swa_num_attention_heads swa_num_key_value_heads swa_head_dim swa_v_head_dim attention_head_dim"
).split()
QUANTISATION = "quant_method quant_algo weight_block_size config_groups kv_cache_scheme kv_cache_quant_algo".split()
EXCLUDED = ("modules_to_not_convert", "ignore", "exclude_modules")
BLOCKS = {"mamba": "M", "attention": "*", "moe": "E", "mlp": "-"}


def period(items: list) -> list:
    """The shortest list that, repeated, begins as this one."""
    for length in range(1, len(items)):
        if all(item == items[index % length] for index, item in enumerate(items)):
            return items[:length]
    return items


def quantisation(section: dict) -> dict:
    kept = {key: section[key] for key in QUANTISATION if section.get(key) is not None}
    if "config_groups" in kept:
        weights = next(iter(kept["config_groups"].values()))["weights"]
        kept["config_groups"] = {"group_0": {"weights": {key: weights[key] for key in ("num_bits", "type", "strategy", "group_size") if weights.get(key) is not None}}}
    patterns = {re.sub(r"layers\.\d+", "layers.*", pattern) for key in EXCLUDED for pattern in section.get(key) or []}
    patterns = sorted(pattern for pattern in patterns if "norm" not in pattern and not pattern.startswith("visual"))
    return kept | ({"ignore": patterns} if patterns else {})


def facts(config: dict, separate: dict | None) -> dict:
    text = config.get("text_config") or config
    kept = {"architectures": config["architectures"]}
    for key in KEPT:
        value = text.get(key, config.get(key) if key in ("tie_word_embeddings", "dtype", "torch_dtype") else None)
        if isinstance(value, list) and key not in ("layers_block_type",):
            value = period(value)
        if key == "layers_block_type" and value:
            key, value = "hybrid_override_pattern", "".join(BLOCKS[kind] for kind in value)
        if key == "rope_scaling" and value:
            value = {name: value[name] for name in ("rope_type", "type", "factor") if name in value}
        if value not in (None, [], ""):
            kept[key] = value
    if section := config.get("quantization_config") or text.get("quantization_config") or (separate or {}).get("quantization"):
        kept["quantization_config"] = quantisation(section)
    return kept


def toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


def names(folder: str) -> list[str]:
    name = folder.replace("--", "/")
    more = [name.replace(part, each) for part, others in ALIASES.items() if part in name for each in others]
    instructed = [f"{each}-Instruct" for each in more if "Instruct" not in each]
    return list(dict.fromkeys([name, *more, *instructed]))


def main() -> None:
    print("# Shapes of published models, as their config.json states them: written and checked by")
    print("# tests/oracle/model_table.py. A list for layers that is shorter than they are is repeated.")
    for path in sorted(Path(sys.argv[1]).iterdir(), key=lambda path: path.name.lower()):
        if LEFT_OUT.search(path.name):
            continue
        separate = path / "hf_quant_config.json"
        separate = json.loads(separate.read_text()) if separate.exists() else None
        kept = facts(json.loads((path / "config.json").read_text()), separate)
        print(f"\n[[model]]\nnames = {toml(names(path.name))}\n[model.config]")
        for key, value in kept.items():
            print(f"{key} = {toml(value)}")


if __name__ == "__main__":
    main()
