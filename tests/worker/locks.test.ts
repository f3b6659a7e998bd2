// Locks over HTTP: one holder at a time, in the order of arrival, and nobody waits for the dead.

import assert from "node:assert/strict";
import { type ClientRequest, request as send } from "node:http";
import { test } from "node:test";

import { type Answer, type Gate, startGate, TOKEN, until } from "./support/gate.ts";
import { hangUp } from "./support/http.ts";

/** Acquires again and again, and logs when the lock is held. Every entry is pushed while its event is true. */
async function contend(gate: Gate, rounds: number, body: Record<string, unknown>, log: string[]): Promise<void> {
  for (let round = 0; round < rounds; ) {
    const { status, body: grant } = await gate.acquire("mutex", body);
    if (status === 409) continue;
    assert.equal(status, 200);
    log.push(`in ${grant.fencing}`);
    await new Promise(setImmediate);
    log.push(`out ${grant.fencing}`);
    assert.equal((await gate.release("mutex", grant.token)).status, 200);
    round += 1;
  }
}

for (const [how, body] of [
  ["waits for its turn", { wait_ms: 60_000 }],
  ["tries until it succeeds", {}],
] as const) {
  test(`of ten clients no two ever hold one lock when each ${how}`, async (t) => {
    const gate = await startGate(t);
    const log: string[] = [];
    await Promise.all(Array.from({ length: 10 }, () => contend(gate, 10, body, log)));
    const expected = Array.from({ length: 100 }, (_, i) => [`in ${i + 1}`, `out ${i + 1}`]).flat();
    assert.deepEqual(log, expected, "one after the other, by growing fencing numbers");
  });
}

test("waiters are served in the order of arrival", async (t) => {
  const gate = await startGate(t);
  let { body: holder } = await gate.acquire("k", { ttl_ms: 60_000 });
  const waiters: Promise<Answer>[] = [];
  for (let i = 0; i < 5; i += 1) {
    waiters.push(gate.acquire("k", { wait_ms: 60_000, ttl_ms: 60_000, owner: `waiter ${i}` }));
    await gate.untilWaiters("k", i + 1);
  }
  for (const [i, waiter] of waiters.entries()) {
    await gate.release("k", holder.token);
    const answer = await waiter;
    assert.deepEqual([answer.status, answer.body.fencing], [200, i + 2]);
    holder = answer.body;
    const { body: shown } = await gate.service("GET", "locks/k");
    assert.deepEqual([shown.owner, shown.waiters], [`waiter ${i}`, 4 - i]);
    assert.ok(shown.expires_in_ms > 2000, "it has its whole life, not only the moment to confirm");
  }
});

test("a lock that is held is 409 at once, and 408 after a wait", async (t) => {
  const gate = await startGate(t);
  await gate.acquire("k", { ttl_ms: 60_000 });
  const refused = await gate.acquire("k");
  assert.deepEqual([refused.status, refused.body.code], [409, "locked"]);
  const waited = await gate.acquire("k", { wait_ms: 50 });
  assert.deepEqual([waited.status, waited.body.code], [408, "wait-timeout"]);
  assert.equal((await gate.service("GET", "locks/k")).body.waiters, 0);
});

test("only the token renews and releases, and nobody is shown it", async (t) => {
  const gate = await startGate(t);
  const { body: lock } = await gate.acquire("k", { ttl_ms: 20_000, owner: "me" });
  assert.match(lock.token, /^[0-9a-f]{32}$/);
  for (const method of ["PUT", "DELETE"]) {
    const refused = await gate.service(method, "locks/k", { token: "another" });
    assert.deepEqual([refused.status, refused.body.code], [409, "lock-lost"], method);
  }
  const { body: shown } = await gate.service("GET", "locks/k");
  const { expires_in_ms, expires_at_ms, ...rest } = shown;
  assert.deepEqual(rest, { held: true, owner: "me", fencing: lock.fencing, waiters: 0 });
  assert.ok(expires_in_ms > 0 && expires_in_ms <= 20_000 && expires_at_ms > 0);
  assert.ok(!JSON.stringify(shown).includes(lock.token));

  const renewed = await gate.service("PUT", "locks/k", { token: lock.token, ttl_ms: 50_000 });
  assert.deepEqual([renewed.status, renewed.body.fencing], [200, lock.fencing]);
  assert.ok(renewed.body.expires_at_ms > lock.expires_at_ms);
  const headers = { "tollgate-lock-token": lock.token };
  const released = await gate.service("DELETE", "locks/k", undefined, { headers });
  assert.deepEqual(released, { status: 200, body: { released: true } });
  const again = await gate.release("k", lock.token);
  assert.deepEqual([again.status, again.body.code], [409, "lock-lost"]);
  assert.deepEqual(await gate.service("GET", "locks/k"), { status: 200, body: { held: false } });
});

