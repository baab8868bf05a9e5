"""What NVIDIA's AIConfigurator and `vcr plan` recommend for the same questions, both judged by simulation of the load.

    python3 -m venv aic && aic/bin/pip install aiconfigurator
    VCR_TABLES=aic python3 benches/aiconfigurator.py --aic aic/bin/aiconfigurator [--vcr target/release/vcr]

Both get the model, the GPU, the mean lengths, the rate and the limits of TTFT and TPOT. AIConfigurator says how few GPUs
serve the rate. `vcr plan` simulates exponential gaps with these lengths and keeps the limits at the 95th percentile. The
simulation of AIConfigurator's answer has its engines, parallel sizes, batch and tokens of a step, the same load and the
same operator tables, which are AIConfigurator's own.
"""

import argparse
import csv
import datetime
import json
import os
import pathlib
import re
import subprocess
import tempfile

#: Model, GPU, prompt and output tokens, requests per second, limits of TTFT and TPOT in ms. The first lengths and limits
#: are those of AIConfigurator's documentation.
TRIPLES = [
    ("Qwen/Qwen3-32B", "h200-sxm", 4000, 500, 4, 1000, 20),
    ("Qwen/Qwen3-32B", "h100-sxm", 4000, 500, 4, 1000, 30),
    ("Qwen/Qwen3-32B-FP8", "h200-sxm", 4000, 500, 8, 1000, 20),
    ("Qwen/Qwen3-32B-FP8", "h100-sxm", 3000, 500, 6, 600, 25),
    ("Qwen/Qwen3-8B", "h100-sxm", 2000, 256, 20, 500, 15),
    ("Qwen/Qwen3-8B", "h200-sxm", 1000, 200, 40, 500, 20),
    ("meta-llama/Llama-3.1-8B-Instruct", "h100-sxm", 1000, 200, 40, 300, 20),
    ("meta-llama/Llama-3.1-70B-Instruct", "h200-sxm", 2000, 256, 3, 1000, 30),
    ("Qwen/Qwen3-30B-A3B", "h200-sxm", 4000, 500, 8, 1000, 20),
    ("Qwen/Qwen3-8B", "b200-sxm", 4000, 500, 20, 500, 15),
]
REQUESTS = 200
SPACE = "{max_num_seqs: [64, 256], max_num_batched_tokens: [2048, 8192]}"


def recommended(aic, triple):
    """AIConfigurator's answer: the rows of its aggregated and disaggregated tables, the better first."""
    model, gpu, prompt, output, rate, ttft, tpot = triple
    with tempfile.TemporaryDirectory() as folder:
        words = [aic, "cli", "default", "--model-path", model, "--system", gpu.replace("-", "_"), "--backend", "vllm"]
        words += ["--target-request-rate", str(rate), "--isl", str(prompt), "--osl", str(output), "--strict-sla"]
        words += ["--ttft", str(ttft), "--tpot", str(tpot), "--save-dir", folder, "--no-color", "--top-n", "1"]
        done = subprocess.run(words, capture_output=True, text=True)
        best = []
        for path in sorted(pathlib.Path(folder).rglob("best_config_topn.csv")):
            with open(path) as file:
                rows = list(csv.DictReader(file))
            run = path.parent / "top1" / "run_0.sh"
            if rows and run.is_file():
                best.append((rows[0], run.read_text()))
        if not best:
            raise SystemExit(f"{model} on {gpu}: {(done.stderr or done.stdout)[-2000:]}")
    return min(best, key=lambda one: gpus_of(one))


def number(text, name, default=None):
    found = re.search(rf'{name}[= ]"?(\d+)', text)
    return int(found.group(1)) if found else default


def engines_of(answer):
    """Role, number of engines, GPUs of each, tensor-parallel size and flags, as AIConfigurator's script starts them."""
    _, script = answer
    found = []
    for role, count in (("AGG", "AGG_WORKERS"), ("PREFILL", "PREFILL_WORKERS"), ("DECODE", "DECODE_WORKERS")):
        workers = number(script, rf"(?m)^{count}")
        if not workers:
            continue
        mode = {"AGG": None, "PREFILL": "prefill", "DECODE": "decode"}[role]
        lines = [line for line in script.splitlines() if "--tensor-parallel-size" in line]
        line = next(line for line in lines if not mode or f"--disaggregation-mode {mode}" in line)
        sizes = [number(line, f"--{kind}-parallel-size", 1) for kind in ("tensor", "pipeline", "data")]
        seqs, tokens = number(line, "--max-num-seqs", 256), number(line, "--max-num-batched-tokens", 8192)
        found.append((role.lower(), workers, sizes, seqs, max(tokens, seqs)))
    return found


def gpus_of(answer):
    return sum(workers * sizes[0] * sizes[1] * sizes[2] for _, workers, sizes, _, _ in engines_of(answer))


