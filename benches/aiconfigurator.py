"""What NVIDIA's AIConfigurator and `vcr plan` recommend for the same questions, both judged by simulation of the load.

    python3 -m venv aic && aic/bin/pip install aiconfigurator==0.12.0
    VCR_TABLES=aic python3 benches/aiconfigurator.py --aic aic/bin/aiconfigurator [--vcr target/release/vcr]

Both get the model, the GPU, the lengths, the rate, the limits of TTFT and TPOT, and AIConfigurator's type of KV cache.
AIConfigurator says how few GPUs serve the rate, in closed loops, and keeps the limits on average. `vcr plan` simulates
exponential gaps and keeps the limits at the 95th percentile. The simulation of AIConfigurator's answer has all its
engines with the flags of its scripts, the same load, and the same operator tables, which are AIConfigurator's own.
Images and shared prefixes of its examples are left out.
"""

import argparse
import csv
import datetime
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import typing


class Question(typing.NamedTuple):
    model: str
    gpu: str
    prompt: int
    output: int
    #: Requests per second. AIConfigurator's examples have another one, or none.
    rate: float
    #: Limits in ms.
    ttft: float
    tpot: float
    #: Where AIConfigurator names the model, the GPU, the lengths and the limits.
    source: str


QUESTIONS = [
    Question("Qwen/Qwen3-32B-FP8", "h200-sxm", 4000, 500, 8, 600, 16.7, "exps/h200_qwen3_32b_multi_backends.yaml"),
    Question("Qwen/Qwen3-32B-FP8", "h200-sxm", 4000, 500, 8, 600, 50, "cli default --help"),
    Question("Qwen/Qwen3-32B-FP8", "h200-sxm", 4000, 1000, 8, 2000, 30, "README: cli recommend"),
    Question("Qwen/Qwen3-32B-FP8", "h200-sxm", 8000, 200, 4, 200, 10, "README: cli default"),
    Question("Qwen/Qwen3-32B", "h200-sxm", 3000, 512, 4, 1000, 10, "CLI user guide"),
    Question("Qwen/Qwen3-VL-30B-A3B-Instruct", "h100-sxm", 2000, 200, 20, 300, 20, "example.yaml"),
    Question("deepseek-ai/DeepSeek-V3", "h200-sxm", 4000, 1000, 2, 1000, 40, "example.yaml"),
    Question("nvidia/Qwen3-235B-A22B-NVFP4", "b200-sxm", 4000, 500, 4, 600, 16.7, "exps/b200_qwen3_235b_nvfp4.yaml"),
    Question("meta-llama/Meta-Llama-3.1-70B", "a100-sxm", 4000, 1000, 2, 2000, 30, "support matrix, default limits"),
    Question("openai/gpt-oss-120b", "h100-sxm", 4000, 1000, 4, 2000, 30, "support matrix, default limits"),
]
REQUESTS = 500
MAX_GPUS = 64
SPACE = "max_num_seqs: [64, 256], max_num_batched_tokens: [2048, 8192]"
#: What AIConfigurator tries in addition for mixtures of experts.
EXPERTS = "data_parallel: [1, 2, 4, 8]"
MIXTURES = re.compile(r"-A\d+B|DeepSeek|gpt-oss")
#: Options of AIConfigurator's scripts that say nothing about an engine's speed.
IGNORED = ("--disaggregation-mode", "--kv-transfer-config")


class NoAnswer(Exception):
    """Why one side has no answer."""


class Engines(typing.NamedTuple):
    role: str
    #: Engines in each replica.
    count: int
    #: Tensor-, pipeline- and data-parallel size.
    sizes: tuple
    flags: list

    def gpus(self):
        return self.sizes[0] * self.sizes[1] * self.sizes[2]

    def value(self, flag, default):
        return self.flags[self.flags.index(flag) + 1] if flag in self.flags else default


class Answer(typing.NamedTuple):
    engines: list
    replicas: int
    #: Predicted means in ms, and output tokens per second and GPU.
    ttft: float
    tpot: float
    throughput: float

    def gpus(self):
        return self.replicas * sum(one.count * one.gpus() for one in self.engines)

    def text(self):
        return text_of([(one.role, one.count * self.replicas, one.sizes[0], one.sizes[2]) for one in self.engines])


