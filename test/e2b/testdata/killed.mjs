// A session of the SDK, during which the server is killed and started again.
import { Sandbox } from "@e2b/code-interpreter";
import { equal, expect, run, until } from "./check.mjs";

run(async () => {
  const s = await Sandbox.create({ timeoutMs: 300_000 });
  await s.runCode("kept = 42");
  await s.files.write("f", "kept");
  const p = await s.commands.run("read line; echo got $line", { background: true, stdin: true, timeoutMs: 0 });
  const inFlight = s.commands.run("sleep 1000", { timeoutMs: 0 }).then(() => "an end", () => "an error");
  await until(async () => (await s.commands.list()).length === 2, "two processes");
  console.log("kill it");
  expect((await inFlight) === "an error", "a command in flight fails");
  const again = await until(() => Sandbox.connect(s.sandboxId).catch(() => null), "the server runs again");
  try {
    equal((await again.runCode("kept")).text, "42", "variables");
    equal(await s.files.read("f"), "kept", "files, with the token of before");
    equal((await again.commands.list()).length, 2, "processes");
    const h = await again.commands.connect(p.pid);
    await h.sendStdin("it\n");
    equal((await h.wait()).stdout, "got it\n", "the process");
  } finally {
    await again.kill();
  }
});
