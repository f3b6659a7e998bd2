// The questions about what was recorded: the heaviest keys, how many there are, as JSON and as CSV; what is refused.

import assert from "node:assert/strict";
import { createHmac } from "node:crypto";
import { test } from "node:test";

import { type Gate, inject, LONG, startGate, TOKEN } from "./support/gate.ts";
import { request } from "./support/http.ts";
import { ask, counts, keyed, parseCsv, send, totals } from "./support/records.ts";

/** The pseudonym of a partition key, made as its description says and not by our code. */
function pseudonym(partitionKey: string): string {
  const secret = createHmac("sha256", TOKEN).update("tollgate partition-key pseudonyms").digest();
  return createHmac("sha256", secret).update(partitionKey).digest("hex").slice(0, 16);
}

const QUOTA = 60;
/** Of 40 clients the first sends 400 requests, the second 200, the third 133: what the web's traffic looks like. */
const ZIPF = Array.from(
  { length: 40 },
  (_, rank) => [`client-${rank}@example.com`, Math.floor(400 / (rank + 1))] as const,
);

/** A policy that refuses the heaviest six of them at some point, and one that none of them is for. */
const POLICIES = [keyed("key", `${QUOTA}/${LONG}`), keyed("other", `${QUOTA}/${LONG}`)];

/** Sends all of ZIPF's requests, in turns, so that no client's come in one piece. */
async function sendZipf(gate: Gate): Promise<void> {
  const rounds = Array.from({ length: 400 }, (_, round) => ZIPF.filter(([, count]) => round < count));
  await send(gate, rounds.flat().map(([key]) => ({ "x-key": key })));
}

/** What `top` has to say of those clients, by a count that is asked for, without those that have none. */
function heaviest(name: (key: string) => string, by: (count: number) => number, limit: number): unknown[] {
  const keys = ZIPF.map(([key, count]) => {
    const allowed = Math.min(count, QUOTA);
    const shown = { policy: "key", key: name(key), count: by(count), at_most: by(count) };
    return { ...shown, ...counts(allowed, count - allowed) };
  });
  const known = keys.filter(({ count }) => count > 0);
  const order = (a: string, b: string): number => (a < b ? -1 : 1);
  return known.sort((a, b) => b.count - a.count || order(a.key, b.key)).slice(0, limit);
}

const all = (count: number): number => count;
const denied = (count: number): number => Math.max(count - QUOTA, 0);
const readable = (key: string): string => `header-x-key:${key}`;
const hidden = (key: string): string => pseudonym(readable(key));

test("the heaviest keys come in their order with their counts, under pseudonyms that hold still", async (t) => {
  for (const shards of [8, 1]) {
    const config = { shards, series: { flush_ms: 200 }, policies: [keyed("key", `${QUOTA}/${LONG}`)] };
    const gate = await startGate(t, { config });
    await sendZipf(gate);
    const { body } = await gate.service("GET", "top");
    assert.deepEqual(body.keys, heaviest(hidden, all, 10), `${shards} shards`);
    const text = JSON.stringify((await gate.service("GET", "top?limit=1000")).body);
    assert.equal(JSON.parse(text).keys.length, 40);
    assert.doesNotMatch(text, /example|client|x-key/, "neither a key nor a part of one");
    for (const rollup of ["10s", "1h", "1d"]) {
      const { body: again } = await gate.service("GET", `top?rollup=${rollup}&limit=40`);
      assert.deepEqual(again.keys, heaviest(hidden, all, 40), rollup);
    }
    const { body: refused } = await gate.service("GET", "top?outcome=denied");
    assert.deepEqual(refused.keys, heaviest(hidden, denied, 10), "only those who were refused, by how often");
    assert.equal(refused.keys.length, 6);
    const { body: three } = await gate.service("GET", "top?limit=3&policy=key");
    assert.deepEqual(three.keys, heaviest(hidden, all, 3));
  }
});