def text_of(engines):
    """Role, number, tensor- and data-parallel size of engines: `4 TP2 DP4`, `24P TP1 + 6D TP4` or `3P + 6D TP4`."""
    sizes = [f"TP{tensor}" + (f" DP{data}" if data > 1 else "") for _, _, tensor, data in engines]
    counts = [str(count) + {"prefill": "P", "decode": "D"}.get(role, "") for role, count, _, _ in engines]
    if len(set(sizes)) == 1:
        return f"{' + '.join(counts)} {sizes[0]}"
    return " + ".join(f"{count} {size}" for count, size in zip(counts, sizes))


def error_of(done):
    """The line of a command's output that says what went wrong."""
    lines = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\[E\]|^error|Error:", line)]
    line = (errors or lines or ["no output"])[-1]
    line = re.sub(r"^.*?\[E\] \[[^]]*\]\s*(->)?\s*|^error: (\S+\.rhai:\d+:\d+: )?", "", line)
    return line.split(". ")[0]


def options_of(line):
    """The options of a line of AIConfigurator's scripts with their values, but for the ignored ones."""
    kept, is_kept = [], False
    for word in shlex.split(line.split(" 2>&1")[0]):
        if word.startswith("--"):
            is_kept = word not in IGNORED
        if is_kept:
            kept.append(word)
    return kept


def answer_of(row, script):
    """A row of AIConfigurator's table. The script of its first node has the engines' flags, but not all engines."""
    lines = [line for line in script.splitlines() if "--tensor-parallel-size" in line]
    engines = []
    for role in ["agg"] if "tp" in row else ["prefill", "decode"]:
        prefix = "" if role == "agg" else f"({role[0]})"
        line = next(line for line in lines if role == "agg" or f"--disaggregation-mode {role}" in line)
        sizes = tuple(int(row[prefix + size]) for size in ("tp", "pp", "dp"))
        engines.append(Engines(role, int(row.get(f"{prefix}workers") or 1), sizes, options_of(line)))
    predicted = [float(row[name]) for name in ("ttft", "tpot", "tokens/s/gpu")]
    answer = Answer(engines, int(row["replicas_needed"]), *predicted)
    if answer.gpus() != int(row["total_gpus_needed"]):
        raise NoAnswer(f"its table says {row['total_gpus_needed']} GPUs, its engines have {answer.gpus()}")
    return answer


def recommended(aic, question, limit_s):
    """AIConfigurator's answer: of its aggregated and disaggregated deployments, the one with fewer GPUs."""
    with tempfile.TemporaryDirectory() as folder:
        words = [aic, "cli", "default", "--model-path", question.model, "--system", question.gpu.replace("-", "_")]
        words += ["--backend", "vllm", "--target-request-rate", str(question.rate), "--strict-sla"]
        words += ["--isl", str(question.prompt), "--osl", str(question.output)]
        words += ["--ttft", str(question.ttft), "--tpot", str(question.tpot)]
        words += ["--save-dir", folder, "--no-color", "--top-n", "1"]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise NoAnswer(f"no answer in {limit_s} s") from None
        answers = []
        for path in sorted(pathlib.Path(folder).rglob("best_config_topn.csv")):
            with open(path) as file:
                rows = list(csv.DictReader(file))
            script = path.parent / "top1" / "run_0.sh"
            if rows and script.is_file():
                answers.append(answer_of(rows[0], script.read_text()))
    if not answers:
        raise NoAnswer(error_of(done))
    return min(answers, key=Answer.gpus)


