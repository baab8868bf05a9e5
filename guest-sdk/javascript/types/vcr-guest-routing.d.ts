/// <reference path="./vcr-guest-types.d.ts" />
declare module 'vcr:guest/routing@0.1.0' {
  /**
   * Makes the instance the router of one pool: the first call, made once.
   *
   * `config` is one JSON document, `{}` if the user gave none. `seed` is the only source of randomness:
   * two instances that are configured with the same arguments must give the same answers to the same
   * calls.
   */
  export function configure(config: string, seed: bigint): void;
  /**
   * Chooses the engine of one request. `ended` lists the requests that ended since the last call,
   * oldest first.
   */
  export function route(nowNs: bigint, ended: Array<EndedRequest>, request: RouteRequest, workers: WorkerLoads): Choice;
  export type Failure = import('vcr:guest/types@0.1.0').Failure;
  export type Slo = import('vcr:guest/types@0.1.0').Slo;
  /**
   * The part of a request that the engine computes.
   * # Variants
   *
   * ## `"whole"`
   *
   * All of it.
   * ## `"prefill"`
   *
   * The prompt; another pool generates the output.
   * ## `"decode"`
   *
   * The output; it gets the KV of the prompt from another pool.
   */
  export type RoutePhase = 'whole' | 'prefill' | 'decode';
  /**
   * The request to be routed.
   */
  export interface RouteRequest {
    /**
     * Its number. A request whose engine died is routed again under the same number. Live engines
     * number requests from 1 in the order in which they are routed.
     */
    id: bigint,
    /**
     * Tokens of its prompt.
     */
    promptTokens: number,
    /**
     * Limit of its output tokens. On live engines 2^32 - 1 if the request sets no limit.
     */
    maxTokens: number,
    /**
     * Its priority: lower is served first. On live engines the frontend's `priority`.
     */
    priority: number,
    /**
     * The number of its LoRA adapter, if it has one. On live engines the frontend's number.
     */
    adapter?: number,
    /**
     * Its tenant, 0 if unknown. On live engines it is derived from `cache_salt`, or else from the
     * adapter.
     */
    tenant: bigint,
    /**
     * Its session: the turns of a conversation share the number. On live engines it is derived from
     * the session id of the request; a request without one is a session of its own.
     */
    session: bigint,
    /**
     * Its latency objectives.
     */
    slo: Slo,
    /**
     * Tokens in a KV block of the pool.
     */
    blockSizeTokens: number,
    /**
     * The part of it that the engine computes. On live engines from `kv_transfer_params`.
     */
    phase: RoutePhase,
    /**
     * Whether it may be refused. False for a request that an engine has already had: its prompt was
     * computed elsewhere, or its engine died.
     */
    mayRefuse: boolean,
    /**
     * A number for each full KV block of the prompt, first to last. It identifies the tokens of the
     * block and of all blocks before it: equal numbers mean equal prefixes.
     */
    blockHashes: BigUint64Array,
  }
  /**
   * Columns: the engines that are up, at least one, in ascending order of index. Live engines report
   * their numbers after each step; requests that were routed since then are counted as waiting.
   */
  export interface WorkerLoads {
    /**
     * Index of the engine in the pool.
     */
    worker: Uint32Array,
    /**
     * Requests that run.
     */
    runningRequests: Uint32Array,
    /**
     * Requests that wait, for admission or for a transfer.
     */
    waitingRequests: Uint32Array,
    /**
     * Limit of the requests that run at once.
     */
    maxRunningRequests: Uint32Array,
    /**
     * KV blocks that at least one request uses.
     */
    activeBlocks: Uint32Array,
    /**
     * All KV blocks.
     */
    totalBlocks: Uint32Array,
    /**
     * Prompt tokens that it has been assigned and has not computed.
     */
    outstandingPrefillTokens: BigUint64Array,
    /**
     * Blocks at the beginning of this prompt that its prefix cache on the GPU holds. Exact in
     * virtual time; on live engines as of the engine's last KV events.
     */
    cachedPromptBlocks: Uint32Array,
    /**
     * Further blocks of this prompt that it would load from the memory of its host. Exact in
     * virtual time; 0 on live engines, which report no tiers. This column and those after it are none
     * if all entries are 0, or if the instance called `details.omit`.
     */
    hostPromptBlocks?: Uint32Array,
    /**
     * Further blocks of this prompt that it would load from its disk. Otherwise as
     * `host-prompt-blocks`.
     */
    diskPromptBlocks?: Uint32Array,
    /**
     * Waiting requests whose KV is being transferred to it: from the engine that computed the
     * prompt, or from its host or disk. On live engines as of its last step.
     */
    loadingRequests?: Uint32Array,
    /**
     * Duration of the step that it finished last, in nanoseconds; 0 before its first step. On live
     * engines in real time.
     */
    lastStepNs?: BigUint64Array,
    /**
     * Preemptions since its process started. Those since an earlier call are the difference.
     */
    preemptionCount?: BigUint64Array,
  }
  /**
   * A request that this instance routed and that has ended.
   */
  export interface EndedRequest {
    /**
     * Its number.
     */
    id: bigint,
    /**
     * Index of the engine that it was last routed to.
     */
    worker: number,
    /**
     * Its output tokens.
     */
    outputTokens: number,
    /**
     * Whether it failed before its answer was complete.
     */
    failed: boolean,
    /**
     * The time from its arrival to its first output token, if it has one, in nanoseconds. None on
     * live engines.
     */
    ttftNs?: bigint,
  }
  /**
   * The decision about a request.
   */
  export type Choice = ChoiceWorker | ChoiceRefuse;
  /**
   * The engine with this index, one of `workers`, takes it.
   */
  export interface ChoiceWorker {
    tag: 'worker',
    val: number,
  }
  /**
   * All engines are too busy. The request ends and is counted as shed. Its end is not reported to
   * this instance.
   */
  export interface ChoiceRefuse {
    tag: 'refuse',
  }
}
