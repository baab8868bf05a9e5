#!/usr/bin/env python3
"""How close fitted models come to measurements that they have not seen.

Fits and predicts with `vcr fit` and `vcr calibrate`, and prints the tables of
docs/appendix/fitted-models.md:

    python3 benches/accuracy.py --vcr target/release/vcr
    python3 benches/accuracy.py --vcr target/release/vcr --llmservingsim DIR --vllm-cpu DIR --tables DIR
    python3 benches/accuracy.py --ship scenarios/models/llama-3.1-8b-h100.json

The recordings of an H100 are part of the repository. The other sets are optional folders: runs of
LLMServingSim's benchmark, captures of a vLLM engine on a CPU, and NVIDIA's operator tables. Everything is seeded; the same
binary prints the same tables.
"""

import argparse
import gzip
import itertools
import json
import statistics
import subprocess
import tempfile
from pathlib import Path

H100 = Path(__file__).resolve().parent.parent / "tests" / "recordings" / "h100"
BLOCK = 16
COLUMNS = ["ttft p50", "ttft p99", "itl mean", "itl p99", "e2e p50", "e2e p99"]
# What is fitted on, and what is predicted.
H100_FITS = {
    "llama-3.1-8b": ["p25", "p50", "p25+p75"],
    "llama-3.1-8b-repeat": ["p50", "p75"],
    "llama-3.1-8b-0.33": ["p50", "p75", "p50+p75"],
    "qwen3-14b": ["p50", "p50+shared"],
    "qwen3-30b-a3b": ["p50", "p50+shared"],
}
# Loads with requests of the same times and lengths, each recorded in two places.
PAIRS = {
    "The same requests on the second host": [
        (load, f"llama-3.1-8b/{load}", f"llama-3.1-8b-repeat/{load}") for load in ("p50", "p75", "p95")
    ],
    "The same requests again on one host": [
        (load, f"llama-3.1-8b-0.33/{load}", f"llama-3.1-8b-0.33/{load}-again") for load in ("p50", "p75", "p95")
    ],
}
# Predictions with error bars: what was recorded, the fit, and the loads.
INTERVALS = [
    ("llama-3.1-8b", "p25", ["p50", "p75", "p95"]),
    ("llama-3.1-8b", "p50", ["p75", "p95"]),
    ("llama-3.1-8b-repeat", "p50", ["p75", "p95"]),
    ("llama-3.1-8b-0.33", "p50", ["p75", "p75-again", "p95", "p95-again"]),
    ("qwen3-14b", "p50", ["p90", "step", "shared"]),
    ("qwen3-30b-a3b", "p50", ["p80", "step", "shared"]),
]
# Metrics of error bars, as a report names them.
BARS = [("ttft_ms", "p50"), ("ttft_ms", "p99"), ("itl_ms", "mean"), ("e2e_ms", "p50"), ("e2e_ms", "p99")]
DRAWS = 100
LAUNCHES = """overheads: #{{ prefill_launch: "{small:.1f}ms", large_launch: "{large:.1f}ms", launch_per_request: "22us",
launch_spread: 0.35 }}"""
# Models that nothing was fitted to, as scenarios write them.
UNFITTED = {
    "roofline": 'roofline(#{{ model: model("{shape}"), gpu: "h100-sxm" }})',
    "tables": 'tables(#{{ data: "{data}", system: "h100_sxm", model: "{shape}" }})',
}
SCENARIO = """let e = engine(#{{ {engine} }});
let c = cluster(#{{ engines: pool(#{{ engine: e, latency: {latency} }}) }});
run(#{{ cluster: c, workloads: [trace(#{{ path: "{trace}", format: "mooncake", block_size: {block}, lenient: true }})] }});
"""
LLMSERVINGSIM = {
    "rtxpro6000-llama-3.1-8b": "num_gpu_blocks: 34_000, max_model_len: 131_072",
    "rtx4090-llama-3.1-8b-seqs128": "num_gpu_blocks: 2_000, max_model_len: 16_384",
}
# The load and its part of a fit that has few requests, and what it may correct: no roofline has experts.
FEW_LOAD, FEW_PART = "p25", "0..0.03"
# Deployments that are ranked at loads that all of them had.
RANKED = ("llama-3.1-8b", "qwen3-14b", "qwen3-30b-a3b")
# Differences between measurements that count.
DIFFERS = 0.05
# The recording that the model in scenarios/models is fitted on.
SHIPPED = "llama-3.1-8b-0.33"
BASES = {"llama-3.1-8b": 'roofline(#{ model: "llama-3.1-8b", gpu: "h100-sxm" })'}
VLLM_CPU = ["const", "burst-preempt", "multiturn", "priority"]


