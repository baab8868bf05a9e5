// The guest, natively: `node --test`.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ByLatency } from './app.js';
import { pool } from './vendor/testing.js';

const scaler = new ByLatency({ max_ttft_ms: 500, idle_kv_share: 0.3 });
const busy = { upEngines: 2, activeBlocks: 50, totalBlocks: 100 };

test('late first tokens ask for an engine, unless one is starting', () => {
  const late = { ...busy, ttftCount: 2, ttftSumNs: 1_200_000_000 };
  assert.equal(scaler.desired(pool(late)), 3);
  assert.equal(scaler.desired(pool({ ...late, startingEngines: 1 })), 3);
});

test('a free cache gives an engine back, unless requests wait', () => {
  assert.equal(scaler.desired(pool(busy)), 2);
  assert.equal(scaler.desired(pool({ ...busy, activeBlocks: 20 })), 1);
  assert.equal(scaler.desired(pool({ ...busy, activeBlocks: 20, waitingRequests: 1 })), 2);
});

test('a bad share is named', () => {
  const config = { max_ttft_ms: 500, idle_kv_share: 2 };
  assert.throws(() => new ByLatency(config), /invalid `idle_kv_share`: expected 0 to 1, got 2/);
});
