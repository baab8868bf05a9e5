"""The workloads: pure data from a seed, so that they can be made again.

A prompt is a list of parts [segment, tokens]; token i of segment s is token(s, i) below, so two
prompts share a prefix exactly where their parts agree. Standard library only, numpy if present.
"""
import math
import random


def token(segment, i, vocab):
    """Token i of a segment; 1000 <= token < vocab."""
    return 1000 + ((segment * 1_000_003 + i) * 2_654_435_761 % (1 << 32)) % (vocab - 1000)


def prompt_tokens(parts, vocab):
    out = []
    for segment, n in parts:
        base = segment * 1_000_003
        out += [1000 + ((base + i) * 2_654_435_761 & 0xFFFFFFFF) % (vocab - 1000) for i in range(n)]
    return out


def hash_ids(parts, block_size, known):
    """Small integers for the full blocks of a prompt: equal id, equal tokens from the prompt's start
    to the block's end. `known` (a dict) carries the numbering from request to request."""
    # the content of the prefix of length n is told by the parts cut at n
    ids, total = [], sum(n for _, n in parts)
    for end in range(block_size, total + 1, block_size):
        key, left = [], end
        for segment, n in parts:
            take = min(n, left)
            key.append((segment, take))
            left -= take
            if not left:
                break
        ids.append(known.setdefault(tuple(key), len(known)))
    return ids


def lognormal(rng, median, sigma, low, high):
    return max(low, min(high, round(rng.lognormvariate(math.log(median), sigma))))


def request(rng, segment, at):
    return dict(at=round(at, 4), parts=[[segment, lognormal(rng, 400, 0.8, 50, 4000)]],
                max_tokens=lognormal(rng, 120, 0.7, 8, 1024))


def rates(rng, base, phases):
    """Poisson arrivals; phases are (seconds, requests a second), one after another."""
    out, start = [], 0.0
    for seconds, rate in phases:
        t = start
        while True:
            t += rng.expovariate(rate)
            if t >= start + seconds:
                break
            out.append(request(rng, base + len(out), t))
        start += seconds
    return out


def burst(rng, base, n):
    """n requests at once: the engine is saturated until the last ones."""
    return [request(rng, base + i, 0.0) for i in range(n)]


def shared(rng, base, seconds, rate, prefixes=24):
    """Poisson arrivals; each prompt starts with one of a few long prefixes, chosen by a Zipf law."""
    heads = [[base + 500_000 + i, rng.choice([512, 768, 1024, 1536, 2048])] for i in range(prefixes)]
    weights = [1 / (i + 1) for i in range(prefixes)]
    out, t = [], 0.0
    while True:
        t += rng.expovariate(rate)
        if t >= seconds:
            return out
        head = rng.choices(heads, weights)[0]
        out.append(dict(at=round(t, 4), parts=[head, [base + len(out), lognormal(rng, 200, 0.8, 20, 3000)]],
                        max_tokens=lognormal(rng, 120, 0.7, 8, 1024)))


def grid(base, contexts, batches, limit, out_tokens):
    """Cells of equal requests sent at once, one cell after another: (context, batch) by wave."""
    waves, k = [], 0
    for context in contexts:
        for batch in batches:
            if batch * context > limit:
                continue
            wave = []
            for _ in range(batch):
                wave.append(dict(at=0.0, parts=[[base + k, context]], max_tokens=out_tokens))
                k += 1
            waves.append(wave)
    return waves


def build(spec, base, capacity):
    """The requests of one workload as a list of waves (all but grid have one wave). A workload that
    is `like` another has its times and lengths, and other tokens."""
    rng = random.Random(f"{spec.get('like', spec['name'])}/{spec.get('seed', 1)}")
    kind = spec["kind"]
    if kind == "grid":
        return grid(base, spec["contexts"], spec["batches"], spec["limit"], spec["out"])
    if kind == "burst":
        return [burst(rng, base, spec["n"])]
    if kind == "rates":
        return [rates(rng, base, [(s, f * capacity) for s, f in spec["phases"]])]
    if kind == "shared":
        return [shared(rng, base, spec["seconds"], spec["load"] * capacity)]
    raise ValueError(f"invalid kind {kind!r}: expected grid, burst, rates or shared")
