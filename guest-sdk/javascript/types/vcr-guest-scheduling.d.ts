/// <reference path="./vcr-guest-types.d.ts" />
declare module 'vcr:guest/scheduling@0.1.0' {
  /**
   * Makes the instance the policy of one engine: the first call, made once.
   *
   * `config` is one JSON document, `{}` if the user gave none. `seed` is the only source of randomness:
   * two instances that are configured with the same arguments must give the same answers to the same
   * calls.
   */
  export function configure(config: string, seed: bigint): void;
  /**
   * Decides before the engine schedules a step. The host calls it only before steps with an event: a
   * request has arrived, ended, been admitted or been preempted since the last call. Consecutive steps that
   * only decode have no events.
   */
  export function decide(engine: EngineView): Preferences;
  export type Failure = import('vcr:guest/types@0.1.0').Failure;
  export type Slo = import('vcr:guest/types@0.1.0').Slo;
  /**
   * A request that came in and waits.
   */
  export interface ArrivedRequest {
    /**
     * Names the request from now on.
     */
    slot: number,
    /**
     * When it arrived. Live engines measure from their start.
     */
    arrivalNs: bigint,
    /**
     * Tokens of its prompt.
     */
    promptTokens: number,
    /**
     * Limit of its output tokens.
     */
    maxTokens: number,
    /**
     * Its priority: lower is served first. On live engines the frontend's `priority`.
     */
    priority: number,
    /**
     * The number of its LoRA adapter, if it has one.
     */
    adapter?: number,
    /**
     * Its tenant, 0 if unknown. On live engines it is derived from `cache_salt`, or else from the
     * adapter.
     */
    tenant: bigint,
    /**
     * Its latency objectives. A deadline is `arrival-ns` plus a limit.
     */
    slo: Slo,
  }
  /**
   * A request that was admitted and runs.
   */
  export interface AdmittedRequest {
    /**
     * The request.
     */
    slot: number,
    /**
     * Tokens that it does not have to compute: the prefix cache or a KV transfer provides them.
     */
    cachedTokens: number,
  }
  /**
   * A request that ended, completed or not, even before it was admitted.
   */
  export interface EndedRequest {
    /**
     * The request. Its slot goes to another request later, perhaps in the same call.
     */
    slot: number,
    /**
     * Its computed tokens at the end.
     */
    computedTokens: number,
    /**
     * Its output tokens.
     */
    outputTokens: number,
  }
  /**
   * Something that happened to a request.
   */
  export type PolicyEvent = PolicyEventArrived | PolicyEventAdmitted | PolicyEventPreempted | PolicyEventEnded;
  /**
   * It came in and waits.
   */
  export interface PolicyEventArrived {
    tag: 'arrived',
    val: ArrivedRequest,
  }
  /**
   * It was admitted and runs.
   */
  export interface PolicyEventAdmitted {
    tag: 'admitted',
    val: AdmittedRequest,
  }
  /**
   * The request in this slot was preempted and waits again. It lost all computed tokens.
   */
  export interface PolicyEventPreempted {
    tag: 'preempted',
    val: number,
  }
  /**
   * It ended.
   */
  export interface PolicyEventEnded {
    tag: 'ended',
    val: EndedRequest,
  }
  /**
   * Columns: the progress of running requests, in the order in which they run.
   */
  export interface Progress {
    /**
     * The request.
     */
    slot: Uint32Array,
    /**
     * Its computed tokens, including cached tokens and those of steps in flight. The number of its
     * KV blocks is this number divided by `block-size-tokens`, rounded up.
     */
    computedTokens: Uint32Array,
    /**
     * Its output tokens.
     */
    outputTokens: Uint32Array,
  }
  /**
   * The engine before it schedules a step.
   */
  export interface EngineView {
    /**
     * The time.
     */
    nowNs: bigint,
    /**
     * Token budget of the step.
     */
    budgetTokens: number,
    /**
     * Number of further requests that may run.
     */
    runningSlots: number,
    /**
     * KV blocks that no request uses.
     */
    freeBlocks: number,
    /**
     * All KV blocks that requests can use.
     */
    totalBlocks: number,
    /**
     * Tokens in a KV block.
     */
    blockSizeTokens: number,
    /**
     * What happened since the last call, oldest first; never empty.
     */
    events: Array<PolicyEvent>,
    /**
     * The running requests whose computed or output tokens have changed since they were last
     * reported.
     */
    progress: Progress,
  }
  /**
   * Columns: ranks of requests.
   */
  export interface Ranks {
    /**
     * The request: it has arrived and has not ended. At most one entry for each request.
     */
    slot: Uint32Array,
    /**
     * Its rank.
     */
    rank: BigInt64Array,
  }
  /**
   * Columns: caps of requests.
   */
  export interface ChunkCaps {
    /**
     * The request: it has arrived and has not ended. At most one entry for each request.
     */
    slot: Uint32Array,
    /**
     * Limit of the tokens that it computes in one step, at least 1.
     */
    tokens: Uint32Array,
  }
  /**
   * The preferences that change, for waiting and running requests.
   */
  export interface Preferences {
    /**
     * The order of admission: the lowest rank first, then the earliest arrival. While a request does
     * not fit, no request behind it is admitted. 0 by default.
     */
    admission: Ranks,
    /**
     * The order of preemption when blocks run out: the greatest rank first, then the latest arrival.
     * 0 by default.
     */
    eviction: Ranks,
    /**
     * Limits of the tokens that a request computes in one step.
     */
    chunkCaps: ChunkCaps,
    /**
     * Slots of requests that lose their cap in `chunk-caps`. By default a request has no cap.
     */
    uncapped: Uint32Array,
  }
}
