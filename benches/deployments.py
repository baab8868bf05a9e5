#!/usr/bin/env python3
"""Errors and intervals of fits on deployments beyond their range: an A40, small GPUs, and an H100.

    python3 benches/deployments.py --vcr target/release/vcr --a40 DIR --small-gpu DIR
    python3 benches/deployments.py --only h100

Each case names what was fitted on and what was predicted. No load is in both. The recordings of an H100 are part
of the repository; the folders are optional. Everything is seeded; the same binary prints the same tables.
"""

import argparse
import csv
import gzip
import json
import tempfile
import time
from pathlib import Path

import accuracy

BARS = [f"{metric[:-3]} {statistic}" for metric, statistic in accuracy.BARS]
A40 = {"A": ("A-requests-14563", 30_700), "C": ("C-requests-7546", 29_792), "small": ("A-requests-55091", 216_442)}
A40_SHAPES = {"A": "Qwen/Qwen2.5-7B-Instruct", "C": "Qwen/Qwen2.5-7B-Instruct"}
# The published model of the small deployments, as its config.json has it.
SMALL_MODEL = {
    "architectures": ["Qwen2ForCausalLM"], "hidden_size": 896, "intermediate_size": 4864, "num_attention_heads": 14,
    "num_key_value_heads": 2, "num_hidden_layers": 24, "vocab_size": 151936, "max_position_embeddings": 32768,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16",
}
A40_STEPS = "C-steps-8022"


def repetitions(groups, numbers=(1, 2, 3)):
    return [f"{group}_rep{number}" for group in groups for number in numbers]


# Title, session, what was fitted on, whether with step logs, and what was predicted.
A40_CASES = [
    ("A40 in range", "A", repetitions(["S1_r2", "S1_r4", "S1_r6"], [1]), False,
     repetitions(["S1_r1", "S1_r2", "S1_r3", "S1_r4", "S1_r5", "S1_r6", "S1_r8", "A1b"], [2, 3])
     + ["S1_r3_rep1", "S1_r5_rep1"]),
    ("A40 overload", "A", repetitions(["S1_r2", "S1_r4", "S1_r6"], [1]), False, repetitions(["S1_rinf"])),
    ("A40 other lengths", "A", repetitions(["S1_r2", "S1_r4", "S1_r6"], [1]), False,
     repetitions(["S2_r2", "S2_r5", "S2_r8", "S2_rinf", "I1", "I2"], [1])),
    ("A40 overload, second session", "C", repetitions(["G1_r2", "G1_r4", "G1_r6"], [1]), False,
     repetitions(["G1_rinf", "C2x_c128"])),
    ("A40 overload, with steps", "C", repetitions(["G1_r2", "G1_r4", "G1_r6"], [1]), True,
     repetitions(["G1_rinf", "C2x_c128"])),
    ("A40, 0.5B to more load", "small", repetitions(["S3_r4", "S3_r8"], [1]), False,
     repetitions(["S3_r12", "S3_r24", "S3_rinf"], [2])),
]
AWQ_MODEL = {
    "architectures": ["Qwen3ForCausalLM"], "hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 36, "vocab_size": 151936,
    "max_position_embeddings": 40960, "torch_dtype": "float16",
    "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128},
}
LAPTOP, RTX = "laptop-qwen3-8b-awq", "rtx5070ti-qwen2.5-0.5b"
# Prompts of 136 tokens were sent again and were cached from the second run on, which no file says.
SMALL_CASES = [
    ("laptop, long prompts, between", LAPTOP, ["in2048_out128_c1", "in2048_out128_c4"], ["in2048_out128_c2"]),
    ("laptop, long prompts, more load", LAPTOP, ["in2048_out128_c1", "in2048_out128_c2"],
     ["in2048_out128_c4", "in2048_out128_c8"]),
    ("laptop, both, more load", LAPTOP, ["in128_out128_c1", "in128_out128_c2", "in2048_out128_c1", "in2048_out128_c2"],
     ["in2048_out128_c4", "in2048_out128_c8"]),
    ("laptop, to long prompts", LAPTOP, ["in128_out128_c1", "in128_out128_c4", "in128_out512_c4"],
     ["in2048_out128_c1", "in2048_out128_c4"]),
    ("RTX 0.5B, to more load", RTX, [f"day06_c{count}_i128_o64_n64" for count in (1, 2, 4)],
     [f"day06_c{count}_i128_o64_n64" for count in (8, 16)]),
]
SMALL_ENGINES = {
    LAPTOP: "num_gpu_blocks: 2_000, max_num_seqs: 8, max_num_batched_tokens: 2048, max_model_len: 4096",
    RTX: "num_gpu_blocks: 40_000, max_num_seqs: 256, max_num_batched_tokens: 2048, max_model_len: 4096, "
         "async_scheduling: true",
}


