// HTTP as it goes over the wire: `fetch` hides header fields, follows redirects, decompresses and cleans up paths.

import {
  type ClientRequest,
  type IncomingMessage,
  type RequestListener,
  type RequestOptions,
  type Server,
  createServer,
  request as send,
} from "node:http";
import type { AddressInfo } from "node:net";
import { once } from "node:events";
import type { TestContext } from "node:test";

/** A response that was read to its end. */
export interface Received {
  status: number;
  /** Names in lower case; those of a field that comes several times as they came. */
  headers: [string, string][];
  body: Buffer;
}

/** Sends one request on a connection of its own and reads the response. */
export async function request(url: URL, options: RequestOptions, body?: string | Buffer): Promise<Received> {
  const sent = send(url, { agent: false, ...options });
  sent.end(body);
  const [response] = (await once(sent, "response")) as [IncomingMessage];
  return { status: response.statusCode ?? 0, headers: fields(response), body: await readAll(response) };
}

/**
 * Hangs up in the middle of a request. By a reset: workerd on its own takes a mere close for the end of what the
 * client sends, since a client may go on to read after that. In front of it, Cloudflare sees either.
 */
export function hangUp(request: ClientRequest): void {
  request.on("error", () => {});
  request.socket?.resetAndDestroy();
}

/** The header fields as they came. */
export function fields({ rawHeaders }: IncomingMessage): [string, string][] {
  return Array.from({ length: rawHeaders.length / 2 }, (_, i) => [
    (rawHeaders[2 * i] ?? "").toLowerCase(),
    rawHeaders[2 * i + 1] ?? "",
  ]);
}

/** All values of a field. */
export function values(headers: [string, string][], name: string): string[] {
  return headers.filter(([known]) => known === name).map(([, value]) => value);
}

export async function readAll(stream: AsyncIterable<Buffer>): Promise<Buffer> {
  const chunks: Buffer[] = [];
  for await (const chunk of stream) chunks.push(chunk);
  return Buffer.concat(chunks);
}

/** An origin on a free port that ends with the test. */
export async function startOrigin(
  t: TestContext,
  handler: RequestListener,
): Promise<{ url: string; server: Server }> {
  const server = createServer(handler).listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(() => {
    server.close();
    server.closeAllConnections();
  });
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, server };
}
