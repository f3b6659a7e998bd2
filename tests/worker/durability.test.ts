// What was acknowledged is there after a crash of the runtime, and after an object lost its memory.

import assert from "node:assert/strict";
import { test } from "node:test";

import { type Gate, LONG, startGate } from "./support/gate.ts";

/** How an object's memory goes. */
const LOSSES: [string, (gate: Gate) => Promise<void>][] = [
  ["a SIGKILL", (gate) => gate.crash()],
  ["an eviction", (gate) => gate.evict(0)],
];

const FLUSH_MS = 50;

const policy = (durability: string): Record<string, unknown> => ({
  name: durability,
  limit: `1000/${LONG}`,
  missing_key: "shared",
  match: { path: `/${durability}` },
  durability,
});

const start = (t: Parameters<typeof startGate>[0], shards: number): Promise<Gate> =>
  startGate(t, { config: { shards, flush_ms: FLUSH_MS, policies: [policy("strict"), policy("relaxed")] } });

/** How much of a policy's quota is spent, this request left out. */
async function spent(gate: Gate, path: string): Promise<number> {
  const response = await gate.fetch(path);
  assert.equal(response.headers.get("tollgate-degraded"), null);
  return 999 - Number(/r=(\d+)/.exec(response.headers.get("ratelimit") ?? "")?.[1]);
}

test("a SIGKILL in the middle of a storm loses no acknowledged increment and invents none", async (t) => {
  const gate = await start(t, 4);
  const sent = { total: 0, byKey: new Map<string, number>() };
  const acknowledged = { total: 0, byKey: new Map<string, number>() };
  const count = ({ byKey }: typeof sent, key: string): number => byKey.get(key) ?? 0;
  const add = (tally: typeof sent, key: string): void => {
    tally.total += 1;
    tally.byKey.set(key, count(tally, key) + 1);
  };
  let isOver = false;
  const client = async (index: number): Promise<void> => {
    for (let i = index; !isOver; i += 1) {
      const key = `counter ${i % 7}`;
      add(sent, key);
      try {
        await gate.redis("INCR", key);
      } catch {
        continue; // Nobody knows whether that one counted.
      }
      add(acknowledged, key);
    }
  };
  const gateClient = async (): Promise<void> => {
    while (!isOver) {
      add(sent, "gate");
      const response = await gate.fetch("/strict").catch(() => undefined);
      if (response?.ok === true && !response.headers.has("tollgate-degraded")) add(acknowledged, "gate");
      if (response === undefined) await new Promise(setImmediate);
    }
  };
  const clients = [...Array.from({ length: 10 }, (_, i) => client(i)), gateClient()];
  while (acknowledged.total < 300) await new Promise(setImmediate);
  const crash = gate.crash();
  isOver = true;
  await crash;
  await Promise.all(clients);
  const check = (key: string, value: number): void => {
    const [least, most] = [count(acknowledged, key), count(sent, key)];
    assert.ok(least <= value && value <= most, `${key}: ${least} acknowledged, ${value} found, ${most} sent`);
  };
  for (let i = 0; i < 7; i += 1) check(`counter ${i}`, Number(await gate.redis("GET", `counter ${i}`)));
  check("gate", await spent(gate, "/strict"));
});

for (const [loss, lose] of LOSSES) {
  test(`a lock, its number and a strict counter survive ${loss}`, async (t) => {
    const gate = await start(t, 1);
    for (let i = 0; i < 3; i += 1) await gate.fetch("/strict");
    const { body: held } = await gate.acquire("held", { ttl_ms: 60_000, owner: "me" });
    const { body: over } = await gate.acquire("over", { ttl_ms: 60_000 });
    await gate.release("over", over.token);
    await gate.redis("SET", "k", "v", "PX", 60_000);
    await gate.redis("HSET", "h", "f", "v");
    const ttl = Number(await gate.redis("PTTL", "k"));
    await lose(gate);
    const { body: shown } = await gate.service("GET", "locks/held");
    assert.deepEqual([shown.owner, shown.fencing], ["me", held.fencing]);
    assert.equal((await gate.acquire("held")).status, 409, "still held");
    assert.deepEqual((await gate.release("held", held.token)).status, 200);
    assert.equal((await gate.acquire("over")).body.fencing, over.fencing + 1);
    assert.equal(await gate.redis("GET", "k"), "v");
    const left = Number(await gate.redis("PTTL", "k"));
    assert.ok(0 < left && left <= ttl);
    assert.deepEqual(await gate.redis("HGETALL", "h"), ["f", "v"]);
    assert.equal(await spent(gate, "/strict"), 3);
  });

  test(`a relaxed counter loses no more than its last moments to ${loss}`, async (t) => {
    const gate = await start(t, 1);
    for (let i = 0; i < 20; i += 1) await gate.fetch("/relaxed");
    // The promise is about time: flush_ms after a hit it is on the disk.
    await new Promise((resolve) => setTimeout(resolve, 10 * FLUSH_MS));
    for (let i = 0; i < 5; i += 1) await gate.fetch("/relaxed");
    await lose(gate);
    const found = await spent(gate, "/relaxed");
    assert.ok(20 <= found && found <= 25, `found ${found}`);
  });
}
