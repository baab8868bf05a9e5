"""Draws cases: a configuration of the scheduler and requests that put it under pressure."""

import random
from hashlib import blake2b

from random_extremes import (
    draw_echoes,
    draw_extremes,
    draw_pauses,
    draw_reads,
    is_extreme,
    least_blocks,
    many_drafts,
)
from random_groups import draw_groups
from random_media import EncoderInputs, Media
from random_sessions import draw_sessions
from scripted_connector import draw_connector
from structured.draw import draw_structured

SHARED_SEGMENTS = 4
FIRST_OWN_SEGMENT = 1001
REQUESTS_MIN = 20
REQUESTS_MAX = 120


class Hashed:
    """Answers drawn by a hash of request and position, so that they do not depend on order."""

    def __init__(self, seed, number, spec):
        rng = random.Random(f"answers/{seed}/{number}")
        self._key = f"{seed}/{number}"
        self._spec = spec
        self._accept = rng.choice(["any", "any", "none", "all"])
        self._propose = rng.choice(["any", "any", "all"])
        self._fit = rng.choice(["any", "any", "all", "none"])

    def sampled(self, schedule, request, drafts, outputs):
        if not drafts or self._accept == "none":
            return 1
        if self._accept == "all":
            return 1 + drafts
        return 1 + self._hash("sampled", request, outputs) % (drafts + 1)

    def proposed(self, schedule, request, outputs):
        if self._propose == "all":
            return self._spec
        return self._hash("proposed", request, outputs) % (self._spec + 1)

    def fitting(self, schedule, request, drafts, outputs):
        if self._fit == "any":
            return self._hash("fitting", request, outputs) % (drafts + 1)
        return drafts if self._fit == "all" else 0

    def _hash(self, kind, request, outputs):
        text = f"{self._key}/{kind}/{request}/{outputs}".encode()
        return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")


# Drafters with KV of their own.
DRAFTERS = ["eagle", "mtp", "multi_module_mtp", "draft_model"]
# Those whose KV of a token depends on the token after it.
EAGLE_LIKE = ["eagle", "mtp", "multi_module_mtp"]


# Ways in which the ranks of an engine share its work, of which the scheduler takes notice.
PARALLEL = ["context", "pipeline"]


