// Repeats the prompt, each token shifted by a number, and stops.

import { GuestError, TokenSource, guest, knownFields, number } from './vendor/vcr-guest.js';

/** @typedef {import('./vendor/vcr-guest.js').Config} Config */
/** @typedef {import('./vendor/vcr-guest.js').TokenRequest} TokenRequest */

/** @extends {TokenSource<TokenRequest>} */
export class Echo extends TokenSource {
  /** @param {Config} config */
  constructor(config) {
    super();
    knownFields(config, ['shift', 'vocabulary']);
    /** Added to each token of the prompt. */
    this.shift = number(config, 'shift', 0);
    /** The number of tokens in the model's vocabulary. */
    this.vocabulary = number(config, 'vocabulary');
    if (!(this.vocabulary >= 1)) throw new GuestError(`invalid \`vocabulary\`: expected at least 1, got ${this.vocabulary}`);
  }

  /** @param {TokenRequest} request */
  start(request) {
    if (request.prompt.length === 0) throw new GuestError('a request without a prompt has no tokens to repeat');
    return request;
  }

  /**
   * @param {TokenRequest} request
   * @param {number} index
   */
  nextToken({ prompt, eosToken }, index) {
    if (index >= prompt.length) return eosToken ?? 0;
    return (prompt[index] + this.shift) % this.vocabulary;
  }
}

export const tokens = guest(Echo);
