"""The SDK for vcr guests in Python.

A guest implements one of the classes here and names it in `app.py`, as the
interface that componentize-py looks for:

    from vcr_guest import LatencyModel, StepShape, latency, number

    class PerToken(LatencyModel):
        def __init__(self, config, seed):
            self.ns_per_token = number(config, "ns_per_token")

        def price(self, step):
            return self.ns_per_token * step.tokens()

    Latency = latency(PerToken)

| world | class | interface |
|---|---|---|
| `latency-model` | `LatencyModel` | `Latency = latency(...)` |
| `scheduler-policy` | `SchedulerPolicy` | `Scheduling = scheduling(...)` |
| `router` | `Router` | `Routing = routing(...)` |
| `autoscaler` | `Autoscaler` | `Scaling = scaling(...)` |
| `failure-injector` | `FailureInjector` | `Faults = faults(...)` |
| `token-source` | `TokenSource` | `Tokens = tokens(...)` |

An error that the user is to see is a `GuestError`; its text should name the
field, its value and what to write instead. Any other exception ends the guest
too, and is shown with its type, its message and the lines of the guest's own
code that led to it.

Guests get no clock, no files and no randomness but the seed: use
`random.Random(seed)`, never the functions of the module itself, which are
seeded when the component is built.
"""

import importlib
import json
import math
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Callable, Iterable, NamedTuple

try:
    from componentize_py_types import Err
except ImportError:
    # Natively, as in tests, there is no host to pass an error to.
    class Err(Exception):
        """An error of the interface, a `Failure`."""

        def __init__(self, value: Any):
            super().__init__(value)
            self.value = value


try:
    from wit_world.imports.types import Failure
except ImportError:

    @dataclass
    class Failure:
        """A call that could not be answered."""

        message: str
        traceback: str | None


#: The longest duration that a step may have, in nanoseconds: about 32 years.
DURATION_NS_MAX = 1e18


class GuestError(Exception):
    """Ends the run; its text is shown to the user."""


class KvGroup(NamedTuple):
    """A group of layers whose KV is in the same blocks. `kind` is "full-attention",
    "latent-attention", "sliding-window", "chunked-local", "cross-attention" or "mamba"."""

    kind: str
    block_size_tokens: int = 16
    window_tokens: int | None = None


class EngineInfo(NamedTuple):
    """The engine whose steps are priced. It has no `kv_groups` if all layers have full attention."""

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    kv_total_blocks: int = 20_000
    block_size_tokens: int = 16
    kv_groups: list[KvGroup] = []


class KvGroupShape(NamedTuple):
    """The part of a step that differs between the engine's `kv_groups`. States and cross-attention have 0."""

    prefill_attention_pairs: int = 0
    decode_context_tokens: int = 0


def kv_group_shapes() -> list[KvGroupShape]:
    """The shapes of the step that `price` is asked about, one for each of the engine's `kv_groups`; none for an
    engine without groups, and natively."""
    try:
        shapes = importlib.import_module("wit_world.imports.groups").shapes()
    except ImportError:
        return []
    return [KvGroupShape(*row) for row in zip(shapes.prefill_attention_pairs, shapes.decode_context_tokens)]


class StepShape(NamedTuple):
    """One engine step: its start and its work, summed over its requests."""

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
    waiting_requests: int = 0
    encoder_tokens: int = 0
    adapter_count: int = 0
    adapter_tokens: int = 0

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


#: The largest numbers of the interface's types.
U32_MAX = 2**32 - 1
U64_MAX = 2**64 - 1
RANK_MAX = 2**63 - 1


def wrong(what: str, expected: str, value: Any) -> TypeError:
    """The error of a value whose type the interface has no place for: it would only trap."""
    forgotten = "; its `return` may be missing" if value is None else ""
    return TypeError(f"invalid {what}: expected {expected}, got {value!r}{forgotten}")


