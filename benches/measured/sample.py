"""Rows of NVIDIA's silicon sample that can be simulated, and the servers that they were measured on.

Most rows are from a public benchmark, InferenceX, whose scripts say how its servers were started:
options are theirs, by model, GPU and day of the measurement. Options of the other rows are not
known, so they are vLLM's defaults.
"""

import csv
import json
import random
import re
from collections import defaultdict

SYSTEMS = {"h100_sxm": 80, "h200_sxm": 141, "b200_sxm": 180}  # GiB of memory

# Model and precision of the sample: the package's model, and data types of matrix
# multiplications and experts where they are not the checkpoint's. Tables of fp8_block are
# bound by launches, so FP8 matrices of block-quantised models are priced as fp8.
MODELS = {
    ("meta-llama/Llama-3.1-70B", "fp8"): ("meta-llama/Meta-Llama-3.1-70B", "fp8", None),
    ("meta-llama/Llama-3.1-70B", "fp4"): ("meta-llama/Meta-Llama-3.1-70B", "nvfp4", None),
    ("nvidia/Llama-3.1-8B-Instruct-FP8", "fp8"): ("meta-llama/Meta-Llama-3.1-8B", "fp8", None),
    ("Qwen/Qwen3-32B", ""): ("Qwen/Qwen3-32B", None, None),
    ("Qwen/Qwen3-32B", "fp8"): ("Qwen/Qwen3-32B", "fp8", None),
    ("openai/gpt-oss-120b", "fp4"): ("openai/gpt-oss-120b", None, None),
    ("Qwen/Qwen3-235B-A22B-FP8", "fp8"): ("Qwen/Qwen3-235B-A22B-FP8", "fp8", None),
    ("MiniMaxAI/MiniMax-M2.5", "fp8"): ("MiniMaxAI/MiniMax-M2.5", "fp8", None),
    ("MiniMaxAI/MiniMax-M2.5", "fp4"): ("nvidia/MiniMax-M2.5-NVFP4", None, None),
    ("moonshotai/Kimi-K2.5", "int4"): ("moonshotai/Kimi-K2.5", None, None),
    ("moonshotai/Kimi-K2.5", "fp4"): ("nvidia/Kimi-K2.5-NVFP4", None, None),
}

# Models whose KV cache is FP8 by their checkpoint, which vLLM follows, or by the scripts.
FP8_CACHES = {
    ("meta-llama/Llama-3.1-70B", "fp8"),
    ("meta-llama/Llama-3.1-70B", "fp4"),
    ("nvidia/Llama-3.1-8B-Instruct-FP8", "fp8"),
    ("MiniMaxAI/MiniMax-M2.5", "fp4"),
    ("moonshotai/Kimi-K2.5", "fp4"),
}
# Tokens of the largest CUDA graph of servers that the scripts ask for more than vLLM's 512 of:
# those of gpt-oss, and from these days on those of two models on Blackwell, together with FP8
# caches and steps of at most two prompts.
LARGE_GRAPH = 2048
TUNED = {"MiniMaxAI/MiniMax-M2.5": "2026-04-07", "moonshotai/Kimi-K2.5": "2026-04-15"}
# Shares of the GPU's memory that the scripts ask for.
MEMORY_SHARES = {
    ("MiniMaxAI/MiniMax-M2.5", "fp8", "h200_sxm"): 0.95,
    ("MiniMaxAI/MiniMax-M2.5", "fp8", "b200_sxm"): 0.95,
    ("moonshotai/Kimi-K2.5", "int4", "h200_sxm"): 0.95,
    ("moonshotai/Kimi-K2.5", "int4", "b200_sxm"): 0.97,
}
PUBLIC_SHARE, DEFAULT_SHARE = 0.9, 0.92
MAX_NUM_BATCHED_TOKENS = 8192

WEIGHT_BYTES = {"fp4": 0.5625, "int4": 0.5, "fp8": 1.0, "": 2.0}
BLOCK = 16
# Memory of each GPU that is neither weights nor KV cache, in bytes.
OTHER_BYTES = 4e9

# How many times as long as one with more requests in flight a row may take. Repeats of one version
# differ by 11 % at the 90th percentile.
DOUBT = 1.5


def is_dense(name):
    return "llama" in name.lower() or "Qwen3-32B" in name


def is_public(name):
    """Whether a model is one of the public benchmark's."""
    return name.split("/")[0] in ("meta-llama", "openai", "MiniMaxAI", "moonshotai")


def machine(group):
    """What is left out of a fit together: a model on a system, in all precisions."""
    return (group[0], group[2])


def are_siblings(one, other):
    """Whether two machines run the same model on GPUs of the same generation."""
    return one != other and one[0] == other[0] and one[1][0] == other[1][0]


