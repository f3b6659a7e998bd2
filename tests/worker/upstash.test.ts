// The unmodified @upstash/redis against the running gate.

import assert from "node:assert/strict";
import { before, test, type TestContext } from "node:test";

import { Redis, type RedisConfigNodejs } from "@upstash/redis";

import { startGate, TOKEN, until } from "./support/gate.ts";

async function connect(t: TestContext, options: Partial<RedisConfigNodejs> = {}): Promise<Redis> {
  const { url } = await startGate(t);
  const endpoint = { url: new URL("/_tollgate/redis", url).href, token: TOKEN };
  return new Redis({ ...endpoint, retry: false, enableAutoPipelining: false, ...options });
}

before(() => {
  process.env["UPSTASH_DISABLE_TELEMETRY"] = "1";
});

test("strings and counters", async (t) => {
  const redis = await connect(t);
  assert.equal(await redis.ping(), "PONG");
  assert.equal(await redis.ping(["hello"]), "hello");
  assert.equal(await redis.set("k", "v"), "OK");
  assert.equal(await redis.get("k"), "v");
  assert.equal(await redis.get("missing"), null);
  assert.equal(await redis.set("k", "w", { nx: true }), null);
  assert.equal(await redis.set("k", "w", { xx: true, get: true }), "v");
  assert.equal(await redis.setnx("k", "x"), 0);
  assert.equal(await redis.setnx("new", "x"), 1);
  assert.equal(await redis.del("k"), 1);
  assert.equal(await redis.unlink("new"), 1);
  assert.equal(await redis.incr("n"), 1);
  assert.equal(await redis.incrby("n", 41), 42);
  assert.equal(await redis.decr("n"), 41);
  assert.equal(await redis.decrby("n", 40), 1);
  assert.equal(await redis.get("n"), 1);
  assert.equal(await redis.exists("{t}a", "{t}b"), 0, "a hash tag keeps keys together");
});

test("times to live", async (t) => {
  const redis = await connect(t);
  const later = Math.floor(Date.now() / 1000) + 1000;
  assert.equal(await redis.ttl("k"), -2);
  await redis.set("k", "v");
  assert.equal(await redis.ttl("k"), -1);
  assert.equal(await redis.expire("k", 100), 1);
  assert.equal(await redis.ttl("k"), 100);
  assert.equal(await redis.expire("k", 50, "GT"), 0);
  assert.equal(await redis.pexpire("k", 5000), 1);
  assert.ok((await redis.pttl("k")) <= 5000);
  assert.equal(await redis.expireat("k", later), 1);
  assert.equal(await redis.pexpireat("k", later * 1000), 1);
  assert.ok((await redis.ttl("k")) > 900);
  assert.equal(await redis.set("k", "w", { keepTtl: true }), "OK");
  assert.ok((await redis.ttl("k")) > 900);
  assert.equal(await redis.persist("k"), 1);
  assert.equal(await redis.ttl("k"), -1);
  for (const option of [{ ex: 100 }, { px: 100_000 }, { exat: later }, { pxat: later * 1000 }] as const) {
    assert.equal(await redis.set("k", "v", option), "OK");
    assert.ok((await redis.pttl("k")) > 90_000, JSON.stringify(option));
  }
  await redis.set("short", "v", { px: 50 });
  await until(async () => (await redis.get("short")) === null);
});

test("hashes", async (t) => {
  const redis = await connect(t);
  assert.equal(await redis.hset("h", { name: "Ada", age: 36, tags: ["a", "b"] }), 3);
  assert.equal(await redis.hget("h", "name"), "Ada");
  assert.equal(await redis.hget("h", "missing"), null);
  assert.equal(await redis.hincrby("h", "age", 1), 37);
  assert.deepEqual(await redis.hmget("h", "name", "missing"), { name: "Ada", missing: null });
  assert.deepEqual(await redis.hgetall("h"), { name: "Ada", age: 37, tags: ["a", "b"] });
  assert.equal(await redis.hgetall("missing"), null);
  assert.equal(await redis.hdel("h", "name", "missing"), 1);
});