def judged(vcr, model, question, answer, replicas):
    """The simulation of AIConfigurator's answer, with a number of replicas, under the load."""
    pools, text = {}, ""
    for one in answer.engines:
        flags = list(one.flags)
        if "--max-model-len" not in flags:
            flags += ["--max-model-len", str((question.prompt + question.output) // 1024 * 1024 + 1024)]
        command = shlex.join(["vllm", "serve", model, *flags])
        settings = f'gpu: "{question.gpu}", latency: "tables", price_per_hour: 1.0'
        text += f"let {one.role} = deployment({json.dumps(command)}, #{{ {settings} }});\n"
        engines = f"engines: {one.count * replicas}, deployment: {one.role}"
        pools[one.role] = f'pool(#{{ {engines}, router: "least-loaded" }})'
    if "agg" in pools:
        cluster = f"engines: {pools['agg']}"
    else:
        link = 'link(#{ bandwidth: "50GB/s", kv_bytes_per_token: prefill.kv_bytes_per_token, '
        link += 'sharing: "per-prefill-engine" })'
        cluster = f"prefill: {pools['prefill']}, decode: {pools['decode']}, link: {link}"
    load = f'name: "load", rate: {float(question.rate)}, count: {REQUESTS}, '
    load += f"prompt_tokens: {question.prompt}, output_tokens: {question.output}"
    text += f"let served = cluster(#{{ {cluster} }});\n"
    text += f"let result = run(#{{ cluster: served, workloads: [poisson(#{{ {load} }})], seed: 1 }});\n"
    text += f'expect(result, "ttft", "p95 < {question.ttft}ms");\nexpect(result, "tpot", "p95 < {question.tpot}ms");\n'
    text += 'expect(result, "completed_ratio", "value >= 99%");\n'
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "judged.rhai"
        path.write_text(text)
        done = subprocess.run([vcr, "run", path, "--json", "--quiet"], capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise NoAnswer(f"vcr cannot simulate it: {error_of(done)}")
    report = json.loads(done.stdout)
    metrics = report["runs"][0]["metrics"]
    p95 = [made["observed"] for made in report["assertions"][:2]]
    return {
        "ttft_p95": p95[0],
        "tpot_p95": p95[1],
        "ttft_mean": metrics["trends"]["ttft_ms"]["mean"],
        "tpot_mean": metrics["trends"]["tpot_ms"]["mean"],
        "headroom": min(1 - p95[0] / question.ttft, 1 - p95[1] / question.tpot),
        "cost_per_million": metrics["gauges"]["cost_per_million_output_tokens_usd"],
        "passed": report["passed"],
    }


def fewest(is_enough, first, most):
    """The smallest number of replicas that is enough, from a first guess. None if `most` are too few."""
    low, high = 0, first
    while not is_enough(high):
        low = high
        if high == most:
            return None
        high = min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def planned(vcr, model, question, kv_type, budget_s):
    price = f"{question.gpu}=1"
    words = [vcr, "plan", "--model", model, "--gpu", question.gpu, "--price", price, "--latency", "tables", "--json"]
    words += ["--rate", str(question.rate), "--requests", str(REQUESTS), "--quiet"]
    words += ["--prompt-tokens", str(question.prompt), "--output-tokens", str(question.output)]
    words += ["--slo", f"ttft.p95 < {question.ttft}ms", "--slo", f"tpot.p95 < {question.tpot}ms"]
    space = SPACE + f", kv_cache_dtype: [{kv_type}]" + (f", {EXPERTS}" if MIXTURES.search(question.model) else "")
    words += ["--scale", "1", "--max-gpus", str(MAX_GPUS), "--space", f"{{{space}}}", "--budget", f"{budget_s}s"]
    done = subprocess.run(words, capture_output=True, text=True)
    if not done.stdout.startswith("{"):
        raise NoAnswer(error_of(done))
    plan = json.loads(done.stdout)
    row = plan["rows"][0] if plan["rows"] else plan.get("nearest")
    if row is None:
        raise NoAnswer(plan["left_out"][-1]["reason"] if plan["left_out"] else "no deployment fits")
    shape = row["deployment"]
    mode = {"agg": 1} if shape["mode"] == "aggregated" else shape["mode"]["disaggregated"]
    data = re.search(r" -dp (\d+)", shape["command"])
    sizes = shape["tensor_parallel"], int(data.group(1)) if data else 1
    return {
        "text": text_of([(role, count * row["replicas"], *sizes) for role, count in mode.items()]),
        "gpus": row["gpus"],
        "flags": shape["flags"],
        "ttft_p95": row["objectives"][0]["observed"],
        "tpot_p95": row["objectives"][1]["observed"],
        "headroom": row["headroom"],
        "cost_per_million": row["price_per_million_output_tokens_usd"],
        "passed": plan["feasible"],
        "holds_if_slower": row.get("holds_if_slower"),
        "cut_by": plan.get("cut_by"),
    }


def model_for(vcr, question, folder):
    """The model as vcr finds it: by its name, or by the configuration in AIConfigurator's package."""
    known = subprocess.run([vcr, "inspect", "model", question.model], capture_output=True)
    if known.returncode == 0:
        return question.model
    stem = question.model.replace("/", "--")
    for name in ("config.json", "hf_quant_config.json"):
        for path in pathlib.Path(os.environ["VCR_TABLES"]).rglob(f"model_configs/{stem}_{name}"):
            shutil.copy(path, pathlib.Path(folder) / name)
    return folder if os.listdir(folder) else question.model


def compared(args, question):
    """Both answers to a question, or why there is none."""
    found = {"question": question._asdict()}
    with tempfile.TemporaryDirectory() as folder:
        model = model_for(args.vcr, question, folder)
        kv_type = "auto"
        started = time.monotonic()
        try:
            answer = recommended(args.aic, question, args.limit)
            theirs = {"text": answer.text(), "gpus": answer.gpus(), "replicas": answer.replicas}
            theirs |= {"ttft": answer.ttft, "tpot": answer.tpot, "tokens_per_s_per_gpu": answer.throughput}
            theirs |= {"flags": [shlex.join(one.flags) for one in answer.engines]}
            found["aiconfigurator"] = theirs
            found["seconds"] = [round(time.monotonic() - started)]
            kv_type = answer.engines[0].value("--kv-cache-dtype", "auto")
            theirs |= judged(args.vcr, model, question, answer, answer.replicas)
            most = max(2 * answer.replicas, MAX_GPUS * answer.replicas // answer.gpus())
            is_enough = lambda replicas: judged(args.vcr, model, question, answer, replicas)["passed"]
            least = fewest(is_enough, answer.replicas, most)
            theirs["least_gpus"] = least and answer.gpus() // answer.replicas * least
        except NoAnswer as why:
            found.setdefault("aiconfigurator", {})["why"] = str(why)
            found.setdefault("seconds", [round(time.monotonic() - started)])
        started = time.monotonic()
        try:
            found["plan"] = planned(args.vcr, model, question, kv_type, args.budget)
        except NoAnswer as why:
            found["plan"] = {"why": str(why)}
        found["seconds"].append(round(time.monotonic() - started))
    return found


COLUMNS = "{:<17}{:<5}{:<14}{:<10}{:>4} {:<19}{:<13}{:>6}{:>7} {:<15}{}"


def lines_of(found):
    """The line of the table, and a line for each side without an answer or a simulation."""
    question = Question(**found["question"])
    theirs, ours = found["aiconfigurator"], found["plan"]

    def side(one, is_nearest):
        p95 = "-"
        if "passed" in one:
            p95 = f"{one['ttft_p95']:.0f}, {one['tpot_p95']:.1f}{'' if one['passed'] else ' ✗'}"
        return one.get("gpus", "-"), ("~" if is_nearest else "") + one.get("text", "none"), p95

    is_nearest = theirs.get("ttft", 0) > question.ttft or theirs.get("tpot", 0) > question.tpot
    model = re.sub(r"-A\d+B|-Instruct|Meta-|.*/", "", question.model)
    gpu, load = question.gpu.split("-")[0].upper(), f"{question.prompt}+{question.output} {question.rate}/s"
    limits, needed = f"{question.ttft:g}, {question.tpot:g}", theirs.get("least_gpus") or "-"
    left, right = side(theirs, is_nearest), side(ours, not ours.get("passed", True))
    yield COLUMNS.format(model, gpu, load, limits, *left, needed, *right).rstrip()
    for name, one in (("AIConfigurator", theirs), ("vcr plan", ours)):
        if "why" in one:
            yield f"  {name}: {one['why']}"
        if one.get("cut_by"):
            yield f"  {name}: cut by {one['cut_by']}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--aic", default="aiconfigurator")
    parser.add_argument("--vcr", default="target/release/vcr")
    parser.add_argument("--only", type=int, nargs="*", help="some of the questions, from 1")
    parser.add_argument("--budget", type=int, default=60, help="seconds for each `vcr plan`")
    parser.add_argument("--limit", type=int, default=600, help="seconds for each AIConfigurator")
    parser.add_argument("--out", type=pathlib.Path, help="a file for all figures, as JSON lines")
    args = parser.parse_args()
    if "VCR_TABLES" not in os.environ:
        parser.error("VCR_TABLES: expected the folder of the virtual environment with AIConfigurator")
    for program in (args.aic, args.vcr):
        if not shutil.which(program):
            parser.error(f"{program}: expected a program")
    print(f"{datetime.date.today()}: p95 of TTFT and TPOT in ms in simulation, ✗ beyond a limit; P prefill, D decode")
    print("~ nearest, beyond a limit by its own figures; needs: GPUs with which AIConfigurator's engines keep them")
    print()
    print(COLUMNS.format("", "", "", "TTFT,", "", "AIConfigurator", "", "", "", "vcr plan", "").rstrip())
    print(COLUMNS.format("model", "GPU", "load", "TPOT", "GPUs", "engines", "p95", "needs", "GPUs", "engines", "p95"))
    for number, question in enumerate(QUESTIONS, 1):
        if args.only and number not in args.only:
            continue
        found = compared(args, question)
        print("\n".join(lines_of(found)), flush=True)
        if args.out:
            with open(args.out, "a") as file:
                file.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    sys.exit(main())
