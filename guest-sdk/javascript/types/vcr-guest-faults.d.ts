/// <reference path="./vcr-guest-types.d.ts" />
declare module 'vcr:guest/faults@0.1.0' {
  /**
   * Makes the instance the injector of one engine: the first call, made once.
   *
   * `config` is one JSON document, `{}` if the user gave none. `seed` is the only source of randomness:
   * two instances that are configured with the same arguments must give the same answers to the same
   * calls.
   */
  export function configure(config: string, seed: bigint): void;
  /**
   * Injects faults now, in the order of the answer. Called at least once for each step that the
   * engine finishes: `step` counts the finished steps. `events` lists what happened since the last
   * call, oldest first, and may be empty.
   */
  export function decide(nowNs: bigint, step: bigint, events: Array<FaultEvent>): Array<FaultAction>;
  export type Failure = import('vcr:guest/types@0.1.0').Failure;
  /**
   * A duration in nanoseconds, at most 1e18 (about 32 years).
   */
  export type DurationNs = bigint;
  /**
   * A request that came in.
   */
  export interface ArrivedRequest {
    /**
     * Names the request from now on.
     */
    slot: number,
    /**
     * Its name at the frontend. In virtual time `WORKLOAD-SESSION-TURN`, for example `chat-17-0`.
     */
    requestId: string,
    /**
     * Tokens of its prompt.
     */
    promptTokens: number,
    /**
     * Limit of its output tokens.
     */
    maxTokens: number,
    /**
     * Its priority: lower is served first.
     */
    priority: number,
    /**
     * The number of its LoRA adapter, if it has one. None in virtual time.
     */
    adapter?: number,
  }
  /**
   * Columns: requests that got output tokens, in the order in which they run.
   */
  export interface Emissions {
    /**
     * The request.
     */
    slot: Uint32Array,
    /**
     * All of its output tokens so far.
     */
    outputTokens: Uint32Array,
  }
  /**
   * Something that happened in the engine.
   */
  export type FaultEvent = FaultEventArrived | FaultEventEmitted | FaultEventEnded | FaultEventUtility;
  /**
   * A request came in.
   */
  export interface FaultEventArrived {
    tag: 'arrived',
    val: ArrivedRequest,
  }
  /**
   * Requests got output tokens.
   */
  export interface FaultEventEmitted {
    tag: 'emitted',
    val: Emissions,
  }
  /**
   * The request in this slot ended, completed or not. The slot goes to another request later.
   */
  export interface FaultEventEnded {
    tag: 'ended',
    val: number,
  }
  /**
   * The utility call of this name is about to be answered. A call of `decide` has at most one
   * such event.
   */
  export interface FaultEventUtility {
    tag: 'utility',
    val: string,
  }
  /**
   * A fault to inject.
   */
  export type FaultAction = FaultActionFailRequest | FaultActionStall | FaultActionCrash | FaultActionDropMessage | FaultActionDuplicateMessage | FaultActionCorruptMessage | FaultActionDelayMessage | FaultActionLoseKvEvents | FaultActionFailUtility;
  /**
   * The request in this slot ends with an error. It must have arrived, must not have ended, and
   * must not have been failed before.
   */
  export interface FaultActionFailRequest {
    tag: 'fail-request',
    val: number,
  }
  /**
   * The engine does nothing for this duration.
   */
  export interface FaultActionStall {
    tag: 'stall',
    val: DurationNs,
  }
  /**
   * The engine dies. It restarts after this duration; none for never.
   */
  export interface FaultActionCrash {
    tag: 'crash',
    val: DurationNs | undefined,
  }
  /**
   * The output message that is sent next is lost.
   */
  export interface FaultActionDropMessage {
    tag: 'drop-message',
  }
  /**
   * The output message that is sent next is sent twice.
   */
  export interface FaultActionDuplicateMessage {
    tag: 'duplicate-message',
  }
  /**
   * The output message that is sent next cannot be read.
   */
  export interface FaultActionCorruptMessage {
    tag: 'corrupt-message',
  }
  /**
   * The output message that is sent next is delayed by this duration.
   */
  export interface FaultActionDelayMessage {
    tag: 'delay-message',
    val: DurationNs,
  }
  /**
   * The next batch of KV events is lost.
   */
  export interface FaultActionLoseKvEvents {
    tag: 'lose-kv-events',
  }
  /**
   * The utility call of this call's event fails.
   */
  export interface FaultActionFailUtility {
    tag: 'fail-utility',
  }
}
