"""Fails every n-th request after some tokens, and stalls the engine now and then."""

from vcr_guest import (
    Actions,
    FailureInjector,
    FaultBatch,
    RequestArrived,
    RequestEnded,
    TokensEmitted,
    faults,
    known_fields,
    number,
)


class FailSome(FailureInjector):
    def __init__(self, config, seed):
        known_fields(config, ["every", "after_tokens", "stall_every_steps", "stall_ms"])
        self.every = int(number(config, "every", 0))
        self.after_tokens = int(number(config, "after_tokens", 1))
        self.stall_every_steps = int(number(config, "stall_every_steps", 0))
        self.stall_ns = int(number(config, "stall_ms", 100) * 1e6)
        self.arrived = 0
        #: Slots of requests that fail as soon as they have their tokens.
        self.doomed: set[int] = set()
        self.last_stall = 0

    def decide(self, batch: FaultBatch, actions: Actions) -> None:
        failing = []
        for event in batch.events:
            if isinstance(event, RequestArrived):
                self.arrived += 1
                if self.every and self.arrived % self.every == 0:
                    self.doomed.add(event.slot)
            elif isinstance(event, TokensEmitted):
                if event.slot in self.doomed and event.output_tokens >= self.after_tokens:
                    self.doomed.discard(event.slot)
                    failing.append(event.slot)
            elif isinstance(event, RequestEnded):
                self.doomed.discard(event.slot)
                # It ended in the same batch, before it could be failed.
                failing = [slot for slot in failing if slot != event.slot]
        for slot in failing:
            actions.fail_request(slot)
        if self.stall_every_steps and batch.step >= self.last_stall + self.stall_every_steps:
            self.last_stall = batch.step
            actions.stall(self.stall_ns)


Faults = faults(FailSome)