test("values come back as they were set: objects, numbers, Unicode and empty text", async (t) => {
  const redis = await connect(t);
  const values = [{ a: [1, { b: null }] }, [1, "2"], 5, -1.5, true, "", "☃ 😀 \u0000 \n\t\"", "007", "x".repeat(100_000)];
  for (const value of values) {
    await redis.set("k", value);
    assert.deepEqual(await redis.get("k"), value);
  }
  await redis.set("😀 key", "v");
  assert.equal(await redis.get("😀 key"), "v");
});

test("text stays text without deserialisation, and without base64", async (t) => {
  const redis = await connect(t, { automaticDeserialization: false, responseEncoding: false });
  await redis.set("k", "{\"a\": 1} 😀");
  assert.equal(await redis.get("k"), "{\"a\": 1} 😀");
  await redis.set("n", "5");
  assert.equal(await redis.get("n"), "5");
});

test("a pipeline runs on all shards and keeps the order", async (t) => {
  const redis = await connect(t);
  const pipeline = redis.pipeline();
  for (let i = 0; i < 50; i += 1) pipeline.set(`key ${i}`, { i }).get(`key ${i}`);
  const expected = Array.from({ length: 50 }, (_, i) => ["OK", { i }]).flat();
  assert.deepEqual(await pipeline.exec(), expected);
});

test("a pipeline tells which command failed, and the others ran", async (t) => {
  const redis = await connect(t);
  const failing = (): ReturnType<Redis["pipeline"]> => redis.pipeline().set("k", "text").incr("k").incr("n");
  await assert.rejects(failing().exec(), /Command 2 \[ incr \] failed: ERR value is not an integer or out of range/);
  assert.equal(await redis.get("n"), 1);
  const answers = (await failing().exec({ keepErrors: true })) as { result?: unknown; error?: string }[];
  assert.deepEqual(
    answers.map(({ result, error }) => error ?? result),
    ["OK", "ERR value is not an integer or out of range", 2],
  );
});

test("commands at the same time become a pipeline by themselves", async (t) => {
  const redis = await connect(t, { enableAutoPipelining: true });
  const counts = await Promise.all(Array.from({ length: 20 }, () => redis.incr("n")));
  assert.deepEqual(counts, Array.from({ length: 20 }, (_, i) => i + 1));
});

test("a transaction runs as a whole where its keys share a hash tag", async (t) => {
  const redis = await connect(t);
  const both = redis.multi().set("{u}a", 1).incr("{u}a").hset("{u}h", { f: "v" }).hgetall("{u}h");
  assert.deepEqual(await both.exec(), ["OK", 2, 1, { f: "v" }]);
  await assert.rejects(redis.multi().set("a", 1).set("b", 1).exec(), /CROSSSLOT Keys in request don't hash/);
  assert.equal(await redis.get("a"), null, "nothing of it ran");

  const transactions = Array.from({ length: 20 }, () => redis.multi().incr("{u}x").incr("{u}y").exec<[number, number]>());
  const results = (await Promise.all(transactions)).sort(([a], [b]) => a - b);
  assert.deepEqual(results, Array.from({ length: 20 }, (_, i) => [i + 1, i + 1]), "nothing came in between");
});

test("errors are Redis's own words", async (t) => {
  const redis = await connect(t);
  await redis.hset("h", { f: 1 });
  for (const [run, message] of [
    [() => redis.get("h"), /^WRONGTYPE Operation against a key holding the wrong kind of value/],
    [() => redis.lpush("l", 1), /^ERR unknown command 'lpush', with args beginning with: 'l' '1' /],
    [() => redis.set("k", "v", { ex: -1 }), /^ERR invalid expire time in 'set' command/],
    [() => redis.incrby("k", 1.5), /^ERR value is not an integer or out of range/],
    [() => redis.del("a", "b"), /^CROSSSLOT Keys in request don't hash to the same slot/],
    [() => redis.exec(["GET"]), /^ERR wrong number of arguments for 'get' command/],
  ] as [() => Promise<unknown>, RegExp][]) {
    await assert.rejects(run, { name: "UpstashError", message });
  }
});

test("a wrong token is refused", async (t) => {
  const redis = await connect(t, { token: "wrong" });
  await assert.rejects(redis.get("k"), { name: "UpstashError", message: /^WRONGPASS/ });
});
