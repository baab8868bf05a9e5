// Admits short prompts first, but no request waits forever.

import { GuestError, SchedulerPolicy, guest, knownFields, number } from './vendor/vcr-guest.js';

/** @typedef {import('./vendor/vcr-guest.js').Config} Config */
/** @typedef {import('./vendor/vcr-guest.js').EngineView} EngineView */
/** @typedef {import('./vendor/vcr-guest.js').Preferences} Preferences */

export class ShortestFirst extends SchedulerPolicy {
  /** @param {Config} config */
  constructor(config) {
    super();
    knownFields(config, ['tokens_per_second']);
    /** Value of a second of waiting, in prompt tokens. */
    this.tokensPerSecond = number(config, 'tokens_per_second', 0);
    if (!(this.tokensPerSecond >= 0 && this.tokensPerSecond <= 1e9)) {
      throw new GuestError(`invalid \`tokens_per_second\`: expected 0 to 1e9, got ${this.tokensPerSecond}`);
    }
  }

  /**
   * @param {EngineView} engine
   * @param {Preferences} preferences
   */
  decide(engine, preferences) {
    /** @type {Map<number, number>} */
    const ranks = new Map();
    for (const event of engine.events) {
      if (event.tag === 'arrived') {
        const { slot, arrivalNs, promptTokens } = event.val;
        // All requests age at the same rate, so a rank by arrival time stays valid.
        ranks.set(slot, promptTokens + Math.floor((arrivalNs * this.tokensPerSecond) / 1e9));
      } else if (event.tag === 'ended') {
        // A request that arrived and ended since the last call has no rank.
        ranks.delete(event.val.slot);
      }
    }
    for (const [slot, rank] of ranks) preferences.waitAt(slot, rank);
  }
}

export const scheduling = guest(ShortestFirst);