def records(path):
    with gzip.open(path, "rt") as lines:
        return [row for row in map(json.loads, lines) if "record" not in row]


def windows(folder):
    with (folder / "runs.csv").open() as file:
        return {row["run_id"]: (float(row["start_ts"]), float(row["end_ts"])) for row in csv.DictReader(file)}


def a40_tables(folder, session, runs, out):
    """A table for each run; what was sent to warm up came before its 200 requests."""
    rows, spans, tables = records(folder / f"{A40[session][0]}.jsonl.gz"), windows(folder), {}
    rows.sort(key=lambda row: row["arrival_ts"])
    for run in runs:
        begin, end = spans[run]
        found = [row for row in rows if begin <= row["arrival_ts"] <= end][-200:]
        tables[run] = out / f"{run}.jsonl"
        with tables[run].open("w") as file:
            for row in found:
                file.write(json.dumps({
                    "arrival_ms": (row["arrival_ts"] - begin) * 1e3, "prompt_tokens": row["n_prompt"],
                    "output_tokens": row["n_gen"], "ttft_ms": (row["e2e_s"] - row["decode_s"]) * 1e3,
                    "e2e_ms": row["e2e_s"] * 1e3, "queue_ms": row["queued_s"] * 1e3}) + "\n")
    return tables


def a40_steps(folder, blocks, runs, out):
    """Step logs of runs. KV blocks in use tell the context of decodes: half of a request's last block is empty."""
    rows, spans, logs = records(folder / f"{A40_STEPS}.jsonl.gz"), windows(folder), {}
    for run in runs:
        begin, end = spans[run]
        logs[run] = out / f"{run}.steps.jsonl"
        with logs[run].open("w") as file:
            for row in rows:
                if not begin <= row["ts"] - row["exec_s"] <= end or row["n_running"] == 0:
                    continue
                held = row["kv_usage"] * blocks * 16 - 8 * row["n_running"] - row["n_ctx_toks"]
                file.write(json.dumps({
                    "start_ms": (row["ts"] - row["exec_s"] - begin) * 1e3, "end_ms": (row["ts"] - begin) * 1e3,
                    "prefill_requests": row["n_ctx_reqs"], "prefill_tokens": row["n_ctx_toks"],
                    "decode_requests": row["n_gen_toks"],
                    "decode_context_tokens": max(round(held), 0) if row["n_gen_reqs"] else 0}) + "\n")
    return logs


def written(out, name, model):
    """A config.json as a file."""
    shape = out / f"{name}.json"
    shape.write_text(json.dumps(model))
    return shape


def fit(args, model, tables, engine, shape, logs=()):
    words = [word for log in logs for word in ("--steps", log)] + (["--shape", shape] if shape else [])
    began = time.process_time()
    accuracy.vcr(argparse.Namespace(vcr=args.fitted_by), "fit", *tables, "--engine", engine, "-o", model, "--folds", 0, "-q", "--force", *words)
    return time.process_time() - began


def judged(args, model, tables, engine):
    """Of each table: errors in percent by the names in `BARS`, and of each interval whether it holds and its width."""
    found = []
    for name, table in tables.items():
        predicted = accuracy.predictions(args, model, table, engine, *args.intervals)
        errors, inside = {}, []
        for each in predicted["comparisons"]:
            bar = f"{each['metric']} {each['statistic']}"
            if bar in BARS:
                errors[bar] = (each["simulated_ms"] / each["measured_ms"] - 1) * 100
        for each in predicted.get("intervals", []):
            if f"{each['metric']} {each['statistic']}" in BARS:
                measured_ms = next(one["measured_ms"] for one in predicted["comparisons"]
                                   if (one["metric"], one["statistic"]) == (each["metric"], each["statistic"]))
                inside.append((each["is_inside"], (each["high_ms"] - each["low_ms"]) / 2 / measured_ms))
        found.append((name, errors, inside, predicted["outside_fitted_range"]))
    return found


