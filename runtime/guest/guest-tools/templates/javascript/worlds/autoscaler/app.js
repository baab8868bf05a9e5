// Wants one engine more where first tokens come too late, and one fewer where most of the KV is free.

import { Autoscaler, GuestError, guest, knownFields, number } from './vendor/vcr-guest.js';

/** @typedef {import('./vendor/vcr-guest.js').Config} Config */
/** @typedef {import('./vendor/vcr-guest.js').PoolView} PoolView */

export class ByLatency extends Autoscaler {
  /** @param {Config} config */
  constructor(config) {
    super();
    knownFields(config, ['max_ttft_ms', 'idle_kv_share']);
    /** There are too few engines where the mean time to the first token is above this. */
    this.maxTtftNs = number(config, 'max_ttft_ms') * 1e6;
    /** There is an engine too many where the share of KV blocks in use is below this. */
    this.idleKvShare = number(config, 'idle_kv_share');
    if (!(this.idleKvShare >= 0 && this.idleKvShare <= 1)) {
      throw new GuestError(`invalid \`idle_kv_share\`: expected 0 to 1, got ${this.idleKvShare}`);
    }
  }

  /** @param {PoolView} pool */
  desired(pool) {
    const engines = pool.upEngines + pool.startingEngines;
    // The engines that are starting may be enough.
    if (pool.ttftSumNs > this.maxTtftNs * pool.ttftCount) return pool.startingEngines === 0 ? engines + 1 : engines;
    const isIdle = pool.activeBlocks < this.idleKvShare * pool.totalBlocks;
    return isIdle && pool.waitingRequests === 0 ? Math.max(engines - 1, 0) : engines;
  }
}

export const scaling = guest(ByLatency);
