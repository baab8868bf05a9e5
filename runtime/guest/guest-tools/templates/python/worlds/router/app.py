"""Sends a request to the engine that has the least to do for it, where a block of its prompt in the
cache is worth some blocks of load; refuses it where all are full."""

from vcr_guest import REFUSE, Refusal, RouteRequest, Router, WorkerLoad, known_fields, number, routing


class LeastLoaded(Router):
    def __init__(self, config, seed):
        known_fields(config, ["cached_block_weight", "max_waiting"])
        #: Value of a cached block, in blocks of load.
        self.cached_block_weight = number(config, "cached_block_weight", 1)
        #: A request is refused where every engine has more waiting than this.
        self.max_waiting = number(config, "max_waiting", 1_000_000)

    def route(self, request: RouteRequest, workers: list[WorkerLoad]) -> int | Refusal:
        room = [worker for worker in workers if worker.waiting_requests <= self.max_waiting]
        if not room and request.may_refuse:
            return REFUSE
        # Of equal ones, the first: an order that everybody can follow.
        return min(room or workers, key=self.cost).worker

    def cost(self, worker: WorkerLoad) -> float:
        return worker.active_blocks - self.cached_block_weight * worker.cached_prompt_blocks


Routing = routing(LeastLoaded)