test("where the configuration says so, keys are readable, and hostile ones stay data", async (t) => {
  const gate = await startGate(t, { config: { series: { keys: "readable" }, policies: POLICIES } });
  await sendZipf(gate);
  assert.deepEqual((await gate.service("GET", "top")).body.keys, heaviest(readable, all, 10));

  // `:`, `{`, `}` and `%` part keys, so they are escaped in them.
  const hostile: [string, string][] = [
    [`<img src=x onerror="alert(1)">`, `<img src=x onerror="alert(1)">`],
    [`=HYPERLINK("http://x","y")`, `=HYPERLINK("http%3a//x","y")`],
    [`a,b;c\t"d"`, `a,b;c\t"d"`],
    [`","count":9}],"keys":[{"`, `","count"%3a9%7d],"keys"%3a[%7b"`],
    [`\\u0000\\`, `\\u0000\\`],
    [`ü☃`, `ü☃`],
  ];
  for (const [place, [value]] of hostile.entries()) {
    // On the wire as UTF-8: `fetch` sends nothing but Latin-1.
    const headers = { "x-other": Buffer.from(value).toString("latin1") };
    // The first one most often, so that they come back in this order.
    await Promise.all(hostile.slice(place).map(() => request(gate.url, { path: "/", headers })));
  }
  const { body } = await gate.service("GET", "top?policy=other");
  const shown = body.keys.map(({ key, count }: { key: string; count: number }) => [key, count]);
  assert.deepEqual(shown, hostile.map(([, key], place) => [`header-x-other:${key}`, hostile.length - place]));
  await isTheSameAsCsv(gate, "top?limit=1000", "keys");
});

/** The rows of an answer as CSV are those of its JSON. */
async function isTheSameAsCsv(gate: Gate, question: string, field: string): Promise<void> {
  const { body } = await gate.service("GET", question);
  const response = await ask(gate, question, { accept: "text/csv" });
  assert.equal(response.headers.get("content-type"), "text/csv; charset=utf-8; header=present");
  const point = (line: any, [time_ms, count]: [number, number]): any => ({ ...line, time_ms, count });
  const flat = (line: any): any => line.points?.map((one: [number, number]) => point(line, one)) ?? line;
  const rows = body[field].flatMap(flat).map(({ points: _, total: __, ...row }: Record<string, unknown>) =>
    Object.fromEntries(Object.entries(row).map(([name, value]) => [name, String(value)])),
  );
  assert.ok(rows.length > 0);
  assert.deepEqual(parseCsv(await response.text()), rows);
}

test("each answer as CSV says what it says as JSON", async (t) => {
  const gate = await startGate(t, { config: { policies: POLICIES } });
  await sendZipf(gate);
  await send(gate, Array(3).fill({ "x-other": "k" }));
  // At times of their own, `since` would move between the two questions.
  const fixed = `since=${Date.now() - 600_000}&until=${new Date().toISOString()}`;
  await isTheSameAsCsv(gate, `series?${fixed}`, "series");
  await isTheSameAsCsv(gate, `series?${fixed}&policy=other&outcome=denied&outcome=allowed`, "series");
  await isTheSameAsCsv(gate, `top?${fixed}&limit=100`, "keys");
  await isTheSameAsCsv(gate, `distinct?${fixed}`, "distinct");
});

test("2,000 different keys are told within three percent, however often they come", async (t) => {
  const gate = await startGate(t, { config: { shards: 8, policies: POLICIES } });
  const keys = Array.from({ length: 2000 }, (_, i) => ({ "x-key": `client ${i}` }));
  await send(gate, keys);
  const told = async (query = ""): Promise<[string, number][]> =>
    (await gate.service("GET", `distinct${query}`)).body.distinct.map((row: any) => [row.policy, row.keys]);
  const [[policy, found] = [], other] = await told();
  const error = ((found ?? 0) - 2000) / 2000;
  t.diagnostic(`2,000 keys were told as ${found}: ${(100 * error).toFixed(2)} %`);
  assert.equal(policy, "key");
  assert.ok(Math.abs(error) <= 0.03);
  assert.deepEqual(other, ["other", 0]);
  await send(gate, keys);
  for (const rollup of ["10s", "1h", "1d"]) {
    assert.deepEqual(await told(`?policy=key&rollup=${rollup}`), [["key", found]], rollup);
  }
});

