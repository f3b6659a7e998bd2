// Every decision is counted once: what the series say is what was sent.

import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";
import { test, type TestContext } from "node:test";

import { type Gate, inject, LONG, startGate, until } from "./support/gate.ts";
import { counts, decisions, keyed, samples, scrape, send, tally, totals } from "./support/records.ts";

test("10,000 requests over eight shards are counted to the last one, at every rollup", async (t) => {
  const QUOTA = 10;
  // Written time and again while they come, so that what is in rows and what is in memory have to add up.
  const config = { shards: 8, series: { flush_ms: 500 }, policies: [keyed("key", `${QUOTA}/${LONG}`)] };
  const gate = await startGate(t, { config });
  const keys = Array.from({ length: 10_000 }, (_, i) => `client ${(i * i) % 499}`);
  const statuses = await send(gate, keys.map((key) => ({ "x-key": key })));
  const sent = new Map<string, number>();
  for (const key of keys) sent.set(key, (sent.get(key) ?? 0) + 1);
  const allowed = [...sent.values()].reduce((sum, count) => sum + Math.min(count, QUOTA), 0);
  const expected = { key: counts(allowed, keys.length - allowed) };
  assert.deepEqual([tally(statuses, 200), tally(statuses, 429)], [allowed, keys.length - allowed]);
  assert.deepEqual(await totals(gate), expected);
  for (const rollup of ["10s", "1h", "1d"]) assert.deepEqual(await totals(gate, `?rollup=${rollup}`), expected, rollup);
  assert.deepEqual(await totals(gate, "?since=-1d"), expected);
  const scraped = await scrape(gate);
  assert.deepEqual(decisions(scraped), expected);
  const parts = samples(scraped, "tollgate_decisions").filter(({ labels }) => labels.outcome === "allowed");
  assert.deepEqual(parts.map(({ value }) => value > 0), Array(8).fill(true), "each shard had its part");
  t.diagnostic(`${keys.length} sent, ${allowed} allowed, ${keys.length - allowed} denied, of ${sent.size} clients`);
});

const FLUSH_MS = 500;

const single = (fields: Record<string, unknown> = {}): Record<string, unknown> => ({
  shards: 1,
  series: { flush_ms: FLUSH_MS },
  policies: [keyed("key", `1000000/${LONG}`, fields)],
});

/** How an object's memory goes. An eviction waits for the requests under way, and for the timer of a flush. */
const LOSSES: [string, (gate: Gate, underWay: Promise<unknown>) => Promise<void>][] = [
  ["a SIGKILL", (gate) => gate.crash()],
  ["an eviction", (gate, underWay) => underWay.then(() => gate.evict(0))],
];

for (const [loss, lose] of LOSSES) {
  test(`${loss} loses no more than the last moments of the series and invents nothing`, async (t) => {
    const gate = await startGate(t, { config: single() });
    const answered: number[] = [];
    let [sent, isOver] = [0, false];
    const client = async (): Promise<void> => {
      while (!isOver) {
        sent += 1;
        const response = await gate.fetch("/", { headers: { "x-key": "k" } }).catch(() => undefined);
        await response?.arrayBuffer().catch(() => undefined);
        if (response?.ok) answered.push(performance.now());
      }
    };
    const clients = Array.from({ length: 8 }, client);
    await sleep(5 * FLUSH_MS);
    isOver = true;
    const at = performance.now();
    await lose(gate, Promise.all(clients));
    await Promise.all(clients);
    const found = (await totals(gate)).key;
    assert.deepEqual(decisions(await scrape(gate)).key, found, "the counters come out of the same rows");
    // What is counted waits for one flush, and a busy machine's timer may be late by as much again.
    const written = answered.filter((time) => time < at - 2 * FLUSH_MS).length;
    const kept = found?.allowed ?? 0;
    const since = Math.round(at - (answered[kept] ?? at));
    t.diagnostic(`${sent - kept} of ${sent} were lost: those of the last ${since} ms, with a flush of ${FLUSH_MS} ms`);
    assert.ok(written > 0, "there was something to lose");
    assert.ok(written <= kept && kept <= sent, `${written} written, ${kept} found, ${sent} sent`);
    assert.deepEqual(found, counts(kept), "and nothing else");
  });

  test(`a moment after the last request ${loss} loses nothing of the series`, async (t) => {
    const config = { ...single(), policies: [keyed("key", `70/${LONG}`)] };
    const gate = await startGate(t, { config });
    await send(gate, Array(100).fill({ "x-key": "k" }));
    await sleep(4 * FLUSH_MS);
    await lose(gate, Promise.resolve());
    assert.deepEqual(await totals(gate), { key: counts(70, 30) });
    // The counters of the limit are written with theirs, so it goes on where it was.
    await send(gate, Array(10).fill({ "x-key": "k" }));
    assert.deepEqual(await totals(gate), { key: counts(70, 40) });
    assert.deepEqual(decisions(await scrape(gate)), { key: counts(70, 40) });
  });
}

