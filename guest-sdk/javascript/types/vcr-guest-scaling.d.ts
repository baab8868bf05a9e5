/// <reference path="./vcr-guest-types.d.ts" />
declare module 'vcr:guest/scaling@0.1.0' {
  /**
   * Makes the instance the autoscaler of one pool: the first call, made once.
   *
   * `config` is one JSON document, `{}` if the user gave none. `seed` is the only
   * source of randomness: two instances that are configured with the same
   * arguments must give the same answers to the same calls.
   */
  export function configure(config: string, seed: bigint): void;
  /**
   * Returns the number of engines that should be up or starting.
   *
   * The host applies the pool's limits to the answer. An answer above 1000000
   * fails the run.
   */
  export function decide(pool: PoolView): number;
  export type Failure = import('vcr:guest/types@0.1.0').Failure;
  /**
   * The state of a pool when a decision is due. All other events of the instant
   * have happened.
   *
   * Counts "since the last decision" cover the whole cluster. Numbers of engines, of
   * their requests and of their blocks cover the pool.
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
     * Engines that start, including those that restart after a crash.
     */
    startingEngines: number,
    /**
     * Engines that finish their requests and take no more.
     */
    drainingEngines: number,
    /**
     * Requests that arrived since the last decision.
     */
    arrivedRequests: bigint,
    /**
     * Prompt tokens of these requests.
     */
    arrivedPromptTokens: bigint,
    /**
     * Sum of these requests' limits of output tokens.
     */
    arrivedOutputTokens: bigint,
    /**
     * Requests that completed since the last decision.
     */
    completedRequests: bigint,
    /**
     * Requests that got their first token since the last decision.
     */
    ttftCount: bigint,
    /**
     * Sum of their times from arrival to that token, in nanoseconds, at most
     * 2^64 - 1.
     */
    ttftSumNs: bigint,
    /**
     * Completed requests of the last interval whose time in the queue is known.
     */
    queueCount: bigint,
    /**
     * Sum of their times from reaching the queue to their first step, in nanoseconds,
     * at most 2^64 - 1.
     */
    queueSumNs: bigint,
    /**
     * Requests with latency objectives that ended since the last decision, completed
     * or not.
     */
    sloRequests: bigint,
    /**
     * Of these, requests that completed within their objectives.
     */
    sloMetRequests: bigint,
    /**
     * Gaps between consecutive output tokens that ended since the last decision.
     */
    tokenGapCount: bigint,
    /**
     * Sum of these gaps in nanoseconds, at most 2^64 - 1.
     */
    tokenGapSumNs: bigint,
    /**
     * Requests that run in the pool's engines, draining ones included.
     */
    runningRequests: bigint,
    /**
     * Requests that wait in these engines or in front of them.
     */
    waitingRequests: bigint,
    /**
     * KV blocks that at least one request uses in these engines.
     */
    activeBlocks: bigint,
    /**
     * All KV blocks of these engines.
     */
    totalBlocks: bigint,
    /**
     * Prompt tokens that are not computed, in these engines and in front of them.
     */
    outstandingPrefillTokens: bigint,
    /**
     * Preemptions in these engines since their processes started.
     */
    preemptionCount: bigint,
    /**
     * Price of one engine of the pool in US dollars for an hour: the GPUs that its deployment states.
     * The cost of the pool for an hour is this times the engines that are up, starting and draining.
     * None if the scenario states no deployment or no price is known.
     */
    engineUsdPerHour?: number,
  }
}
