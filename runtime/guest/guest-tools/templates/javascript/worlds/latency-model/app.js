// Prices steps by their tokens, slower the more requests share one.

import { GuestError, LatencyModel, guest, knownFields, number } from './vendor/vcr-guest.js';

/** @typedef {import('./vendor/vcr-guest.js').Config} Config */
/** @typedef {import('./vendor/vcr-guest.js').StepShape} StepShape */

export class Model extends LatencyModel {
  /** @param {Config} config */
  constructor(config) {
    super();
    knownFields(config, ['ns_per_step', 'ns_per_token', 'ns_per_request']);
    this.nsPerStep = duration(config, 'ns_per_step');
    this.nsPerToken = duration(config, 'ns_per_token');
    this.nsPerRequest = duration(config, 'ns_per_request', 0);
  }

  /** @param {StepShape} step */
  price(step) {
    const tokens = step.prefillTokens + step.decodeTokens;
    const requests = step.prefillRequests + step.decodeRequests;
    return this.nsPerStep + this.nsPerToken * tokens + this.nsPerRequest * requests;
  }
}

function duration(/** @type {Config} */ config, /** @type {string} */ field, /** @type {number | undefined} */ fallback = undefined) {
  const ns = number(config, field, fallback);
  if (!(ns >= 0 && ns <= 1e12)) throw new GuestError(`invalid \`${field}\`: expected 0 to 1e12 nanoseconds, got ${ns}`);
  return ns;
}

export const latency = guest(Model);
