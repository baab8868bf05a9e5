// The guest, natively: `node --test`.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { PerToken } from './app.js';
import { step } from '../../../guest-sdk/javascript/testing.js';

test('a step costs its tokens', () => {
  assert.equal(new PerToken({ ns_per_token: 10 }).price(step({ prefillTokens: 5, decodeTokens: 2 })), 70);
});

test('a price that is not positive is refused by name', () => {
  assert.throws(() => new PerToken({ ns_per_token: 0 }), /invalid `ns_per_token`: expected above 0/);
});