test("500 requests within one flush are a row or two, not 500", async (t) => {
  // The limit's own counters are relaxed and share rows as well: one for the key, each time they are written.
  const config = { ...single(), flush_ms: 2000, series: { flush_ms: 2000 } };
  const gate = await startGate(t, { config, faulty: true });
  const written = async (): Promise<number> =>
    Number(await (await gate.fetch("/object?shard=0&path=/written", { method: "POST" })).text());
  await send(gate, [{ "x-key": "k" }]);
  await sleep(3000);
  const [before, began] = [await written(), performance.now()];
  await send(gate, Array(500).fill({ "x-key": "k" }));
  const took = performance.now() - began;
  await sleep(3000);
  const rows = (await written()) - before;
  t.diagnostic(`500 requests in ${Math.round(took)} ms wrote ${rows} rows`);
  // A machine so slow that they did not fit into one flush had more of them. One may lie across two buckets, and the
  // first after an hour writes that hour as well.
  const most = 2 * (Math.floor(took / 2000) + 1) + 2;
  assert.ok(2 <= rows && rows <= most, `${rows} rows, at most ${most} expected`);
  assert.deepEqual(await totals(gate), { key: counts(501) });
});

for (const [where, others] of [
  ["on one shard", ["x-a"]],
  ["on several shards", ["x-a", "x-b"]],
] as const) {
  test(`a policy has decided nothing where another one refused (${where})`, async (t) => {
    const name = others.at(-1);
    const both = [keyed("a", `1000/${LONG}`), { ...keyed("b", `3/${LONG}`), key: { header: name } }];
    const gate = await startGate(t, { config: { shards: 8, policies: both } });
    // Eight clients of the one policy live on several shards; the other one counts them apart or all together.
    const requests = Array.from({ length: 80 }, (_, i) => ({ "x-a": `client ${i % 8}`, "x-b": "all" }));
    const statuses = await send(gate, requests, 1);
    const passed = others.length === 1 ? 24 : 3;
    assert.equal(tally(statuses, 200), passed);
    assert.deepEqual(await totals(gate), { a: counts(passed), b: counts(passed, 80 - passed) });
  });
}

test("what is charged and given back in a race is not counted in the end", async (t) => {
  const policies = [keyed("a", `100000/${LONG}`), keyed("b", `50/${LONG}`)];
  const gate = await startGate(t, { config: { shards: 8, policies } });
  // Several clients of `b`, so that some of its quotas live on other shards than the quota of `a`.
  const race = Array.from({ length: 600 }, (_, i) => ({ "x-a": "one", "x-b": `client ${i % 4}` }));
  const passed = tally(await send(gate, race, 64), 200);
  const early = (await totals(gate)).a?.allowed ?? 0;
  t.diagnostic(`${early - passed} of ${passed} were counted although they were given back, until the next requests`);
  assert.ok(early >= passed);
  // Totals must not go down: so as many of the next ones are not counted.
  const more = tally(await send(gate, Array(200).fill({ "x-a": "one" })), 200);
  assert.equal(more, 200);
  const { a, b } = await totals(gate);
  assert.deepEqual(a, counts(passed + more));
  assert.equal(b?.denied, 600 - passed);
});

