#!/usr/bin/env python3
"""Records the KV events that vLLM's scheduler publishes, with the hashes themselves, as lines of JSON.

    event_hashes.py MODEL_DIR OUT_FILE

Requests come one after the other, and have one output token, so that nothing depends on what a model says. The live
engine's tests publish the same events (runtime/live/live/tests/live/data). Tokens are written as runs: [first, count].
"""

import json
import os
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

from vllm.sampling_params import SamplingParams  # noqa: E402
from vllm.utils.hashing import get_hash_fn_by_name  # noqa: E402
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash  # noqa: E402
from vllm.v1.outputs import ModelRunnerOutput  # noqa: E402
from vllm.v1.request import Request  # noqa: E402

from vllm_driver import VLLM_VERSION, feature  # noqa: E402
from vllm_scheduler import hash_block_size, new_scheduler  # noqa: E402

BASE = {
    "block_size": 8,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 48,
    "max_model_len": 256,
    "policy": "fcfs",
    "prefix_caching": True,
    "chunked_prefill": True,
    "long_prefill_token_threshold": 0,
    "adaptive": False,
    "watermark": 0.0,
    "reserve_full_isl": False,
    "max_num_active_seqs": None,
    "max_loras": 0,
    "spec": 0,
    "async_scheduling": False,
    "retention": None,
}
FULL = {"kind": "full", "block_size": 8}
WINDOW = {"kind": "sliding_window", "block_size": 8, "window": 20}
EAGLE = {"drafter": "eagle", "spec": 2, "disable_lookahead_block_hashes": False}
CASES = {
    "one": {"num_blocks": 40},
    "hybrid": {"num_blocks": 60, "groups": [FULL, WINDOW]},
    "windows": {"num_blocks": 50, "groups": [WINDOW, {**WINDOW, "window": 1}]},
    "sizes": {"num_blocks": 60, "groups": [{**FULL, "block_size": 16}, WINDOW]},
    "local": {"num_blocks": 60, "groups": [{"kind": "chunked_local", "block_size": 8, "window": 32}, FULL]},
    "states": {"num_blocks": 60, "groups": [FULL, {"kind": "mamba", "block_size": 8}]},
    "checkpoints": {"num_blocks": 60, "groups": [FULL, {"kind": "mamba", "block_size": 8, "checkpoint": 1}]},
    "retention": {"num_blocks": 60, "groups": [FULL, WINDOW], "retention": 0},
    "eagle": {"num_blocks": 40, **EAGLE},
    "eagle-hybrid": {"num_blocks": 60, "groups": [{**FULL, "drafter": True}, WINDOW], **EAGLE},
    "modules": {"num_blocks": 60, "groups": [FULL, WINDOW], **EAGLE, "drafter": "multi_module_mtp", "spec": 3},
}


class Published:
    """In place of a publisher."""

    def __init__(self):
        self.events = []

    def publish(self, batch):
        self.events += batch.events


def requests(name):
    """Prompts of few first parts, some with an image, of lengths that no output token completes to a block."""
    rng = random.Random(name)
    for number in range(10):
        first = rng.choice([1000, 1000, 2000, 3000])
        length = rng.randint(2, 22) * 8 + 5
        shared = min(length, rng.choice([0, 24, 48, 77, 500]))
        prompt = [[first, shared]] if shared else []
        if length > shared:
            prompt.append([100 * number + 10_000, length - shared])
        images = []
        if rng.random() < 0.4:
            start = rng.randint(0, length - 8)
            size = rng.randint(1, 8)
            images = [[f"image{size}-{rng.randrange(2)}", start, size]]
        yield {"prompt": prompt, "images": images, "salt": "salt" if rng.random() < 0.15 else None}


def short(digest):
    """32 bits of a hash are enough to tell."""
    return None if digest is None else digest & 0xFFFFFFFF


def runs(tokens):
    """Tokens as runs of numbers that follow each other."""
    out = []
    for token in tokens:
        if out and token == out[-1][0] + out[-1][1]:
            out[-1][1] += 1
        else:
            out.append([token, 1])
    return out


def written(event):
    """An event as it is compared."""
    kind = type(event).__name__
    if kind == "BlockRemoved":
        return {"removed": list(map(short, event.block_hashes)), "group": event.group_idx}
    ahead = getattr(event, "lookahead_token_ids", None)
    line = {
        "stored": list(map(short, event.block_hashes)),
        "group": event.group_idx,
        "parent": short(event.parent_block_hash),
        "tokens": runs(event.token_ids),
        "block_size": event.block_size,
        "keys": event.extra_keys,
        "kind": event.kv_cache_spec_kind,
        "window": event.kv_cache_spec_sliding_window,
        "ahead": ahead,
    }
    return {name: value for name, value in line.items() if value is not None}


def record(name, config, model):
    scheduler = new_scheduler(config, model, False)
    scheduler.kv_event_publisher = published = Published()
    hash_function = get_hash_fn_by_name("sha256")
    init_none_hash(hash_function)
    ahead = getattr(scheduler, "num_hash_lookahead_tokens", 0)
    hasher = get_request_block_hasher(hash_block_size(config), hash_function, *([ahead] if ahead else []))
    asked = list(requests(name))
    events = []
    for number, one in enumerate(asked):
        tokens = [first + index for first, count in one["prompt"] for index in range(count)]
        features = [feature(*image) for image in one["images"]] if "encoder_cache_size" in config else []
        request = Request(
            request_id=str(number),
            prompt_token_ids=tokens,
            sampling_params=SamplingParams(max_tokens=1, ignore_eos=True),
            pooling_params=None,
            mm_features=features,
            cache_salt=one["salt"],
            block_hasher=hasher,
        )
        scheduler.add_request(request)
        while scheduler.has_requests():
            output = scheduler.schedule()
            names = list(output.num_scheduled_tokens)
            sampled = [[] if scheduler.requests[one].is_prefill_chunk else [7] for one in names]
            places = {one: index for index, one in enumerate(names)}
            answer = ModelRunnerOutput(req_ids=names, req_id_to_index=places, sampled_token_ids=sampled)
            scheduler.update_from_output(output, answer)
        events.append([written(event) for event in published.events])
        published.events = []
    return {"name": name, "vllm": VLLM_VERSION, "config": config, "requests": asked, "events": events}


def main():
    model, out = sys.argv[1:]
    with open(out, "w", encoding="utf-8") as file:
        for name, settings in CASES.items():
            media = {"max_num_encoder_input_tokens": 48, "encoder_cache_size": 48, "disable_chunked_mm_input": False}
            case = record(name, {**BASE, **settings, **media}, model)
            print(f"{name}: {sum(map(len, case['events']))} events")
            file.write(json.dumps(case, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