def judged(vcr, triple, answer, prefill_tokens):
    """The simulation of AIConfigurator's answer with the load: TTFT p95 and TPOT p95 in ms, and whether it keeps them."""
    model, gpu, prompt, output, rate, ttft, tpot = triple
    pools = {}
    text = ""
    for role, workers, (tensor, pipeline, data), seqs, tokens in engines_of(answer):
        length = (prompt + output) // 1024 * 1024 + 1024
        # An engine that only prefills takes one prompt a step; it needs a running slot for each that waits for its KV.
        seqs = max(seqs, 64) if role == "prefill" else seqs
        command = f"vllm serve {model} -tp {tensor} -pp {pipeline} -dp {data} --max-model-len {length}"
        command += f" --max-num-seqs {seqs} --max-num-batched-tokens {max(tokens, prefill_tokens.get(role, 0))}"
        text += f'let {role} = deployment("{command}", #{{ gpu: "{gpu}", latency: "tables", price_per_hour: 1.0 }});\n'
        pools[role] = f'pool(#{{ engines: {workers}, deployment: {role}, router: "least-loaded" }})'
    if "agg" in pools:
        cluster = f"engines: {pools['agg']}"
    else:
        link = 'link(#{ bandwidth: "50GB/s", kv_bytes_per_token: prefill.kv_bytes_per_token, '
        link += 'sharing: "per-prefill-engine" })'
        cluster = f"prefill: {pools['prefill']}, decode: {pools['decode']}, link: {link}"
    text += f"let served = cluster(#{{ {cluster} }});\n"
    load = f'poisson(#{{ name: "load", rate: {float(rate)}, count: {REQUESTS}, '
    load += f"prompt_tokens: {prompt}, output_tokens: {output} }})"
    text += f"let result = run(#{{ cluster: served, workloads: [{load}], seed: 1 }});\n"
    text += f'expect(result, "ttft", "p95 < {ttft}ms");\nexpect(result, "tpot", "p95 < {tpot}ms");\n'
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "judged.rhai"
        path.write_text(text)
        done = subprocess.run([vcr, "run", path, "--json", "--quiet"], capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{model} on {gpu}: {done.stderr}\n{text}")
    report = json.loads(done.stdout)
    values = [made["observed"] for made in report["assertions"]]
    return values, report["passed"]


def planned(vcr, triple):
    model, gpu, prompt, output, rate, ttft, tpot = triple
    words = [vcr, "plan", "--model", model, "--gpu", gpu, "--price", f"{gpu}=1", "--latency", "tables", "--json"]
    words += ["--rate", str(rate), "--requests", str(REQUESTS), "--prompt-tokens", str(prompt), "--quiet"]
    words += ["--output-tokens", str(output), "--slo", f"ttft.p95 < {ttft}ms", "--slo", f"tpot.p95 < {tpot}ms"]
    words += ["--scale", "1", "--max-gpus", "16", "--space", SPACE]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{model} on {gpu}: {done.stderr}")
    return json.loads(done.stdout)


def text_of(answer):
    parts = [f"{workers} x TP{sizes[0]}" + (f" {role}" if role != "agg" else "") for role, workers, sizes, _, _ in answer]
    return " + ".join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--aic", default="aiconfigurator")
    parser.add_argument("--vcr", default="target/release/vcr")
    parser.add_argument("--only", type=int, help="one of the triples, from 0")
    args = parser.parse_args()
    if "VCR_TABLES" not in os.environ:
        parser.error("VCR_TABLES: expected the folder of the virtual environment with AIConfigurator")
    print(f"{datetime.date.today()}")
    print("| model, GPU | load | limits | AIConfigurator | GPUs | p95 in simulation | plan | GPUs | p95 |")
    print("|---|---|---|---|---|---|---|---|---|")
    for index, triple in enumerate(TRIPLES):
        if args.only not in (None, index):
            continue
        model, gpu, prompt, output, rate, ttft, tpot = triple
        answer = recommended(args.aic, triple)
        values, passed = judged(args.vcr, triple, answer, {"prefill": prompt})
        plan = planned(args.vcr, triple)
        times = lambda pair, held: f"{pair[0]:.0f}, {pair[1]:.1f} ms {'✓' if held else '✗'}"
        row = (plan["rows"] or [plan["nearest"]])[0]
        shape, replicas = row["deployment"], row["replicas"]
        engines = [("agg", replicas)]
        if shape["mode"] != "aggregated":
            engines = [(role, count * replicas) for role, count in shape["mode"]["disaggregated"].items()]
        own = text_of([(role, count, [shape["tensor_parallel"]], 0, 0) for role, count in engines])
        kept = [one["observed"] for one in row["objectives"][:2]]
        print(
            f"| {model}, {gpu} | {prompt} + {output}, {rate}/s | {ttft}, {tpot} ms | {text_of(engines_of(answer))} | "
            f"{gpus_of(answer)} | {times(values, passed)} | {own} | {row['gpus']} | {times(kept, plan['feasible'])} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
