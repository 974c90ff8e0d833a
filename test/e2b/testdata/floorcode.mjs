// The oldest version of the code interpreter's SDK that works.
import { Sandbox } from "@e2b/code-interpreter";
import { equal, run } from "./check.mjs";

run(async () => {
  const s = await Sandbox.create({ timeoutMs: 60_000 });
  try {
    equal((await s.runCode("x = 41; x + 1")).text, "42", "code");
    const c = await s.createCodeContext({ cwd: "/tmp" });
    equal((await s.runCode("import os; os.getcwd()", { context: c })).text, "'/tmp'", "a context");
  } finally {
    await s.kill();
  }
});
