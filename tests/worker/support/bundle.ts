// Bundles the Worker as wrangler does, or with faults that a test can inject.

import { build, type Plugin } from "esbuild";
import { fileURLToPath } from "node:url";

const ROOT = fileURLToPath(new URL("../../../", import.meta.url));

/** The modules of a Worker: its script, and the WebAssembly that it imports. */
export interface Bundle {
  script: string;
  wasm: Uint8Array;
}

/** Takes the core's build for tests, which has a way to trap. */
const faultyCore: Plugin = {
  name: "faulty-core",
  setup({ onResolve }) {
    onResolve({ filter: /\/build\/worker\// }, ({ path }) => ({
      path: ROOT + path.replace(/^.*\/build\/worker\//, "build/faults/"),
    }));
  },
};

/** `js/worker.ts`; with `faulty`, `support/faulty.ts` around it. */
export async function bundle(faulty: boolean): Promise<Bundle> {
  const { outputFiles } = await build({
    absWorkingDir: ROOT,
    entryPoints: [faulty ? "tests/worker/support/faulty.ts" : "js/worker.ts"],
    bundle: true,
    format: "esm",
    target: "es2024",
    external: ["cloudflare:*"],
    loader: { ".wasm": "copy" },
    assetNames: "[name]",
    entryNames: "worker",
    outdir: "/",
    write: false,
    plugins: faulty ? [faultyCore] : [],
  });
  const [script, wasm] = [".js", ".wasm"].map((end) => outputFiles.find(({ path }) => path.endsWith(end)));
  if (script === undefined || wasm === undefined) throw new Error("expected a script and a wasm file");
  return { script: script.text, wasm: wasm.contents };
}
