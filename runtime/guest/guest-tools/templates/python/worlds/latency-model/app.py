"""Prices steps by their tokens, slower the more requests share one."""

from vcr_guest import GuestError, LatencyModel, StepShape, known_fields, latency, number

FIELDS = ("ns_per_step", "ns_per_token", "ns_per_request")


class Model(LatencyModel):
    def __init__(self, config, seed):
        known_fields(config, FIELDS)
        self.ns_per_step = number(config, "ns_per_step")
        self.ns_per_token = number(config, "ns_per_token")
        self.ns_per_request = number(config, "ns_per_request", 0)
        for field in FIELDS:
            if not 0 <= getattr(self, field) <= 1e12:
                raise GuestError(f"invalid `{field}`: expected 0 to 1e12 nanoseconds, got {getattr(self, field)}")

    def price(self, step: StepShape) -> float:
        return (
            self.ns_per_step
            + self.ns_per_token * step.tokens()
            + self.ns_per_request * step.batch_requests()
        )


Latency = latency(Model)