def bars_text(inside):
    """How many intervals hold, and half of their median width in percent."""
    if not inside:
        return ""
    held, widths = sum(holds for holds, _ in inside), sorted(width for _, width in inside)
    return f"{held} of {len(inside)}, ±{widths[len(widths) // 2] * 100:.0f} %"


def show(args, title, found):
    if args.verbose:
        for name, errors, inside, outside in found:
            columns = " ".join(f"{errors[bar]:+8.1f}" for bar in BARS)
            print(f"  {name:34} {columns}  {bars_text(inside)}, {outside * 100:.0f} % outside")
    means = [sum(abs(errors[bar]) for _, errors, _, _ in found) / len(found) for bar in BARS]
    everything = [each for _, _, inside, _ in found for each in inside]
    print(f"{title:36} " + " ".join(f"{mean:8.1f}" for mean in means) + f"  {bars_text(everything)}", flush=True)


def a40(args, out):
    fitted = {}
    for title, session, loads, with_steps, predicted in A40_CASES:
        blocks = A40[session][1]
        engine = (f"num_gpu_blocks: {blocks}, max_num_seqs: 256, max_num_batched_tokens: 2048, max_model_len: 32768, "
                  "async_scheduling: false, enable_prefix_caching: false")
        key = (session, tuple(loads), with_steps)
        if key not in fitted:
            tables = a40_tables(args.a40, session, loads, out)
            logs = a40_steps(args.a40, blocks, loads, out).values() if with_steps else ()
            fitted[key] = out / f"a40-{len(fitted)}.json"
            fit(args, fitted[key], tables.values(), engine, A40_SHAPES.get(session) or written(out, "small", SMALL_MODEL), logs)
        show(args, title, judged(args, fitted[key], a40_tables(args.a40, session, predicted, out), engine))


def small_gpu(args, out):
    for index, (title, folder, loads, predicted) in enumerate(SMALL_CASES):
        tables = {name: args.small_gpu / folder / f"{name}.json" for name in loads + predicted}
        model = out / f"small-{index}.json"
        engine = SMALL_ENGINES[folder]
        fit(args, model, [tables[name] for name in loads], engine, written(out, folder, SMALL_MODEL if folder == RTX else AWQ_MODEL))
        show(args, title, judged(args, model, {name: tables[name] for name in predicted}, engine))


def h100(args, out):
    everything = []
    for name, load, predicted in accuracy.INTERVALS:
        engine, shape = accuracy.engine_and_shape(name, out)
        tables = accuracy.h100_tables(accuracy.H100 / name, out)
        model = out / f"{name}-{load}.json"
        fit(args, model, [tables[load]], engine, shape)
        found = judged(args, model, {each: tables[each] for each in predicted}, engine)
        show(args, f"H100 {name} from {load}", found)
        everything += found
    show(args, "H100, all of these", everything)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vcr", default="target/release/vcr", help="the program (default: %(default)s)")
    parser.add_argument("--fitted-by", metavar="VCR", help="another program for the fits, to compare versions")
    parser.add_argument("--a40", type=Path, metavar="DIR", help="request and step logs of an A40")
    parser.add_argument("--small-gpu", type=Path, metavar="DIR", help="results of `vllm bench serve` on two small GPUs")
    parser.add_argument("--only", choices=["a40", "small-gpu", "h100"], help="one of the sets")
    parser.add_argument("--draws", type=int, default=50, help="draws for intervals; 0 for none (default: %(default)s)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep tables and models in this folder")
    parser.add_argument("--verbose", action="store_true", help="print every load, errors with signs")
    args = parser.parse_args()
    args.vcr = str(Path(args.vcr).resolve())
    args.fitted_by = str(Path(args.fitted_by or args.vcr).resolve())
    args.intervals = ["--uncertainty", args.draws]
    print(f"{'mean size of errors in percent':36} " + " ".join(f"{bar:>8}" for bar in BARS) + "  inside")
    with tempfile.TemporaryDirectory() as folder:
        out = args.keep or Path(folder)
        out.mkdir(exist_ok=True)
        for name, given, case in (("a40", args.a40, a40), ("small-gpu", args.small_gpu, small_gpu), ("h100", True, h100)):
            if given and args.only in (None, name):
                case(args, out)


if __name__ == "__main__":
    main()
