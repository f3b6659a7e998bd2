// Workers KV, the real local one: commands work, short lives end in time, and what KV cannot promise is refused.

import assert from "node:assert/strict";
import { test } from "node:test";

import { LONG, startGate, until } from "./support/gate.ts";

test("commands run on KV, one by one and in batches", async (t) => {
  const gate = await startGate(t);
  const run = async (path: string, body: unknown): Promise<unknown> => (await gate.service("POST", path, body)).body;
  assert.deepEqual(await run("kv", ["SET", "k", "v"]), { result: "OK" });
  assert.deepEqual(await run("kv", ["GET", "k"]), { result: "v" });
  assert.deepEqual(await run("kv/pipeline", [["INCR", "n"], ["INCRBY", "n", 4], ["GET", "n"], ["NOPE"]]), [
    { result: 1 },
    { result: 5 },
    { result: "5" },
    { error: "ERR unknown command 'NOPE', with args beginning with: " },
  ]);
  assert.deepEqual(await run("kv/multi-exec", [["HSET", "h", "a", 1], ["HGETALL", "h"], ["DEL", "k", "h"]]), [
    { result: 1 },
    { result: ["a", "1"] },
    { result: 2 },
  ]);
  assert.deepEqual(await run("kv", ["EXISTS", "k", "h", "n"]), { result: 1 });
  assert.equal(await gate.redis("GET", "n"), null, "the objects know nothing of it");
});

test("any bytes are a key, and long keys are kept apart", async (t) => {
  const gate = await startGate(t);
  const keys = ["a:b", "a%3Ab", ".", "..", "☃", "x".repeat(600), `${"x".repeat(599)}y`];
  const values = async (name: string, ...more: string[]): Promise<unknown[]> => {
    const answers = keys.map((key) => gate.service("POST", "kv", [name, key, ...more]));
    return (await Promise.all(answers)).map(({ body }) => body.result);
  };
  await Promise.all(keys.map((key, i) => gate.service("POST", "kv", ["SET", key, i])));
  assert.deepEqual(await values("GET"), keys.map((_, i) => String(i)));
});

test("a life of less than KV's sixty seconds ends in time", async (t) => {
  const gate = await startGate(t);
  const kv = async (...command: (string | number)[]): Promise<unknown> =>
    (await gate.service("POST", "kv", command)).body.result;
  await kv("SET", "k", "v", "PX", 1000);
  const left = Number(await kv("PTTL", "k"));
  assert.ok(0 < left && left <= 1000);
  assert.equal(await kv("GET", "k"), "v");
  await until(async () => (await kv("GET", "k")) === null);
  assert.equal(await kv("PTTL", "k"), -2);
  assert.equal(await kv("SET", "k", "again", "NX"), "OK");
});

test("a lock on KV is refused unless the caller asks for best effort by name", async (t) => {
  const gate = await startGate(t);
  const refused = await gate.acquire("k", { store: "kv" });
  assert.deepEqual([refused.status, refused.body.code], [400, "best-effort-required"]);
  const command = await gate.service("POST", "kv", ["TG.LOCK", "k", "token", 1000]);
  assert.deepEqual([command.status, command.body.code], [400, "best-effort-required"]);
  const mode = { store: "kv", best_effort: true };
  const waits = await gate.acquire("k", { ...mode, wait_ms: 100 });
  assert.deepEqual([waits.status, waits.body.code], [400, "invalid-argument"]);
  assert.match(waits.body.error, /^ERR wait_ms: expected 0 with store "kv"/);

  const granted = await gate.acquire("k", { ...mode, ttl_ms: 20_000 });
  assert.equal(granted.status, 200);
  assert.equal((await gate.acquire("k", mode)).status, 409);
  assert.equal((await gate.acquire("k")).status, 200, "the objects' lock is another one");
  const renewed = await gate.service("PUT", "locks/k", { ...mode, token: granted.body.token });
  assert.deepEqual([renewed.status, renewed.body.fencing], [200, granted.body.fencing]);
  const wrong = await gate.service("DELETE", "locks/k", { ...mode, token: "another" });
  assert.equal(wrong.status, 409);
  const released = await gate.service("DELETE", "locks/k", { ...mode, token: granted.body.token });
  assert.equal(released.status, 200);
  const again = await gate.acquire("k", mode);
  assert.deepEqual([again.status, again.body.fencing > granted.body.fencing], [200, true]);
});

test("a policy on KV counts one client's requests that come one by one", async (t) => {
  const gate = await startGate(t, {
    config: {
      policies: [{ name: "kv", limit: `3/${LONG}`, missing_key: "shared", store: "kv", best_effort: true }],
    },
  });
  const statuses: number[] = [];
  for (let i = 0; i < 5; i += 1) statuses.push((await gate.fetch("/")).status);
  assert.deepEqual(statuses, [200, 200, 200, 429, 429]);
});

test("a lock on KV can be looked at where it is", async (t) => {
  const gate = await startGate(t);
  await gate.acquire("k", { store: "kv", best_effort: true, ttl_ms: 60_000, owner: "me" });
  const { body } = await gate.service("GET", "locks/k?store=kv");
  assert.deepEqual([body.held, body.owner], [true, "me"]);
  assert.equal((await gate.service("GET", "locks/k")).body.held, false, "another one, in an object");
  assert.equal((await gate.service("GET", "locks/k?store=redis")).status, 400);
});