def server(group, day, isl):
    """Engine options of a row's server."""
    (name, precision, system) = group
    is_hopper = system.startswith("h")
    is_tuned = name in TUNED and not is_hopper and day >= TUNED[name] and precision != "int4"
    is_gpt = name == "openai/gpt-oss-120b"
    has_fp8_cache = (name, precision) in FP8_CACHES or is_tuned or (is_gpt and not is_hopper)
    share = PUBLIC_SHARE if is_tuned else MEMORY_SHARES.get(group, PUBLIC_SHARE if is_public(name) else DEFAULT_SHARE)
    return {"kv_cache_dtype": "fp8" if has_fp8_cache else "bfloat16",
            "batched_tokens": 2 * isl if is_tuned else MAX_NUM_BATCHED_TOKENS,
            "memory_share": share,
            # Whether steps of two prompts run as CUDA graphs.
            "graphs": (is_tuned or is_gpt) and 2 * isl <= LARGE_GRAPH}


def parsed(row):
    """A row of the sample: the group, what was run, what was measured, and the version; or None."""
    concurrency = re.search(r"silicon_concurrency=(\d+)", row["silicon_data_source"])
    day = re.search(r"measured=([\d-]+)", row["silicon_data_source"])
    whole = {key: int(float(row[key] or 0)) for key in
             ("isl", "osl", "tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")}
    measured = {key: float(row[f"silicon_{key}_ms"] or 0) for key in ("ttft", "tpot")}
    group = (row["model_path"], row["precision"], row["system"])
    if row["backend"] != "vllm" or row["mode"] != "agg" or not concurrency or row["system"] not in SYSTEMS:
        return None
    if group[:2] not in MODELS or whole["attention_dp_size"] > 1:
        return None
    is_mixture = not is_dense(row["model_path"])
    experts = max(1, whole["moe_ep_size"])
    sizes = max(1, whole["moe_tp_size"]) * experts
    if not 0 < measured["ttft"] < 5000 or (is_mixture and sizes != whole["tp_size"]):
        return None
    version = tuple(int(part) for part in re.findall(r"\d+", row["backend_version"])[:2])
    version = version if row["backend_version"][:1].isdigit() else ()
    found = {"isl": whole["isl"], "osl": whole["osl"], "tensor": whole["tp_size"],
             "expert": experts if is_mixture else 1, "concurrency": int(concurrency[1]),
             # vLLM's default since 0.14; rows without a version were measured with it switched on.
             "async": not version or version >= (0, 14)}
    found |= server(group, day[1] if day else "", whole["isl"])
    return group, found, measured, version


def mark_doubts(rows):
    """Mark rows that took much longer than one with more requests in flight and all else alike."""
    alike = defaultdict(list)
    for found, measured in rows:
        alike[tuple(found[name] for name in ("isl", "osl", "tensor", "expert"))].append((found, measured))
    for sizes in alike.values():
        least = {"ttft": float("inf"), "tpot": float("inf")}
        for found, measured in sorted(sizes, key=lambda row: -row[0]["concurrency"]):
            found["doubtful"] = any(measured[name] > DOUBT * least[name] for name in least)
            least = {name: min(least[name], measured[name]) for name in least}


def read_sample(path, seed, limit):
    """Rows that can be compared, up to `limit` of each model, precision and system."""
    groups = defaultdict(dict)
    for row in filter(None, map(parsed, csv.DictReader(path.open()))):
        (group, found, measured, version) = row
        # Of the repeats the first of the newest version: those of one version are mostly copies.
        key = tuple(found[name] for name in ("isl", "osl", "tensor", "expert", "concurrency"))
        if key not in groups[group] or groups[group][key][2] < version:
            groups[group][key] = (found, measured, version)
    rng = random.Random(seed)
    for group in sorted(groups):
        rows = [groups[group][key][:2] for key in sorted(groups[group])]
        mark_doubts(rows)
        yield group, (rng.sample(rows, limit) if limit and len(rows) > limit else rows)


def model_config(data, model):
    """The published configuration of a model of the package, of its language part."""
    config = json.loads((data / "model_configs" / f"{model.replace('/', '--')}_config.json").read_text())
    return config.get("text_config", config)


def num_gpu_blocks(data, group, row):
    """KV blocks of the model's GPUs: an estimate of what the weights leave."""
    (name, precision, system) = group
    config = model_config(data, MODELS[(name, precision)][0])
    hidden, layers, heads = (config[k] for k in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
    kv_heads, dim = config.get("num_key_value_heads") or heads, config.get("head_dim") or hidden // heads
    experts = config.get("num_local_experts") or config.get("n_routed_experts") or config.get("num_experts") or 1
    inner = config.get("moe_intermediate_size") or config["intermediate_size"]
    weights = layers * (2 * heads * dim * hidden + 2 * kv_heads * dim * hidden + 3 * experts * hidden * inner)
    if config.get("kv_lora_rank"):
        values = layers * (config["kv_lora_rank"] + config["qk_rope_head_dim"])
    else:
        values = 2 * layers * dim * max(1, kv_heads // row["tensor"])
    kv_bytes = values * (1 if row["kv_cache_dtype"] == "fp8" else 2)
    size = weights * WEIGHT_BYTES[precision] + 4 * config["vocab_size"] * hidden
    free = row["memory_share"] * SYSTEMS[system] * 2**30 - size / row["tensor"] - OTHER_BYTES
    return max(2, int(free / kv_bytes / BLOCK))
