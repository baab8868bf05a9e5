#!/usr/bin/env python3
"""Compare simulated servers with measured ones: NVIDIA's silicon sample.

The package aiconfigurator-core has, in systems/silicon_sample.csv, mean TTFT and TPOT of real
servers at a concurrency. Every aggregated vLLM row whose system and model the operator tables
cover is simulated as what it was, a closed loop, with steps priced by the tables, and both means
are compared. The package's own estimate of the same rows stands beside, where this Python has the
package:

    ~/venv/bin/python benches/silicon.py --vcr target/release/vcr --data ~/venv --limit 12

Left out are rows with data-parallel attention, since it is not known on how many GPUs they ran,
saturated rows (TTFT above 5 s), parallel sizes that contradict each other, and repeats. Steps take
the plain sum of their operators and time outside of steps is zero, unless --scale and --overheads
give both, or --leave-one-out fits them: every model on a system is simulated with a scale of steps,
a constant and a price per prompt token that all others were fitted with.
"""

import argparse
import csv
import itertools
import json
import logging
import math
import random
import re
import statistics
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

SYSTEMS = {"h100_sxm": 80, "h200_sxm": 141, "b200_sxm": 180}  # GB of memory

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

# Measurements that would need all of the GPU's FP8 peak: two totals leave them out.
SUSPECT = "nvidia/Llama-3.1-8B-Instruct-FP8"

WEIGHT_BYTES = {"fp4": 0.5625, "int4": 0.5, "fp8": 1.0, "": 2.0}
BLOCK = 16
# vLLM's defaults of an API server on these GPUs.
MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS, MEMORY_SHARE = 1024, 8192, 0.92

LARGER = 1.15  # The other scale of steps that rows are simulated with before a fit.
GRID = 8  # Steps of a search to each side of the best point so far.


def is_dense(name):
    return "llama" in name.lower() or "Qwen3-32B" in name


def read_sample(path, seed, limit):
    """Rows that can be compared, up to `limit` of each model, precision and system."""
    groups = defaultdict(dict)
    for row in csv.DictReader(path.open()):
        concurrency = re.search(r"silicon_concurrency=(\d+)", row["silicon_data_source"])
        whole = {key: int(float(row[key] or 0)) for key in
                 ("isl", "osl", "tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")}
        measured = {key: float(row[f"silicon_{key}_ms"] or 0) for key in ("ttft", "tpot")}
        if row["backend"] != "vllm" or row["mode"] != "agg" or not concurrency or row["system"] not in SYSTEMS:
            continue
        if (row["model_path"], row["precision"]) not in MODELS or whole["attention_dp_size"] > 1:
            continue
        experts = max(1, whole["moe_ep_size"])
        sizes = max(1, whole["moe_tp_size"]) * experts
        if not 0 < measured["ttft"] < 5000 or (not is_dense(row["model_path"]) and sizes != whole["tp_size"]):
            continue
        found = {"isl": whole["isl"], "osl": whole["osl"], "tensor": whole["tp_size"],
                 "expert": 1 if is_dense(row["model_path"]) else experts, "concurrency": int(concurrency[1])}
        group = (row["model_path"], row["precision"], row["system"])
        # Of the repeats the first of the newest version: those of one version are mostly copies.
        version = tuple(int(part) for part in re.findall(r"\d+", row["backend_version"])[:2])
        version = version if row["backend_version"][:1].isdigit() else ()
        # vLLM's default since 0.14; rows without a version were measured with it switched on.
        found["async"] = not version or version >= (0, 14)
        key = tuple(found[name] for name in ("isl", "osl", "tensor", "expert", "concurrency"))
        if key not in groups[group] or groups[group][key][2] < version:
            groups[group][key] = (found, measured, version)
    rng = random.Random(seed)
    for group in sorted(groups):
        rows = [groups[group][key][:2] for key in sorted(groups[group])]
        chosen = rng.sample(rows, limit) if limit and len(rows) > limit else rows
        yield group, chosen


