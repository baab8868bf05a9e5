// The guest, natively: `node --test`.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Model } from './app.js';
import { step } from './vendor/testing.js';

const CONFIG = { ns_per_step: 1000, ns_per_token: 10, ns_per_request: 100 };

test('a step costs its tokens and requests', () => {
  const price = new Model(CONFIG).price(step({ decodeRequests: 2, decodeTokens: 2 }));
  assert.equal(price, 1000 + 20 + 200);
});

test('a negative price is refused by name', () => {
  assert.throws(() => new Model({ ...CONFIG, ns_per_token: -1 }), /invalid `ns_per_token`/);
});

test('a misspelt field is named', () => {
  assert.throws(() => new Model({ ...CONFIG, ns_per_tokne: 1 }), /unknown field `ns_per_tokne`/);
});
