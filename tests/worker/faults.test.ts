// Objects that trap, throw or stall: a client has its answer in time, and the next request works.

import assert from "node:assert/strict";
import { test } from "node:test";

import { type Gate, inject, LONG, startGate, until } from "./support/gate.ts";

const TIMEOUT_MS = 1000;

const config = {
  shards: 4,
  policies: ["allow", "deny"].map((on_error) => ({
    name: on_error,
    limit: `5/${LONG}`,
    missing_key: "shared",
    match: { path: `/${on_error}` },
    durability: "strict",
    timeout_ms: TIMEOUT_MS,
    on_error,
  })),
};

const start = (t: Parameters<typeof startGate>[0]): Promise<Gate> => startGate(t, { config, faulty: true });

/** What is left of a policy's quota, as the gate says with the next request. */
async function left(gate: Gate, path: string): Promise<number> {
  const response = await gate.fetch(path);
  assert.equal(response.status, 200);
  assert.equal(response.headers.get("tollgate-degraded"), null);
  return Number(/r=(\d+)/.exec(response.headers.get("ratelimit") ?? "")?.[1]);
}

/** Two keys that live on different shards. */
const [HERE, THERE] = ["{a}", "{b}"];

for (const kind of ["trap", "trap-after", "throw", "stall"] as const) {
  // The work was done before the second kind of trap, and nobody heard of it.
  const spent = kind === "trap-after" ? 1 : 0;

  test(`an object's ${kind} lets a request pass that its policy allows, and says so`, async (t) => {
    const gate = await start(t);
    assert.equal(await left(gate, "/allow"), 4);
    await inject(gate, { kind });
    const response = await gate.fetch("/allow");
    assert.equal(response.status, 200);
    assert.equal(response.headers.get("tollgate-degraded"), "allow");
    assert.equal(response.headers.get("ratelimit"), null);
    assert.equal(await left(gate, "/allow"), 3 - spent, "the next request works, and the counter is still there");
  });

  test(`an object's ${kind} refuses a request that its policy denies, as 503 and not as 429`, async (t) => {
    const gate = await start(t);
    assert.equal(await left(gate, "/deny"), 4);
    await inject(gate, { kind });
    const response = await gate.fetch("/deny");
    assert.equal(response.status, 503);
    assert.equal(response.headers.get("tollgate-degraded"), "deny");
    assert.equal(response.headers.get("retry-after"), "1");
    assert.equal(response.headers.get("content-type"), "application/problem+json");
    const { type } = (await response.json()) as { type: string };
    assert.equal(type, "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity");
    assert.equal(await left(gate, "/deny"), 3 - spent);
  });

  test(`an object's ${kind} is a 503 with a code to the service, and loses no counter and no lock`, async (t) => {
    const gate = await start(t);
    const counter = `${HERE}counter`;
    await gate.redis("SET", counter, 7);
    const { body: lock } = await gate.acquire(`${HERE}lock`, { ttl_ms: 60_000 });
    for (const [method, path, body] of [
      ["POST", "redis", ["INCR", counter]],
      ["POST", "redis/pipeline", [["INCR", counter]]],
      ["POST", "redis/multi-exec", [["INCR", counter]]],
      ["POST", `locks/${HERE}other`, { ttl_ms: 60_000 }],
      ["GET", `locks/${HERE}lock`, undefined],
    ] as const) {
      if (kind === "stall" && path !== "redis") continue; // It takes the service's 5 s each time.
      await inject(gate, { kind });
      const { status, body: answer } = await gate.service(method, path, body);
      assert.deepEqual([status, answer.code], [503, "store-unavailable"], path);
    }
    assert.equal(await gate.redis("GET", counter), String(7 + 3 * spent));
    assert.equal((await gate.acquire(`${HERE}lock`)).status, 409);
    await until(async () => (await gate.service("GET", `locks/${HERE}other`)).body.held === false);
    assert.deepEqual(await gate.release(`${HERE}lock`, lock.token), { status: 200, body: { released: true } });
  });
}

