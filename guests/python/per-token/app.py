"""Prices steps by their tokens, in Python: an example that the tests build."""

from vcr_guest import GuestError, LatencyModel, StepShape, known_fields, latency, number


class PerToken(LatencyModel):
    def __init__(self, config, seed):
        known_fields(config, ["ns_per_token"])
        self.ns_per_token = number(config, "ns_per_token")
        if not 0 < self.ns_per_token <= 1e12:
            raise GuestError(f"invalid `ns_per_token`: expected above 0 and at most 1e12, got {self.ns_per_token}")

    def price(self, step: StepShape) -> float:
        return self.ns_per_token * step.tokens()


Latency = latency(PerToken)
