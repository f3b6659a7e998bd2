// Bad input to the lock endpoint: a clear error that names the field, and nothing changed.

import assert from "node:assert/strict";
import { test } from "node:test";

import { type Gate, startGate } from "./support/gate.ts";

const TTL = /^ERR ttl_ms: expected 1 to 86400000, got /;
const INTEGER = /^ERR ttl_ms: expected u64|^ERR ttl_ms: .*expected u64/;

/** Bodies that no method takes, and the error. */
const BAD: [string, RegExp][] = [
  ['{"ttl_ms":0}', TTL],
  ['{"ttl_ms":86400001}', TTL],
  ['{"ttl_ms":9007199254740993}', TTL],
  ['{"ttl_ms":-1}', INTEGER],
  ['{"ttl_ms":1.5}', INTEGER],
  ['{"ttl_ms":1e3}', INTEGER],
  ['{"ttl_ms":"10"}', INTEGER],
  ['{"ttl_ms":null}', INTEGER],
  ['{"ttl_ms":true}', INTEGER],
  ['{"ttl_ms":[10]}', INTEGER],
  ['{"ttl_ms":99999999999999999999}', INTEGER],
  ['{"ttl_ms":1e999}', /^ERR /],
  ['{"ttl_ms":NaN}', /^ERR /],
  ['{"ttl_ms":Infinity}', /^ERR /],
  ['{"ttl_ms":5,"ttl_ms":5}', /^ERR .*duplicate field `ttl_ms`/],
  ['{"ttl":5}', /^ERR ttl: expected .*unknown field `ttl`|^ERR ttl: .*unknown field `ttl`/],
  ['{"store":"redis"}', /^ERR store: .*unknown variant `redis`/],
  ['{"store":1}', /^ERR store: /],
  ['{"best_effort":"yes"}', /^ERR best_effort: /],
  ["{", /^ERR /],
  ["[]", /^ERR \.: expected a JSON object$/],
  ["[5000]", /^ERR \.: expected a JSON object$/],
  ["null", /^ERR \.: expected a JSON object$/],
  ["5", /^ERR \.: expected a JSON object$/],
  ['"x"', /^ERR \.: expected a JSON object$/],
  ["{} {}", /^ERR \.: expected nothing after the JSON object$/],
];

/** More that `POST` does not take. */
const BAD_ACQUIRE: [string, RegExp][] = [
  ['{"wait_ms":-1}', /^ERR wait_ms: /],
  ['{"wait_ms":0.5}', /^ERR wait_ms: /],
  ['{"wait_ms":300001}', /^ERR wait_ms: expected 0 to 300000, got 300001$/],
  ['{"owner":5}', /^ERR owner: /],
  [JSON.stringify({ owner: "x".repeat(257) }), /^ERR owner: expected at most 256 bytes, got 257$/],
  ['{"token":"t"}', /unknown field `token`/],
];

/** More that `PUT` and `DELETE` do not take. */
const BAD_TOKEN: [string, RegExp][] = [
  ["", /^ERR token: expected the lock's token, 1 to 256 bytes$/],
  ["{}", /^ERR token: expected the lock's token/],
  ['{"token":""}', /^ERR token: expected the lock's token/],
  ['{"token":5}', /^ERR token: /],
  [JSON.stringify({ token: "x".repeat(257) }), /^ERR token: expected the lock's token/],
  ['{"wait_ms":5}', /unknown field `wait_ms`/],
];

async function refuses(gate: Gate, method: string, name: string, cases: [string, RegExp][]): Promise<void> {
  for (const [body, error] of cases) {
    const { status, body: answer } = await gate.service(method, `locks/${name}`, body);
    assert.deepEqual([status, answer.code], [400, "invalid-argument"], `${method} ${body.slice(0, 80)}`);
    assert.match(answer.error, error, `${method} ${body.slice(0, 80)}`);
  }
}

test("a bad body acquires nothing", async (t) => {
  const gate = await startGate(t);
  await refuses(gate, "POST", "free", [...BAD, ...BAD_ACQUIRE]);
  assert.deepEqual((await gate.service("GET", "locks/free")).body, { held: false });
  const { status, body } = await gate.acquire("free");
  assert.deepEqual([status, body.fencing], [200, 1], "no number was spent");
});

test("a bad body renews and releases nothing", async (t) => {
  const gate = await startGate(t);
  const { body: lock } = await gate.acquire("held", { ttl_ms: 60_000 });
  const withToken = (body: string): string =>
    body.startsWith('{"') ? body.replace("{", `{"token":"${lock.token}",`) : body;
  for (const method of ["PUT", "DELETE"]) {
    const bad = BAD.map(([body, error]): [string, RegExp] => [withToken(body), error]);
    await refuses(gate, method, "held", [...bad, ...BAD_TOKEN]);
  }
  const { body: shown } = await gate.service("GET", "locks/held");
  assert.deepEqual([shown.held, shown.fencing, shown.waiters], [true, lock.fencing, 0]);
  assert.equal((await gate.release("held", lock.token)).status, 200);
});

test("a lock needs a name, and one of at most 1024 bytes", async (t) => {
  const gate = await startGate(t);
  for (const [method, body] of [["POST", {}], ["GET", undefined], ["DELETE", { token: "t" }]] as const) {
    const { status, body: answer } = await gate.service(method, "locks/", body);
    assert.equal(status, 400);
    assert.equal(answer.error, "ERR key: expected the name of a lock after /_tollgate/locks/");
  }
  assert.equal((await gate.acquire("x".repeat(1024))).status, 200);
  for (const wait_ms of [0, 100]) {
    const { status, body } = await gate.acquire("x".repeat(1025), { wait_ms });
    assert.equal(status, 400);
    assert.match(body.error, /^ERR key of 1025 bytes, at most 1024 are taken$/);
  }
});

test("an empty body takes the defaults", async (t) => {
  const gate = await startGate(t);
  const before = Date.now();
  const { status, body } = await gate.service("POST", "locks/k", "");
  assert.equal(status, 200);
  assert.ok(body.expires_at_ms >= before + 10_000 && body.expires_at_ms <= Date.now() + 10_000);
});
