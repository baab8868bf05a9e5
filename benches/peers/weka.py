#!/usr/bin/env python3
"""Compares how `vcr replay` and Dynamo 1.6.1's crate read random Weka corpora.

    benches/peers/weka.py [--cases N] [--seed S] [--vcr PATH] [--keep FOLDER]

The crate writes what it reads as rows of agentic Mooncake; a replay of these must give the times of
the requests that a replay of the corpus gives. Needs target/release/vcr (or --vcr) and a Rust
toolchain; builds the driver into target/peers/native on first use.
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def request(draw, start, took, ids, block):
    tokens = max(1, len(ids) * block - draw.choice([0, 0, 1, block // 2]))
    request = {
        "type": draw.choice("ns"), "t": round(start, 3), "model": "m" if draw.random() < 0.95 else "n",
        "in": tokens, "out": draw.choice([0, 1, 20, 60, 100, 300]), "hash_ids": ids,
    }
    if draw.random() < 0.9:
        request["api_time"] = round(took, 3)
    if draw.random() < 0.1:
        request["hash_ids"] = ids[:-1]
    return request


def conversation(draw, start, block, fresh, base):
    """Requests that mostly extend each other, some of them at once."""
    ids, now, requests = list(base), start, []
    for _ in range(draw.randint(1, 6)):
        kind = draw.random()
        if kind < 0.6:
            ids = ids + [fresh() for _ in range(draw.randint(1, 3))]
        elif kind < 0.75 and len(ids) > 1:
            ids = ids[: draw.randint(1, len(ids) - 1)] + [fresh() for _ in range(draw.randint(1, 3))]
        elif kind < 0.85:
            ids = [fresh() for _ in range(draw.randint(1, 3))]
        took = draw.uniform(0.1, 5)
        requests.append(request(draw, now, took, ids, block))
        now += took * draw.choice([0.3, 1, 1, 1.5]) if draw.random() < 0.95 else 4000
    return requests, now


def play(draw, number, block):
    count = iter(range(1, 1_000_000))
    fresh = lambda: next(count)
    system = [fresh() for _ in range(draw.randint(0, 2))]
    requests, now = [], draw.choice([0.0, 0.0, 5.0])
    is_relative = draw.random() < 0.5
    for part in range(draw.randint(1, 4)):
        more, now = conversation(draw, now, block, fresh, system)
        if not more[0]["hash_ids"]:
            more[0]["hash_ids"] = [fresh()]
        requests += more
        if draw.random() < 0.6:
            inner, end = conversation(draw, 0.0 if is_relative else now, block, fresh, system)
            marker = {
                "type": "subagent", "t": round(now, 3), "agent_id": f"a{part}", "subagent_type": "task",
                "status": draw.choice(["completed", "completed", "async_launched"]), "requests": inner,
            }
            if draw.random() < 0.5:
                marker["duration_ms"] = int((end if is_relative else end - now) * 1000)
            requests.append(marker)
            now = (end if not is_relative else now + end) + draw.uniform(0, 3)
    return {"id": f"play-{number}", "models": ["m", "n"], "block_size": block, "hash_id_scope": "local", "requests": requests}


def times(vcr, trace, folder):
    out = folder / "requests.jsonl"
    command = [vcr, "replay", trace, "--report-jsonl", out, "--force", "--quiet", "--num-workers", "1",
               "--extra-engine-args", json.dumps({"num_gpu_blocks": 100000, "block_size": 16})]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        return done.stderr.strip()
    keep = ("arrival_time_ms", "first_token_ms", "last_token_ms", "input_length", "output_length", "reused_input_tokens")
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    return sorted(json.dumps({key: value for key, value in row.items() if key in keep or not keep}) for row in rows)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--vcr", default=ROOT / "target/release/vcr")
    parser.add_argument("--keep", type=pathlib.Path)
    arguments = parser.parse_args()
    target = ROOT / "target/peers/native"
    driver = target / "debug/weka"
    if not driver.exists():
        subprocess.run(["cargo", "build", "--quiet", "--locked", "--manifest-path", ROOT / "benches/peers/native/Cargo.toml",
                        "--target-dir", target], check=True)
    differ = refused = 0
    with tempfile.TemporaryDirectory() as name:
        folder = arguments.keep or pathlib.Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        for case in range(arguments.seed, arguments.seed + arguments.cases):
            draw = random.Random(case)
            block = draw.choice([16, 64])
            corpus, rows = folder / f"{case}.jsonl", folder / f"{case}.rows.jsonl"
            plays = [play(draw, number, block) for number in range(draw.randint(1, 4))]
            corpus.write_text("".join(json.dumps(play) + "\n" for play in plays))
            lowered = subprocess.run([driver, corpus, rows], capture_output=True, text=True)
            ours = times(arguments.vcr, corpus, folder)
            if lowered.returncode != 0 or isinstance(ours, str):
                refused += 1
                if (lowered.returncode == 0) == isinstance(ours, str):
                    differ += 1
                    print(f"case {case}: the crate: {lowered.stderr.strip() or 'reads it'}; vcr: {ours if isinstance(ours, str) else 'reads it'}")
                continue
            theirs = times(arguments.vcr, rows, folder)
            if ours != theirs:
                differ += 1
                print(f"case {case}: times differ")
    print(f"{arguments.cases} corpora, {refused} refused by both, {differ} differ")
    sys.exit(differ > 0)


if __name__ == "__main__":
    main()