test("a trap in one object breaks neither another object nor a request in flight", async (t) => {
  const gate = await start(t);
  await gate.redis("SET", `${HERE}n`, 1);
  await gate.redis("SET", `${THERE}n`, 1);
  const clear = (): Promise<Response> => gate.fetch("/faults", { method: "DELETE" });
  const shardOf = async (key: string): Promise<number> => {
    for (let shard = 0; shard < config.shards; shard += 1) {
      await clear();
      await inject(gate, { kind: "throw", shard });
      if ((await gate.service("POST", "redis", ["GET", key])).status === 503) return shard;
    }
    throw new Error(`no shard has ${key}`);
  };
  const [here, there] = [await shardOf(HERE), await shardOf(THERE)];
  assert.notEqual(here, there);
  await clear();

  // The request waits in the other object while this one traps and the isolate's only instance is replaced.
  await inject(gate, { kind: "hold", shard: there });
  const inFlight = gate.service("POST", "redis", ["INCR", `${THERE}n`]);
  await until(async () => !/"times":1/.test(await (await gate.fetch("/faults")).text()));
  await inject(gate, { kind: "trap", shard: here });
  const trapped = await gate.service("POST", "redis", ["INCR", `${HERE}n`]);
  assert.deepEqual([trapped.status, trapped.body.code], [503, "store-unavailable"]);
  await clear();
  assert.deepEqual(await inFlight, { status: 200, body: { result: 2 } });
  assert.equal(await gate.redis("INCR", `${HERE}n`), 2);
  assert.equal(await gate.redis("INCR", `${THERE}n`), 3);
});

test("requests under way while an instance is replaced time and again are all answered", async (t) => {
  const gate = await start(t);
  await inject(gate, { kind: "trap", times: 20 });
  const keys = Array.from({ length: 200 }, (_, i) => `key ${i}`);
  const answers = await Promise.all(keys.map((key) => gate.service("POST", "redis", ["INCR", key])));
  const statuses = answers.map(({ status }) => status);
  assert.equal(statuses.filter((status) => status === 503).length, 20, "those that trapped");
  assert.equal(statuses.filter((status) => status === 200).length, 180, "and nobody else");
  for (const [i, key] of keys.entries()) {
    assert.equal(await gate.redis("GET", key), statuses[i] === 200 ? "1" : null);
  }
});

test("those who wait for a lock are told when a trap took the queue, and may ask again", async (t) => {
  const gate = await start(t);
  const { body: holder } = await gate.acquire(HERE, { ttl_ms: 60_000 });
  const waiter = gate.acquire(HERE, { wait_ms: 60_000 });
  await gate.untilWaiters(HERE, 1);
  await inject(gate, { kind: "trap" });
  assert.equal((await gate.service("POST", "redis", ["GET", HERE])).status, 503);
  assert.equal((await gate.service("GET", `locks/${HERE}`)).body.waiters, 0);
  const told = await waiter;
  assert.deepEqual([told.status, told.body.code], [503, "store-unavailable"]);
  const again = gate.acquire(HERE, { wait_ms: 60_000 });
  await gate.untilWaiters(HERE, 1);
  await gate.release(HERE, holder.token);
  assert.deepEqual([(await again).status, (await again).body.fencing], [200, holder.fencing + 1]);
});

test("a waiter whose Worker died costs those behind it two seconds, not its whole time to live", async (t) => {
  const gate = await startGate(t, { config: { shards: 1 }, faulty: true });
  const { body: holder } = await gate.acquire("k", { ttl_ms: 60_000 });
  const resp = (...words: string[]): string =>
    `*${words.length}\r\n${words.map((word) => `$${word.length}\r\n${word}\r\n`).join("")}`;
  // As `POST` asks with `"ttl_ms": 60000`: at its turn it is granted 2 s to confirm, and the Worker does not.
  const tries = [
    resp("TG.LOCK", "k", "dead", "60000", "WAIT", "60000", "POLL", "60000"),
    resp("TG.LOCK", "k", "dead", "2000"),
  ];
  await gate.fetch("/orphan", { method: "POST", body: `*2\r\n${tries.join("")}` });
  await gate.untilWaiters("k", 1);
  const next = gate.acquire("k", { wait_ms: 60_000 });
  await gate.untilWaiters("k", 2);
  await gate.release("k", holder.token);
  const { body: shown } = await gate.service("GET", "locks/k");
  assert.deepEqual([shown.fencing, shown.waiters], [holder.fencing + 1, 1], "the dead one has it");
  assert.ok(shown.expires_in_ms <= 2000);
  assert.deepEqual([(await next).status, (await next).body.fencing], [200, holder.fencing + 2]);
});
