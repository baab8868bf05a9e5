"""Sends a request to the engine with the lowest cost: the KV blocks of its load, minus the cached blocks of the
prompt. Refuses the request if all engines are full."""

from vcr_guest import REFUSE, Refusal, RouteRequest, Router, WorkerLoad, known_fields, number, routing


class LeastLoaded(Router):
    def __init__(self, config, seed):
        known_fields(config, ["cached_block_weight", "max_waiting"])
        #: Value of a cached block, in blocks of load.
        self.cached_block_weight = number(config, "cached_block_weight", 1)
        #: A request is refused if more requests than this wait at every engine.
        self.max_waiting = number(config, "max_waiting", 1_000_000)

    def route(self, request: RouteRequest, workers: list[WorkerLoad]) -> int | Refusal:
        room = [worker for worker in workers if worker.waiting_requests <= self.max_waiting]
        if not room and request.may_refuse:
            return REFUSE
        # Of equal engines, takes the first one.
        return min(room or workers, key=lambda worker: self.cost(request, worker)).worker

    def cost(self, request: RouteRequest, worker: WorkerLoad) -> float:
        # The load includes prompts that are not computed yet.
        load = worker.active_blocks + worker.outstanding_prefill_tokens / request.block_size_tokens
        return load - self.cached_block_weight * worker.cached_prompt_blocks


Routing = routing(LeastLoaded)
