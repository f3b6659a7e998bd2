// What comes between a client and its origin: nothing but the limit.

import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { EventEmitter, once } from "node:events";
import { type IncomingMessage, request as send } from "node:http";
import { test } from "node:test";
import { gzipSync } from "node:zlib";

import { LONG, startGate, TOKEN } from "./support/gate.ts";
import { fields, hangUp, readAll, request, startOrigin, values } from "./support/http.ts";

const config = { policies: [{ name: "all", limit: `1000/${LONG}`, missing_key: "shared" }] };

test("method, path, query, header fields and body arrive as they were sent", async (t) => {
  const seen: { line: string; headers: [string, string][]; body: Buffer }[] = [];
  const origin = await startOrigin(t, async (received, response) => {
    const line = `${received.method} ${received.url}`;
    seen.push({ line, headers: fields(received), body: await readAll(received) });
    response.end();
  });
  const gate = await startGate(t, { config, origin: origin.url });
  const body = randomBytes(300_000);
  const headers = { "X-Custom": "a, b", Authorization: "Basic xyz", Cookie: "a=1; b=2", "Content-Type": "x/y" };
  await request(gate.url, { method: "PUT", path: "/a%20b/c;d?q=1&q=%2F&empty=", headers }, body);
  for (const method of ["GET", "DELETE", "PATCH", "OPTIONS"]) await request(gate.url, { method, path: "/" });
  assert.deepEqual(
    seen.map(({ line }) => line),
    ["PUT /a%20b/c;d?q=1&q=%2F&empty=", "GET /", "DELETE /", "PATCH /", "OPTIONS /"],
  );
  assert.ok(seen[0]?.body.equals(body));
  for (const [name, value] of Object.entries(headers)) {
    assert.deepEqual(values(seen[0]?.headers ?? [], name.toLowerCase()), [value], name);
  }
});

test("status, header fields, two cookies and body come back as the origin sent them, with the limit's fields", async (t) => {
  const body = randomBytes(300_000);
  const origin = await startOrigin(t, (_, response) => {
    response.writeHead(418, { "Set-Cookie": ["a=1; Path=/", "b=2, c"], "X-Custom": "a, b", ETag: '"x"' });
    response.end(body);
  });
  const gate = await startGate(t, { config, origin: origin.url });
  const received = await request(gate.url, { path: "/" });
  assert.equal(received.status, 418);
  assert.deepEqual(values(received.headers, "set-cookie"), ["a=1; Path=/", "b=2, c"]);
  assert.deepEqual(values(received.headers, "x-custom"), ["a, b"]);
  assert.deepEqual(values(received.headers, "etag"), ['"x"']);
  assert.deepEqual(values(received.headers, "ratelimit-policy"), ['"all";q=1000;w=31622400']);
  assert.match(values(received.headers, "ratelimit").join(), /^"all";r=999;t=\d+$/);
  assert.ok(received.body.equals(body));
});

test("a compressed body stays the bytes that it was", async (t) => {
  const zipped = gzipSync("tollgate ".repeat(1000));
  const origin = await startOrigin(t, (_, response) => {
    response.writeHead(200, { "Content-Encoding": "gzip", "Content-Type": "text/plain" });
    response.end(zipped);
  });
  const gate = await startGate(t, { config, origin: origin.url });
  const received = await request(gate.url, { path: "/", headers: { "Accept-Encoding": "gzip" } });
  assert.deepEqual(values(received.headers, "content-encoding"), ["gzip"]);
  assert.ok(received.body.equals(zipped));
});

test("redirects, 204, 304 and HEAD are the client's affair", async (t) => {
  const origin = await startOrigin(t, ({ url }, response) => {
    const status = Number(url?.slice(1));
    response.writeHead(status, status === 302 ? { Location: "/200" } : status === 200 ? { "Content-Length": 5 } : {});
    response.end(status === 200 ? "hello" : undefined);
  });
  const gate = await startGate(t, { config, origin: origin.url });
  const redirect = await request(gate.url, { path: "/302" });
  assert.deepEqual([redirect.status, values(redirect.headers, "location")], [302, ["/200"]]);
  for (const status of [204, 304]) {
    const received = await request(gate.url, { path: `/${status}` });
    assert.deepEqual([received.status, received.body.length], [status, 0]);
    assert.equal(values(received.headers, "ratelimit").length, 1);
  }
  const head = await request(gate.url, { method: "HEAD", path: "/200" });
  assert.deepEqual([head.status, values(head.headers, "content-length"), head.body.length], [200, ["5"], 0]);
});

test("a body is passed on as it comes, in both directions", async (t) => {
  const at = new EventEmitter();
  const origin = await startOrigin(t, async (received, response) => {
    const hash = createHash("sha256");
    for await (const chunk of received) {
      hash.update(chunk);
      at.emit("upload", chunk);
    }
    response.write("first");
    at.once("continue", () => response.end(hash.digest("hex")));
  });
  const gate = await startGate(t, { config, origin: origin.url });
  const sent = send(gate.url, { agent: false, method: "POST" });
  const hash = createHash("sha256");
  for (let i = 0; i < 5; i += 1) {
    const chunk = randomBytes(1000);
    const arrives = once(at, "upload");
    sent.write(chunk);
    hash.update(chunk);
    assert.ok(chunk.equals((await arrives)[0]), "it came before the next was sent");
  }
  sent.end();
  const [response] = (await once(sent, "response")) as [IncomingMessage];
  assert.equal(String((await once(response, "data"))[0]), "first", "the origin has not ended yet");
  at.emit("continue");
  assert.equal(String(await readAll(response)), hash.digest("hex"));
});

