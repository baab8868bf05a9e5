/// <reference path="./vcr-guest-types.d.ts" />
declare module 'vcr:guest/routing@0.1.0' {
  /**
   * Makes the instance the router of one pool: the first call, made once.
   *
   * `config` is one JSON document, `{}` where the user gave none. `seed` is the only source of
   * randomness; two instances configured from the same arguments must answer the same calls alike.
   */
  export function configure(config: string, seed: bigint): void;
  /**
   * Chooses the engine of one request. `ended` lists the requests that ended since the last call,
   * oldest first.
   */
  export function route(nowNs: bigint, ended: Array<EndedRequest>, request: Request, workers: Workers): Choice;
  export type Failure = import('vcr:guest/types@0.1.0').Failure;
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
  export type Phase = 'whole' | 'prefill' | 'decode';
  /**
   * The request to be routed.
   */
  export interface Request {
    /**
     * Its number. A request whose engine died may be routed again, under the same number.
     */
    id: bigint,
    /**
     * Tokens of its prompt.
     */
    promptTokens: number,
    /**
     * Output tokens it may have.
     */
    maxTokens: number,
    /**
     * Its priority; lower is sooner.
     */
    priority: number,
    /**
     * The number of its LoRA adapter, where it has one.
     */
    adapter?: number,
    /**
     * Its tenant; 0 if unknown, as always on live targets.
     */
    tenant: bigint,
    /**
     * Its session: the turns of a conversation share the number.
     */
    session: bigint,
    /**
     * Tokens in a KV block of the pool.
     */
    blockSizeTokens: number,
    /**
     * The part of it that the engine computes.
     */
    phase: Phase,
    /**
     * Whether it may be refused. Not if it has been with an engine before, because its prompt was
     * computed or its engine died.
     */
    mayRefuse: boolean,
    /**
     * A number for each full KV block of the prompt, first to last. It stands for the tokens of
     * that block and of all before it, so that equal numbers mean equal prefixes.
     */
    blockHashes: BigUint64Array,
  }
  /**
   * Columns: the engines that are up, at least one, by index ascending.
   */
  export interface Workers {
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
     * Requests that may run at once.
     */
    maxRunningRequests: Uint32Array,
    /**
     * KV blocks that a request refers to.
     */
    activeBlocks: Uint32Array,
    /**
     * KV blocks in all.
     */
    totalBlocks: Uint32Array,
    /**
     * Prompt tokens assigned to it and not computed.
     */
    outstandingPrefillTokens: BigUint64Array,
    /**
     * Blocks at the beginning of this prompt that its cache holds.
     */
    cachedPromptBlocks: Uint32Array,
  }
  /**
   * A request that this instance routed and that is over.
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
     * Output tokens that it got.
     */
    outputTokens: number,
    /**
     * Whether it failed, and was not answered to its end.
     */
    failed: boolean,
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
   * All engines have too much to do. The request is over and counted as shed; its end is not
   * reported to this instance.
   */
  export interface ChoiceRefuse {
    tag: 'refuse',
  }
}
