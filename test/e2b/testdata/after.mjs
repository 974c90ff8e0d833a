// Uses the sandbox of before.mjs after the server was killed.
import { Sandbox } from "@e2b/code-interpreter";
import { equal, run } from "./check.mjs";

const { id, pid } = JSON.parse(process.env.BEFORE);

run(async () => {
  const s = await Sandbox.connect(id);
  try {
    equal((await s.runCode("kept")).text, "42", "variables");
    const p = await s.commands.connect(pid);
    await p.sendStdin("it\n");
    equal((await p.wait()).stdout, "got it\n", "the process");
  } finally {
    await s.kill();
  }
});
