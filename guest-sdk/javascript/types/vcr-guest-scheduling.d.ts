/// <reference path="./vcr-guest-types.d.ts" />
declare module 'vcr:guest/scheduling@0.1.0' {
  /**
   * Makes the instance the policy of one engine: the first call, made once.
   *
   * `config` is one JSON document, `{}` where the user gave none. `seed` is the only source of
   * randomness; two instances configured from the same arguments must answer the same calls alike.
   */
  export function configure(config: string, seed: bigint): void;
  /**
   * Decides before the engine schedules a step. Called once for each step before which an event
   * happened; steps before which nothing comes, is admitted, ends or is preempted, such as decodes
   * alone, follow each other without a call.
   */
  export function decide(engine: EngineView): Preferences;
  export type Failure = import('vcr:guest/types@0.1.0').Failure;
  /**
   * A request that came in and waits.
   */
  export interface ArrivedRequest {
    /**
     * Names the request from now on.
     */
    slot: number,
    /**
     * When it arrived.
     */
    arrivalNs: bigint,
    /**
     * Tokens of its prompt.
     */
    promptTokens: number,
    /**
     * Output tokens it may have.
     */
    maxTokens: number,
    /**
     * Its priority; lower is sooner. On live engines that of the frontend's request.
     */
    priority: number,
    /**
     * The number of its LoRA adapter, where it has one.
     */
    adapter?: number,
    /**
     * Its tenant; 0 if unknown. On live engines always 0: frontends do not pass it on.
     */
    tenant: bigint,
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
     * Tokens that it need not compute, because the prefix cache or a transfer brings them.
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
  export type Event = EventArrived | EventAdmitted | EventPreempted | EventEnded;
  /**
   * It came in and waits.
   */
  export interface EventArrived {
    tag: 'arrived',
    val: ArrivedRequest,
  }
  /**
   * It was admitted and runs.
   */
  export interface EventAdmitted {
    tag: 'admitted',
    val: AdmittedRequest,
  }
  /**
   * The request in this slot was preempted and waits again; it lost all computed tokens.
   */
  export interface EventPreempted {
    tag: 'preempted',
    val: number,
  }
  /**
   * It ended.
   */
  export interface EventEnded {
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
     * Its computed tokens: cached ones and those of steps in flight included.
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
     * KV blocks that no request refers to.
     */
    freeBlocks: number,
    /**
     * KV blocks there are for requests.
     */
    totalBlocks: number,
    /**
     * What happened since the last call, oldest first; never empty.
     */
    events: Array<Event>,
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
     * The request: one that has arrived and not ended, once at most.
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
     * The request: one that has arrived and not ended, once at most.
     */
    slot: Uint32Array,
    /**
     * The most tokens that it computes in one step, at least 1.
     */
    tokens: Uint32Array,
  }
  /**
   * The preferences that change, of waiting and running requests alike.
   */
  export interface Preferences {
    /**
     * The order of admission. The lowest rank is admitted first, and while that request does not
     * fit none behind it is; of equal ones the one that arrived first. 0 by default.
     */
    admission: Ranks,
    /**
     * The order of preemption when blocks run out. The greatest rank is preempted first, of equal
     * ones the one that arrived last. 0 by default.
     */
    eviction: Ranks,
    /**
     * Requests that compute in chunks.
     */
    chunkCaps: ChunkCaps,
    /**
     * Slots of requests that compute as many tokens as there are from now on, which is the
     * default.
     */
    uncapped: Uint32Array,
  }
}