test("a request that no policy counts is in no series", async (t) => {
  const policies = [
    keyed("a", `10/${LONG}`, { match: { path: "/a/*" } }),
    keyed("must", `10/${LONG}`, { missing_key: "deny", match: { path: "/must" } }),
  ];
  const gate = await startGate(t, { config: { policies } });
  assert.equal((await gate.fetch("/elsewhere", { headers: { "x-a": "k" } })).status, 200);
  assert.equal((await gate.fetch("/a/b")).status, 200, "it has no key, and the policy skips it");
  assert.equal((await gate.fetch("/must")).status, 403, "it was refused before anything was counted");
  assert.deepEqual(await totals(gate), { a: counts(0), must: counts(0) });
  assert.deepEqual(decisions(await scrape(gate)), {});
});

function startDegraded(t: TestContext): Promise<Gate> {
  const policies = ["allow", "deny"].map((on_error) => ({
    ...keyed(on_error, `100/${LONG}`, { key: { header: "x-key" }, on_error, timeout_ms: 1000 }),
    match: { path: `/${on_error}` },
  }));
  return startGate(t, { config: { shards: 4, policies }, faulty: true });
}

test("calls that run after their time is over are degraded once each, however many come in a row", async (t) => {
  const policies = [keyed("key", `100/${LONG}`, { timeout_ms: 300 })];
  const gate = await startGate(t, { config: { shards: 1, policies }, faulty: true });
  const late = 4;
  for (let i = 0; i < late; i += 1) {
    await inject(gate, { kind: "hold" });
    assert.deepEqual(await send(gate, [{ "x-key": "k" }], 1), [200]);
    await gate.fetch("/faults", { method: "DELETE" });
    await until(async () => (await totals(gate)).key?.allowed === i + 1);
  }
  assert.deepEqual(await send(gate, [{ "x-key": "k" }, { "x-key": "k" }], 1), [200, 200]);
  // The shard counted each late one as well, and says so.
  assert.deepEqual(await totals(gate), { key: counts(late + 2, 0, late) });
});

for (const kind of ["throw", "stall"] as const) {
  test(`decisions that a shard's ${kind} prevented are counted as degraded once it works again`, async (t) => {
    const gate = await startDegraded(t);
    const failures = kind === "stall" ? 1 : 5;
    for (const [path, status] of [["/allow", 200], ["/deny", 503]] as const) {
      await inject(gate, { kind, times: failures });
      const statuses = await send(gate, Array(failures).fill({ "x-key": "k" }), 1, path);
      assert.deepEqual(statuses, Array(failures).fill(status));
    }
    assert.deepEqual(await totals(gate), { allow: counts(0), deny: counts(0) }, "no shard knows of them");
    // They ride along: first what was under way to this shard and may have arrived, then what has waited behind it.
    assert.deepEqual(await send(gate, [{ "x-key": "k" }, { "x-key": "k" }], 1, "/allow"), [200, 200]);
    assert.deepEqual(await totals(gate), { allow: counts(2, 0, failures), deny: counts(0, 0, failures) });
    assert.deepEqual(await send(gate, [{ "x-key": "k" }], 1, "/deny"), [200]);
    const found = { allow: counts(2, 0, failures), deny: counts(1, 0, failures) };
    assert.deepEqual(await totals(gate), found, "and only once");
    assert.deepEqual(decisions(await scrape(gate)), found);
  });
}

test("the decisions of a policy on Workers KV are counted, though no shard makes them", async (t) => {
  const kv = { name: "kv", limit: `3/${LONG}`, missing_key: "shared", store: "kv", best_effort: true };
  const policies = [{ ...kv, match: { path: "/kv" } }, keyed("key", `10/${LONG}`, { match: { path: "/shard" } })];
  const gate = await startGate(t, { config: { policies } });
  await send(gate, [{}], 1, "/kv");
  await until(async () => (await totals(gate)).kv?.allowed === 1); // After the response, so a moment later.
  assert.deepEqual(await send(gate, Array(5).fill({}), 1, "/kv"), [200, 200, 429, 429, 429]);
  assert.deepEqual((await totals(gate)).kv, counts(1), "the others wait for a call to a shard, or for ten seconds");
  await send(gate, [{ "x-key": "k" }], 1, "/shard");
  assert.deepEqual(await totals(gate), { key: counts(1), kv: counts(3, 3) });
});
