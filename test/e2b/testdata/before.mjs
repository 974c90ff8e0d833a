// What a killed server must not lose: prints the ids of a sandbox and of a process in it.
import { Sandbox } from "@e2b/code-interpreter";
import { run } from "./check.mjs";

run(async () => {
  const s = await Sandbox.create({ timeoutMs: 300_000 });
  await s.runCode("kept = 42");
  const p = await s.commands.run("read line; echo got $line", { background: true, stdin: true, timeoutMs: 0 });
  console.log(JSON.stringify({ id: s.sandboxId, pid: p.pid }));
});
