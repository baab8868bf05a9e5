#!/usr/bin/env python3
"""Compare step prices of `vcr tables price` with the package's own estimators.

Draws random steps with a seed, asks the SDK of aiconfigurator-core for the operators of
each, lets vcr price the same steps, and prints the differences by model and system.
Run it with the Python that has the package:

    ~/venv/bin/python tests/oracle/operator_tables.py --vcr target/release/vcr --steps 40
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
from pathlib import Path

SYSTEMS = ["h100_sxm", "h200_sxm", "b200_sxm"]

# Model, and how it is spread: tensor, expert and attention-data parallel sizes. The data
# types are given to both sides: the SDK takes an FP8 cache for every FP8 model, vLLM does
# not.
MODELS = [
    ("meta-llama/Meta-Llama-3.1-8B", 1, 1, 1, "bfloat16", None, "bfloat16"),
    ("meta-llama/Meta-Llama-3.1-70B", 4, 1, 1, "bfloat16", None, "bfloat16"),
    ("nvidia/Llama-3.1-70B-Instruct-FP8", 2, 1, 1, "fp8_static", None, "fp8"),
    ("Qwen/Qwen3-32B", 2, 1, 1, "bfloat16", None, "bfloat16"),
    ("openai/gpt-oss-120b", 2, 1, 1, "bfloat16", "w4a16_mxfp4", "bfloat16"),
    ("Qwen/Qwen3-235B-A22B-FP8", 4, 4, 1, "fp8_block", "fp8_block", "bfloat16"),
    ("Qwen/Qwen3-235B-A22B-FP8", 1, 8, 8, "fp8_block", "fp8_block", "bfloat16"),
    ("MiniMaxAI/MiniMax-M2.5", 4, 1, 1, "fp8_block", "fp8_block", "bfloat16"),
    ("deepseek-ai/DeepSeek-V3", 8, 8, 1, "fp8_block", "fp8_block", "fp8"),
    ("moonshotai/Kimi-K2.5", 8, 1, 1, "bfloat16", "int4_wo", "bfloat16"),
]

# The SDK charges the all-reduces of a layer of these models twice: as its own operator,
# and before and after the experts. One of them is left out.
COUNTED_TWICE = {"context_tp_allreduce", "generation_tp_allreduce"}


def random_step(rng):
    """A step of prompts, of decodes, or of both; lengths spread over their doublings."""
    kind = rng.choice(["prefill", "decode", "decode", "mixed"])
    step = {"kind": kind, "prompts": 0, "isl": 0, "prefix": 0, "decodes": 0, "context": 0}
    if kind != "decode":
        step["prompts"] = rng.choice([1, 1, 1, 2, 3, 4])
        step["isl"] = int(2 ** rng.uniform(4, 13)) // step["prompts"] + 1
        step["prefix"] = rng.choice([0, 0, int(2 ** rng.uniform(4, 13))])
    if kind != "prefill":
        step["decodes"] = int(2 ** rng.uniform(0, 8.5))
        step["context"] = int(2 ** rng.uniform(5, 14.5))
    return step


class Reference:
    """The SDK's estimator of a model on a system."""

    def __init__(self, system, model, tensor, expert, ranks, gemm, moe, kv_cache):
        from aiconfigurator_core.sdk import engine
        from aiconfigurator_core.sdk.config_builders import build_model_config
        from aiconfigurator_core.sdk.models import get_model

        gpus = tensor * ranks
        sizes = {"tp_size": tensor, "pp_size": 1, "attention_dp_size": ranks}
        sizes |= {"moe_tp_size": gpus // expert, "moe_ep_size": expert}
        dtypes = {"gemm_quant_mode": gemm, "kvcache_quant_mode": kv_cache, "fmha_quant_mode": "bfloat16"}
        if moe:
            dtypes["moe_quant_mode"] = moe
        handle = engine.EngineHandle.compile(model, system, "vllm", **{k: v for k, v in sizes.items()}, **dtypes)
        self.engine = handle._engine
        graph = get_model(model, build_model_config(**sizes, **dtypes), "vllm")
        self.context = [operator._name for operator in graph.context_ops]
        self.generation = [operator._name for operator in graph.generation_ops]

    def price(self, step):
        """Nanoseconds by operator: all but attention over all tokens, then attention of
        prompts and of decodes."""
        context = {name for name in self.context if name == "context_attention"}
        if not step["decodes"]:
            everything = list(range(len(self.context)))
            rows = self.engine.evaluate_context_ops(everything, step["prompts"], step["isl"], step["prefix"])
        elif not step["prompts"]:
            everything = list(range(len(self.generation)))
            rows = self.engine.evaluate_generation_ops(everything, step["decodes"], step["context"])
        else:
            tokens = step["prompts"] * step["isl"] + step["decodes"]
            others = [i for i, name in enumerate(self.context) if name not in context]
            attention = [i for i, name in enumerate(self.context) if name in context]
            decodes = [i for i, name in enumerate(self.generation) if name == "generation_attention"]
            rows = self.engine.evaluate_context_ops(others, 1, tokens, step["prompts"] * step["prefix"])
            rows += self.engine.evaluate_context_ops(attention, step["prompts"], step["isl"], step["prefix"])
            rows += self.engine.evaluate_generation_ops(decodes, step["decodes"], step["context"])
        operators = {}
        for name, ms, *_ in rows:
            if name not in COUNTED_TWICE:
                operators[name] = operators.get(name, 0.0) + ms * 1e6
        return operators


def line(step):
    """The step as `vcr tables price` reads it."""
    return {
        "prefill_requests": step["prompts"],
        "prefill_tokens": step["prompts"] * step["isl"],
        "prefill_context_tokens": step["prompts"] * step["prefix"],
        "decode_requests": step["decodes"],
        "decode_context_tokens": step["decodes"] * step["context"],
    }


def ours(args, config, steps):
    """Prices of vcr, a JSON object for each step."""
    system, model, tensor, expert, ranks, gemm, moe, kv_cache = config
    command = [args.vcr, "tables", "price", system, model, "--steps", "-", "--operators", "--data", args.data]
    command += ["--tensor-parallel", tensor, "--expert-parallel", expert, "--attention-dp", ranks]
    command += ["--gemm-dtype", gemm, "--kv-cache-dtype", kv_cache] + (["--moe-dtype", moe] if moe else [])
    text = "".join(json.dumps(line(step)) + "\n" for step in steps)
    done = subprocess.run([str(part) for part in command], input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return [json.loads(row) for row in done.stdout.splitlines()]


def summary(differences):
    ordered = sorted(differences)
    p90 = ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]
    return f"{len(ordered):5d} {statistics.median(ordered):9.2f} % {p90:9.2f} % {ordered[-1]:9.2f} %"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vcr", default="target/release/vcr", help="the binary")
    parser.add_argument("--data", default=sys.prefix, help="the package's folder, or the environment that has it")
    parser.add_argument("--steps", type=int, default=40, help="steps for each model and system")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write every step with both prices as JSON lines")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    rows, refused = [], []
    for model in MODELS:
        for system in SYSTEMS:
            steps = [random_step(rng) for _ in range(args.steps)]
            config = (system, *model)
            try:
                reference = Reference(*config)
                expected = [reference.price(step) for step in steps]
            except Exception as error:  # The SDK has no tables for it.
                refused.append(f"{model[0]} on {system}: {str(error).splitlines()[0][:160]}")
                continue
            for step, operators, got in zip(steps, expected, ours(args, config, steps)):
                total = sum(operators.values())
                difference = 100.0 * abs(got["ns"] - total) / total
                name = f"{model[0]} tp{model[1]} ep{model[2]} dp{model[3]}"
                row = {"model": name, "system": system, "step": step, "difference_percent": difference}
                rows.append(row | {"reference_ns": total, "reference": operators, "vcr": got})
    if args.out:
        args.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(f"{'':58}steps    median        p90    greatest")
    for title, key in [("", lambda row: "all"), ("", lambda row: row["step"]["kind"]),
                       ("", lambda row: f"{row['model']}, {row['system']}")]:
        for value in dict.fromkeys(key(row) for row in rows):
            print(f"{value:58}{summary([row['difference_percent'] for row in rows if key(row) == value])}")
    for text in refused:
        print(f"not compared: {text}")


if __name__ == "__main__":
    main()
