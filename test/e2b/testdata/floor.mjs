// The oldest version of the SDK that works.
import { NotFoundError, Sandbox } from "e2b";
import { equal, run, throws } from "./check.mjs";

run(async () => {
  const s = await Sandbox.create({ timeoutMs: 60_000, metadata: { a: "b" } });
  try {
    equal((await s.commands.run("echo hi")).stdout, "hi\n", "a command");
    await s.files.write("f", "text"); // without the id of the sandbox
    equal(await s.files.read("f"), "text", "a file");
    await throws(() => s.files.read("g"), NotFoundError);
    equal((await s.files.list(".")).some((e) => e.name === "f"), true, "list");
    equal((await s.getInfo()).metadata, { a: "b" }, "info");
    const again = await Sandbox.connect(s.sandboxId);
    equal((await again.commands.run("cat f")).stdout, "text", "connect");
  } finally {
    await s.kill();
  }
});
