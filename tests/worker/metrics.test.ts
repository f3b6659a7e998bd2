// The metrics, read by Prometheus's own parsers, and the decisions that Analytics Engine gets.

import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";
import { test } from "node:test";

import { inject, LONG, startGate } from "./support/gate.ts";
import { ask, counts, decisions, type Family, keyed, OPENMETRICS, scrape } from "./support/records.ts";
import { type Sample, samples, send, tally } from "./support/records.ts";

const FLUSH_MS = 300;

const config = {
  shards: 4,
  flush_ms: 100,
  series: { flush_ms: FLUSH_MS },
  policies: [keyed("key", `5/${LONG}`)],
};

/** Requests of 40 clients, so that all shards have some. */
const requests = (each: number): Record<string, string>[] =>
  Array.from({ length: 40 * each }, (_, i) => ({ "x-key": `client ${i % 40}` }));

/** What a scraper of today sends. */
const PROMETHEUS =
  "application/openmetrics-text; version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75," +
  "text/plain;version=0.0.4;q=0.5,*/*;q=0.1";

const shape = (families: Family[]): [string, string][] => families.map(({ name, type }) => [name, type]);

test("the metrics are OpenMetrics or the older text format, and count what was sent", async (t) => {
  const gate = await startGate(t, { config });
  const none = await scrape(gate);
  assert.deepEqual(samples(none, "tollgate_decisions"), []);
  assert.deepEqual(samples(none, "tollgate_shard_keys").map(({ value }) => value), [0, 0, 0, 0]);

  await send(gate, requests(7));
  const expected = { key: counts(200, 80) };
  for (const accept of [OPENMETRICS, PROMETHEUS]) {
    const response = await ask(gate, "metrics", { accept });
    assert.ok((await response.text()).endsWith("\n# EOF\n"));
    const families = await scrape(gate, accept);
    assert.deepEqual(shape(families), [
      ["tollgate_build", "info"],
      ["tollgate_shard_up", "gauge"],
      ["tollgate_shard_keys", "gauge"],
      ["tollgate_shard_bytes", "gauge"],
      ["tollgate_decisions", "counter"],
    ]);
    assert.deepEqual(decisions(families), expected);
    assert.ok(families.every(({ help }) => help.length > 0));
  }
  for (const accept of ["text/plain;version=0.0.4;q=0.5,*/*;q=0.1", "*/*"]) {
    const families = await scrape(gate, accept);
    assert.deepEqual(shape(families), [
      ["tollgate_build_info", "gauge"],
      ["tollgate_shard_up", "gauge"],
      ["tollgate_shard_keys", "gauge"],
      ["tollgate_shard_bytes", "gauge"],
      ["tollgate_decisions", "counter"],
    ]);
    assert.deepEqual(decisions(families), expected);
    const { version } = samples(families, "tollgate_build_info")[0]?.labels ?? {};
    assert.match(version ?? "", /^\d+\.\d+\.\d+$/);
    assert.deepEqual(samples(families, "tollgate_shard_up").map(({ labels, value }) => [labels.shard, value]), [
      ["0", 1],
      ["1", 1],
      ["2", 1],
      ["3", 1],
    ]);
  }
  await sleep(4 * FLUSH_MS);
  const written = await scrape(gate);
  const keys = samples(written, "tollgate_shard_keys").reduce((sum, { value }) => sum + value, 0);
  assert.ok(keys >= 40, `${keys} keys: those of the clients, and what was recorded`);
  assert.ok(samples(written, "tollgate_shard_bytes").every(({ value }) => value > 0));
});

test("no counter ever goes down, through a crash too when it was written before", async (t) => {
  const gate = await startGate(t, { config });
  const series = ({ labels }: Sample): string => `${labels.policy} ${labels.outcome} ${labels.shard}`;
  const read = async (): Promise<Map<string, number>> =>
    new Map(samples(await scrape(gate), "tollgate_decisions").map((sample) => [series(sample), sample.value]));
  let before = await read();
  const grows = async (sent: number): Promise<void> => {
    const now = await read();
    for (const [name, value] of before) {
      assert.ok((now.get(name) ?? -1) >= value, `${name}: ${value}, then ${now.get(name)}`);
    }
    assert.equal([...now.values()].reduce((sum, value) => sum + value, 0), sent);
    before = now;
  };
  for (let round = 1; round <= 3; round += 1) {
    await send(gate, requests(3));
    await grows(2 * 120 * round - 120);
    await sleep(4 * FLUSH_MS);
    await gate.crash();
    await grows(2 * 120 * round - 120);
    await send(gate, requests(3));
    await grows(2 * 120 * round);
    await sleep(4 * FLUSH_MS);
    for (let shard = 0; shard < config.shards; shard += 1) await gate.evict(shard);
    await grows(2 * 120 * round);
  }
});

