"""Draws resumable requests: prompts that come in parts, with outputs between them."""

PARTS_MAX = 5
# Segments of tokens of further parts, by request and part.
FIRST_PART_SEGMENT = 50_000


def draw_sessions(rng, config, requests):
    """Makes some of the requests resumable: gives them `parts`, the last of which may be their end."""
    share = rng.choice([0.3, 0.6, 0.6, 0.9])
    # How soon parts follow: while the outputs to those before are still to come, or after their end.
    eager = rng.choice([0.0, 0.2, 0.5, 0.8])
    pause = rng.choice([1, 1, 3, 10, 30])
    for request in requests:
        if rng.random() < share:
            draw_parts(rng, config, request, eager, pause)


def draw_parts(rng, config, request, eager, pause):
    parts = []
    for number in range(rng.randint(1, PARTS_MAX)):
        room = config["max_model_len"] - 2 - request["length"]
        if room < 2:
            break
        longest = min(room - 1, rng.choice([1, 2, 8, 3 * config["block_size"], 100]))
        length = rng.randint(1, max(1, longest))
        segment = FIRST_PART_SEGMENT + request["id"] * PARTS_MAX + number
        if rng.random() < 0.2:
            # Of the segments that prompts share.
            segment = rng.randint(1, 4)
        part = draw_time(rng, eager, pause)
        part["prompt"] = [[segment, length]]
        part["max_tokens"] = rng.randint(1, min(room - length, rng.choice([1, 4, 20, 60])))
        if rng.random() < 0.3:
            part["stop_at"] = rng.randrange(part["max_tokens"])
        request["length"] += length + part["max_tokens"]
        parts.append(part)
    # The end of the input.
    parts.append(draw_time(rng, eager, pause))
    request["parts"] = parts


def draw_time(rng, eager, pause):
    """The time of a part: N iterations after the one before was sent, or after the outputs to it ended."""
    if rng.random() < eager:
        return {"after": "sent", "gap": rng.choice([0, 1, 2, rng.randint(0, 20)])}
    return {"after": "ended", "gap": rng.choice([1, 1, 2, rng.randint(1, 3 * pause)])}