def vcr(args, *words, folder=None):
    done = subprocess.run([args.vcr, *map(str, words)], capture_output=True, text=True, cwd=folder)
    if done.returncode not in (0, 1):
        raise SystemExit(f"vcr {' '.join(map(str, words))}\n{done.stderr}")
    return done.stdout


def predictions(args, model, table, engine, *more):
    text = vcr(args, "calibrate", model, table, "--engine", engine, "--json", "-q", *more)
    return json.loads(text)["predictions"][0]


def errors(predicted):
    by_name = {f"{each['metric']} {each['statistic']}": each for each in predicted["comparisons"]}
    shown = []
    for column in COLUMNS:
        each = by_name[column]
        shown.append(f"{(each['simulated_ms'] / each['measured_ms'] - 1) * 100:+.1f}")
    shown.append(f"{predicted['outside_fitted_range'] * 100:.0f}")
    return shown


def print_table(first, rows):
    titles = [*first, *COLUMNS, "outside"]
    print("| " + " | ".join(titles) + " |")
    print("|" + "---|" * len(titles))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def h100_tables(folder, out):
    """Tables with hash ids, made from the segments of prompts."""
    tables = {}
    for load in sorted(path for path in folder.iterdir() if path.is_dir() and path.name not in ("warm", "grid")):
        ids = {}
        table = out / f"{folder.name}-{load.name}.jsonl"
        with gzip.open(load / "requests.jsonl.gz", "rt") as rows, table.open("w") as file:
            for line in rows:
                row = json.loads(line)
                tokens = [(segment, offset) for segment, count in row.pop("parts") for offset in range(count)]
                blocks = (tuple(tokens[at:at + BLOCK]) for at in range(0, len(tokens) - BLOCK + 1, BLOCK))
                row["hash_ids"] = [ids.setdefault(block, len(ids)) for block in blocks]
                keep = ("arrival_ms", "prompt_tokens", "output_tokens", "ttft_ms", "e2e_ms", "queue_ms", "cached_tokens",
                        "hash_ids")
                file.write(json.dumps({key: row[key] for key in keep}) + "\n")
        tables[load.name] = table
    return tables


def percentile(rows, key, share):
    """The same rule as vcr's: the rank is rounded."""
    values = sorted(row[key] for row in rows if row[key] is not None)
    return values[round((len(values) - 1) * share)]


