"""What a vcr guest is written with in Python.

A guest implements one of the classes here and names it in `app.py`, as the
interface that componentize-py looks for:

    from vcr_guest import LatencyModel, Step, latency

    class PerToken(LatencyModel):
        def __init__(self, config, seed):
            self.ns_per_token = number(config, "ns_per_token")

        def price(self, step):
            return self.ns_per_token * step.tokens()

    Latency = latency(PerToken)

An error that the user is to see is a `GuestError`; its text should name the
field, its value and what to write instead. Any other exception ends the guest
without words, as a panic does.

Guests get no clock, no files and no randomness but the seed: use
`random.Random(seed)`, never the functions of the module itself, which are
seeded when the component is built.
"""

import json
import math
from typing import Any, Callable, Iterable, NamedTuple

try:
    from componentize_py_types import Err
except ImportError:
    # Natively, as in tests, nobody is there to pass an error on to.
    class Err(Exception):
        """An error of the interface, in words."""

        def __init__(self, value: str):
            super().__init__(value)
            self.value = value


#: The longest duration that a step may have, in nanoseconds: about 32 years.
DURATION_NS_MAX = 1e18

#: Words of one step in the flat list of the interface.
WORDS_PER_STEP = 14

#: The word that stands for no adapter, and for no limit.
NONE = 2**64 - 1


class GuestError(Exception):
    """Ends the run; its text is shown to the user."""


class Step(NamedTuple):
    """One engine step: when it starts and what it computes, summed over its requests."""

    start_ns: int
    prefill_requests: int = 0
    prefill_tokens: int = 0
    prefill_context_tokens: int = 0
    prefill_attention_pairs: int = 0
    prefill_completions: int = 0
    prefill_completion_context_tokens: int = 0
    decode_requests: int = 0
    decode_tokens: int = 0
    decode_context_tokens: int = 0
    sampled_requests: int = 0
    kv_active_blocks: int = 0
    kv_total_blocks: int = 0
    block_size_tokens: int = 0
    waiting_requests: int = 0

    def tokens(self) -> int:
        """Tokens that the step computes."""
        return self.prefill_tokens + self.decode_tokens

    def batch_requests(self) -> int:
        """Requests in the step, prefilling or decoding."""
        return self.prefill_requests + self.decode_requests


def number(config: dict[str, Any], field: str, default: float | None = None) -> float:
    """The finite number of a config's field."""
    value = config.get(field, default)
    if value is None:
        raise GuestError(f"`{field}` has no value; set it to a number")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise GuestError(f"invalid `{field}`: expected a number, got {value!r}")
    return value


def known_fields(config: dict[str, Any], fields: Iterable[str]) -> None:
    """Refuses a config with other fields than these, by name."""
    known = list(fields)
    for field in config:
        if field not in known:
            raise GuestError(f"unknown field `{field}`; there are {', '.join(f'`{name}`' for name in known)}")


