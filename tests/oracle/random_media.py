"""Draws multimodal items of prompts: where they are, what they are, and how scarce the encoder is; and inputs of encoders
whose outputs a decoder reads."""

import random

KINDS_MAX = 12
# An identity is its kind times this, and a variant.
VARIANTS = 64


class Media:
    """The items of one case; adds the encoder's settings to its configuration.

    A kind of item has a length and perhaps breaks without embeddings; its variants are other images of the same size.
    A segment of prompt tokens has the same kinds at the same places wherever it is used.
    """

    def __init__(self, rng, config, extreme=False):
        self._seed = rng.random()
        longest = self._longest(rng, config, extreme)
        self._kinds = [self._draw_kind(rng, config, longest) for _ in range(rng.randint(1, KINDS_MAX))]
        self._density = rng.choice([0.3, 0.6, 0.9])
        self._gap = rng.choice([0, 1, 4, config["block_size"]])
        self._variants = rng.choice([[0], [0, 0, 0, 1, 2], [0, 0, 1, 2, 3, 4, 5], range(VARIANTS)])
        largest = max(self._embeds(kind) for kind in self._kinds)
        self._configure(rng, config, max(1, largest))

    def items_of(self, rng, prompt):
        """The items of a prompt: [identity, offset, length], and runs of embeddings if not all are."""
        variant = rng.choice(self._variants)
        items = []
        before = 0
        for segment, length in prompt:
            for offset, kind in self._places(segment):
                size, runs = self._kinds[kind]
                if offset + size > length:
                    break
                identity = kind * VARIANTS + variant
                items.append([identity, before + offset, size] + ([runs] if runs is not None else []))
            before += length
        return items

    def _places(self, segment):
        rng = random.Random(f"{self._seed}/{segment}")
        if rng.random() > self._density:
            return
        # Some prompts repeat one image.
        kinds = range(len(self._kinds))
        if rng.random() < 0.3:
            kinds = [rng.choice(kinds)]
        offset = rng.choice([0, 0, rng.randint(0, 20)])
        for _ in range(40):
            kind = rng.choice(kinds)
            yield offset, kind
            offset += self._kinds[kind][0] + rng.randint(0, self._gap)

    @staticmethod
    def _longest(rng, config, extreme):
        longest = min(config["max_model_len"] // 4, 6 * config["block_size"])
        if extreme and rng.random() < 0.5:
            longest = rng.randint(config["max_model_len"] // 4, config["max_model_len"] - 1)
        config["disable_chunked_mm_input"] = rng.random() < 0.35
        if config["disable_chunked_mm_input"]:
            # vLLM does not start with longer ones, and 0.33 never computes those beyond the threshold.
            longest = min(longest, config["max_num_batched_tokens"])
            if config["long_prefill_token_threshold"]:
                longest = min(longest, config["long_prefill_token_threshold"])
            if "drafter" in config:
                # A draft model takes a token of the budget, and others read up to all their drafts ahead.
                longest -= config["spec"] + 1
        return max(1, longest)

    @staticmethod
    def _draw_kind(rng, config, longest):
        size = min(longest, rng.choice([1, 2, config["block_size"], rng.randint(1, longest), rng.randint(1, longest)]))
        if rng.random() < 0.7:
            return size, None
        runs = []
        start = rng.randint(0, 2)
        while start < size and len(runs) < 6:
            end = min(size, start + rng.randint(1, max(1, size // 2)))
            runs.append([start, end])
            start = end + rng.randint(1, 3)
        return size, runs

    @staticmethod
    def _embeds(kind):
        size, runs = kind
        return size if runs is None else sum(end - start for start, end in runs)

    @staticmethod
    def _configure(rng, config, largest):
        """Never less than one item needs: vLLM takes the largest one of the model then."""
        budget = config["max_num_batched_tokens"]
        amounts = [largest, largest + 1, 2 * largest, 3 * largest, 8 * largest, 40 * largest, budget]
        config["max_num_encoder_input_tokens"] = max(largest, rng.choice(amounts))
        config["encoder_cache_size"] = max(largest, rng.choice(amounts))


class EncoderInputs:
    """The inputs of the encoder of an encoder-decoder model: one for most prompts, at no place of theirs."""

    def __init__(self, rng, config):
        longest = 8 * config["block_size"]
        self._sizes = [rng.randint(1, longest) for _ in range(rng.choice([1, 1, 2, 4]))]
        self._share = rng.choice([1.0, 1.0, 0.9, 0.5])
        largest = max(self._sizes)
        amounts = [largest, largest + 1, 2 * largest, 3 * largest, 8 * largest, config["max_num_batched_tokens"]]
        config["disable_chunked_mm_input"] = True
        config["max_num_encoder_input_tokens"] = max(largest, rng.choice(amounts))
        config["encoder_cache_size"] = max(largest, rng.choice(amounts))

    def items_of(self, rng, prompt):
        """The input of a prompt: [identity, 0, length]."""
        if rng.random() >= self._share:
            return []
        kind = rng.randrange(len(self._sizes))
        return [[kind * VARIANTS + rng.randrange(VARIANTS), 0, self._sizes[kind]]]