def measured_metrics(recording):
    """The measurements of a load, one number for each of `COLUMNS`."""
    with gzip.open(H100 / recording / "requests.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line in file]
    itls = [row["mean_itl_ms"] for row in rows if row["mean_itl_ms"] is not None]
    return [
        percentile(rows, "ttft_ms", 0.5), percentile(rows, "ttft_ms", 0.99), sum(itls) / len(itls),
        percentile(rows, "mean_itl_ms", 0.99), percentile(rows, "e2e_ms", 0.5), percentile(rows, "e2e_ms", 0.99),
    ]


def pairs():
    """How far the second recording of a load is from the first, in percent."""
    for title, recordings in PAIRS.items():
        print(f"### {title}\n")
        print("| load | " + " | ".join(COLUMNS) + " |")
        print("|" + "---|" * (len(COLUMNS) + 1))
        for load, first, second in recordings:
            both = zip(measured_metrics(first), measured_metrics(second))
            print(f"| {load} | " + " | ".join(f"{(b / a - 1) * 100:+.1f}" for a, b in both) + " |")
        print()


def engine_and_shape(name, out):
    """The engine of a recording as an option of `vcr fit`, and a file with its model's shape."""
    settings = json.loads((H100 / name / "engine.json").read_text())
    engine = ", ".join([
        f"num_gpu_blocks: {settings['num_gpu_blocks']}", f"max_num_seqs: {settings['max_num_seqs']}",
        f"max_num_batched_tokens: {settings['max_num_batched_tokens']}",
        f"max_model_len: {settings['max_model_len']}", "async_scheduling: true",
    ])
    shape = out / f"{name}.json"
    shape.write_text(json.dumps(settings["model"].get("config", settings["model"])))
    return engine, shape


def simulated(args, out, engine, latency, requests, *more):
    """The run of these requests on an engine with a latency model."""
    trace, scenario = out / "trace.jsonl", out / "simulated.rhai"
    trace.write_text("".join(
        json.dumps({"timestamp": row["arrival_ms"], "input_length": row["prompt_tokens"],
                    "output_length": row["output_tokens"], "hash_ids": row["hash_ids"]}) + "\n"
        for row in requests))
    scenario.write_text(SCENARIO.format(engine=engine, latency=latency, trace=trace, block=BLOCK))
    return json.loads(vcr(args, "run", scenario, "--json", "-q", *more))["runs"][0]


def launches(name):
    """The launches that were measured, as an option of an engine: of steps with prefills up to 512 tokens and above."""
    small, large = [], []
    for path in sorted((H100 / name).glob("*/steps.jsonl.gz")):
        if path.parent.name in ("warm", "grid"):
            continue
        with gzip.open(path, "rt") as file:
            steps = [json.loads(line) for line in file]
        for step in (step for step in steps if step["prefill_requests"]):
            (small if step["total"] <= 512 else large).append(step["launch_ms"])
    return LAUNCHES.format(small=statistics.median(small), large=statistics.median(large))


def without_fit(args, out):
    """Mean size of the errors of models that no one has fitted, in percent, over the loads of a recording; and how many
    pairs of deployments they rank as measured."""
    rows, ranked = [], {}
    for title, model_of in UNFITTED.items():
        for name in (name for name in H100_FITS if args.tables or "tables" not in title):
            plain, shape = engine_and_shape(name, out)
            tables = h100_tables(H100 / name, out)
            latency = model_of.format(shape=shape, data=args.tables)
            for label, engine in (("no", plain), ("as measured", f"{plain}, {launches(name)}")):
                sizes = []
                for load, table in tables.items():
                    requests = [json.loads(line) for line in table.open()]
                    trends = simulated(args, out, engine, latency, requests)["metrics"]["trends"]
                    both = list(zip((trends[metric][statistic] for metric, statistic in BARS), measured_bars(requests)))
                    sizes.append([abs(value / bar - 1) * 100 for value, bar in both])
                    ranked.setdefault((title, label), {})[name, load] = both
                rows.append([title, name, label, *(f"{statistics.mean(column):.0f}" for column in zip(*sizes))])
    print("### Without a fit, mean size of the errors of all loads\n")
    titles = ["model", "recording", "launches", *(f"{metric[:-3]} {statistic}" for metric, statistic in BARS)]
    print("| " + " | ".join(titles) + " |")
    print("|" + "---|" * len(titles))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()
    print(f"### Pairs of {', '.join(RANKED)} that are ranked as measured, of those that differ by more than 5 %\n")
    print("| " + " | ".join(["model", *titles[2:], "all"]) + " |")
    print("|" + "---|" * (len(BARS) + 3))
    for (title, label), found in ranked.items():
        print("| " + " | ".join([title, label, *agreement(found)]) + " |")
    print()


def agreement(found):
    """For each of `BARS`: how many pairs of deployments at one load are ranked as measured, of those that differ."""
    agree, of = [0] * len(BARS), [0] * len(BARS)
    loads = set.intersection(*({load for name, load in found if name == ranked} for ranked in RANKED))
    pairs = ((load, a, b) for load in sorted(loads) for a, b in itertools.combinations(RANKED, 2))
    for load, a, b in pairs:
        for index, ((own, bar), (other, other_bar)) in enumerate(zip(found[a, load], found[b, load])):
            if abs(bar - other_bar) > DIFFERS * min(bar, other_bar):
                of[index] += 1
                agree[index] += (own < other) == (bar < other_bar)
    return [f"{right} of {count}" for right, count in zip([*agree, sum(agree)], [*of, sum(of)])]


def measured_bars(rows):
    """The measured metrics of `BARS`."""
    ttft = [percentile(rows, "ttft_ms", share) for share in (0.5, 0.99)]
    e2e = [percentile(rows, "e2e_ms", share) for share in (0.5, 0.99)]
    between = sum(row["e2e_ms"] - row["ttft_ms"] for row in rows) / sum(row["output_tokens"] - 1 for row in rows)
    return [*ttft, between, *e2e]


def intervals(args, out):
    """Whether the measurement is in the 90 % intervals of `vcr run --uncertainty`."""
    rows = []
    for name, fit, loads in INTERVALS:
        engine, shape = engine_and_shape(name, out)
        tables = h100_tables(H100 / name, out)
        model = out / f"{name}-{fit}.bars.json"
        vcr(args, "fit", tables[fit], "--engine", engine, "--shape", shape, "-o", model, "--folds", 0, "-q", "--force")
        for load in loads:
            requests = [json.loads(line) for line in tables[load].open()]
            latency = f'fitted(#{{ path: "{model}" }})'
            drawn = simulated(args, out, engine, latency, requests, "--uncertainty", DRAWS)["uncertainty"]["metrics"]
            found = [drawn[metric][statistic] for metric, statistic in BARS]
            values = measured_bars(requests)
            inside = sum(bar["low"] <= value <= bar["high"] for bar, value in zip(found, values))
            shown = [f"{value:,.1f} ({bar['low']:,.1f} to {bar['high']:,.1f})" for bar, value in zip(found, values)]
            rows.append([name, fit, load, *shown, f"{inside} of {len(BARS)}"])
    print("### Measured values and 90 % intervals, in milliseconds\n")
    titles = ["", "fitted on", "predicted", *(f"{metric[:-3]} {statistic}" for metric, statistic in BARS), "inside"]
    print("| " + " | ".join(titles) + " |")
    print("|" + "---|" * len(titles))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def h100(args, out):
    for name, fits in H100_FITS.items():
        engine, shape = engine_and_shape(name, out)
        tables = h100_tables(H100 / name, out)
        rows = []
        with_logs, means = [], []
        for fit in fits:
            fitted = fit.split("+")
            logs = [word for load in fitted for word in ("--steps", H100 / name / load / "steps.jsonl.gz")]
            for label, found, more in ((fit, rows, []), (f"{fit}, with step logs", with_logs, logs)):
                model = out / f"{name}-{fit}.model.json"
                vcr(args, "fit", *(tables[load] for load in fitted), "--engine", engine, "--shape", shape, "-o", model,
                    "--folds", 0, "-q", "--force", *more)
                held_out = []
                for load, table in tables.items():
                    mark = f"{load} (in sample)" if load in fitted else load
                    shown = errors(predictions(args, model, table, engine))
                    found.append([fit, mark, *shown])
                    if load not in fitted:
                        held_out.append([abs(float(error)) for error in shown])
                means.append([label, *(f"{sum(column) / len(column):.1f}" for column in zip(*held_out))])
        print(f"### {name}\n")
        print_table(["fitted on", "predicted"], rows)
        print(f"### {name}, with step logs\n")
        print_table(["fitted on", "predicted"], with_logs)
        print(f"### {name}, mean size of the errors of loads that were not fitted on\n")
        print_table(["fitted on"], means)
        if name in BASES:
            few_requests(args, out, name, engine, shape, tables)


def few_requests(args, out, name, engine, shape, tables):
    """A fit on a few requests of a low load, with and without a base; the others load the engine."""
    rows = []
    for label, more in (("none", []), ("roofline", ["--base", BASES[name]])):
        model = out / f"{name}-few-{label}.model.json"
        vcr(args, "fit", tables[FEW_LOAD], "--part", FEW_PART, "--engine", engine, "--shape", shape, "-o", model,
            "--folds", 0, "-q", "--force", *more)
        for load, table in tables.items():
            rows.append([label, load, *errors(predictions(args, model, table, engine))])
    print(f"### {name}, fitted on the first 3 % of the requests of `{FEW_LOAD}`, with and without `--base`\n")
    print_table(["base", "predicted"], rows)


def ship(args, out):
    """The model of scenarios/models: fitted on all loads of a recording, by relative names."""
    engine, shape = engine_and_shape(SHIPPED, out)
    tables = h100_tables(H100 / SHIPPED, out)
    inputs = [table.name for table in tables.values()]
    words = ["fit", *inputs, "--engine", engine, "--shape", shape.name, "-o", args.ship.resolve(), "-q", "--force"]
    vcr(args, *words, folder=out)


def llmservingsim(args, out):
    rows = []
    for name, settings in LLMSERVINGSIM.items():
        engine = f"{settings}, max_num_seqs: 128, max_num_batched_tokens: 2048, async_scheduling: true"
        run = args.llmservingsim / name
        inferred = []
        if "4090" in name:
            found = json.loads(vcr(args, "fit", run, "--engine", engine, "--shape", "llama-3.1-8b", "-o", out / "i.json",
                                   "--infer", "num_gpu_blocks", "--folds", 0, "--json", "-q", "--force"))["inferred"][0]
            inferred = [f"{name}: num_gpu_blocks inferred, {found['found']}"]
            engine += f", num_gpu_blocks: {found['found']}"
            engine = engine.replace(settings.split(",")[0] + ", ", "")
        for part, rest in (("0..1", "0..1"), ("0..0.5", "0.5..1")):
            model = out / f"{name}-{part}.json"
            vcr(args, "fit", run, "--engine", engine, "--shape", "llama-3.1-8b", "-o", model, "--part", part, "--folds", 0,
                "-q", "--force")
            shown = errors(predictions(args, model, run, engine, "--part", rest))
            label = "all (in sample)" if part == rest else "second half"
            rows.append([name, "all" if part == rest else "first half", label, *shown])
        for text in inferred:
            print(text + "\n")
    print_table(["run", "fitted on", "predicted"], rows)


def vllm_cpu(args, out):
    tables, engines = {}, {}
    for load in VLLM_CPU:
        folder = args.vllm_cpu / load
        settings = json.loads((folder / "engine.json").read_text())["engine_args"]
        names = {"num_gpu_blocks_override": "num_gpu_blocks", "scheduling_policy": "policy"}
        engines[load] = json.dumps({names.get(key, key): value for key, value in settings.items()})
        asked = {row["id"]: row for row in map(json.loads, (folder / "requests.jsonl").open())}
        tables[load] = out / f"cpu-{load}.jsonl"
        rows = []
        for line in (folder / "tokens.jsonl").open():
            row = json.loads(line)
            events, sent = row["ev"], row["sent"]
            request = asked[row["id"]]
            rows.append({
                "arrival_ms": sent * 1e3, "prompt_tokens": len(request["prompt"]),
                "output_tokens": sum(count for _, count in events), "ttft_ms": (events[0][0] - sent) * 1e3,
                "e2e_ms": (events[-1][0] - sent) * 1e3, "prompt_token_ids": request["prompt"],
                "priority": request.get("prio", 0),
            })
        rows.sort(key=lambda row: row["arrival_ms"])
        tables[load].write_text("".join(json.dumps(row) + "\n" for row in rows))
    shown = []
    for left_out in VLLM_CPU:
        rest = [load for load in VLLM_CPU if load != left_out]
        model = out / f"cpu-without-{left_out}.json"
        given = [word for load in rest for word in ("--engine", engines[load])]
        vcr(args, "fit", *(tables[load] for load in rest), *given, "-o", model, "--block-size", 32, "--folds", 0, "-q",
            "--force")
        predicted = predictions(args, model, tables[left_out], engines[left_out], "--block-size", 32)
        shown.append(["the three others", left_out, *errors(predicted)])
    print_table(["fitted on", "predicted"], shown)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vcr", default="target/release/vcr", help="the program (default: %(default)s)")
    parser.add_argument("--llmservingsim", type=Path, help="folder with runs of LLMServingSim's benchmark")
    parser.add_argument("--vllm-cpu", type=Path, help="folder with captures of vLLM on a CPU")
    parser.add_argument("--tables", type=Path, metavar="DIR", help="folder or environment with aiconfigurator-core")
    parser.add_argument("--ship", type=Path, metavar="FILE", help="fit the model that ships in scenarios/models, only")
    args = parser.parse_args()
    args.vcr = str(Path(args.vcr).resolve())
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        if args.ship:
            return ship(args, out)
        pairs()
        h100(args, out)
        intervals(args, out)
        without_fit(args, out)
        if args.llmservingsim:
            print("### LLMServingSim\n")
            llmservingsim(args, out)
        if args.vllm_cpu:
            print("### vLLM on a CPU\n")
            vllm_cpu(args, out)


if __name__ == "__main__":
    main()
