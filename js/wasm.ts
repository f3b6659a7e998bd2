// The one WebAssembly instance of this isolate, and a fresh one when it breaks.

import * as core from "../build/worker/tollgate.js";
import module from "../build/worker/tollgate_bg.wasm";

core.initSync({ module });

let generation = 0;

/** How many times the instance was replaced. What was made before that belongs to an instance that is gone. */
export function currentGeneration(): number {
  return generation;
}

/**
 * Runs `work`, which calls into the instance. A trap (a panic, memory that ran out, a stack that overflowed) leaves an
 * instance that must not be called again, so it is replaced before the exception goes on.
 */
export function guarded<T>(work: () => T): T {
  if (core.isPoisoned()) replace(); // A trap in a task of its own passes nobody here.
  try {
    return work();
  } catch (error) {
    if (error instanceof WebAssembly.RuntimeError || error instanceof RangeError) replace();
    throw error;
  }
}

function replace(): void {
  generation += 1;
  core.__wbg_reset_state();
}

export { core };
