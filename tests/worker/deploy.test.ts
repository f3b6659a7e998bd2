// What `npm run deploy` uploads.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtemp, readdir, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

const ROOT = fileURLToPath(new URL("../../", import.meta.url));

/** A Worker of the free plan may have 3 MB after gzip. */
const MOST_KIB = 3 * 1024;

test("wrangler bundles the gate without an account, and it is far below the size limit", async (t) => {
  const folder = await mkdtemp(join(tmpdir(), "tollgate-test-"));
  t.after(() => rm(folder, { recursive: true, force: true }));
  // No login, no token, and nothing left behind in the home folder.
  const { CLOUDFLARE_API_TOKEN: _token, CLOUDFLARE_ACCOUNT_ID: _account, ...others } = process.env;
  const env = { ...others, XDG_CONFIG_HOME: folder, WRANGLER_SEND_METRICS: "false", NO_COLOR: "1" };
  const output = join(folder, "output");
  const wrangler = join(ROOT, "node_modules/wrangler/bin/wrangler.js");
  const args = [wrangler, "deploy", "--dry-run", "--outdir", output];
  const { stdout } = await promisify(execFile)(process.execPath, args, { cwd: ROOT, env });

  const sizes = /Total Upload: ([\d.]+) KiB \/ gzip: ([\d.]+) KiB/.exec(stdout);
  assert.ok(sizes, stdout);
  const [whole, gzip] = [Number(sizes[1]), Number(sizes[2])];
  t.diagnostic(`the upload: ${whole} KiB, ${gzip} KiB with gzip`);
  assert.ok(0 < gzip && gzip < whole && gzip < MOST_KIB);

  for (const binding of ["TOLLGATE", "TOLLGATE_KV", "TOLLGATE_CONFIG"]) {
    assert.match(stdout, new RegExp(`env\\.${binding}\\b`), "the binding is declared");
  }
  const files = await readdir(output);
  assert.equal(files.filter((name) => name.endsWith(".wasm")).length, 1, files.join());
  assert.match(await readFile(join(output, "worker.js"), "utf8"), /export \{[^}]*\bTollgateObject\b/);
});
