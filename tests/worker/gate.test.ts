// Who passes the gate, and what the refused are told.

import assert from "node:assert/strict";
import { test } from "node:test";

import { type Gate, LONG, startGate } from "./support/gate.ts";
import { request } from "./support/http.ts";

const policy = (fields: Record<string, unknown> = {}): Record<string, unknown> => ({
  name: "per-client",
  limit: `50/${LONG}`,
  missing_key: "shared",
  ...fields,
});

const as = (address: string, headers: Record<string, string> = {}): RequestInit => ({
  headers: { "cf-connecting-ip": address, ...headers },
});

/** How many of `count` requests at the same time are answered with each status. */
async function storm(count: number, send: (index: number) => Promise<Response>): Promise<Record<number, number>> {
  const statuses: Record<number, number> = {};
  const one = async (index: number): Promise<void> => {
    const response = await send(index);
    await response.arrayBuffer();
    statuses[response.status] = (statuses[response.status] ?? 0) + 1;
  };
  await Promise.all(Array.from({ length: count }, (_, index) => one(index)));
  return statuses;
}

for (const durability of ["relaxed", "strict"]) {
  test(`of 200 requests at the same time exactly the 50 of the limit pass (${durability})`, async (t) => {
    const gate = await startGate(t, { config: { policies: [policy({ durability })] } });
    assert.deepEqual(await storm(200, () => gate.fetch("/", as("203.0.113.7"))), { 200: 50, 429: 150 });
    assert.deepEqual(await storm(60, () => gate.fetch("/", as("203.0.113.8"))), { 200: 50, 429: 10 }, "another client");
  });
}

test("of 64 clients at the same time exactly the quota passes, by every algorithm", async (t) => {
  const plain = ["fixed-window", "fixed-window-from-first-hit", "sliding-window", "sliding-log", "token-bucket", "gcra"];
  const limits = [...plain.map((algorithm) => [algorithm, `20/${LONG}`]), ["calendar-year+05:30", "20/year"]];
  const policies = limits.map(([algorithm, limit], index) =>
    policy({ name: `p${index}`, algorithm, limit, match: { path: `/${index}` } }),
  );
  const gate = await startGate(t, { config: { policies } });
  for (const [index, [algorithm]] of limits.entries()) {
    assert.deepEqual(await storm(64, () => gate.fetch(`/${index}`, as("203.0.113.7"))), { 200: 20, 429: 44 }, algorithm);
    const { headers } = await gate.fetch(`/${index}`, as("203.0.113.7"));
    const fields = Object.fromEntries(["ratelimit", "ratelimit-policy", "retry-after"].map((name) => [name, headers.get(name)]));
    const wait = Number(/;t=(\d+)$/.exec(fields.ratelimit ?? "")?.[1]);
    assert.ok(wait > 0 && wait <= Number(fields["retry-after"]), `${algorithm}: ${JSON.stringify(fields)}`);
    assert.match(fields["ratelimit-policy"] ?? "", algorithm?.startsWith("calendar") ? /;q=20$/ : /;q=20;w=31622400$/);
  }
});

test("a policy is for the requests its conditions are for, and counts by the key it names", async (t) => {
  const one = { limit: `1/${LONG}`, missing_key: "skip" };
  const policies = [
    policy({ ...one, name: "query", match: { path: "/a" }, key: { query: "k" } }),
    policy({ ...one, name: "cookie", match: { path: "/b" }, key: { cookie: "sid" } }),
    policy({ ...one, name: "path", match: { path: "/users/:id" }, key: { path: "id" } }),
    policy({ ...one, name: "host", match: { path: "/d", host: "127.0.0.1", not: { headers: { "x-skip": true } } }, key: { host: true } }),
    policy({ ...one, name: "nowhere", match: { path: "/d", any: [{ host: "example.com" }, { cf: { country: "XX" } }] } }),
  ];
  const gate = await startGate(t, { config: { policies } });
  const statuses = async (...requests: [string, Record<string, string>?][]): Promise<number[]> => {
    const found = [];
    for (const [path, headers = {}] of requests) found.push((await gate.fetch(path, { headers })).status);
    return found;
  };
  assert.deepEqual(await statuses(["/a?k=1"], ["/a?k=2"], ["/a?x=0&k=1"], ["/a"], ["/a"]), [200, 200, 429, 200, 200]);
  const cookie = (sid: string) => ({ cookie: `theme=dark; sid=${sid}` });
  assert.deepEqual(await statuses(["/b", cookie("1")], ["/b", cookie("2")], ["/b", cookie("1")]), [200, 200, 429]);
  assert.deepEqual(await statuses(["/users/7"], ["/users/8"], ["/USERS/%37/"], ["/users/7/x"]), [200, 200, 429, 200]);
  assert.deepEqual(await statuses(["/d", { "x-skip": "1" }], ["/d"], ["/d"], ["/d", { "x-skip": "1" }]), [200, 200, 429, 200]);
});