test("any bytes are a lock's name, and other names are other locks", async (t) => {
  const gate = await startGate(t);
  const names = ["a", "A", "a%2Fb", "%E2%98%83", "%00", "%FF", "a:b", "a%20b", "{tag}x", "x/y"];
  for (const name of names) assert.equal((await gate.acquire(name)).status, 200, name);
  for (const name of [...names, "%61", "a/b"]) assert.equal((await gate.acquire(name)).status, 409, name);
});

/** Asks for the lock on a connection of its own. */
function ask(gate: Gate, key: string, body: Record<string, unknown>): ClientRequest {
  const headers = { authorization: `Bearer ${TOKEN}` };
  const sent = send(new URL(`/_tollgate/locks/${key}`, gate.url), { agent: false, method: "POST", headers });
  sent.end(JSON.stringify(body));
  return sent;
}

test("clients that hang up at any moment stop nobody who stays", async (t) => {
  const gate = await startGate(t);
  // A grant whose answer crosses the hang-up on the wire is nobody's until its life ends, so let it be short.
  const forShort = { ttl_ms: 500, wait_ms: 60_000 };
  let served = 0;
  const stays = async (): Promise<void> => {
    const { status, body } = await gate.acquire("k", forShort);
    assert.equal(status, 200);
    served += 1;
    await gate.release("k", body.token);
  };
  // It goes shortly before its turn, at a moment that the machine decides.
  const goes = async (index: number): Promise<void> => {
    const sent = ask(gate, "k", forShort);
    await new Promise((resolve) => sent.once("finish", resolve));
    while (served < index / 2 - 2) await new Promise(setImmediate);
    hangUp(sent);
  };
  await Promise.all(Array.from({ length: 40 }, (_, i) => (i % 2 === 0 ? stays() : goes(i))));
  assert.equal(served, 20);
  await until(async () => (await gate.service("GET", "locks/k")).body.held === false);
});

test("a client that hangs up while it waits leaves the queue to the next", async (t) => {
  const gate = await startGate(t);
  const { body: holder } = await gate.acquire("k", { ttl_ms: 60_000 });
  const goes = ask(gate, "k", { wait_ms: 60_000, ttl_ms: 60_000 });
  await gate.untilWaiters("k", 1);
  const stays = gate.acquire("k", { wait_ms: 60_000 });
  await gate.untilWaiters("k", 2);
  hangUp(goes);
  await gate.untilWaiters("k", 1);
  await gate.release("k", holder.token);
  const { status, body } = await stays;
  assert.deepEqual([status, body.fencing], [200, holder.fencing + 1], "the one that left was granted nothing");
});

test("the end of a lock's life wakes the next waiter", async (t) => {
  const gate = await startGate(t);
  const { body: holder } = await gate.acquire("k", { ttl_ms: 300 });
  const { status, body } = await gate.acquire("k", { wait_ms: 60_000 });
  assert.deepEqual([status, body.fencing], [200, holder.fencing + 1]);
  const late = await gate.release("k", holder.token);
  assert.deepEqual([late.status, late.body.code], [409, "lock-lost"], "the first holder cannot release it");
});

test("fencing numbers grow across release, expiry, eviction and a crash", async (t) => {
  const gate = await startGate(t, { config: { shards: 1 } });
  const numbers: number[] = [];
  const grant = async (ttl_ms: number): Promise<string> => {
    const { status, body } = await gate.acquire("k", { ttl_ms, wait_ms: 60_000 });
    assert.equal(status, 200);
    numbers.push(body.fencing);
    return body.token;
  };
  await gate.release("k", await grant(60_000));
  await grant(1);
  await gate.release("k", await grant(60_000));
  await gate.evict(0);
  await gate.release("k", await grant(60_000));
  await gate.crash();
  await grant(60_000);
  assert.deepEqual(numbers, [1, 2, 3, 4, 5]);
});