def whole(value: Any, what: str, most: int = U32_MAX, least: int = 0) -> int:
    """The whole number from `least` to `most` that a guest answers."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong(what, "a whole number", value)
    if not least <= value <= most:
        raise ValueError(f"invalid {what}: expected {least} to {most}, got {value}")
    return value


def answer_of(guest: Any, method: str) -> str:
    """The answer of a guest's method in words, with the place of the method."""
    code = getattr(getattr(type(guest), method), "__code__", None)
    place = f" ({code.co_filename.rsplit('/', 1)[-1]}, line {code.co_firstlineno})" if code else ""
    return f"answer of `{type(guest).__name__}.{method}`{place}"


def missing(guest: Any, method: str) -> GuestError:
    """The error of a class without a method of its world."""
    return GuestError(f"the class `{type(guest).__name__}` has no method `{method}`")


def failure(error: BaseException) -> Err:
    """An exception as the interface passes it on."""
    text = str(error)
    if isinstance(error, GuestError):
        return Err(Failure(text, None))
    # The module `traceback` looks for the source, and guests have no files.
    lines = []
    at = error.__traceback__
    while at is not None:
        code = at.tb_frame.f_code
        if code.co_filename != __file__:
            name = code.co_filename.rsplit("/", 1)[-1]
            lines.append(f'  File "{name}", line {at.tb_lineno}, in {code.co_name}')
        at = at.tb_next
    traceback = "\n".join(["Traceback (most recent call last):", *lines]) if lines else None
    message = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return Err(Failure(message, traceback))


def passes_on(call: Callable) -> Callable:
    """A function of an interface whose exceptions are passed on."""

    def passing(*arguments):
        try:
            return call(*arguments)
        except BaseException as error:
            raise failure(error) from error

    return passing


def generated(interface: str) -> Any:
    """The classes of an interface made by componentize-py; none natively."""
    try:
        return importlib.import_module(f"wit_world.exports.{interface}")
    except ImportError:
        return None


def kind(case: Any) -> str:
    """The name of a variant's case, of the class `Variant_Case`."""
    return type(case).__name__.rsplit("_", 1)[-1]


def enum_name(case: Any) -> str:
    """The name of an enum's case as `wit/` writes it."""
    return case.name.lower().replace("_", "-")


class LatencyModel:
    """Says how long the steps of one engine take."""

    def __init__(self, config: dict[str, Any], seed: int):
        """Makes the model of one engine; raises a `GuestError` where the config makes no sense."""

    def engine(self, engine: EngineInfo) -> None:
        """The engine whose steps are priced. Called once, before all steps; raises a `GuestError`
        where the model cannot price them."""

    def price(self, step: StepShape) -> float:
        """The duration of `step` in nanoseconds: finite, from 0 to 1e18."""
        raise missing(self, "price")


def is_valid_duration(duration_ns: float) -> bool:
    """Whether a step can take so long."""
    # False for NaN, which is in no range.
    return 0.0 <= duration_ns <= DURATION_NS_MAX


def rounded_ns(duration_ns: float) -> int:
    """The nearest whole number, halves rounded up, as the host rounds a duration.
    Python's own `round` takes halves to the even number."""
    whole = int(duration_ns)
    return whole + 1 if duration_ns - whole >= 0.5 else whole


def latency(make: Callable[[dict[str, Any], int], LatencyModel]) -> type:
    """The interface `latency` of a latency model's class: name it `Latency` in `app.py`."""

    # Kept here, because componentize-py makes an object of the class for each call.
    model: LatencyModel

    def priced(step: StepShape) -> float:
        duration_ns = model.price(step)
        if isinstance(duration_ns, bool) or not isinstance(duration_ns, int | float):
            raise wrong(answer_of(model, "price"), "a number of nanoseconds", duration_ns)
        return float(duration_ns)

    class Latency:
        @passes_on
        def configure(self, config: str, seed: int, engine: Any) -> None:
            nonlocal model
            model = make(read_config(config), seed)
            groups = [KvGroup(**{**vars(group), "kind": enum_name(group.kind)}) for group in engine.kv_groups]
            model.engine(EngineInfo(**{**vars(engine), "kv_groups": groups}))

        @passes_on
        def price_step(self, start_ns: int, step: Any) -> float:
            return priced(StepShape(start_ns, **vars(step)))

        @passes_on
        def price_decodes(self, start_ns: int, horizon_ns: int, run: Any) -> list[float]:
            durations_ns: list[float] = []
            now_ns = start_ns
            context_tokens = run.first_context_tokens
            for kv_active_blocks in run.kv_active_blocks:
                # Such a step may never happen, so the model must not see it.
                if durations_ns and now_ns >= horizon_ns:
                    break
                step = StepShape(
                    now_ns,
                    decode_requests=run.decode_requests,
                    decode_tokens=run.decode_tokens,
                    decode_context_tokens=context_tokens,
                    sampled_requests=run.sampled_requests,
                    kv_active_blocks=kv_active_blocks,
                    waiting_requests=run.waiting_requests,
                    adapter_count=run.adapter_count,
                    adapter_tokens=run.adapter_tokens,
                )
                duration_ns = priced(step)
                durations_ns.append(duration_ns)
                # The host refuses it by name.
                if not is_valid_duration(duration_ns):
                    break
                now_ns += rounded_ns(duration_ns)
                context_tokens += run.decode_requests
            return durations_ns

    return Latency