test("every client has a limit of its own while many come at the same time", async (t) => {
  const gate = await startGate(t, { config: { policies: [policy({ limit: `7/${LONG}` })] } });
  const admitted = new Map<number, number>();
  const send = async (index: number): Promise<Response> => {
    const client = index % 20;
    const response = await gate.fetch("/", as(`203.0.113.${client}`));
    if (response.ok) admitted.set(client, (admitted.get(client) ?? 0) + 1);
    return response;
  };
  assert.deepEqual(await storm(200, send), { 200: 140, 429: 60 });
  assert.deepEqual([...new Set(admitted.values())], [7]);
});

test("two policies with different keys admit exactly what both allow", async (t) => {
  const byKey = { name: "per-key", limit: `30/${LONG}`, key: { header: "x-api-key" }, missing_key: "deny" };
  const gate = await startGate(t, { config: { policies: [policy(), byKey] } });
  const one = as("203.0.113.7", { "x-api-key": "one" });
  // What one policy refuses is given back to the other a moment later, so that a storm may admit too few for now.
  const early = (await storm(100, () => gate.fetch("/", one)))[200] ?? 0;
  assert.equal(early + (await admittedUntilRefusedForGood(gate, one)), 30);
  const two = as("203.0.113.7", { "x-api-key": "two" });
  assert.equal(await admittedUntilRefusedForGood(gate, two), 20);
  assert.equal((await gate.fetch("/", as("203.0.113.9"))).status, 403, "no key, and the policy says deny");
});

/** Sends until 20 refusals in a row. */
async function admittedUntilRefusedForGood(gate: Gate, init: RequestInit): Promise<number> {
  let admitted = 0;
  for (let refused = 0; refused < 20; ) {
    const { ok } = await gate.fetch("/", init);
    if (ok) admitted += 1;
    refused = ok ? 0 : refused + 1;
  }
  return admitted;
}

test("the fields tell an allowed client what is left, and a refused one when to come again", async (t) => {
  const gate = await startGate(t, { config: { policies: [policy({ limit: `2/${LONG}` })] } });
  const fields = async (accept?: string): Promise<[number, Headers, string]> => {
    const response = await gate.fetch("/", as("203.0.113.7", accept ? { accept } : {}));
    return [response.status, response.headers, await response.text()];
  };
  for (const left of [1, 0]) {
    const [status, headers] = await fields();
    assert.equal(status, 200);
    assert.equal(headers.get("ratelimit-policy"), '"per-client";q=2;w=31622400');
    assert.match(headers.get("ratelimit") ?? "", new RegExp(`^"per-client";r=${left};t=[1-9][0-9]*$`));
    assert.equal(headers.get("retry-after"), null);
  }
  const [status, headers, text] = await fields();
  assert.equal(status, 429);
  assert.match(headers.get("ratelimit") ?? "", /^"per-client";r=0;t=[1-9][0-9]*$/);
  assert.match(headers.get("retry-after") ?? "", /^[1-9][0-9]*$/);
  assert.equal(headers.get("content-type"), "application/problem+json");
  assert.equal(headers.get("cache-control"), "no-store");
  const { retry_after_ms, ...problem } = JSON.parse(text);
  assert.deepEqual(problem, {
    type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
    title: "Request cannot be satisfied as assigned quota has been exceeded",
    status: 429,
    "violated-policies": ["per-client"],
  });
  assert.ok(retry_after_ms > 0 && retry_after_ms <= Number(headers.get("retry-after")) * 1000);

  const [, forText, sentence] = await fields("text/plain");
  assert.equal(forText.get("content-type"), "text/plain; charset=utf-8");
  assert.equal(sentence, "Request cannot be satisfied as assigned quota has been exceeded (per-client)\n");
});

test("a window that ends lets the client in again", async (t) => {
  const gate = await startGate(t, { config: { policies: [policy({ limit: "1/500ms" })] } });
  const statuses: number[] = [];
  while (statuses.filter((status) => status === 200).length < 3) {
    const response = await gate.fetch("/", as("203.0.113.7"));
    if (response.status === 429) assert.equal(response.headers.get("retry-after"), "1");
    statuses.push(response.status);
  }
  assert.ok(statuses.includes(429));
});

test("one subscriber is one client, however its address is written", async (t) => {
  const gate = await startGate(t, { config: { policies: [policy({ limit: `3/${LONG}` })] } });
  const left = async (address: string): Promise<string | undefined> => {
    const response = await gate.fetch("/", as(address));
    return /r=(\d+)/.exec(response.headers.get("ratelimit") ?? "")?.[1];
  };
  assert.equal(await left("2001:db8:1:2::1"), "2");
  assert.equal(await left("2001:DB8:1:2:ffff::9"), "1", "the same /64");
  assert.equal(await left("2001:db8:1:3::1"), "2", "another /64");
  assert.equal(await left("203.0.113.7"), "2");
  assert.equal(await left("::ffff:203.0.113.7"), "1", "IPv4 in IPv6");
});

