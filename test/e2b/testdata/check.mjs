// Checks for the scripts of the tests. A script exits with an error at the first check that fails.
import { deepStrictEqual } from "node:assert";

export const equal = (have, want, what) => deepStrictEqual(have, want, what && `${what}: ${JSON.stringify(have)}, want ${JSON.stringify(want)}`);

export const expect = (ok, what) => equal(!!ok, true, what);

// throws returns the error of f, which must be of the class.
export async function throws(f, kind) {
  try {
    await f();
  } catch (e) {
    expect(e instanceof kind, `${kind.name} expected, but it is ${e.name}: ${e.message}`);
    return e;
  }
  throw new Error(`${kind.name} expected, but nothing was thrown`);
}

// until waits until f returns something.
export async function until(f, what) {
  for (const end = Date.now() + 60_000; Date.now() < end; await new Promise((r) => setTimeout(r, 50))) {
    const v = await f();
    if (v) return v;
  }
  throw new Error("timed out: " + what);
}

export function run(f) {
  f().then(
    () => process.exit(0),
    (e) => {
      console.error(e);
      process.exit(1);
    },
  );
}
