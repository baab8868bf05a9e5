// The guest, natively: `node --test`.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Echo } from './app.js';
import { tokenRequest } from './vendor/testing.js';

test('the prompt is repeated, shifted, and ends', () => {
  const echo = new Echo({ shift: 1, vocabulary: 100 });
  const state = echo.start(tokenRequest({ prompt: [5, 99], maxTokens: 9, eosToken: 2 }));
  assert.deepEqual([0, 1, 2, 3].map((index) => echo.nextToken(state, index)), [6, 0, 2, 2]);
});

test('a request without a prompt is refused', () => {
  assert.throws(() => new Echo({ vocabulary: 100 }).start(tokenRequest()), /without a prompt/);
});

test('a misspelt field is named', () => {
  assert.throws(() => new Echo({ vocabulary: 100, shft: 1 }), /unknown field `shft`/);
});
