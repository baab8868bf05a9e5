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
give both, or --leave-one-out fits them: every model on a system is simulated with the five numbers
of Prices, which are fitted to all other systems and to all other models.
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
from typing import NamedTuple

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


class Prices(NamedTuple):
    """What the tables do not have."""

    decodes: float = 1.0  # Time of a step that only decodes beside the sum of its operators.
    prompts: float = 1.0  # The same of a step with prompts.
    launch: float = 0.0  # Milliseconds of the host to launch a step with prompts, for each layer.
    arrival: float = 0.0  # Milliseconds from the client to the queue.
    token: float = 0.0  # Microseconds more for each token of the prompt.

    def overheads(self, layers):
        """The map that engine(...) takes, if anything in it is above zero."""
        if self[2:] == (0.0, 0.0, 0.0):
            return None
        launch = f"{1000 * self.launch * layers:.0f}us"
        return (f'#{{ prefill_launch: "{launch}", large_launch: "{launch}", '
                f'arrival: "{self.arrival:.3f}ms", per_prompt_token: "{self.token:.3f}us" }}')


# Prices that some rows of all groups are simulated with. What lies between is interpolated, so that
# thousands of others can be tried in a fit.
PROMPTS, LAUNCHES, DECODES = (1.0, 1.4), (0.3, 0.8, 1.3), 1.2
MIDDLE = Prices(launch=LAUNCHES[1])
SLOWER = MIDDLE._replace(decodes=DECODES)
POINTS = [Prices(prompts=prompts, launch=launch) for prompts in PROMPTS for launch in LAUNCHES] + [SLOWER]
# Where a search begins, its first steps, and what it may not leave.
START, STEPS = Prices(1.05, 1.2, 0.8, 8.0, 2.0), (0.08, 0.1, 0.2, 4.0, 2.0)
LEAST, MOST = Prices(0.8, 0.8, LAUNCHES[0]), Prices(1.5, 2.0, LAUNCHES[-1], 100.0, 50.0)


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


def kv_cache(group, override):
    """Data type of the KV cache: the rule, or what the user wants for all rows."""
    (name, precision, system) = group
    # The public benchmark's scripts ask for FP8 on Blackwell only.
    is_plain = name == "openai/gpt-oss-120b" and system != "b200_sxm"
    return override or ("fp8" if precision in ("fp8", "fp4") and not is_plain else "bfloat16")


def layer_count(data, model):
    """Layers of a model of the package."""
    config = json.loads((data / "model_configs" / f"{model.replace('/', '--')}_config.json").read_text())
    return config.get("text_config", config)["num_hidden_layers"]


def lengths(tokens, spread):
    """A constant, or lengths from (1 - spread) of it up to it."""
    return tokens if spread == 0 else f"uniform({max(1, round(tokens * (1 - spread)))}, {tokens})"


def scenario(args, data, group, rows, prices):
    """A script with a run for each row."""
    (name, precision, system) = group
    model, gemm, moe = MODELS[(name, precision)]
    # The benchmark's scripts ask for experts in MXFP8 there, which have tables of their own.
    moe = "w4a8_mxfp4_mxfp8" if name == "openai/gpt-oss-120b" and system == "b200_sxm" else moe
    lines, read = ["let runs = [];"], {}
    kv_cache_dtype = kv_cache(group, args.kv_cache_dtype)
    overheads = args.overheads or prices.overheads(layer_count(data, model))
    overheads = f", overheads: {overheads}" if overheads else ""
    for index, (row, _) in enumerate(rows):
        options = {"system": system, "model": model, "tensor_parallel": row["tensor"],
                   "expert_parallel": row["expert"], "data": str(args.data.resolve()),
                   "scale": prices.decodes, "prompt_scale": prices.prompts}
        options |= {key: value for key, value in
                    (("gemm_dtype", gemm), ("moe_dtype", moe), ("kv_cache_dtype", kv_cache_dtype)) if value}
        tables = ", ".join(f"{key}: {json.dumps(value)}" for key, value in options.items())
        blocks = num_gpu_blocks(data, model, precision, system, row["tensor"], kv_cache_dtype)
        prompt, output = lengths(row["isl"], args.spread), lengths(row["osl"], args.spread)
        count = args.rounds * row["concurrency"]
        # Tables are read once for all rows with the same parallel sizes.
        if tables not in read:
            read[tables] = f"tables_{len(read)}"
            lines.append(f"let {read[tables]} = tables(#{{ {tables} }});")
        lines.append(
            f"runs.push(#{{ name: \"{index}\", cluster: cluster(#{{ engines: pool(#{{ engines: 1,\n"
            f"    engine: engine(#{{ num_gpu_blocks: {blocks}, max_num_seqs: {MAX_NUM_SEQS},\n"
            f"        max_num_batched_tokens: {MAX_NUM_BATCHED_TOKENS}, block_size: {BLOCK},\n"
            f"        async_scheduling: {json.dumps(row['async'])}{overheads} }}),\n"
            f"    latency: {read[tables]} }}) }}),\n"
            f"  workloads: [ closed_loop(#{{ concurrency: {row['concurrency']}, count: {count},\n"
            f"    prompt_tokens: {prompt}, output_tokens: {output} }}) ] }});")
    return "\n".join([*lines, "run_all(runs);", ""])


