// The main methods of the SDKs, in one sandbox.
import { Sandbox } from "@e2b/code-interpreter";
import { NotFoundError, CommandExitError, Sandbox as Base } from "e2b";
import { equal, expect, throws, run } from "./check.mjs";

run(async () => {
  const s = await Sandbox.create({ metadata: { owner: "ann lee" }, timeoutMs: 120_000 });
  try {
    expect(/^[0-9a-f]{20}$/.test(s.sandboxId), "the id is random: " + s.sandboxId);

    // Commands.
    const r = await s.commands.run('echo out; echo err >&2; echo "$A in $PWD"', { envs: { A: "b" }, cwd: "/tmp" });
    equal([r.exitCode, r.stdout, r.stderr], [0, "out\nb in /tmp\n", "err\n"], "a command");
    const failed = await throws(() => s.commands.run("exit 3"), CommandExitError);
    equal(failed.exitCode, 3, "exit code");
    equal((await s.commands.run("id -un; echo $HOME", { user: "user" })).stdout, "user\n/home/user\n", "user");

    // Files.
    const info = await s.files.write("dir/a.txt", "héllo");
    equal(info.path, "/home/user/dir/a.txt", "path of a written file");
    equal(await s.files.read("dir/a.txt"), "héllo", "content");
    equal((await s.files.list("dir")).map((e) => [e.name, e.type, e.size]), [["a.txt", "file", 6]], "list");
    equal(await s.files.exists("dir/b"), false, "a missing file");
    await throws(() => s.files.read("dir/b"), NotFoundError);

    // Code.
    equal((await s.runCode("x = 41\nx + 1")).text, "42", "result");
    const e = await s.runCode('print("ü😀")\nx + y');
    equal([e.logs.stdout.join(""), e.error.name, e.executionCount], ["ü😀\n", "NameError", 2], "an exception");

    // Control.
    const about = await s.getInfo();
    equal([about.state, about.metadata, about.templateId], ["running", { owner: "ann lee" }, "code-interpreter-v1"], "info");
    const page = await Sandbox.list({ query: { metadata: { owner: "ann lee" } } }).nextItems();
    equal(page.map((i) => i.sandboxId), [s.sandboxId], "list");
    const again = await Base.connect(s.sandboxId);
    equal((await again.commands.run("cat dir/a.txt")).stdout, "héllo", "connect");

    // A background command with input.
    const cat = await s.commands.run("cat", { background: true, stdin: true });
    await cat.sendStdin("in\n");
    await cat.closeStdin();
    equal((await cat.wait()).stdout, "in\n", "input");
    const sleeper = await s.commands.run("sleep 100", { background: true });
    equal((await s.commands.list()).map((p) => p.pid), [sleeper.pid], "processes");
    equal(await sleeper.kill(), true, "kill");
  } finally {
    equal(await s.kill(), true, "kill the sandbox");
  }
  equal(await s.isRunning(), false, "it does not run");
  equal(await Sandbox.kill(s.sandboxId), false, "it is gone");
});
