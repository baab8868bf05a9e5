// Fails requests at their n-th token, with some probability, and stalls the engine for each.

import { FailureInjector, GuestError, Random, guest, knownFields, number } from './vendor/vcr-guest.js';

/** @typedef {import('./vendor/vcr-guest.js').Actions} Actions */
/** @typedef {import('./vendor/vcr-guest.js').Config} Config */
/** @typedef {import('./vendor/vcr-guest.js').FaultBatch} FaultBatch */

export class FailSome extends FailureInjector {
  /**
   * @param {Config} config
   * @param {bigint} seed
   */
  constructor(config, seed) {
    super();
    knownFields(config, ['after_tokens', 'probability', 'stall_ns']);
    /** A request fails when it has this many tokens. */
    this.afterTokens = number(config, 'after_tokens');
    /** The share of requests that fail there. */
    this.probability = number(config, 'probability');
    if (!(this.probability >= 0 && this.probability <= 1)) {
      throw new GuestError(`invalid \`probability\`: expected 0 to 1, got ${this.probability}`);
    }
    /** How long the engine stalls with each. */
    this.stallNs = number(config, 'stall_ns', 0);
    this.random = new Random(seed);
  }

  /**
   * @param {FaultBatch} batch
   * @param {Actions} actions
   */
  decide(batch, actions) {
    const ended = new Set(batch.events.map((event) => (event.tag === 'ended' ? event.val : undefined)));
    for (const event of batch.events) {
      if (event.tag !== 'emitted') continue;
      for (const { slot, outputTokens } of event.val) {
        // A request that ended since the last call cannot fail.
        if (outputTokens !== this.afterTokens || ended.has(slot)) continue;
        if (this.random.uniform() >= this.probability) continue;
        actions.failRequest(slot);
        if (this.stallNs > 0) actions.stall(this.stallNs);
      }
    }
  }
}

export const faults = guest(FailSome);
