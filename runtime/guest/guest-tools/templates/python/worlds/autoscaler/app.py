"""As many engines as the requests need, a share of room included."""

import math

from vcr_guest import Autoscaler, GuestError, PoolView, known_fields, number, scaling


class ByRequests(Autoscaler):
    def __init__(self, config, seed):
        known_fields(config, ["requests_per_engine"])
        self.requests_per_engine = number(config, "requests_per_engine")
        if not self.requests_per_engine > 0:
            raise GuestError(f"invalid `requests_per_engine`: expected above 0, got {self.requests_per_engine}")

    def desired(self, pool: PoolView) -> int:
        requests = pool.running_requests + pool.waiting_requests
        return min(max(1, math.ceil(requests / self.requests_per_engine)), 1_000_000)


Scaling = scaling(ByRequests)