def num_gpu_blocks(data, model, precision, system, tensor, kv_cache_dtype):
    """KV blocks of the model's GPUs; a wide estimate, since few rows fill them."""
    path = data / "model_configs" / f"{model.replace('/', '--')}_config.json"
    config = json.loads(path.read_text())
    config = config.get("text_config", config)
    hidden, layers, heads = (config[k] for k in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
    kv_heads, dim = config.get("num_key_value_heads") or heads, config.get("head_dim") or hidden // heads
    experts = config.get("num_local_experts") or config.get("n_routed_experts") or config.get("num_experts") or 1
    inner = config.get("moe_intermediate_size") or config["intermediate_size"]
    weights = layers * (2 * heads * dim * hidden + 2 * kv_heads * dim * hidden + 3 * experts * hidden * inner)
    if config.get("kv_lora_rank"):
        values = layers * (config["kv_lora_rank"] + config["qk_rope_head_dim"])
    else:
        values = 2 * layers * dim * max(1, kv_heads // tensor)
    kv_bytes = values * (1 if kv_cache_dtype == "fp8" else 2)
    size = weights * WEIGHT_BYTES[precision] + 4 * config["vocab_size"] * hidden
    free = MEMORY_SHARE * SYSTEMS[system] * 1e9 - size / tensor - 4e9
    return max(2, int(free / kv_bytes / BLOCK))


def kv_cache(precision, override):
    """Data type of the KV cache: the rule, or what the user wants for all rows."""
    return override or ("fp8" if precision in ("fp8", "fp4") else "bfloat16")


def lengths(tokens, spread):
    """A constant, or lengths from (1 - spread) of it up to it."""
    return tokens if spread == 0 else f"uniform({max(1, round(tokens * (1 - spread)))}, {tokens})"


def scenario(args, data, group, rows, overheads, scale):
    """A script with a run for each row."""
    (name, precision, system) = group
    model, gemm, moe = MODELS[(name, precision)]
    lines = ["let runs = [];"]
    kv_cache_dtype = kv_cache(precision, args.kv_cache_dtype)
    overheads = f", overheads: {overheads}" if overheads else ""
    for index, (row, _) in enumerate(rows):
        options = {"system": system, "model": model, "tensor_parallel": row["tensor"],
                   "expert_parallel": row["expert"], "data": str(args.data.resolve()), "scale": scale}
        options |= {key: value for key, value in
                    (("gemm_dtype", gemm), ("moe_dtype", moe), ("kv_cache_dtype", kv_cache_dtype)) if value}
        tables = ", ".join(f"{key}: {json.dumps(value)}" for key, value in options.items())
        blocks = num_gpu_blocks(data, model, precision, system, row["tensor"], kv_cache_dtype)
        prompt, output = lengths(row["isl"], args.spread), lengths(row["osl"], args.spread)
        count = args.rounds * row["concurrency"]
        lines.append(
            f"runs.push(#{{ name: \"{index}\", cluster: cluster(#{{ engines: pool(#{{ engines: 1,\n"
            f"    engine: engine(#{{ num_gpu_blocks: {blocks}, max_num_seqs: {MAX_NUM_SEQS},\n"
            f"        max_num_batched_tokens: {MAX_NUM_BATCHED_TOKENS}, block_size: {BLOCK},\n"
            f"        async_scheduling: {json.dumps(row['async'])}{overheads} }}),\n"
            f"    latency: tables(#{{ {tables} }}) }}) }}),\n"
            f"  workloads: [ closed_loop(#{{ concurrency: {row['concurrency']}, count: {count},\n"
            f"    prompt_tokens: {prompt}, output_tokens: {output} }}) ] }});")
    return "\n".join([*lines, "run_all(runs);", ""])


def simulated(args, data, group, rows, overheads, scale=1.0):
    """Means of TTFT and TPOT in milliseconds, for each row; or why there are none."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "group.rhai"
        script.write_text(scenario(args, data, group, rows, overheads, scale))
        command = [str(args.vcr), "run", str(script), "--json", "--quiet", "--max-runs", "100000"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return done.stderr.strip().splitlines()[0]
    runs = {run["name"]: run["metrics"]["trends"] for run in json.loads(done.stdout)["runs"]}
    mean = lambda run, name: run[f"{name}_ms"]["mean"]
    return [{name: mean(runs[str(index)], name) for name in ("ttft", "tpot")} for index in range(len(rows))]


def estimated(group, rows, kv_cache_dtype):
    """The package's own estimates of the same rows; none where it has none."""
    try:
        from aiconfigurator_core.sdk import config, engine
        from aiconfigurator_core.sdk.backends.factory import get_backend
        from aiconfigurator_core.sdk.config_builders import build_model_config
        from aiconfigurator_core.sdk.models import get_model
    except ImportError:
        return [None] * len(rows)
    logging.getLogger("aiconfigurator_core").setLevel(logging.ERROR)  # It warns of tables that it borrows.
    (name, precision, system) = group
    model, gemm, moe = MODELS[(name, precision)]
    version = engine._literal_backend_version(system, "vllm", None, None, None)
    database = engine._maybe_load_database(system, "vllm", version, None)
    estimates = []
    for row, _ in rows:
        sizes = {"tp_size": row["tensor"], "pp_size": 1, "attention_dp_size": 1}
        sizes |= {"moe_tp_size": row["tensor"] // row["expert"], "moe_ep_size": row["expert"]}
        dtypes = {"gemm_quant_mode": gemm, "moe_quant_mode": moe, "fmha_quant_mode": "bfloat16"}
        dtypes["kvcache_quant_mode"] = kv_cache_dtype
        try:
            graph = get_model(model, build_model_config(**sizes, **dtypes), "vllm")
            runtime = config.RuntimeConfig(batch_size=row["concurrency"], isl=row["isl"], osl=row["osl"])
            # It remembers results by lengths and batch alone.
            backend = get_backend("vllm")
            backend._agg_cache = {}
            found = backend.run_agg(graph, database, runtime, ctx_tokens=row["isl"]).get_summary_df().iloc[0]
            estimates.append({"ttft": float(found["ttft"]), "tpot": float(found["tpot"])})
        except Exception:  # Tables that the SDK lacks.
            estimates.append(None)
    return estimates


def fitted_scale(lines):
    """How long steps take beside the sum of their operators, by these rows.

    The median of the logarithms of measured over simulated TPOT, each model on a system with equal
    weight: what makes the sum of absolute logarithmic errors least.
    """
    sizes = Counter(machine(line["group"]) for line in lines)
    ratios = sorted((math.log(line["measured"]["tpot"] / line["bare"]["tpot"]), 1 / sizes[machine(line["group"])])
                    for line in lines)
    half = sum(weight for _, weight in ratios) / 2
    below = itertools.accumulate(weight for _, weight in ratios)
    return math.exp(next(ratio for (ratio, _), weight in zip(ratios, below) if weight >= half))


def fitted_overheads(lines, spread, scale):
    """Milliseconds outside of steps, a constant and one per prompt token, of these rows.

    The least sum of absolute logarithmic errors of TTFT, each model on a system with equal weight,
    searched in a grid that closes in on the best point; neither can be negative. TTFT at `scale`
    is between those of the two simulations.
    """
    sizes = Counter(machine(line["group"]) for line in lines)
    share = (scale - 1) / (LARGER - 1)
    points = [(line["bare"]["ttft"] + share * (line["larger"]["ttft"] - line["bare"]["ttft"]),
               line["row"]["isl"] * (1 - spread / 2), line["measured"]["ttft"], 1 / sizes[machine(line["group"])])
              for line in lines]
    error = lambda at: sum(weight * abs(math.log((ttft + at[0] + at[1] * tokens) / measured))
                           for ttft, tokens, measured, weight in points)
    best, steps = (0.0, 0.0), (10.0, 0.008)
    while steps[0] > 0.1:
        around = [[max(0.0, center + step * place) for place in range(-GRID, GRID + 1)]
                  for center, step in zip(best, steps)]
        best = min(itertools.product(*around), key=error)
        steps = tuple(step / 4 for step in steps)
    return best


def machine(group):
    """What is left out of a fit together: a model on a system, in all precisions."""
    return (group[0], group[2])


def leave_one_out(args, data, everything):
    """Simulate every row again with the scale and the overheads of all other models and systems."""
    groups = defaultdict(list)
    for line in everything:
        line["bare"] = line["vcr"]
        groups[line["group"]].append(line)

    def simulate(group, name, overheads, scale):
        lines = groups[group]
        results = simulated(args, data, group, [(line["row"], line["measured"]) for line in lines], overheads, scale)
        if isinstance(results, str):
            sys.exit(f"{' '.join(group)}: {results}")
        for line, result in zip(lines, results):
            line[name] = result

    for group in groups:
        simulate(group, "larger", None, LARGER)
    fits = {}
    for group, lines in groups.items():
        left = machine(group)
        if left not in fits:
            others = [line for line in everything if machine(line["group"]) != left]
            scale = fitted_scale(others)
            fits[left] = (scale, *fitted_overheads(others, args.spread, scale))
        (scale, constant, token) = fits[left]
        overheads = f'#{{ arrival: "{constant:.3f}ms", per_prompt_token: "{1000 * token:.3f}us" }}'
        simulate(group, "vcr", overheads, scale)
        for line in lines:
            line["fitted"] = fits[left]


def cell(lines, who, metric):
    """Median and 90th percentile of absolute errors, and the median of signed ones, in percent."""
    signed = [100.0 * (line[who][metric] / line["measured"][metric] - 1.0) for line in lines if line.get(who)]
    if not signed:
        return "-"
    sizes = sorted(abs(value) for value in signed)
    p90 = sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))]
    return f"{statistics.median(sizes):.1f} / {p90:.1f} ({statistics.median(signed):+.1f})"


