// The guest, natively: `node --test`.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { FailSome } from './app.js';
import { Actions } from './vendor/vcr-guest.js';

function said(config, ...events) {
  const actions = new Actions();
  new FailSome(config, 7n).decide({ nowNs: 0, step: 1, events }, actions);
  return actions.said;
}

const emitted = (...rows) => ({ tag: 'emitted', val: rows.map(([slot, outputTokens]) => ({ slot, outputTokens })) });

test('a request fails at its token and stalls the engine', () => {
  const config = { after_tokens: 3, probability: 1, stall_ns: 5 };
  assert.deepEqual(said(config, emitted([0, 2], [1, 3])), [
    { tag: 'fail-request', val: 1 },
    { tag: 'stall', val: 5n },
  ]);
});

test('an ended request is not failed', () => {
  assert.deepEqual(said({ after_tokens: 3, probability: 1 }, emitted([1, 3]), { tag: 'ended', val: 1 }), []);
});

test('about the given share fails', () => {
  const rows = Array.from({ length: 1000 }, (_, slot) => [slot, 3]);
  const failed = said({ after_tokens: 3, probability: 0.2 }, emitted(...rows)).length;
  assert.ok(failed > 150 && failed < 250, `${failed}`);
});

test('a bad share is named', () => {
  assert.throws(() => said({ after_tokens: 3, probability: 2 }), /invalid `probability`: expected 0 to 1, got 2/);
});
