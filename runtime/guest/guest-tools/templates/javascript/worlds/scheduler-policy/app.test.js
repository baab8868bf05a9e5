// The guest, natively: `node --test`.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ShortestFirst } from './app.js';
import { Preferences } from './vendor/vcr-guest.js';
import { arrived, engine } from './vendor/testing.js';

function admission(config, ...events) {
  const preferences = new Preferences();
  new ShortestFirst(config).decide(engine({ events }), preferences);
  return preferences.admission;
}

test('a request waits at the length of its prompt', () => {
  assert.deepEqual(admission({}, arrived({ slot: 3, promptTokens: 50 })), [[3, 50n]]);
});

test('later requests wait behind', () => {
  const event = arrived({ slot: 3, arrivalNs: 2_000_000_000, promptTokens: 50 });
  assert.deepEqual(admission({ tokens_per_second: 100 }, event), [[3, 250n]]);
});

test('an ended request has no rank', () => {
  const ended = { tag: 'ended', val: { slot: 3, computedTokens: 0, outputTokens: 0 } };
  assert.deepEqual(admission({}, arrived({ slot: 3, promptTokens: 50 }), ended), []);
});

test('a misspelt field is named', () => {
  assert.throws(() => new ShortestFirst({ tokens: 1 }), /unknown field `tokens`/);
});
