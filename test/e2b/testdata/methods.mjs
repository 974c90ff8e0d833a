// Methods of the SDK that no other script calls.
import { NotFoundError, Sandbox as Base, Secret, Template, Volume } from "e2b";
import { Sandbox } from "@e2b/code-interpreter";
import { equal, expect, run, throws, until } from "./check.mjs";

run(async () => {
  const s = await Sandbox.create({ timeoutMs: 300_000 });
  const id = s.sandboxId;
  const made = [];
  try {
    // Commands and terminals by pid.
    const p = await s.commands.run("cat", { background: true, stdin: true, timeoutMs: 0 });
    await s.commands.sendStdin(p.pid, "by pid");
    await s.commands.closeStdin(p.pid);
    equal((await p.wait()).stdout, "by pid", "input by pid");
    const q = await s.commands.run("sleep 1000", { background: true });
    equal(await s.commands.kill(q.pid), true, "kill by pid");
    equal(await s.commands.kill(q.pid), false, "it has ended");
    await throws(() => s.commands.connect(q.pid), NotFoundError);
    const pty = await s.pty.create({ cols: 80, rows: 24, onData: () => {}, timeoutMs: 0 });
    await pty.disconnect();
    let screen = "";
    const again = await s.pty.connect(pty.pid, { onData: (d) => (screen += new TextDecoder().decode(d)), timeoutMs: 0 });
    await s.pty.sendInput(pty.pid, new TextEncoder().encode("echo again-$((1+1))\n"));
    await until(() => screen.includes("again-2"), "output of a terminal that was connected to");
    equal(await again.kill(), true, "kill the terminal");

    // Files and git.
    equal((await s.files.writeFiles([{ path: "a", data: "1" }, { path: "b", data: "2" }])).length, 2, "writeFiles");
    if ((await s.commands.run("command -v git || true")).stdout) {
      await s.git.init("repo");
      await s.git.configureUser("ann", "ann@example.com");
      await s.files.write("repo/f", "text");
      await s.git.add("repo");
      await s.git.commit("repo", "first");
      equal((await s.git.status("repo")).isClean, true, "git");
      await s.git.createBranch("repo", "other");
      equal((await s.git.branches("repo")).currentBranch, "other", "branches");
    }

    // The same methods of the class.
    await Base.setTimeout(id, 200_000);
    const info = await Base.getInfo(id);
    expect(info.endAt - new Date() <= 200_000, "timeout");
    equal((await Base.getMetrics(id)).length, 1, "metrics");
    await Base.updateNetwork(id, { denyOut: ["0.0.0.0/0"] });
    const snap = await Base.createSnapshot(id, { name: "methods" });
    equal((await Base.listSnapshots({ sandboxId: id }).nextItems()).map((x) => x.snapshotId), [snap.snapshotId], "snapshots");
    equal(await Base.deleteSnapshot(snap.snapshotId), true, "delete the snapshot");
    for (const f of await Base.fork(id, { count: 2 })) {
      expect(f instanceof Base, "a copy: " + f.message);
      made.push(f);
      equal(await f.files.read("a"), "1", "files of a copy");
    }
    equal(made.length, 2, "copies");
    equal(await Base.pause(id), true, "pause");
    equal(await s.isRunning(), false, "paused");
    await s.connect();
    equal(await s.isRunning(), true, "connect");

    // What is not there says so.
    for (const f of [
      () => Volume.create("v"), () => Volume.list(), () => Secret.create("n", "v"), () => Secret.exists("n"),
      () => Template.exists("t"), () => Template.build(Template().fromImage("python:3"), "t", { cpuCount: 1, memoryMB: 256 }),
    ]) {
      const e = await throws(f, Error);
      expect(e.message.includes("not supported"), `${f}: ${e.message}`);
    }
  } finally {
    await Promise.all([s, ...made].map((x) => x.kill()));
  }
});