def print_table(everything, fitted):
    """A Markdown table: models by system, then totals."""
    columns = [("vcr", "tpot"), ("vcr", "ttft"), ("package", "tpot"), ("package", "ttft")]
    columns[:0] = [("bare", "tpot"), ("bare", "ttft")] if fitted else []
    titles = {"bare": "unfitted", "vcr": "vcr", "package": "package"}
    print("Absolute error in percent: median / 90th percentile (median signed error).\n")
    print("| system | model | rows |" + "".join(f" {titles[who]} {metric.upper()} |" for who, metric in columns)
          + (" scale, constant, per token |" if fitted else ""))
    print("|---" * (3 + len(columns) + fitted) + "|")
    groups = defaultdict(list)
    for line in everything:
        (name, precision, system) = line["group"]
        groups[(system, f"{name.split('/')[-1]} {precision or 'bf16'}")].append(line)
    dense = [line for line in everything if is_dense(line["group"][0])]
    sparse = [line for line in everything if not is_dense(line["group"][0])]
    sound = lambda lines: [line for line in lines if line["group"][0] != SUSPECT]
    totals = [(("all", "dense"), dense), (("all", "dense, without Llama 3.1 8B"), sound(dense)),
              (("all", "mixtures of experts"), sparse), (("all", "all"), everything),
              (("all", "all, without Llama 3.1 8B"), sound(everything))]
    for names, lines in [*sorted(groups.items()), *totals]:
        if not lines:
            continue
        cells = [*names, str(len(lines)), *(cell(lines, *column) for column in columns)]
        if fitted:
            (scale, constant, token) = lines[0]["fitted"]
            cells.append(f"{scale:.3f}, {constant:.1f} ms, {1000 * token:.1f} us" if names[0] != "all" else "")
        print(f"| {' | '.join(cells)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vcr", type=Path, default=Path("target/release/vcr"), help="the binary")
    parser.add_argument("--data", type=Path, default=Path(sys.prefix), help="environment or folder with the package")
    parser.add_argument("--only", default="", help="only models, precisions and systems that contain this text")
    parser.add_argument("--limit", type=int, default=0, help="rows of each model, precision and system; 0 for all")
    parser.add_argument("--rounds", type=int, default=10, help="requests for each place of the concurrency")
    parser.add_argument("--spread", type=float, default=0.2, help="lengths vary from 1 - SPREAD of the nominal ones")
    parser.add_argument("--kv-cache-dtype", help="data type of the KV cache in every row, such as fp8")
    outside = parser.add_mutually_exclusive_group()
    outside.add_argument("--overheads", metavar="MAP", help="time outside of steps, a map that engine(...) takes")
    outside.add_argument("--leave-one-out", action="store_true",
                         help="simulate each model on a system with a scale and overheads fitted to all others")
    parser.add_argument("--scale", type=float, default=1.0, help="how long steps take beside the sum of operators")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write every row as a JSON line")
    args = parser.parse_args()
    found = [*args.data.glob("lib*/python3*/site-packages/aiconfigurator_core"), args.data / "aiconfigurator_core", args.data]
    data = next((folder for folder in found if (folder / "systems").is_dir()), None)
    if data is None:
        sys.exit(f"no package aiconfigurator-core in {args.data}: pip install aiconfigurator-core==0.12.0")
    everything = []
    for group, rows in read_sample(data / "systems/silicon_sample.csv", args.seed, args.limit):
        if args.only not in " ".join(group):
            continue
        results = simulated(args, data, group, rows, args.overheads, 1.0 if args.leave_one_out else args.scale)
        if isinstance(results, str):
            print(f"{' '.join(group)}: {len(rows)} rows not simulated: {results}", file=sys.stderr)
            continue
        own = estimated(group, rows, kv_cache(group[1], args.kv_cache_dtype))
        everything += [{"group": group, "row": row, "measured": measured, "vcr": result, "package": estimate}
                       for (row, measured), result, estimate in zip(rows, results, own)]
    if args.leave_one_out:
        if len({machine(line["group"]) for line in everything}) < 2:
            sys.exit("--leave-one-out: expected rows of two models or systems at least")
        leave_one_out(args, data, everything)
    print_table(everything, args.leave_one_out)
    if args.out:
        args.out.write_text("".join(json.dumps(line) + "\n" for line in everything))


if __name__ == "__main__":
    main()