def simulated(args, data, group, rows, prices):
    """Means of TTFT and TPOT in milliseconds, for each row; or why there are none."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "group.rhai"
        script.write_text(scenario(args, data, group, rows, prices))
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


def between(low, high, at):
    """On a line of logarithms: `low` at 0, `high` at 1."""
    return math.exp(math.log(low) + at * math.log(high / low))


def interpolated(line, metric, prices):
    """A metric of a row at prices between those of POINTS, overheads outside of steps apart."""
    at = lambda prompts, launch: line["points"][Prices(prompts=prompts, launch=launch)][metric]
    (low, high) = LAUNCHES[:2] if prices.launch <= LAUNCHES[1] else LAUNCHES[1:]
    share = (prices.launch - low) / (high - low)
    (few, many) = (between(at(prompts, low), at(prompts, high), share) for prompts in PROMPTS)
    time = between(few, many, math.log(prices.prompts / PROMPTS[0]) / math.log(PROMPTS[1] / PROMPTS[0]))
    slower = line["points"][SLOWER][metric] / line["points"][MIDDLE][metric]
    return time * slower ** (math.log(prices.decodes) / math.log(DECODES))


def fitted(lines, spread):
    """The prices of these rows.

    The least sum of absolute logarithmic errors of TPOT and TTFT, each model on a system with equal
    weight, by a search along one price after the other with ever smaller steps.
    """
    sizes = Counter(machine(line["group"]) for line in lines)

    def error(prices):
        total = 0.0
        for line in lines:
            outside = prices.arrival + prices.token / 1000 * line["row"]["isl"] * (1 - spread / 2)
            ttft = interpolated(line, "ttft", prices) + outside
            tpot = interpolated(line, "tpot", prices)
            errors = abs(math.log(ttft / line["measured"]["ttft"])) + abs(math.log(tpot / line["measured"]["tpot"]))
            total += errors / sizes[machine(line["group"])]
        return total

    best, steps = START, STEPS
    least = error(best)
    for _ in range(6):
        moved = True
        while moved:
            moved = False
            for index, step in itertools.product(range(len(best)), (-1, 1)):
                price = min(MOST[index], max(LEAST[index], best[index] + step * steps[index]))
                tried = best._replace(**{best._fields[index]: price})
                found = error(tried)
                if found < least - 1e-9:
                    best, least, moved = tried, found, True
        steps = tuple(step / 2 for step in steps)
    return best


def machine(group):
    """What is left out of a fit together: a model on a system, in all precisions."""
    return (group[0], group[2])


def leave_one_out(args, data, everything):
    """Simulate every row again with the prices of all other models and systems."""
    groups = defaultdict(list)
    for line in everything:
        line["bare"] = line["vcr"]
        groups[line["group"]].append(line)

    def simulate(group, lines, prices):
        results = simulated(args, data, group, [(line["row"], line["measured"]) for line in lines], prices)
        if isinstance(results, str):
            sys.exit(f"{' '.join(group)}: {results}")
        return results

    chosen = []
    rng = random.Random(args.seed)
    for group, lines in groups.items():
        some = rng.sample(lines, args.fit_rows) if len(lines) > args.fit_rows else lines
        chosen += some
        for line in some:
            line["points"] = {}
        for prices in POINTS:
            for line, result in zip(some, simulate(group, some, prices)):
                line["points"][prices] = result
    fits = {}
    for group, lines in groups.items():
        left = machine(group)
        if left not in fits:
            fits[left] = fitted([line for line in chosen if machine(line["group"]) != left], args.spread)
        for line, result in zip(lines, simulate(group, lines, fits[left])):
            line["vcr"], line["fitted"] = result, fits[left]
    for line in everything:
        line.pop("points", None)


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
          + (" decodes, prompts, launch, arrival, per token |" if fitted else ""))
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
            prices = lines[0]["fitted"]
            cells.append(f"{prices.decodes:.2f}, {prices.prompts:.2f}, {prices.launch:.2f} ms, "
                         f"{prices.arrival:.1f} ms, {prices.token:.1f} us" if names[0] != "all" else "")
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
                         help="simulate each model on a system with prices fitted to all others")
    parser.add_argument("--fit-rows", type=int, default=8, help="rows of each model, precision and system in a fit")
    parser.add_argument("--scale", type=float, default=1.0, help="how long steps take beside the sum of operators")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write every row as a JSON line")
    args = parser.parse_args()
    name = "aiconfigurator_core"
    found = [*args.data.glob(f"lib*/python3*/site-packages/{name}"), args.data / name, args.data]
    data = next((folder for folder in found if (folder / "systems").is_dir()), None)
    if data is None:
        sys.exit(f"no package aiconfigurator-core in {args.data}: pip install aiconfigurator-core==0.12.0")
    everything = []
    for group, rows in read_sample(data / "systems/silicon_sample.csv", args.seed, args.limit):
        if args.only not in " ".join(group):
            continue
        prices = Prices() if args.leave_one_out else Prices(decodes=args.scale, prompts=args.scale)
        results = simulated(args, data, group, rows, prices)
        if isinstance(results, str):
            print(f"{' '.join(group)}: {len(rows)} rows not simulated: {results}", file=sys.stderr)
            continue
        own = estimated(group, rows, kv_cache(group, args.kv_cache_dtype))
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