def read_config(config: str) -> dict[str, Any]:
    """The user's config, which is a JSON object."""
    try:
        value = json.loads(config)
    except ValueError as error:
        raise GuestError(f"the config cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise GuestError(f"invalid config: expected a JSON object, got {value!r}")
    return value


def passed_on(error: GuestError) -> Err:
    """The error as the interface passes it on."""
    return Err(str(error))


class LatencyModel:
    """Says how long the steps of one engine take."""

    def __init__(self, config: dict[str, Any], seed: int):
        """Makes the model of one engine; raises a `GuestError` where the config makes no sense."""

    def price(self, step: Step) -> float:
        """The duration of `step` in nanoseconds: finite, from 0 to 1e18."""
        raise NotImplementedError


def is_valid_duration(duration_ns: float) -> bool:
    """Whether a step can take so long."""
    # False for NaN, which is in no range.
    return 0.0 <= duration_ns <= DURATION_NS_MAX


def rounded_ns(duration_ns: float) -> int:
    """The nearest whole number, halves upwards: what the host makes of a duration.
    Python's own `round` takes halves to the even number."""
    whole = int(duration_ns)
    return whole + 1 if duration_ns - whole >= 0.5 else whole


def latency(make: Callable[[dict[str, Any], int], LatencyModel]) -> type:
    """The interface `latency` of a latency model's class: name it `Latency` in `app.py`."""

    # Kept here, because componentize-py makes an object of the class for each call.
    model: LatencyModel
    words = ""

    class Latency:
        def configure(self, config: str, seed: int) -> None:
            nonlocal model
            try:
                model = make(read_config(config), seed)
            except GuestError as error:
                raise passed_on(error) from error

        def price(self, start_ns: int, horizon_ns: int, shapes: list[int]) -> list[float]:
            durations_ns: list[float] = []
            now_ns = start_ns
            for first in range(0, len(shapes), WORDS_PER_STEP):
                # Such a step may never happen, so the model must not see it.
                if first > 0 and now_ns >= horizon_ns:
                    break
                try:
                    duration_ns = float(model.price(Step(now_ns, *shapes[first : first + WORDS_PER_STEP])))
                except GuestError as error:
                    raise passed_on(error) from error
                durations_ns.append(duration_ns)
                # The host refuses it by name.
                if not is_valid_duration(duration_ns):
                    break
                now_ns += rounded_ns(duration_ns)
            return durations_ns

        def price_step(self, *step: int) -> float:
            nonlocal words
            try:
                return float(model.price(Step(*step)))
            except GuestError as error:
                words = str(error)
                return math.nan

        def trouble(self) -> str:
            nonlocal words
            told, words = words, ""
            return told

    return Latency


class Arrived(NamedTuple):
    """A request came in and waits."""

    slot: int
    arrival_ns: int
    prompt_tokens: int
    max_tokens: int
    priority: int
    lora: int | None
    tenant: int


class Admitted(NamedTuple):
    """A request runs from now on; the tokens of its prompt that are cached."""

    slot: int
    cached_tokens: int


class Preempted(NamedTuple):
    """A request waits again, and lost all computed tokens."""

    slot: int


class Ended(NamedTuple):
    """A request is over; its slot goes to another one later."""

    slot: int
    computed_tokens: int
    output_tokens: int


class Progress(NamedTuple):
    """What a running request has computed, cached tokens included."""

    slot: int
    computed_tokens: int
    output_tokens: int


Event = Arrived | Admitted | Preempted | Ended


class Decision(NamedTuple):
    """What a scheduler policy knows before a step."""

    now_ns: int
    budget_tokens: int
    running_slots: int
    free_blocks: int
    total_blocks: int
    events: list[Event]
    progress: list[Progress]


class Preferences:
    """What a scheduler policy says; each holds until it says otherwise."""

    def __init__(self) -> None:
        self.words: list[int] = []

    def wait_at(self, slot: int, rank: int) -> None:
        """The rank at which a request waits; the lowest is admitted first."""
        self.words += (0, slot, rank % 2**64)

    def give_way_at(self, slot: int, rank: int) -> None:
        """The rank at which a request gives way; the greatest is preempted first."""
        self.words += (1, slot, rank % 2**64)

    def compute_at_most(self, slot: int, tokens: int | None) -> None:
        """The most tokens that a request computes in a step, at least 1; `None` for no limit."""
        self.words += (2, slot, NONE if tokens is None else tokens)


class SchedulerPolicy:
    """Decides the order of requests, preemption victims, and chunk sizes."""

    def __init__(self, config: dict[str, Any], seed: int):
        """Makes the policy of one engine; raises a `GuestError` where the config makes no sense."""

    def decide(self, decision: Decision, preferences: Preferences) -> None:
        """Says to `preferences` what changes."""
        raise NotImplementedError


def signed(word: int) -> int:
    """A word of the interface as a signed number."""
    return word - 2**64 if word >= 2**63 else word


def _event(words: list[int]) -> Event:
    kind, slot = words[0], words[1]
    if kind == 0:
        lora = None if words[6] == NONE else words[6]
        return Arrived(slot, words[2], words[3], words[4], signed(words[5]), lora, words[7])
    if kind == 1:
        return Admitted(slot, words[2])
    if kind == 2:
        return Preempted(slot)
    if kind == 3:
        return Ended(slot, words[2], words[3])
    raise GuestError(f"the host sent an event of kind {kind}, which this module does not know")


def scheduling(make: Callable[[dict[str, Any], int], SchedulerPolicy]) -> type:
    """The interface `scheduling` of a policy's class: name it `Scheduling` in `app.py`."""

    # Kept here, because componentize-py makes an object of the class for each call.
    policy: SchedulerPolicy

    class Scheduling:
        def configure(self, config: str, seed: int) -> None:
            nonlocal policy
            try:
                policy = make(read_config(config), seed)
            except GuestError as error:
                raise passed_on(error) from error

        def decide(
            self,
            now_ns: int,
            budget_tokens: int,
            running_slots: int,
            free_blocks: int,
            total_blocks: int,
            events: list[int],
            progress: list[int],
        ) -> list[int]:
            preferences = Preferences()
            try:
                happened = [_event(events[first : first + 8]) for first in range(0, len(events), 8)]
                computed = [Progress(*progress[first : first + 3]) for first in range(0, len(progress), 3)]
                decision = Decision(now_ns, budget_tokens, running_slots, free_blocks, total_blocks, happened, computed)
                policy.decide(decision, preferences)
            except GuestError as error:
                raise passed_on(error) from error
            return preferences.words

    return Scheduling
