// A hundred copies in one request.
import { Sandbox } from "e2b";
import { equal, expect, run, throws } from "./check.mjs";

run(async () => {
  const s = await Sandbox.create({ timeoutMs: 600_000 });
  let made = [];
  try {
    await s.files.write("f", "the original");
    await throws(() => s.fork({ count: 101 }), Error);
    made = await s.fork({ count: 100, timeoutMs: 600_000, requestTimeoutMs: 0 });
    equal(made.filter((f) => f instanceof Error).map((f) => f.message), [], "failures");
    equal(new Set(made.map((f) => f.sandboxId)).size, 100, "copies");
    expect(made.every((f) => f.sandboxId !== s.sandboxId), "the original is none of them");
    const texts = await Promise.all(made.map(async (f, i) => {
      await f.files.write(`own-${i}`, "");
      return (await f.commands.run("cat f; ls | grep -c own-", { requestTimeoutMs: 0, timeoutMs: 0 })).stdout;
    }));
    equal([...new Set(texts)], ["the original1\n"], "files of the copies");
    equal((await s.commands.run("ls")).stdout, "f\n", "files of the original");
  } finally {
    await Promise.all([s, ...made].map((f) => f.kill?.().catch(() => {})));
  }
});
