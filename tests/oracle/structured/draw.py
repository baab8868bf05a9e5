"""Draws structured outputs: which requests have a grammar, and how long it takes until that is ready, or has failed."""


def draw_structured(rng, requests):
    """Gives some of the requests a `grammar`: it is compiled `in` some iterations after the request has come, and may fail."""
    share = rng.choice([0.2, 0.5, 0.8, 1.0])
    fails = rng.choice([0.0, 0.0, 0.05, 0.2, 0.5])
    longest = rng.choice([1, 3, 10, 40])
    for request in requests:
        if rng.random() < share:
            request["grammar"] = {"in": rng.choice([0, 0, 1, 2, rng.randint(0, longest), rng.randint(0, longest)])}
            if rng.random() < fails:
                request["grammar"]["fails"] = True
