"""Draws groups of layers: what each keeps of a sequence, and in blocks of what size."""

import math

# Kinds of groups of layers, as a command line names them.
GROUP_KINDS = ["plain", "latent", "window", "hybrid", "windows", "local", "sizes", "fulls"]
GROUP_KINDS += ["mamba", "mamba-alone", "mamba-windows", "mamba-all", "cross"]


def draw_groups(rng, config, kind, extreme=False):
    """Groups of layers; `block_size` becomes the length at which blocks are hashed. In extreme cases there may be many
    of them, and full attention in blocks of several sizes beside windows."""
    size, longest = config["block_size"], config["max_model_len"]

    def full(scale=1):
        return {"kind": "full", "block_size": size * scale}

    def window(scale=1):
        length = rng.choice([1, 2, size, size + 1, 2 * size, 3 * size + 5, rng.randint(1, longest), longest // 4])
        return {"kind": "sliding_window", "block_size": size * scale, "window": max(1, length)}

    def local():
        length = size * rng.choice([1, 2, 3, 4, 8])
        length = rng.choice([length, length, rng.randint(1, longest)])
        return {"kind": "chunked_local", "block_size": size, "window": length}

    def all_states():
        # Those at the ends of all blocks, which releases up to 0.31 can keep.
        config["prefix_caching"], config["mamba_cache_mode"] = True, "all"
        groups = [{"kind": "mamba", "block_size": size}] * rng.choice([1, 1, 2, 3])
        groups += [full()] * rng.choice([0, 1, 1, 1, 2])
        groups += [window()] * rng.choice([0, 0, 1, 2])
        return groups + [local()] * rng.choice([0, 0, 0, 1])

    def states():
        # Of linear attention, Mamba 2, and one kernel of delta attention.
        checkpoint = rng.choice([None, None, 1, 1, 16])
        return {"kind": "mamba", "block_size": size} | ({"checkpoint": checkpoint} if checkpoint else {})

    def latent(scale=1):
        return {"kind": "mla", "block_size": size * scale}

    def several_sizes():
        config["block_size"] = size = rng.choice([1, 2, 3, 4, 8, 16])
        scales = rng.sample([1, 2, 3, 4, 5], rng.choice([2, 2, 3]))
        windows = [{**window(), "block_size": size * rng.choice([1, 2, 3])} for _ in range(rng.choice([1, 1, 2]))]
        return [{"kind": "full", "block_size": size * scale} for scale in scales] + windows

    if kind == "plain":
        groups = [full()]
    elif kind == "latent":
        groups = [latent()] * rng.choice([1, 1, 2]) + [full(rng.choice([1, 1, 2]))] * rng.choice([0, 1, 1])
        groups += [window()] * rng.choice([0, 0, 1]) + [states()] * rng.choice([0, 0, 1])
        if any(group["kind"] == "mamba" for group in groups):
            # States are kept where blocks of one size end.
            groups = [{**group, "block_size": size} for group in groups]
    elif kind == "sizes" and extreme and rng.random() < 0.6:
        groups = several_sizes()
    elif kind == "cross":
        # Of encoder-decoder models, for which vLLM turns these off.
        config["prefix_caching"] = config["chunked_prefill"] = False
        config["long_prefill_token_threshold"] = 0
        config["max_num_batched_tokens"] = max(config["max_num_batched_tokens"], longest)
        groups = [full()] * rng.choice([1, 1, 2]) + [{"kind": "cross_attention", "block_size": size}]
    elif kind == "mamba-all":
        groups = all_states()
    elif kind == "mamba-alone":
        if not config["prefix_caching"]:
            # The one block of a sequence is to be a multiple of it.
            config["block_size"] = size = rng.choice([8, 16, 32])
        groups = [states()] * rng.choice([1, 1, 1, 2])
    elif kind.startswith("mamba"):
        groups = [states()] * rng.choice([1, 1, 2, 3]) + [full()] * rng.choice([1, 1, 1, 2])
        if kind == "mamba-windows":
            groups = groups[: rng.choice([len(groups), -1])] + [window()] * rng.choice([1, 1, 2])
            groups += [local()] * rng.choice([0, 0, 0, 1])
    elif kind == "fulls":
        config["block_size"] = size = rng.choice([8, 8, 16, 24])
        groups = [full(), full(rng.choice([2, 2, 3, 4]))] + [full(rng.choice([1, 2, 3]))] * rng.choice([0, 0, 1])
    elif kind == "window":
        groups = [window()]
    elif kind == "hybrid":
        one = window()
        groups = [full()] * rng.choice([1, 1, 2]) + [one] * rng.choice([1, 1, 2, 3])
    elif kind == "windows":
        groups = [window() for _ in range(rng.choice([2, 2, 3]))] + [full()] * rng.choice([0, 1, 1])
    elif kind == "local":
        one = local()
        groups = [one] * rng.choice([1, 1, 2, 3]) + [full()] * rng.choice([0, 1, 1])
        groups += [window()] * rng.choice([0, 0, 0, 1])
    else:
        config["block_size"] = size = rng.choice([8, 8, 16, 24])
        groups = [full(rng.choice([1, 1, 2, 3]))] * rng.choice([0, 1, 1, 1, 2])
        groups += [window(rng.choice([1, 2, 4])) for _ in range(rng.choice([1, 1, 2]))]
        if len(groups) == 1:
            groups.append(full(2))
    if extreme and kind not in ("plain", "cross", "window", "mamba-alone") and rng.random() < 0.3:
        groups += [rng.choice(groups) for _ in range(rng.randint(3, 10))]
    rng.shuffle(groups)
    config["groups"] = [dict(group) for group in groups]
    aligned = math.lcm(*(group["block_size"] for group in groups))
    has_window = any(group["kind"] in ("sliding_window", "mamba") for group in groups)
    intervals = [None, None, 0, aligned, 2 * aligned, 5 * aligned]
    if any(group["kind"] == "mamba" for group in groups) and not config["prefix_caching"]:
        # A state of a whole sequence would have to be a part of the interval.
        intervals = [None, 0]
    config["retention"] = rng.choice(intervals) if has_window else rng.choice([None, None, 0])