class Slo(NamedTuple):
    """The latency objectives of a request in nanoseconds; `None` for no limit."""

    ttft_ns: int | None = None
    tpot_ns: int | None = None
    e2e_ns: int | None = None


class Arrived(NamedTuple):
    """A request came in and waits."""

    slot: int
    arrival_ns: int
    prompt_tokens: int
    max_tokens: int
    priority: int
    adapter: int | None
    tenant: int
    slo: Slo = Slo()


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
    """The computed tokens of a running request, including cached ones."""

    slot: int
    computed_tokens: int
    output_tokens: int


PolicyEvent = Arrived | Admitted | Preempted | Ended


class EngineView(NamedTuple):
    """The input of a scheduler policy before a step."""

    now_ns: int
    budget_tokens: int
    running_slots: int
    free_blocks: int
    total_blocks: int
    events: list[PolicyEvent]
    progress: list[Progress]
    block_size_tokens: int = 16


class Preferences:
    """The answer of a scheduler policy; each preference holds until it is replaced."""

    def __init__(self) -> None:
        self.admission: list[tuple[int, int]] = []
        self.eviction: list[tuple[int, int]] = []
        self.chunk_caps: list[tuple[int, int]] = []
        self.uncapped: list[int] = []

    def wait_at(self, slot: int, rank: int) -> None:
        """The rank of a waiting request; the lowest is admitted first."""
        self.admission.append((whole(slot, "slot"), whole(rank, "rank", RANK_MAX, -RANK_MAX - 1)))

    def give_way_at(self, slot: int, rank: int) -> None:
        """The preemption rank of a request; the greatest is preempted first."""
        self.eviction.append((whole(slot, "slot"), whole(rank, "rank", RANK_MAX, -RANK_MAX - 1)))

    def compute_at_most(self, slot: int, tokens: int | None) -> None:
        """The most tokens that a request computes in a step, at least 1; `None` for no limit."""
        if tokens is None:
            self.uncapped.append(whole(slot, "slot"))
        else:
            self.chunk_caps.append((whole(slot, "slot"), whole(tokens, "tokens", least=1)))


class SchedulerPolicy:
    """Decides the order of requests, preemption victims, and chunk sizes."""

    def __init__(self, config: dict[str, Any], seed: int):
        """Makes the policy of one engine; raises a `GuestError` where the config makes no sense."""

    def decide(self, engine: EngineView, preferences: Preferences) -> None:
        """Says to `preferences` what changes."""
        raise missing(self, "decide")


def with_slo(record: Any) -> dict[str, Any]:
    """The fields of a record, its latency objectives as an `Slo`."""
    return {**vars(record), "slo": Slo(**vars(record.slo))}


def _policy_event(event: Any) -> PolicyEvent:
    name = kind(event)
    if name == "Arrived":
        return Arrived(**with_slo(event.value))
    if name == "Admitted":
        return Admitted(**vars(event.value))
    if name == "Preempted":
        return Preempted(event.value)
    return Ended(**vars(event.value))


