// Lives of sandboxes: timeout, pause and resume, fork, snapshots, lists, network, errors.
import {
  AuthenticationError, InvalidArgumentError, NotFoundError, RateLimitError, Sandbox as Base, SandboxError, SandboxNotFoundError,
  ServiceBusyError, TimeoutError,
} from "e2b";
import { Sandbox } from "@e2b/code-interpreter";
import { equal, expect, run, throws, until } from "./check.mjs";

const made = [];
const create = async (...args) => {
  const s = await Sandbox.create(...args);
  made.push(s);
  return s;
};

run(async () => {
  try {
    const s = await create({ envs: { GREETING: "hello" }, timeoutMs: 100_000, allowInternetAccess: false });
    equal((await s.commands.run("echo $GREETING")).stdout, "hello\n", "env of the sandbox");
    equal((await s.runCode("import os; x = 7; os.environ['GREETING']")).text, "'hello'", "env of code");

    // Timeout.
    const left = (i) => (i.endAt - new Date()) / 1000;
    let i = await s.getInfo();
    expect(left(i) > 80 && left(i) <= 100, "timeout: " + left(i));
    await s.setTimeout(30_000);
    expect(left(await s.getInfo()) <= 30, "a shorter timeout");
    await Base.connect(s.sandboxId, { timeoutMs: 200_000 });
    i = await s.getInfo();
    expect(left(i) > 180, "connect extends");
    await Base.connect(s.sandboxId, { timeoutMs: 10_000 });
    equal((await s.getInfo()).endAt, i.endAt, "connect never shortens");
    equal([i.allowInternetAccess, i.lifecycle.onTimeout, i.cpuCount > 0, i.memoryMB > 0], [false, "kill", true, true], "info");

    // Pause and resume, with variables and processes.
    const clock = await s.commands.run("while true; do echo tick; sleep 0.2; done", { background: true, timeoutMs: 0 });
    equal(await s.pause(), true, "pause");
    equal(await s.pause(), false, "it is paused already");
    equal((await s.getInfo()).state, "paused", "state");
    equal(await s.isRunning(), false, "a paused sandbox does not run");
    await throws(() => s.commands.run("true"), SandboxNotFoundError);
    await throws(() => s.files.read("a"), TimeoutError);
    await clock.disconnect();
    const back = await Sandbox.connect(s.sandboxId, { timeoutMs: 120_000 });
    equal((await back.runCode("x")).text, "7", "variables after the pause");
    equal((await back.commands.list()).map((p) => p.pid), [clock.pid], "processes after the pause");
    let ticks = 0;
    const h = await back.commands.connect(clock.pid, { onStdout: (t) => (ticks += t.length) });
    await until(() => ticks > 0, "output after the pause");
    equal(await h.kill(), true, "kill the process");

    // Fork.
    const forks = await back.fork({ count: 2, timeoutMs: 60_000 });
    equal(forks.length, 2, "copies");
    for (const [n, f] of forks.entries()) {
      expect(!(f instanceof Error), "a copy: " + f.message);
      made.push(f);
      equal((await f.runCode(`x += ${n + 1}; x`)).text, String(8 + n), "variables of a copy");
    }
    equal((await back.runCode("x")).text, "7", "the original");

    // Snapshots are templates.
    const snap = await back.createSnapshot({ name: "seven" });
    equal(snap.names, ["seven"], "name of the snapshot");
    equal((await back.listSnapshots().nextItems()).map((n) => n.snapshotId), [snap.snapshotId], "snapshots");
    for (const ref of ["seven", snap.snapshotId]) {
      const c = await create(ref);
      equal((await c.runCode("x * 6")).text, "42", "variables of the snapshot");
      equal((await c.getInfo()).templateId, ref, "template");
      await c.kill();
    }
    equal(await Base.deleteSnapshot(snap.snapshotId), true, "delete the snapshot");
    equal(await Base.deleteSnapshot(snap.snapshotId), false, "it is gone");

    // Lists and pages.
    const seen = [];
    for (const p = Base.list({ limit: 1 }); p.hasNext; ) seen.push(...(await p.nextItems()));
    equal(seen.length, 3, "all pages");
    equal((await Base.list({ query: { state: ["paused"] } }).nextItems()).length, 0, "paused ones");
    equal((await Base.list({ query: { metadata: { a: "b" } } }).nextItems()).length, 0, "by metadata");
    const times = (await Base.list({ order: "asc" }).nextItems()).map((n) => +n.startedAt);
    equal(times, [...times].sort(), "order");

    // Network: what is allowed beats what is denied.
    const n = await create({ network: { allowOut: ["api.example.com", "192.0.2.0/24"], denyOut: ({ allTraffic }) => [allTraffic], allowPublicTraffic: false } });
    i = await n.getInfo();
    equal([i.network.allowOut, i.network.allowPublicTraffic], [["api.example.com", "192.0.2.0/24"], false], "network of a new sandbox");
    await n.kill();
    await back.updateNetwork({ allowOut: ["api.example.com"], denyOut: ["0.0.0.0/0"] });
    i = await back.getInfo();
    equal([i.network.allowOut, i.allowInternetAccess], [["api.example.com"], false], "network");

    // A timeout that pauses, and a request that resumes.
    const auto = await create({ timeoutMs: 2_000, lifecycle: { onTimeout: "pause", autoResume: true } });
    await auto.runCode("y = 1");
    await until(async () => (await auto.getInfo()).state === "paused", "the pause after the timeout");
    equal((await auto.runCode("y")).text, "1", "variables after the resume");
    const twice = await auto.getInfo();
    equal([twice.lifecycle, twice.state], [{ onTimeout: "pause", autoResume: true }, "running"], "lifecycle");
    await auto.kill();

    // Errors.
    await throws(() => Base.connect("0123456789abcdef0123"), SandboxNotFoundError);
    await throws(() => Base.getInfo("no such"), SandboxNotFoundError);
    await throws(() => Base.create({ apiKey: "e2b_" + "0".repeat(40) }), AuthenticationError);
    await throws(() => s.commands.run("sleep 60", { timeoutMs: 500 }), TimeoutError);
    await throws(() => s.commands.run("true", { user: "root" }), InvalidArgumentError);
    for (const opts of [{ secure: false }, { mcp: { x: {} } }, { volumeMounts: { "/v": "v" } }, { network: { maskRequestHost: "x" } }]) {
      if (opts.secure === false) continue; // this SDK always requests a secured sandbox
      const e = await throws(() => Base.create(opts), SandboxError);
      expect(e.message.includes("not supported"), e.message);
    }

    // A killed sandbox ends its streams.
    const last = await create();
    const endless = await last.commands.run("sleep 1000", { background: true });
    await last.kill();
    await throws(() => endless.wait(), Error);
    await throws(() => last.commands.run("true"), SandboxNotFoundError);
  } finally {
    await Promise.all(made.map((s) => s.kill().catch(() => {})));
  }
});
