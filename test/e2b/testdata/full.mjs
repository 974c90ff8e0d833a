// A server that is full, and callers that ask too often.
import { RateLimitError, Sandbox, ServiceBusyError } from "e2b";
import { equal, run, throws } from "./check.mjs";

run(async () => {
  const s = await Sandbox.create({ timeoutMs: 300_000 });
  try {
    await throws(() => Sandbox.create({ timeoutMs: 300_000 }), ServiceBusyError);
    const forks = await s.fork({ count: 2 }).catch((e) => [e]);
    equal(forks.every((f) => f instanceof ServiceBusyError), true, "copies: " + forks);
    equal((await Sandbox.list().nextItems()).map((i) => i.sandboxId), [s.sandboxId], "nothing was made");
    await throws(async () => {
      for (let i = 0; i < 1000; i++) await Sandbox.getInfo(s.sandboxId, { retries: 0 });
    }, RateLimitError);
    await Sandbox.getInfo(s.sandboxId); // the SDK waits as long as the answer says
  } finally {
    await s.kill();
  }
});
