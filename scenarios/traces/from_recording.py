#!/usr/bin/env python3
"""Turns recordings of a live vLLM engine into one Mooncake trace.

    from_recording.py BLOCK_SIZE RECORDING... > trace.jsonl

A recording is a folder with `requests.jsonl` (one request a line: its prompt as
token ids, when it was sent, and which request of its session it followed) and
`tokens.jsonl` (when its output tokens reached the client). Several recordings
are laid over each other, each from its own start. Only lengths, times and what
prompts share are kept; no token leaves the recording.
"""

import json
import pathlib
import sys


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def convert(recording, block_size, ids_of_prefixes):
    requests = {row["id"]: row for row in rows(recording / "requests.jsonl")}
    events = {row["id"]: row["ev"] for row in rows(recording / "tokens.jsonl")}
    followed = {row["after"] for row in requests.values() if "after" in row}

    def first_turn(request):
        return first_turn(requests[request["after"]]) if "after" in request else request

    for request in requests.values():
        prompt = request["prompt"]
        starts = range(0, len(prompt), block_size)
        row = {
            "timestamp": round(request["at"] * 1e3, 3),
            "input_length": len(prompt),
            "output_length": sum(tokens for _, tokens in events[request["id"]]),
            # Equal ids mean equal tokens from the start of the prompt on.
            "hash_ids": [
                ids_of_prefixes.setdefault(tuple(prompt[: start + block_size]), len(ids_of_prefixes))
                for start in starts
            ],
        }
        if "after" in request or request["id"] in followed:
            row["session_id"] = first_turn(request)["id"].removesuffix("t0")
        if "after" in request:
            answered_at = events[request["after"]][-1][0]
            row["delay"] = round((request["at"] - answered_at) * 1e3, 3)
        yield row


block_size, *recordings = sys.argv[1:]
ids_of_prefixes = {}
trace = [row for path in recordings for row in convert(pathlib.Path(path), int(block_size), ids_of_prefixes)]
for row in sorted(trace, key=lambda row: row["timestamp"]):
    print(json.dumps(row, separators=(",", ":")))