def draw(
    seed,
    number,
    groups=None,
    drafter=None,
    media=False,
    parallel=None,
    by_batch=False,
    connector=None,
    budget=False,
    interval=False,
    sessions=False,
    structured=False,
):
    """The case `number` of a seed: its configuration, its requests and the pauses of its scheduler; with several groups of layers if
    `groups` names their kind, with a drafter that has KV of its own if `drafter` names one, or is "any", with
    multimodal items if `media` is set, with context or pipeline parallelism if `parallel` names it, with
    numbers of drafts that depend on the size of the batch if `by_batch` is set, with a KV connector if `connector` names its
    kind, with fewer tokens to schedule than the model's input holds if `budget` is set, with steps between those
    that compute prompts if `interval` is set, with resumable requests if `sessions` is set, and with structured
    outputs if `structured` is set."""
    parts = ["structured" if structured else None, "sessions" if sessions else None, "interval" if interval else None, "budget" if budget else None]
    parts += [connector, "by-batch" if by_batch else None, parallel, "media" if media else None, groups, drafter]
    parts = [part for part in parts if part]
    rng = random.Random("/".join(["cases", *parts, f"{seed}/{number}"]))
    # Requests that outgrow the pool together, so that many are preempted.
    pressed = rng.random() < (0.75 if parts else 0.55)
    config = draw_config(rng, pressed)
    extreme = is_extreme(seed, number, parts)
    if extreme:
        draw_extremes(rng, config)
    if drafter:
        config["drafter"] = rng.choice(DRAFTERS) if drafter == "any" else drafter
        draw_drafter(rng, config, extreme)
    if groups:
        draw_groups(rng, config, groups, extreme)
        has_states = any(group["kind"] == "mamba" for group in config["groups"])
        ends_chunks = has_states and "mamba_cache_mode" not in config
        # vLLM asks for chunks where states are kept at their ends.
        config["chunked_prefill"] |= config["prefix_caching"] and ends_chunks
        if drafter:
            if ends_chunks and config["drafter"] == "multi_module_mtp":
                # vLLM stalls where a chunk that ends at a state leaves too few tokens for all modules.
                config["drafter"] = "mtp"
            draw_drafter_groups(rng, config)
            if config["drafter"] in EAGLE_LIKE:
                # A state within a chunk would be one of less than its block.
                for group in config["groups"]:
                    group.pop("checkpoint", None)
    if parallel:
        draw_parallel(rng, config, parallel)
    if by_batch:
        draw_by_batch(rng, config)
    if connector:
        draw_connector(rng, config, connector)
    if budget:
        draw_budget(rng, config)
    if interval:
        config["prefill_schedule_interval"] = rng.choice([2, 2, 3, 4, 5, 8, 16])
    habits = draw_habits(rng, config, pressed)
    habits["media"] = Media(rng, config, extreme) if media else None
    if groups == "cross":
        habits["media"] = EncoderInputs(rng, config)
    if sessions:
        habits["follow"], config["policy"] = 0.0, "fcfs"  # Ranks would change within vLLM's heap.
    iterations = rng.choice([500, 800, 1100] if pressed else [200, 400, 600])
    count = rng.randint(REQUESTS_MIN + 20, REQUESTS_MAX)
    scale = 1.0
    while True:
        requests = draw_requests(rng, config, habits, count, scale)
        if extreme:
            draw_echoes(rng, config, requests)
        if sessions:
            draw_sessions(rng, config, requests)
        if structured:
            draw_structured(rng, requests)
        config["num_blocks"] = draw_pool(rng, config, requests, pressed, extreme)
        expected = expected_iterations(config, requests)
        if expected <= iterations or scale < 0.02:
            break
        count = max(REQUESTS_MIN, count * 5 // 6)
        scale *= 0.85
    draw_arrivals(rng, requests, expected, pressed)
    if extreme:
        draw_reads(rng, config, requests)
    return config, requests, draw_pauses(rng) if extreme else []


def draw_config(rng, pressed):
    max_model_len = rng.choice([128, 256, 512, 1024, 2048])
    chunked = rng.random() < 0.8
    spec = rng.choice([0, 0, 0, 1, 2, 3, 4])
    if not chunked:
        budget = max_model_len + rng.choice([0, 0, 1, 64, 500])
    elif spec and rng.random() < 0.3:
        budget = rng.randint(2, 12)
    else:
        budget = rng.choice([12, 24, 33, 64, 96, 128, 256, 512, 1024, 2048])
    many = [4, 6, 8, 12, 16, 24, 32, 48]
    seqs = min(budget, rng.choice(many if pressed else [1, 2, 3, *many]))
    threshold = 0
    if rng.random() < 0.35:
        threshold = rng.randint(1, min(max_model_len, max(8, budget)))
    return {
        "block_size": rng.choice([8, 8, 16, 16, 16, 32, 32, 64, 24, 40]),
        "num_blocks": 0,
        "max_num_seqs": seqs,
        "max_num_batched_tokens": budget,
        "max_model_len": max_model_len,
        "policy": rng.choice(["fcfs", "priority"]),
        "prefix_caching": rng.random() < 0.8,
        "chunked_prefill": chunked,
        "long_prefill_token_threshold": threshold,
        "adaptive": rng.random() < 0.4,
        "watermark": rng.choice([0.0] * 6 + [0.01, 0.05, 0.1, 0.25]),
        "reserve_full_isl": rng.random() < 0.6,
        "max_num_active_seqs": rng.randint(1, seqs) if rng.random() < 0.2 else None,
        "max_loras": rng.choice([0, 0, 0, 0, 1, 2, 3]),
        "spec": spec,
        "async_scheduling": rng.random() < 0.6,
    }


def draw_parallel(rng, config, parallel):
    """How many ranks share a block, or the layers."""
    if parallel == "context":
        config["dcp"] = rng.choice([2, 2, 2, 4, 4, 8])
        # Blocks of all ranks are not to be longer than most requests.
        before, config["block_size"] = config["block_size"], rng.choice([1, 2, 4, 4, 8, 16])
        for group in config.get("groups", ()):
            group["block_size"] = group["block_size"] // before * config["block_size"]
        return
    config["pp"] = rng.choice([2, 2, 2, 3, 4, 4, 8])
    if not config["async_scheduling"]:
        # Drafts would be those of whichever batch has left the pipeline by then.
        config["spec"] = 0
        config.pop("drafter", None)
        config.pop("disable_lookahead_block_hashes", None)
        for group in config.get("groups", ()):
            group.pop("drafter", None)


def draw_by_batch(rng, config):
    """Drafts of a batch by its number of requests; larger batches get those of the largest."""
    config["spec"] = config["spec"] or rng.choice([2, 3, 4, 5])
    first, ranges = 1, []
    for _ in range(rng.choice([1, 2, 2, 3, 4])):
        last = first + rng.choice([0, 1, 2, 3, 5, 8])
        ranges.append([first, last, rng.choice([0, 1, 2, config["spec"], config["spec"] + 1])])
        first = last + rng.choice([1, 1, 2, 4])
    config["spec_by_batch"] = ranges


def draw_budget(rng, config):
    """How many tokens a step schedules at most, and room for some more in the model's input."""
    scheduled = config["max_num_batched_tokens"]
    least = min(scheduled, 2 + config["spec"])
    if config["chunked_prefill"] and rng.random() < 0.4:
        scheduled = rng.randint(least, scheduled)
    config["max_num_scheduled_tokens"] = scheduled
    config["max_num_batched_tokens"] = max(
        config["max_num_batched_tokens"], scheduled + rng.choice([0, 1, 2, 4, 8, 16, 64])
    )


def batches_in_flight(config):
    """As many as vLLM has at once."""
    return config.get("pp", 1) + config["async_scheduling"]


def tokens_of_block(config):
    """Tokens of a block of all ranks."""
    return config["block_size"] * config.get("dcp", 1)


def draw_drafter(rng, config, extreme=False):
    """What a drafter with KV of its own needs besides."""
    drafter = config["drafter"]
    config["spec"] = many_drafts(rng) if extreme and rng.random() < 0.5 else rng.choice([1, 1, 2, 3, 3, 4, 5, 7])
    if drafter == "multi_module_mtp":
        config["spec"] = max(2, config["spec"])
    # A request that waits with one token is admitted with all of its drafts.
    least = 1 + config["spec"] + (drafter == "draft_model")
    config["max_num_batched_tokens"] = max(config["max_num_batched_tokens"], least)
    if drafter in EAGLE_LIKE:
        # Since 0.33; versions before always drop the last block of a hit.
        config["disable_lookahead_block_hashes"] = rng.random() < 0.4


def draw_drafter_groups(rng, config):
    """Which groups have layers of the drafter; none says that all may."""
    candidates = [group for group in config["groups"] if group["kind"] not in ("chunked_local", "mamba")]
    has_local = len(candidates) < len(config["groups"])
    if config["drafter"] not in EAGLE_LIKE or not candidates:
        return
    if has_local or rng.random() < 0.5:
        for group in rng.sample(candidates, rng.choice([1, 1, min(2, len(candidates))])):
            group["drafter"] = True


def held_blocks(config, tokens, in_flight=0):
    """About as many blocks as a request of this length holds at once, with tokens in flight."""
    if "groups" not in config:
        return -(-tokens // tokens_of_block(config))
    blocks = 0
    for group in config["groups"]:
        held = tokens
        if group["kind"] == "mamba":
            # An admission counts those at the ends of all blocks, where these are kept.
            kept = -(-tokens // group["block_size"]) if in_flight and "mamba_cache_mode" in config else 4
            blocks += config["spec"] + (kept if config["prefix_caching"] else 1)
            continue
        if group["kind"] == "cross_attention":
            blocks += -(-config.get("max_num_encoder_input_tokens", 0) // group["block_size"])
            continue
        if "window" in group:
            held = min(tokens, group["window"] + in_flight)
        blocks += -(-held // (group["block_size"] * config.get("dcp", 1))) + ("window" in group)
    return blocks


def draw_habits(rng, config, pressed):
    """What the requests of one case have in common."""
    prompts = ["short", "short", "middle", "long", "blocks", "mixed", "mixed"]
    if pressed:
        prompts = ["short", "short", "short", "middle", "blocks"]
    if config["max_num_batched_tokens"] <= 12:
        prompts = ["short"]
    adapters = rng.randint(1, 8) if config["max_loras"] else 0
    prio_count = rng.choice([1, 2, 3, 6])
    return {
        "prompt": rng.choice(prompts),
        "output": rng.choice([50, 100, 200] if pressed else [3, 12, 30, 30, 60, 120]),
        "output_shares": [1, 1, 1, 0.5] if pressed else [1, 1, 0.3, 0.05],
        "shared": rng.choice([0.0, 0.0, 0.3, 0.7]),
        "shared_lengths": [rng.randint(1, config["max_model_len"] // 3) for _ in range(SHARED_SEGMENTS)],
        "repeat": rng.choice([0.0, 0.0, 0.1, 0.4]),
        "follow": rng.choice([0.0, 0.0, 0.1, 0.3] if pressed else [0.0, 0.0, 0.2, 0.6]),
        "to_the_end": rng.choice([0.0, 0.0, 0.05] if pressed else [0.0, 0.05, 0.2]),
        "stop": rng.choice([0.0, 0.05, 0.15] if pressed else [0.0, 0.1, 0.3]),
        "abort": rng.choice([0.0, 0.0, 0.1, 0.3] if pressed else [0.0, 0.0, 0.1, 0.3, 0.5]),
        "abort_multiple": rng.choice([1, 1, 5, 16]),
        "adapters": adapters,
        "with_adapter": rng.choice([0.5, 0.9, 1.0]),
        "prios": [rng.randint(-3, 9) for _ in range(prio_count)],
    }


def draw_requests(rng, config, habits, count, scale):
    """Requests with `at` and `gap` still to come; the longest possible length is in `length`."""
    requests = []
    while len(requests) < count:
        request = draw_first_turn(rng, config, habits, len(requests), scale, requests)
        requests.append(request)
        while len(requests) < count and rng.random() < habits["follow"]:
            follower = draw_next_turn(rng, config, habits, len(requests), scale, requests[-1])
            if follower is None:
                break
            requests.append(follower)
    return requests


def draw_first_turn(rng, config, habits, identity, scale, earlier):
    length = prompt_length(rng, config, habits["prompt"], scale)
    own = [FIRST_OWN_SEGMENT + identity, length]
    firsts = [request for request in earlier if "after" not in request]
    if firsts and rng.random() < habits["repeat"]:
        prompt = [list(part) for part in rng.choice(firsts)["prompt"]]
        if rng.random() < 0.3:
            prompt.append(own)
    elif rng.random() < habits["shared"]:
        segment = rng.randrange(SHARED_SEGMENTS)
        length = habits["shared_lengths"][segment]
        if rng.random() < 0.2:
            length = rng.randint(1, length)
        prompt = [[segment + 1, max(1, int(length * scale))], own]
    else:
        prompt = [own]
    longest = config["max_model_len"] - 1
    while sum(length for _, length in prompt) > longest:
        prompt[-1][1] -= sum(length for _, length in prompt) - longest
        if prompt[-1][1] <= 0:
            prompt.pop()
    return finish_request(rng, config, habits, identity, scale, prompt, 0)


def draw_next_turn(rng, config, habits, identity, scale, earlier):
    """A further turn of the same session; None if the session grew too long."""
    room = config["max_model_len"] - 1 - earlier["length"]
    length = prompt_length(rng, config, "short", scale)
    if length > room:
        return None
    prompt = [[FIRST_OWN_SEGMENT + identity, length]]
    request = finish_request(rng, config, habits, identity, scale, prompt, earlier["length"])
    request["after"] = earlier["id"]
    request["gap"] = rng.choice([1, 1, 2, 5, rng.randint(1, 40)])
    if "lora" in earlier:
        request["lora"] = earlier["lora"]
    else:
        request.pop("lora", None)
    return request


def prompt_length(rng, config, kind, scale):
    block, longest = tokens_of_block(config), config["max_model_len"] - 1
    if kind == "mixed":
        kind = rng.choice(["short", "middle", "long", "blocks"])
    length = {
        "short": lambda: rng.randint(1, 3 * block),
        "middle": lambda: rng.randint(block, max(block, longest // 4)),
        "long": lambda: rng.randint(longest // 4, longest),
        "blocks": lambda: block * rng.randint(1, 6) + rng.choice([0, 0, 0, 1, -1]),
    }[kind]()
    if kind != "blocks":
        length = int(length * scale)
    return min(longest, max(1, length))


def finish_request(rng, config, habits, identity, scale, prompt, before):
    """Adds what does not depend on the prompt's kind; `before` counts the tokens of earlier turns."""
    length = before + sum(length for _, length in prompt)
    share = rng.choice(habits["output_shares"]) * max(scale, 0.2)
    max_tokens = int(share * rng.randint(1, habits["output"]))
    room = config["max_model_len"] - length
    if rng.random() < habits["to_the_end"] and room * 4 < config["max_model_len"]:
        max_tokens = room + rng.randint(-2, 10)
    request = {"id": identity, "prompt": prompt, "max_tokens": max(1, max_tokens)}
    if habits["media"]:
        request["media"] = habits["media"].items_of(rng, prompt)
    request["prio"] = rng.choice(habits["prios"])
    if habits["adapters"] and rng.random() < habits["with_adapter"]:
        request["lora"] = rng.randint(1, habits["adapters"])
    if rng.random() < habits["stop"]:
        request["stop_at"] = rng.randrange(request["max_tokens"])
    if rng.random() < habits["abort"]:
        request["abort_on"] = rng.choice(["add", "schedule", "output", "preempt", "preempt"])
        request["abort_in"] = rng.choice([0, 1, 1, 2, 3, rng.randint(0, 40)])
        request["abort_multiple"] = habits["abort_multiple"]
    request["length"] = min(config["max_model_len"], length + request["max_tokens"])
    return request


def draw_pool(rng, config, requests, pressed, extreme=False):
    """Enough blocks for any one request; how many more makes the pressure."""
    slack = 2 * (config["spec"] + 1)
    if "drafter" in config:
        slack += 2 * config["spec"]
    longest = max(min(config["max_model_len"], request["length"] + slack) for request in requests)
    batches = batches_in_flight(config)
    least = held_blocks(config, longest, batches * config["max_num_batched_tokens"]) + rng.choice([1, 2, 4])
    if extreme:
        least = least_blocks(rng, config, least)
    mean = sum(request["length"] for request in requests) / len(requests)
    each = held_blocks(config, int(mean)) if "groups" in config else mean / tokens_of_block(config)
    wanted = each * min(config["max_num_seqs"], len(requests))
    wanted *= rng.uniform(0.1, 0.6) if pressed else rng.choice([0.8, 1.5, 5.0])
    return max(least, min(4000, int(wanted)))


def expected_iterations(config, requests):
    """A rough guess, to keep cases small."""
    tokens = sum(request["length"] for request in requests)
    outputs = sum(request["max_tokens"] for request in requests)
    block = tokens_of_block(config)
    room = config["num_blocks"] * block / (tokens / len(requests) + block / 2)
    if "groups" in config:
        room = config["num_blocks"] / held_blocks(config, tokens // len(requests))
    parallel = min(
        config["max_num_seqs"],
        config["max_num_active_seqs"] or config["max_num_seqs"],
        config.get("max_num_scheduled_tokens") or config["max_num_batched_tokens"],
        max(1.0, room),
    )
    if config["max_loras"]:
        adapters = len({request.get("lora") for request in requests})
        parallel = max(1.0, parallel * min(1.0, 2 * config["max_loras"] / adapters))
    computed = 0
    for request in requests:
        own = sum(length for _, length in request["prompt"])
        computed += own if config["prefix_caching"] else request["length"]
        chunk = config["long_prefill_token_threshold"]
        if chunk and not config["adaptive"]:
            outputs += own / chunk
    # Turns in which all requests are in flight schedule nothing.
    turns = config.get("pp", 1) * 0.75 + 0.25
    step_tokens = config.get("max_num_scheduled_tokens") or config["max_num_batched_tokens"]
    return turns * outputs / parallel + 1.5 * computed / step_tokens


def draw_arrivals(rng, requests, expected, pressed):
    """Gives `at` to those who follow nobody."""
    manner = rng.choice(["at once", "bursts", "steady"] + ["sparse", "steady"] * (not pressed))
    span = expected * rng.uniform(0.2, 0.6 if pressed else 1.2) / len(requests)
    at = rng.choice([0, 0, 3])
    for request in requests:
        request.pop("length")
        if "after" in request:
            continue
        request["at"] = at
        if manner == "steady" and span > 0:
            at += int(rng.expovariate(1 / span))
        elif manner == "bursts" and rng.random() < 0.15:
            at += rng.randint(1, int(8 * span) + 2)
        elif manner == "sparse" and rng.random() < 0.3:
            at += rng.randint(1, int(10 * span) + 20)