for (const kind of ["throw", "stall"] as const) {
  test(`a shard that does not answer a scrape (${kind}) is down, its counters not zero but missing`, async (t) => {
    const gate = await startGate(t, { config, faulty: true });
    await send(gate, requests(1));
    const whole = samples(await scrape(gate), "tollgate_decisions");
    await inject(gate, { kind, shard: 2 });
    const families = await scrape(gate);
    assert.deepEqual(samples(families, "tollgate_shard_up").map(({ value }) => value), [1, 1, 0, 1]);
    const others = whole.filter(({ labels }) => labels.shard !== "2");
    assert.ok(0 < others.length && others.length < whole.length);
    assert.deepEqual(samples(families, "tollgate_decisions"), others);
    assert.deepEqual(samples(families, "tollgate_shard_keys").map(({ labels }) => labels.shard), ["0", "1", "3"]);
    assert.deepEqual(samples(await scrape(gate), "tollgate_decisions"), whole, "and then it is back");
    await inject(gate, { kind, times: 4 });
    const dark = await scrape(gate);
    assert.deepEqual(samples(dark, "tollgate_shard_up").map(({ value }) => value), [0, 0, 0, 0]);
    assert.deepEqual(samples(dark, "tollgate_decisions"), []);
  });
}

test("the name of a policy cannot break out of its label", async (t) => {
  const gate = await startGate(t, { config });
  // The configuration takes plain names only, but whoever has the token may name a limit as he likes.
  const names = [`a"b`, `a\\`, `a\nb`, `a\\nb`, `"} 1\n# EOF\nx`, "ü☃"];
  for (const name of names) {
    await gate.redis("TG.TAKE", "RECORD", 1, `gate:${name}:fixed-window:{k}`, "fixed-window", 10, 60_000);
  }
  for (const accept of [OPENMETRICS, "text/plain"]) {
    const families = await scrape(gate, accept);
    assert.deepEqual(decisions(families), Object.fromEntries(names.map((name) => [name, counts(1)])));
    assert.equal(samples(families, "tollgate_shard_up").length, 4);
  }
});

test("with a dataset of Analytics Engine requests pass as they do without one", async (t) => {
  const gate = await startGate(t, { config, analytics: true });
  const statuses = await send(gate, requests(6));
  assert.deepEqual([tally(statuses, 200), tally(statuses, 429)], [200, 40]);
  assert.deepEqual(decisions(await scrape(gate)), { key: counts(200, 40) });
  assert.deepEqual(gate.logs, []);
});

test("Analytics Engine gets a data point for each decision, and for nothing else", async (t) => {
  const kv = { name: "kv", limit: `1/${LONG}`, missing_key: "shared", store: "kv", best_effort: true };
  const policies = [keyed("a", `9/${LONG}`), keyed("b", `1/${LONG}`), { ...kv, match: { path: "/kv" } }];
  const gate = await startGate(t, { config: { shards: 4, policies }, analytics: true, faulty: true });
  const told: string[][] = [];
  const expect = async (points: [string, string][], headers: Record<string, string>, path = "/"): Promise<void> => {
    await send(gate, [headers], 1, path);
    told.push(...points);
    const written = (await (await gate.fetch("/points")).json()) as unknown[];
    const whole = told.map(([policy, outcome]) => ({ indexes: [policy], blobs: [policy, outcome], doubles: [1] }));
    assert.deepEqual(written, whole);
  };
  await expect([], {});
  await expect([["a", "allowed"]], { "x-a": "k" });
  await expect([["a", "allowed"], ["b", "allowed"]], { "x-a": "k", "x-b": "k" });
  await expect([["b", "denied"]], { "x-a": "k", "x-b": "k" });
  await expect([["kv", "allowed"]], {}, "/kv");
  await expect([["kv", "denied"]], {}, "/kv");
  await inject(gate, { kind: "throw" });
  await expect([["a", "degraded"]], { "x-a": "k" });
  await ask(gate, "series");
  await expect([["a", "allowed"]], { "x-a": "k" });
});

test("an Analytics Engine that fails does not fail a request", async (t) => {
  const gate = await startGate(t, { config, analytics: true, faulty: true });
  await gate.fetch("/points", { method: "POST" });
  assert.deepEqual(await send(gate, Array(7).fill({ "x-key": "k" }), 1), [200, 200, 200, 200, 200, 429, 429]);
  assert.deepEqual(await (await gate.fetch("/points")).json(), []);
  assert.deepEqual(decisions(await scrape(gate)), { key: counts(5, 2) });
  assert.ok(gate.logs.some((line) => line.includes("not written to Analytics Engine")), gate.logs.join());
});
