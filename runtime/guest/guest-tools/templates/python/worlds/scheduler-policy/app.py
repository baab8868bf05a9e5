"""Serves short prompts first, but no request waits forever."""

from vcr_guest import (
    Arrived,
    EngineView,
    Ended,
    GuestError,
    Preferences,
    SchedulerPolicy,
    known_fields,
    number,
    scheduling,
)


class ShortestFirst(SchedulerPolicy):
    def __init__(self, config, seed):
        known_fields(config, ["tokens_per_second"])
        #: Value of a second of waiting, in prompt tokens.
        self.tokens_per_second = number(config, "tokens_per_second", 0)
        if not 0 <= self.tokens_per_second <= 1e9:
            raise GuestError(f"invalid `tokens_per_second`: expected 0 to 1e9, got {self.tokens_per_second}")

    def decide(self, engine: EngineView, preferences: Preferences) -> None:
        ranks = {}
        for event in engine.events:
            if isinstance(event, Arrived):
                # All requests age at the same rate, so a rank by arrival time stays valid.
                age = int(event.arrival_ns * self.tokens_per_second / 1e9)
                ranks[event.slot] = event.prompt_tokens + age
            elif isinstance(event, Ended):
                # A request that arrived and ended since the last call has no rank.
                ranks.pop(event.slot, None)
        for slot, rank in ranks.items():
            preferences.wait_at(slot, rank)


Scheduling = scheduling(ShortestFirst)
