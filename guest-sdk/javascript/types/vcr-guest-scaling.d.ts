/// <reference path="./vcr-guest-types.d.ts" />
declare module 'vcr:guest/scaling@0.1.0' {
  /**
   * Makes the instance the autoscaler of one pool: the first call, made once.
   *
   * `config` is one JSON document, `{}` where the user gave none. `seed` is
   * the only source of randomness; two instances configured from the same
   * arguments must answer the same calls alike.
   */
  export function configure(config: string, seed: bigint): void;
  /**
   * Returns the number of engines that should be up or starting.
   *
   * The host applies the pool's limits to the answer. An answer above 1000000
   * is taken for a mistake and fails the run.
   */
  export function decide(pool: PoolView): number;
  export type Failure = import('vcr:guest/types@0.1.0').Failure;
  /**
   * The state of a pool when a decision is due. All other events of the instant
   * have happened.
   *
   * What is counted "since the last decision" is of the whole cluster, for
   * offered load is offered to all of it; engines, and what they have to do,
   * are those of the pool.
   */
  export interface PoolView {
    /**
     * The time in nanoseconds, more than in the call before.
     */
    nowNs: bigint,
    /**
     * Engines that take requests.
     */
    upEngines: number,
    /**
     * Engines on their way up, those that restart after a crash among them.
     */
    startingEngines: number,
    /**
     * Engines that finish what they have and take no more.
     */
    drainingEngines: number,
    /**
     * Requests that arrived since the last decision.
     */
    arrivedRequests: bigint,
    /**
     * Prompt tokens of those.
     */
    arrivedPromptTokens: bigint,
    /**
     * Output tokens that those ask for.
     */
    arrivedOutputTokens: bigint,
    /**
     * Requests that ended with their whole output since the last decision.
     */
    completedRequests: bigint,
    /**
     * Requests that had their first token since the last decision.
     */
    ttftCount: bigint,
    /**
     * Sum of their times from arrival to that token, in nanoseconds; 2^64 - 1
     * where it is more than that.
     */
    ttftSumNs: bigint,
    /**
     * Gaps between consecutive output tokens that ended since the last decision.
     */
    tokenGapCount: bigint,
    /**
     * Their sum, in nanoseconds; 2^64 - 1 where it is more than that.
     */
    tokenGapSumNs: bigint,
    /**
     * Requests that run in the pool's engines, draining ones included.
     */
    runningRequests: bigint,
    /**
     * Requests that wait in those engines, or in front of them.
     */
    waitingRequests: bigint,
    /**
     * KV blocks in use in those engines.
     */
    activeBlocks: bigint,
    /**
     * KV blocks that they have.
     */
    totalBlocks: bigint,
    /**
     * Prompt tokens yet to be computed, in those engines and in front of them.
     */
    outstandingPrefillTokens: bigint,
  }
}