test("a request without an address is what its policy says: shared, skipped or denied", async (t) => {
  const match = (path: string): Record<string, unknown> => ({ match: { path: `/${path}/*` } });
  const policies = ["shared", "skip", "deny"].map((missing_key) =>
    policy({ name: missing_key, limit: `1/${LONG}`, missing_key, ...match(missing_key) }),
  );
  const gate = await startGate(t, { config: { policies } });
  const statuses = async (path: string): Promise<number[]> => [
    (await gate.fetch(path)).status,
    (await gate.fetch(path)).status,
  ];
  assert.deepEqual(await statuses("/shared/x"), [200, 429]);
  assert.deepEqual(await statuses("/skip/x"), [200, 200]);
  assert.deepEqual(await statuses("/deny/x"), [403, 403]);
  const skipped = await gate.fetch("/skip/x");
  assert.equal(skipped.headers.get("ratelimit"), null);
  assert.equal((await gate.fetch("/elsewhere")).status, 200, "no policy at all");
  const denied = await gate.fetch("/deny/x");
  assert.equal(denied.headers.get("content-type"), "application/problem+json");
  assert.match(((await denied.json()) as { detail: string }).detail, /the policy "deny" counts by a key/);
});

test("odd spellings of a path do not dodge a policy", async (t) => {
  const gate = await startGate(t, {
    config: { policies: [policy({ limit: `6/${LONG}`, match: { path: "/api/*", methods: ["GET"] } })] },
  });
  const spellings = ["/api/x", "//api/x", "/API/x", "/%61pi/x", "/./api//x/", "/other/../api", "/api%2Fx", "/api"];
  const statuses: number[] = [];
  for (const path of spellings) statuses.push((await request(gate.url, { path })).status);
  assert.deepEqual(statuses, [200, 200, 200, 200, 200, 200, 429, 429]);
  assert.equal((await request(gate.url, { path: "/api/x", method: "POST" })).status, 200, "the policy is for GET");
  assert.equal((await request(gate.url, { path: "/apis" })).status, 200);
});

test("a configuration that cannot be read answers 500 and names the field", async (t) => {
  for (const [config, detail] of [
    [{ policies: [policy({ limit: "6O/minute" })] }, /^TOLLGATE_CONFIG\.policies\[0\]\.limit: /],
    [{ policies: [policy({ store: "kv" })] }, /^TOLLGATE_CONFIG\.policies\[0\]\.best_effort: /],
    ["{", /^TOLLGATE_CONFIG\./],
    ["[]", /^TOLLGATE_CONFIG\.\.: expected a table/],
  ] as const) {
    const gate = await startGate(t, { config });
    for (let again = 0; again < 2; again += 1) {
      const response = await gate.fetch("/", as("203.0.113.7"));
      assert.equal(response.status, 500);
      assert.equal(response.headers.get("content-type"), "application/problem+json");
      assert.match(((await response.json()) as { detail: string }).detail, detail);
    }
  }
});

test("a client that one policy refuses does not use up what others share with it", async (t) => {
  const keyed = (name: string, header: string, limit: number): Record<string, unknown> => ({
    name,
    key: { header },
    limit: `${limit}/${LONG}`,
    missing_key: "skip",
    durability: "strict",
  });
  // Many keys, so that some live on other shards than the shared one.
  const config = { shards: 8, policies: [keyed("own", "x-own", 1), keyed("shared", "x-shared", 20)] };
  const gate = await startGate(t, { config });
  const send = async (own: string): Promise<number> =>
    (await gate.fetch("/", { headers: { "x-own": own, "x-shared": "all" } })).status;
  for (let i = 0; i < 8; i += 1) assert.equal(await send(`attacker ${i}`), 200);
  const storm = Array.from({ length: 160 }, (_, i) => send(`attacker ${i % 8}`));
  const victims = Array.from({ length: 12 }, (_, i) => send(`victim ${i}`));
  assert.deepEqual(await Promise.all(victims), Array(12).fill(200), "all that is left is theirs");
  assert.deepEqual(new Set(await Promise.all(storm)), new Set([429]));
  assert.equal(await send("one more"), 429);
});

test("without a configuration the gate does not run, rather than run without limits", async (t) => {
  const gate = await startGate(t, { config: null });
  const response = await gate.fetch("/");
  assert.equal(response.status, 500);
  const { detail } = (await response.json()) as { detail: string };
  assert.match(detail, /^TOLLGATE_CONFIG: expected a table/);
});