for (const kind of ["throw", "stall"] as const) {
  test(`where one shard's answer is missing (${kind}), the others' come and say that they are not all`, async (t) => {
    const gate = await startGate(t, { config: { shards: 4, policies: POLICIES }, faulty: true });
    await sendZipf(gate);
    const whole = (await gate.service("GET", "series?outcome=allowed")).body.series[0].total;
    for (const [shard, question] of (kind === "throw" ? ["series", "top", "distinct"] : ["series"]).entries()) {
      await inject(gate, { kind, shard });
      const response = await ask(gate, question);
      assert.equal(response.status, 200);
      assert.equal(response.headers.get("tollgate-partial"), String(shard));
      const body = (await response.json()) as any;
      assert.deepEqual([body.partial, body.failed_shards], [true, [shard]], question);
      if (question === "series") assert.ok(0 < body.series[0].total && body.series[0].total < whole);
    }
    await inject(gate, { kind, shard: 3 });
    const csv = await ask(gate, "series", { accept: "text/csv" });
    assert.deepEqual([csv.status, csv.headers.get("tollgate-partial")], [200, "3"], "CSV has no other place for it");
    const again = await ask(gate, "series?outcome=allowed");
    assert.equal(again.headers.get("tollgate-partial"), null);
    assert.equal(((await again.json()) as any).series[0].total, whole);
    for (const question of kind === "throw" ? ["series", "top", "distinct"] : ["series"]) {
      await inject(gate, { kind, times: 4 });
      const { status, body } = await gate.service("GET", question);
      assert.deepEqual([status, body.code], [503, "store-unavailable"], question);
    }
  });
}

test("a question that cannot be read is refused, and the error names the parameter", async (t) => {
  const gate = await startGate(t, { config: { policies: [keyed("key", `1/${LONG}`)] } });
  for (const [question, parameter] of [
    ["series?since=yesterday", "since"],
    ["series?since=-1h&since=-2h", "since"],
    ["top?until=2026-02-30T00:00:00Z", "until"],
    ["series?until=-2h&since=-1h", "since"],
    ["series?limit=5", "limit"],
    ["series?policies=key", "policies"],
    ["top?outcome=lost", "outcome"],
    ["distinct?outcome=denied", "outcome"],
    ["series?rollup=20s", "rollup"],
    ["series?since=-3h&rollup=10s", "rollup"],
    ["top?limit=0", "limit"],
    ["top?limit=1001", "limit"],
    ["metrics?since=-1h", "since"],
  ] as const) {
    const { status, body } = await gate.service("GET", question);
    assert.deepEqual([status, body.code], [400, "invalid-argument"], question);
    assert.match(body.error, new RegExp(`^${parameter}: expected `), question);
  }
  for (const endpoint of ["series", "top", "distinct", "metrics"]) {
    const headers = { authorization: `Bearer ${TOKEN}` };
    const posted = await gate.fetch(`/_tollgate/${endpoint}`, { method: "POST", headers });
    assert.deepEqual([posted.status, posted.headers.get("allow")], [405, "GET"], endpoint);
    assert.equal((await gate.fetch(`/_tollgate/${endpoint}`)).status, 401, endpoint);
    assert.equal((await gate.service("GET", `${endpoint}/x`)).status, 404, endpoint);
  }
  assert.deepEqual(await totals(gate, "?policy=nobody"), { nobody: counts(0) }, "it may have had that name once");
  assert.deepEqual((await gate.service("GET", "top?policy=nobody")).body.keys, []);
});

test("without a token, or where recording is off, nothing is recorded and nothing is told", async (t) => {
  const config = { shards: 1, policies: [keyed("key", `2/${LONG}`)] };
  for (const options of [{ config, token: null }, { config: { ...config, series: { off: true } } }]) {
    const gate = await startGate(t, { ...options, faulty: true });
    const statuses = await send(gate, Array(4).fill({ "x-key": "k" }), 1);
    assert.deepEqual(statuses, [200, 200, 429, 429], "the gate does its work");
    for (const endpoint of ["series", "top", "distinct", "metrics"]) {
      assert.equal((await gate.service("GET", endpoint)).status, 404, endpoint);
    }
    // What the object itself says, past the endpoints.
    const body = "*1\r\n*1\r\n$9\r\nTG.TOTALS\r\n";
    const told = await gate.fetch("/object?shard=0&path=/exec/relaxed", { method: "POST", body });
    assert.match(await told.text(), /ERR nothing is recorded here/);
  }
});
