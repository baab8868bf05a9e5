"""Draws what the other draws leave out, for about half of all cases: very short and very long blocks and contexts, high
watermarks, many drafts, pauses, prompts with outputs of requests that still run, salts, and requests that read no cache."""

import random

# Outputs of request r are tokens of this segment and r.
FIRST_OUTPUT_SEGMENT = 100_000
SALTS = ["a", "tenant", "é"]


def is_extreme(seed, number, parts):
    """Whether a case is one of them. Others are drawn as if there were none."""
    return random.Random("/".join(["extreme", *parts, f"{seed}/{number}"])).random() < 0.5


def draw_extremes(rng, config):
    """Changes a configuration before groups of layers, drafters and so on are drawn for it."""
    if rng.random() < 0.6:
        config["block_size"] = rng.choice([1, 1, 2, 3, 4, 4, 5, 6, 7, 128, 130, 160, 256, 512])
    if rng.random() < 0.6:
        config["max_model_len"] = rng.choice([rng.randint(6, 127), rng.randint(6, 127), rng.randint(129, 4000)])
    if rng.random() < 0.3:
        config["watermark"] = rng.choice([0.3, 0.5, 0.7, 0.9])
    if config["spec"] and rng.random() < 0.5:
        config["spec"] = rng.choice([8, 9, 12, 16, 20])
    longest = config["max_model_len"]
    config["long_prefill_token_threshold"] = min(config["long_prefill_token_threshold"], longest)
    if not config["chunked_prefill"]:
        config["max_num_batched_tokens"] = max(config["max_num_batched_tokens"], longest)


def many_drafts(rng):
    """Drafts of a drafter with KV of its own."""
    return rng.choice([8, 9, 12, 16, 20])


def least_blocks(rng, config, least):
    """Blocks for one request beside those that the watermark keeps; now and then too few, so that vLLM stalls."""
    if config["watermark"] > 0.25 and rng.random() < 0.9:
        return int(least / (1 - config["watermark"])) + 2
    return least


def draw_echoes(rng, config, requests):
    """Has some prompts go on with outputs of an earlier request, which may still run then."""
    share = rng.choice([0.0, 0.1, 0.3])
    longest = config["max_model_len"] - 1
    firsts = [request for request in requests if "after" not in request and "media" not in request]
    followed = {request["after"] for request in requests if "after" in request}
    for request, earlier in zip(firsts[1:], firsts):
        if rng.random() >= share or request["id"] in followed:
            continue
        outputs = rng.randint(1, earlier["max_tokens"])
        prompt = [list(part) for part in earlier["prompt"]] + [[FIRST_OUTPUT_SEGMENT + earlier["id"], outputs]]
        if rng.random() < 0.5:
            prompt += request["prompt"][-1:]
        length = sum(length for _, length in prompt)
        if length > longest:
            continue
        request["prompt"] = prompt
        request["length"] = min(config["max_model_len"], length + request["max_tokens"])


def draw_reads(rng, config, requests):
    """Has some requests read no prefix cache, and some have a salt."""
    skipped, salted = rng.choice([0.0, 0.0, 0.1, 0.4]), rng.choice([0.0, 0.0, 0.3, 0.8])
    salts = SALTS[: rng.randint(1, len(SALTS))]
    for request in requests:
        if rng.random() < skipped:
            request["skip_reading_prefix_cache"] = True
        if "after" not in request and rng.random() < salted:
            request["cache_salt"] = rng.choice(salts)


def draw_pauses(rng):
    """Iterations at which the scheduler is paused and goes on, and its state from then on."""
    pauses = []
    at = 0
    for _ in range(rng.choice([0, 0, 1, 3, 8])):
        at += rng.randint(2, 60)
        pauses.append((at, rng.choice(["PAUSED_NEW", "PAUSED_ALL"])))
        at += rng.randint(1, 15)
        pauses.append((at, "UNPAUSED"))
    return pauses
