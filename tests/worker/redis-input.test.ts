// Bad input to the Redis endpoint and to the service as a whole: a clear error, and nothing changed.

import assert from "node:assert/strict";
import { test } from "node:test";

import { type Gate, startGate, TOKEN } from "./support/gate.ts";

const KB = "x".repeat(1024);
const MB = KB.repeat(1024);

const authorized = { authorization: `Bearer ${TOKEN}` };

/** Runs `work` and makes sure that it changed nothing. */
async function changesNothing(gate: Gate, work: () => Promise<void>): Promise<void> {
  const state = async (): Promise<unknown[]> => [
    await gate.redis("GET", "n"),
    await gate.redis("HGETALL", "h"),
    await gate.redis("PTTL", "n"),
    (await gate.service("GET", "locks/lock")).body.fencing,
    await gate.redis("GET", "new"),
  ];
  await gate.redis("SET", "n", 1);
  await gate.redis("HSET", "h", "f", 1);
  await gate.acquire("lock", { ttl_ms: 60_000 });
  const before = await state();
  await work();
  assert.deepEqual(await state(), before);
}

/** A body, and the error that it gets with the status 400. */
const MALFORMED: [string, string, RegExp][] = [
  ["redis", "", /^ERR failed to parse the body: expected a JSON array such as \["GET","key"\]$/],
  ["redis", "[", /^ERR failed to parse the body/],
  ["redis", '["INCR","n"', /^ERR failed to parse the body/],
  ["redis", '["INCR","n"] x', /^ERR failed to parse the body/],
  ["redis", '{"INCR":"n"}', /^ERR failed to parse the body/],
  ["redis", '"INCR n"', /^ERR failed to parse the body/],
  ["redis", "INCR n", /^ERR failed to parse the body/],
  ["redis", '["INCR",["n"]]', /^ERR failed to parse the body: expected strings, numbers and booleans as arguments$/],
  ["redis", '["SET","n",{"a":1}]', /expected strings, numbers and booleans as arguments$/],
  ["redis", '["SET","n",null]', /expected strings, numbers and booleans as arguments$/],
  ["redis", '[["INCR","n"]]', /expected strings, numbers and booleans as arguments$/],
  ["redis", '["SET","n","\\ud800"]', /^ERR failed to parse the body/],
  ["redis", "[]", /^ERR empty command$/],
  ["redis", '["FLUSHALL"]', /^ERR unknown command 'FLUSHALL', with args beginning with: $/],
  ["redis", '["EVAL","return 1",0]', /^ERR unknown command 'EVAL', with args beginning with: 'return 1' '0' $/],
  ["redis", '["INCR"]', /^ERR wrong number of arguments for 'incr' command$/],
  ["redis", '["INCR","n","n"]', /^ERR wrong number of arguments for 'incr' command$/],
  ["redis", '["HSET","h","f"]', /^ERR wrong number of arguments for 'hset' command$/],
  ["redis", '["INCRBY","n","1.5"]', /^ERR value is not an integer or out of range$/],
  ["redis", '["INCRBY","n","9223372036854775807"]', /^ERR increment or decrement would overflow$/],
  ["redis", '["INCR","h"]', /^WRONGTYPE /],
  ["redis", '["SET","n","2","EX","0"]', /^ERR invalid expire time in 'set' command$/],
  ["redis", '["SET","n","2","EX"]', /^ERR syntax error$/],
  ["redis", '["SET","n","2","NX","XX"]', /^ERR syntax error$/],
  ["redis", '["TG.LOCK","lock","t","0"]', /^ERR ttl_ms: expected a positive number/],
  ["redis", '["TG.TAKE","1","n","fixed-window","0","1000"]', /^ERR quota: expected 1 to /],
  ["redis", '["DEL","n","h"]', /^CROSSSLOT /],
  ["redis", JSON.stringify(["SET", `new${KB}`, "v"]), /^ERR key of 1027 bytes, at most 1024 are taken$/],
  ["redis", JSON.stringify(["SET", "new", `${MB}y`]), /^ERR value of 1048577 bytes, at most 1048576 are taken$/],
  ["redis", JSON.stringify(["HSET", "h", "big", `${MB}y`]), /^ERR value of 1048577 bytes/],
  ["redis/pipeline", '["INCR","n"]', /^ERR failed to parse the body: expected a JSON array of commands/],
  ["redis/pipeline", '[["INCR","n"],"INCR n"]', /^ERR failed to parse the body/],
  ["redis/pipeline", '[["INCR","n"],["SET","n",null]]', /expected strings, numbers and booleans/],
  ["redis/pipeline", JSON.stringify(Array(1001).fill(["INCR", "n"])), /^batch: expected at most 1000 commands, got 1001$/],
  ["redis/multi-exec", '[["INCR","n"],["NOPE"]]', /^EXECABORT Transaction discarded because of previous errors\.$/],
  ["redis/multi-exec", '[["INCR","n"],["GET"]]', /^EXECABORT /],
  ["redis/multi-exec", '[["INCR","n"],["INCR","h"]]', /^CROSSSLOT Keys in request don't hash to the same slot$/],
];

test("a body that is not a command is 400 with Redis's words, and changes nothing", async (t) => {
  const gate = await startGate(t);
  await changesNothing(gate, async () => {
    for (const [path, body, error] of MALFORMED) {
      const { status, body: answer } = await gate.service("POST", path, body);
      assert.equal(status, 400, body.slice(0, 80));
      assert.match(answer.error, error, body.slice(0, 80));
    }
  });
  assert.deepEqual(await gate.service("POST", "redis/pipeline", []), { status: 200, body: [] });
  assert.deepEqual(await gate.service("POST", "redis/multi-exec", []), { status: 200, body: [] });
});

test("bytes that are not UTF-8 are 400", async (t) => {
  const gate = await startGate(t);
  const body = Buffer.from('["SET","n","\xff"]', "latin1");
  const response = await gate.fetch("/_tollgate/redis", { method: "POST", headers: authorized, body });
  assert.equal(response.status, 400);
});

test("in a pipeline each bad command has its own error, and the others run", async (t) => {
  const gate = await startGate(t);
  const batch = [["SET", "k", "v"], ["NOPE"], [], ["GET"], ["INCR", "k"], ["GET", "k"]];
  const { status, body } = await gate.service("POST", "redis/pipeline", batch);
  assert.equal(status, 200);
  assert.deepEqual(body, [
    { result: "OK" },
    { error: "ERR unknown command 'NOPE', with args beginning with: " },
    { error: "ERR empty command" },
    { error: "ERR wrong number of arguments for 'get' command" },
    { error: "ERR value is not an integer or out of range" },
    { result: "v" },
  ]);
});

test("a body of more than 4 MB is 413, and one below it is read", async (t) => {
  const gate = await startGate(t);
  await changesNothing(gate, async () => {
    const { status, body } = await gate.service("POST", "redis", ["SET", "new", MB.repeat(4)]);
    assert.deepEqual([status, body.error], [413, "ERR body: expected at most 4194304 bytes"]);
  });
  const stranger = await gate.fetch("/_tollgate/redis", { method: "POST", body: MB.repeat(5) });
  assert.equal(stranger.status, 401, "nobody reads a stranger's body");
  const parts = Object.fromEntries(["a", "b", "c"].map((name) => [name, MB.slice(0, -100)]));
  const sets = Object.entries(parts).map(([name, value]) => ["SET", name, value]);
  const { status, body } = await gate.service("POST", "redis/pipeline", sets);
  assert.deepEqual([status, body], [200, Array(3).fill({ result: "OK" })]);
});

test("a missing or wrong token is 401 whatever is asked, and changes nothing", async (t) => {
  const gate = await startGate(t);
  await changesNothing(gate, async () => {
    for (const authorization of [undefined, "", "Bearer", "Bearer ", `Bearer ${TOKEN}x`, TOKEN, `Basic ${TOKEN}`]) {
      for (const path of ["redis", "redis/pipeline", "kv", "locks/lock", "nothing"]) {
        const headers: Record<string, string> = authorization === undefined ? {} : { authorization };
        const response = await gate.fetch(`/_tollgate/${path}`, { method: "POST", headers, body: '["INCR","n"]' });
        assert.equal(response.status, 401, `${authorization} ${path}`);
        assert.equal(response.headers.get("www-authenticate"), "Bearer");
        assert.deepEqual(await response.json(), { error: "WRONGPASS invalid or missing bearer token" });
      }
    }
  });
});

test("without a token in the configuration there is no service", async (t) => {
  for (const token of [null, ""]) {
    const gate = await startGate(t, { token });
    for (const authorization of ["Bearer ", `Bearer ${TOKEN}`]) {
      for (const path of ["redis", "kv", "locks/k", ""]) {
        const init = { method: "POST", headers: { authorization }, body: '["PING"]' };
        assert.equal((await gate.fetch(`/_tollgate/${path}`, init)).status, 404, path);
      }
    }
  }
});

test("an unknown path is 404 and never reaches the origin", async (t) => {
  const gate = await startGate(t);
  for (const path of ["", "/", "/nope", "/redis/nope", "/redis/pipeline/x", "/kv/nope", "/redisx", "/locksx/k"]) {
    const response = await gate.fetch(`/_tollgate${path}`, { method: "POST", headers: authorized, body: "[]" });
    assert.equal(response.status, 404, path);
    assert.deepEqual(await response.json(), { error: "ERR there is nothing here" });
  }
});

test("a method that is not allowed is 405 and told which are", async (t) => {
  const gate = await startGate(t);
  const allowed = async (method: string, path: string): Promise<[number, string | null]> => {
    const response = await gate.fetch(`/_tollgate/${path}`, { method, headers: authorized });
    return [response.status, response.headers.get("allow")];
  };
  await changesNothing(gate, async () => {
    for (const path of ["redis", "redis/pipeline", "redis/multi-exec", "kv"]) {
      for (const method of ["GET", "PUT", "DELETE", "OPTIONS", "HEAD"]) {
        assert.deepEqual(await allowed(method, path), [405, "POST"], `${method} ${path}`);
      }
    }
    for (const method of ["PATCH", "OPTIONS", "HEAD"]) {
      assert.deepEqual(await allowed(method, "locks/lock"), [405, "GET, POST, PUT, DELETE"], method);
    }
  });
});

test("a small batch cannot ask for gigabytes", async (t) => {
  const gate = await startGate(t);
  const key = "{om}v";
  await gate.redis("SET", key, MB);
  for (const path of ["redis/pipeline", "redis/multi-exec"]) {
    const batch = Array.from({ length: 999 }, () => ["GET", key]);
    const { status, body } = await gate.service("POST", path, [...batch, ["INCR", "{om}n"]]);
    assert.equal(status, 200, path);
    assert.equal(body[0].result.length, MB.length);
    assert.match(body[999].error, /^ERR the replies before this one are too large together/);
  }
  assert.equal(await gate.redis("EXISTS", "{om}n"), 0, "what was refused was not run");
});