def scheduling(make: Callable[[dict[str, Any], int], SchedulerPolicy]) -> type:
    """The interface `scheduling` of a policy's class: name it `Scheduling` in `app.py`."""

    wit = generated("scheduling")
    policy: SchedulerPolicy

    def columns(pairs: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
        return [slot for slot, _ in pairs], [value for _, value in pairs]

    class Scheduling:
        @passes_on
        def configure(self, config: str, seed: int) -> None:
            nonlocal policy
            policy = make(read_config(config), seed)

        @passes_on
        def decide(self, engine: Any) -> Any:
            rows = engine.progress
            view = EngineView(
                engine.now_ns,
                engine.budget_tokens,
                engine.running_slots,
                engine.free_blocks,
                engine.total_blocks,
                [_policy_event(event) for event in engine.events],
                [Progress(*row) for row in zip(rows.slot, rows.computed_tokens, rows.output_tokens)],
                engine.block_size_tokens,
            )
            said = Preferences()
            policy.decide(view, said)
            return wit.Preferences(
                admission=wit.Ranks(*columns(said.admission)),
                eviction=wit.Ranks(*columns(said.eviction)),
                chunk_caps=wit.ChunkCaps(*columns(said.chunk_caps)),
                uncapped=said.uncapped,
            )

    return Scheduling


class WorkerLoad(NamedTuple):
    """An engine that is up."""

    worker: int
    running_requests: int = 0
    waiting_requests: int = 0
    max_running_requests: int = 0
    active_blocks: int = 0
    total_blocks: int = 0
    outstanding_prefill_tokens: int = 0
    cached_prompt_blocks: int = 0
    host_prompt_blocks: int = 0
    disk_prompt_blocks: int = 0
    loading_requests: int = 0
    last_step_ns: int = 0
    preemption_count: int = 0


class RouteRequest(NamedTuple):
    """The request to be routed. `phase` is "whole", "prefill" or "decode"."""

    now_ns: int
    id: int
    prompt_tokens: int = 0
    max_tokens: int = 0
    priority: int = 0
    adapter: int | None = None
    tenant: int = 0
    session: int = 0
    slo: Slo = Slo()
    block_size_tokens: int = 16
    phase: str = "whole"
    may_refuse: bool = True
    block_hashes: list[int] = []


class EndedRequest(NamedTuple):
    """A request that was routed here and is over."""

    id: int
    worker: int
    output_tokens: int
    failed: bool
    ttft_ns: int | None = None


class Refusal:
    """The decision to refuse a request: the type of `REFUSE`, its only value."""

    def __repr__(self) -> str:
        return "REFUSE"


#: Refuses a request, because all engines have too much to do. `None` is no decision but an error.
REFUSE = Refusal()


class Router:
    """Chooses the engine of each request of one pool."""

    def __init__(self, config: dict[str, Any], seed: int):
        """Makes the router of one pool; raises a `GuestError` where the config makes no sense."""

    def route(self, request: RouteRequest, workers: list[WorkerLoad]) -> int | Refusal:
        """The index of one of the engines, its `worker`; or `REFUSE`, where the request may be refused."""
        raise missing(self, "route")

    def ended(self, request: EndedRequest) -> None:
        """A request is over. Called before the request that is routed next."""


def routing(make: Callable[[dict[str, Any], int], Router]) -> type:
    """The interface `routing` of a router's class: name it `Routing` in `app.py`."""

    wit = generated("routing")
    router: Router

    class Routing:
        @passes_on
        def configure(self, config: str, seed: int) -> None:
            nonlocal router
            router = make(read_config(config), seed)

        @passes_on
        def route(self, now_ns: int, ended: list[Any], request: Any, workers: Any) -> Any:
            for one in ended:
                router.ended(EndedRequest(**vars(one)))
            fields = {**with_slo(request), "phase": enum_name(request.phase)}
            # A column is none where all of its entries are 0.
            columns = (getattr(workers, field) for field in WorkerLoad._fields)
            rows = zip(*(repeat(0) if column is None else column for column in columns))
            chosen = router.route(RouteRequest(now_ns, **fields), [WorkerLoad(*row) for row in rows])
            if chosen is REFUSE:
                return wit.Choice_Refuse()
            what = answer_of(router, "route")
            if isinstance(chosen, bool) or not isinstance(chosen, int):
                raise wrong(what, "the index of an engine, or REFUSE", chosen)
            return wit.Choice_Worker(whole(chosen, what))

    return Routing


class PoolView(NamedTuple):
    """The state of a pool when a decision is due. Counts since the last decision are of the whole
    cluster; engines and their work are those of the pool."""

    now_ns: int
    up_engines: int = 0
    starting_engines: int = 0
    draining_engines: int = 0
    arrived_requests: int = 0
    arrived_prompt_tokens: int = 0
    arrived_output_tokens: int = 0
    completed_requests: int = 0
    ttft_count: int = 0
    ttft_sum_ns: int = 0
    queue_count: int = 0
    queue_sum_ns: int = 0
    slo_requests: int = 0
    slo_met_requests: int = 0
    token_gap_count: int = 0
    token_gap_sum_ns: int = 0
    running_requests: int = 0
    waiting_requests: int = 0
    active_blocks: int = 0
    total_blocks: int = 0
    outstanding_prefill_tokens: int = 0
    preemption_count: int = 0
    engine_usd_per_hour: float | None = None


class Autoscaler:
    """Decides how many engines one pool has."""

    def __init__(self, config: dict[str, Any], seed: int):
        """Makes the autoscaler of one pool; raises a `GuestError` where the config makes no sense."""

    def desired(self, pool: PoolView) -> int:
        """The number of engines that should be up or starting. The host applies the pool's limits."""
        raise missing(self, "desired")


def scaling(make: Callable[[dict[str, Any], int], Autoscaler]) -> type:
    """The interface `scaling` of an autoscaler's class: name it `Scaling` in `app.py`."""

    autoscaler: Autoscaler

    class Scaling:
        @passes_on
        def configure(self, config: str, seed: int) -> None:
            nonlocal autoscaler
            autoscaler = make(read_config(config), seed)

        @passes_on
        def decide(self, pool: Any) -> int:
            return whole(autoscaler.desired(PoolView(**vars(pool))), answer_of(autoscaler, "desired"))

    return Scaling


class RequestArrived(NamedTuple):
    """A request came in."""

    slot: int
    request_id: str
    prompt_tokens: int = 0
    max_tokens: int = 0
    priority: int = 0
    adapter: int | None = None


class TokensEmitted(NamedTuple):
    """A request got output tokens; this is its total now."""

    slot: int
    output_tokens: int


class RequestEnded(NamedTuple):
    """A request is over; its slot goes to another one later."""

    slot: int


class UtilityCalled(NamedTuple):
    """A utility call is about to be answered."""

    method: str


FaultEvent = RequestArrived | TokensEmitted | RequestEnded | UtilityCalled


class FaultBatch(NamedTuple):
    """What happened in an engine since the last call."""

    now_ns: int
    step: int
    events: list[FaultEvent]


class Actions:
    """The faults that an injector wants, in order. Durations are nanoseconds, at most 1e18."""

    def __init__(self) -> None:
        self.said: list[tuple[str, tuple]] = []

    def fail_request(self, slot: int) -> None:
        """The request ends with an error."""
        self.said.append(("FailRequest", (whole(slot, "slot"),)))

    def stall(self, duration_ns: int) -> None:
        """The engine does nothing for so long."""
        self.said.append(("Stall", (whole(duration_ns, "duration", U64_MAX),)))

    def crash(self, restart_after_ns: int | None) -> None:
        """The engine dies, and restarts after so long or never."""
        if restart_after_ns is not None:
            whole(restart_after_ns, "time to the restart", U64_MAX)
        self.said.append(("Crash", (restart_after_ns,)))

    def drop_message(self) -> None:
        """The output message that is sent next is lost."""
        self.said.append(("DropMessage", ()))

    def duplicate_message(self) -> None:
        """The output message that is sent next is sent twice."""
        self.said.append(("DuplicateMessage", ()))

    def corrupt_message(self) -> None:
        """The output message that is sent next cannot be read."""
        self.said.append(("CorruptMessage", ()))

    def delay_message(self, by_ns: int) -> None:
        """The output message that is sent next is late."""
        self.said.append(("DelayMessage", (whole(by_ns, "delay", U64_MAX),)))

    def lose_kv_events(self) -> None:
        """The next batch of KV events is lost."""
        self.said.append(("LoseKvEvents", ()))

    def fail_utility(self) -> None:
        """The utility call that was announced fails."""
        self.said.append(("FailUtility", ()))


class FailureInjector:
    """Decides what goes wrong in one engine."""

    def __init__(self, config: dict[str, Any], seed: int):
        """Makes the injector of one engine; raises a `GuestError` where the config makes no sense."""

    def decide(self, batch: FaultBatch, actions: Actions) -> None:
        """Says to `actions` what goes wrong now."""
        raise missing(self, "decide")


def _fault_events(events: list[Any]) -> list[FaultEvent]:
    seen: list[FaultEvent] = []
    for event in events:
        name = kind(event)
        if name == "Arrived":
            seen.append(RequestArrived(**vars(event.value)))
        elif name == "Emitted":
            seen.extend(TokensEmitted(*row) for row in zip(event.value.slot, event.value.output_tokens))
        elif name == "Ended":
            seen.append(RequestEnded(event.value))
        else:
            seen.append(UtilityCalled(event.value))
    return seen


def faults(make: Callable[[dict[str, Any], int], FailureInjector]) -> type:
    """The interface `faults` of an injector's class: name it `Faults` in `app.py`."""

    wit = generated("faults")
    injector: FailureInjector

    class Faults:
        @passes_on
        def configure(self, config: str, seed: int) -> None:
            nonlocal injector
            injector = make(read_config(config), seed)

        @passes_on
        def decide(self, now_ns: int, step: int, events: list[Any]) -> list[Any]:
            actions = Actions()
            injector.decide(FaultBatch(now_ns, step, _fault_events(events)), actions)
            return [getattr(wit, f"FaultAction_{name}")(*values) for name, values in actions.said]

    return Faults


class TokenRequest(NamedTuple):
    """A request that starts."""

    slot: int
    seed: int
    prompt: list[int]
    max_tokens: int
    min_tokens: int = 0
    eos_token: int | None = None
    stop_tokens: list[int] = []
    structured_output: str | None = None
    thinking_token_budget: int | None = None


class TokenSource:
    """Chooses the output tokens of one engine's requests."""

    def __init__(self, config: dict[str, Any], seed: int):
        """Makes the source of one engine; raises a `GuestError` where the config makes no sense."""

    def start(self, request: TokenRequest) -> Any:
        """A request starts: gives what `next_token` gets for each of its tokens. A `GuestError`
        refuses this request, and no other."""
        raise missing(self, "start")

    def next_token(self, state: Any, index: int) -> int:
        """Output token `index` of a request; indices rise from 0 one by one. To end the output,
        answer the request's end token or one of its stop tokens."""
        raise missing(self, "next_token")


def tokens(make: Callable[[dict[str, Any], int], TokenSource]) -> type:
    """The interface `tokens` of a source's class: name it `Tokens` in `app.py`."""

    source: TokenSource
    running: dict[int, Any] = {}
    refused: set[int] = set()

    class Tokens:
        @passes_on
        def configure(self, config: str, seed: int) -> None:
            nonlocal source
            source = make(read_config(config), seed)

        @passes_on
        def step(self, started: list[Any], ended: list[int], wants: Any) -> list[int]:
            for slot in ended:
                running.pop(slot, None)
                refused.discard(slot)
            for request in started:
                try:
                    running[request.slot] = source.start(TokenRequest(**vars(request)))
                except GuestError as error:
                    refused.add(request.slot)
                    importlib.import_module("wit_world.imports.requests").refuse(request.slot, str(error))
            answer: list[int] = []
            for slot, first_index, count in zip(wants.slot, wants.first_index, wants.count):
                if slot in refused:
                    answer += [0] * count
                else:
                    state, what = running[slot], answer_of(source, "next_token")
                    given = (source.next_token(state, first_index + more) for more in range(count))
                    answer += [whole(token, what) for token in given]
            return answer

    return Tokens