test("an origin with a path gets requests below it", async (t) => {
  const origin = await startOrigin(t, ({ url }, response) => response.end(url));
  for (const prefix of ["/base/v1", "/base/v1/"]) {
    const gate = await startGate(t, { config, origin: origin.url + prefix });
    assert.equal(String((await request(gate.url, { path: "/x?y=1" })).body), "/base/v1/x?y=1");
  }
});

test("an origin may be a Worker that is bound as a service", async (t) => {
  const script = `export default { async fetch(request) {
    return new Response(request.method + " " + new URL(request.url).pathname + " " + (await request.text()));
  } };`;
  const gate = await startGate(t, { config, origin: { script } });
  const received = await request(gate.url, { method: "POST", path: "/x" }, "hello");
  assert.equal(String(received.body), "POST /x hello");
  assert.equal(values(received.headers, "ratelimit").length, 1);
});

test("a client that hangs up ends its request to the origin", async (t) => {
  const at = new EventEmitter();
  const origin = await startOrigin(t, (_, response) => {
    response.on("close", () => at.emit("closed"));
    at.emit("begun");
  });
  const gate = await startGate(t, { config, origin: origin.url });
  const [begun, closed] = [once(at, "begun"), once(at, "closed")];
  const sent = send(gate.url, { agent: false });
  sent.end();
  await begun;
  hangUp(sent);
  await closed;
});

test("an origin that is down or breaks off is a 502 that says so, and still counted", async (t) => {
  const origin = await startOrigin(t, ({ socket }) => socket.destroy());
  const gate = await startGate(t, { config, origin: origin.url });
  const bad = async (): Promise<void> => {
    const received = await request(gate.url, { path: "/" });
    assert.equal(received.status, 502);
    assert.deepEqual(values(received.headers, "content-type"), ["application/problem+json"]);
    assert.deepEqual(JSON.parse(String(received.body)), {
      type: "about:blank",
      title: "Bad Gateway",
      status: 502,
      detail: "The origin did not answer.",
    });
    assert.equal(values(received.headers, "ratelimit").length, 1);
  };
  await bad();
  origin.server.close();
  await once(origin.server, "close");
  await bad();
});

test("a WebSocket reaches the origin through the gate", async (t) => {
  const origin = await startOrigin(t, () => {});
  origin.server.on("upgrade", ({ headers }: IncomingMessage, socket: NodeJS.WritableStream & NodeJS.ReadableStream) => {
    const key = `${headers["sec-websocket-key"]}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`;
    const accept = createHash("sha1").update(key).digest("base64");
    const head = ["HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade"];
    socket.write([...head, `Sec-WebSocket-Accept: ${accept}`, "", ""].join("\r\n"));
    // A frame of a client is masked; what a server sends is not.
    socket.on("data", (frame: Buffer) => {
      if ((frame[0] ?? 0) !== 0x81) return;
      const text = frame.subarray(6).map((byte, i) => byte ^ (frame[2 + (i % 4)] ?? 0));
      socket.write(Buffer.concat([Buffer.from([0x81, text.length]), text]));
    });
  });
  const gate = await startGate(t, { config, origin: origin.url });
  const socket = new WebSocket(new URL("/socket", gate.url).href.replace("http", "ws"));
  await once(socket, "open");
  const answer = once(socket, "message");
  socket.send("hello");
  assert.equal((await answer)[0].data, "hello");
  socket.close();
});

test("what belongs to the service never reaches the origin, however it is spelled", async (t) => {
  const seen: string[] = [];
  const origin = await startOrigin(t, (received, response) => {
    seen.push(received.url ?? "");
    response.end();
  });
  const gate = await startGate(t, { config, origin: origin.url });
  const headers = { authorization: `Bearer ${TOKEN}` };
  const spellings = ["/_tollgate", "//_tollgate/redis", "/%5Ftollgate/redis", "/_TOLLGATE/redis", "/a/..%2f_tollgate/redis"];
  for (const path of spellings) {
    assert.equal((await request(gate.url, { path, headers })).status, 404, path);
  }
  assert.equal((await request(gate.url, { path: "/_tollgate/locks/..%2f..", headers })).status, 200);
  assert.deepEqual(seen, []);
  assert.equal((await request(gate.url, { path: "/_tollgates/100%25", headers })).status, 200);
  assert.deepEqual(seen, ["/_tollgates/100%25"]);
});

test("an origin that is no URL is a 500 that names it", async (t) => {
  for (const origin of ["api.example.com", "localhost:3000", "ftp://example.com", "http://example.com/?q=1", "nonsense"]) {
    const gate = await startGate(t, { config, origin });
    const received = await request(gate.url, { path: "/" });
    assert.equal(received.status, 500);
    assert.match(received.body.toString(), /"detail":"ORIGIN: expected a URL such as/);
  }
});
