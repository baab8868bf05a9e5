#!/usr/bin/env python3
"""Turns what capture.py wrote into one folder a workload.

usage: pack.py CAPTURE_DIR OUT_DIR [--hash-ids]

CAPTURE_DIR holds engine.json, steps.jsonl and requests-*.jsonl. Each workload becomes
OUT_DIR/NAME with requests.jsonl.gz and steps.jsonl.gz, all times in milliseconds after the
workload's begin; OUT_DIR/engine.json holds the settings. --hash-ids writes the block hashes of each
prompt out, as small integers, beside the parts that tell them.
"""
import gzip
import json
import os
import sys

import workloads

# The GPU's clock drifts some parts in a million against the host's: over this many steps to each
# side it does not matter.
WINDOW = 100


def on_host_clock(steps):
    """Adds `begin` and `end` to each step: the GPU's work in seconds of the host's monotonic clock.

    The events tell durations and gaps, hence a time line with an unknown offset. No result is
    applied before the GPU has made it, and some are at once: the least distance is the offset.
    """
    now, line = 0.0, []
    for step in steps:
        now += step["gpu_gap_ms"] or 0.0
        begin = now
        now += step["gpu_ms"]
        line.append((begin, now))
    distance = [step["t"][5] * 1000 - end for step, (_, end) in zip(steps, line)]
    for i, (step, (begin, end)) in enumerate(zip(steps, line)):
        offset = min(distance[max(0, i - WINDOW):i + WINDOW + 1])
        step["begin"], step["end"] = begin + offset, end + offset


def pack_step(step, zero):
    t = step["t"]
    return {
        "start_ms": round(step["begin"] - zero, 3),
        "end_ms": round(step["end"] - zero, 3),
        "scheduled_ms": round(t[0] * 1000 - zero, 2),
        "applied_ms": round(t[6] * 1000 - zero, 2),
        "launch_ms": round((t[4] - t[2]) * 1000, 2),
        "prefill_requests": step["pn"],
        "prefill_tokens": step["pt"],
        "prefill_context_tokens": step["pc"],
        "decode_requests": step["dn"],
        "decode_context_tokens": step["dc"],
        "total": step["total"],
        "chunks": step["chunks"],
        "running": step["running"],
        "waiting": step["waiting"],
        "free_blocks": step["free"],
        "preempted": step["preempted"],
    }


def pack_request(row, shift, known):
    out = {"arrival_ms": round(row["arrival_ms"] + shift, 2),
           "queued_ms": None if row.get("queued_ms") is None else round(row["queued_ms"] + shift, 2)}
    for key in ("prompt_tokens", "output_tokens"):
        out[key] = row[key]
    for key in ("ttft_ms", "e2e_ms", "mean_itl_ms", "max_itl_ms", "queue_ms"):
        out[key] = None if row.get(key) is None else round(row[key], 2)
    out["cached_tokens"] = row["cached_tokens"]
    out["parts"] = row["parts"]
    if known is not None:
        out["hash_ids"] = workloads.hash_ids(row["parts"], 16, known)
    if "error" in row:
        out["error"] = row["error"]
    return out


def write(path, rows):
    data = "".join(json.dumps(r, separators=(",", ":")) + "\n" for r in rows).encode()
    with open(path, "wb") as f, gzip.GzipFile("", "wb", 9, f, mtime=0) as z:
        z.write(data)


def settings(steps_head, info):
    keep = ("vllm", "torch", "gpu", "max_num_seqs", "max_num_batched_tokens", "async_scheduling",
            "max_model_len", "dtype", "block_size", "num_gpu_blocks", "gpu_memory_utilization",
            "cudagraph_mode", "cudagraph_capture_sizes", "compilation_mode", "start_s")
    out = {k: info[k] for k in keep if k in info}
    for k in ("num_gpu_blocks", "policy", "chunked_prefill", "prefix_caching",
              "long_prefill_token_threshold", "v2_model_runner", "reserve_full_isl", "watermark",
              "free_blocks_at_start", "marked"):
        out[k] = steps_head[k]
    out["model"] = info["model"]
    out["workloads"] = {
        w["name"]: {**{k: v for k, v in w["spec"].items() if k not in ("name", "cost", "limit_s")},
                    "capacity_rps": w["rate_base_rps"], "requests": w["requests"],
                    "seconds": round(w["spans"][-1][1] - w["spans"][0][0], 2)}
        for w in info["workloads"]}
    return out


def main():
    source, out = sys.argv[1:3]
    with_ids = "--hash-ids" in sys.argv
    info = json.load(open(f"{source}/engine.json"))
    with open(f"{source}/steps.jsonl") as f:
        head, *steps = [json.loads(line) for line in f]
    on_host_clock(steps)
    os.makedirs(out, exist_ok=True)
    json.dump(settings(head, info), open(f"{out}/engine.json", "w"), indent=1)
    for w in info["workloads"]:
        name, spans = w["name"], w["spans"]
        zero, last = spans[0][0] * 1000, spans[-1][1] * 1000
        rows = [json.loads(line) for line in open(f"{source}/requests-{name}.jsonl")]
        rows.sort(key=lambda r: (r["wave"], r["arrival_ms"], int(r["id"].rsplit(".", 1)[1])))
        known = {} if with_ids else None
        folder = f"{out}/{name}"
        os.makedirs(folder, exist_ok=True)
        write(f"{folder}/requests.jsonl.gz",
              [pack_request(r, spans[r["wave"]][0] * 1000 - zero, known) for r in rows])
        mine = [s for s in steps if zero <= s["t"][0] * 1000 <= last]
        write(f"{folder}/steps.jsonl.gz", [pack_step(s, zero) for s in mine])
        print(name, len(rows), "requests", len(mine), "steps")


if __name__ == "__main__":
    main()
