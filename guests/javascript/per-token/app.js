// Prices steps by their tokens.

import { GuestError, LatencyModel, guest, knownFields, number } from '../../../guest-sdk/javascript/vcr-guest.js';

export class PerToken extends LatencyModel {
  /** @param {import('../../../guest-sdk/javascript/vcr-guest.js').Config} config */
  constructor(config) {
    super();
    knownFields(config, ['ns_per_token']);
    this.nsPerToken = number(config, 'ns_per_token');
    if (!(this.nsPerToken > 0 && this.nsPerToken <= 1e12)) {
      throw new GuestError(`invalid \`ns_per_token\`: expected above 0 and at most 1e12, got ${this.nsPerToken}`);
    }
  }

  /** @param {import('../../../guest-sdk/javascript/vcr-guest.js').StepShape} step */
  price(step) {
    return this.nsPerToken * (step.prefillTokens + step.decodeTokens);
  }
}

export const latency = guest(PerToken);
