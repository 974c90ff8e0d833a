// Metrics, pauses without memory, metadata of files, languages.
import { InvalidArgumentError, Sandbox as Base } from "e2b";
import { Sandbox } from "@e2b/code-interpreter";
import { equal, expect, run, throws, until } from "./check.mjs";

run(async () => {
  const s = await Sandbox.create({ timeoutMs: 300_000 });
  try {
    // Metrics are those of the sandbox.
    const [before] = await s.getMetrics();
    const info = await s.getInfo();
    equal([before.memTotal, before.cpuCount > 0], [info.memoryMB * 2 ** 20, true], "size");
    for (const key of ["memUsed", "memCache", "diskUsed", "diskTotal"]) expect(before[key] > 0, `${key}: ${before[key]}`);
    expect(Math.abs(before.timestamp - new Date()) < 60_000, "time");
    const spin = await s.commands.run("dd if=/dev/zero of=big bs=1M count=64; while :; do :; done", { background: true });
    await s.runCode("x = bytearray(64 << 20)");
    const after = await until(async () => {
      const [m] = await s.getMetrics();
      return m.diskUsed >= before.diskUsed + 2 ** 26 && m.cpuUsedPct > 10 && m;
    }, "a busy sandbox");
    expect(after.memUsed >= before.memUsed + 2 ** 26, `memory: ${before.memUsed} ${after.memUsed}`);
    equal(await s.getMetrics({ end: new Date(Date.now() - 3600_000) }), [], "there is no record of the past");
    await spin.kill();

    // Metadata of files.
    const f = await s.files.write("m/a", "text", { metadata: { Key: "value with spaces" } });
    equal(f.metadata, { key: "value with spaces" }, "metadata of a written file");
    await s.files.write([{ path: "m/b", data: "1" }, { path: "m/c", data: "2" }], { metadata: { both: "1" }, useOctetStream: true });
    equal((await s.files.list("m")).map((e) => e.metadata?.both), [undefined, "1", "1"], "metadata in a list");
    await s.files.rename("m", "n");
    equal((await s.files.getInfo("n/a")).metadata, { key: "value with spaces" }, "metadata after a move");
    await s.files.write("n/b", "again");
    equal((await s.files.getInfo("n/b")).metadata, undefined, "a file that is written again");
    await s.files.remove("n/c");
    await s.files.write("n/c", "new");
    equal((await s.files.getInfo("n/c")).metadata, undefined, "a removed file");

    // Languages.
    const b = await s.runCode("cd /tmp; echo $PWD $A; echo err >&2", { language: "bash", envs: { A: "b" } });
    equal([b.logs.stdout.join(""), b.logs.stderr.join(""), b.error], ["/tmp b\n", "err\n", undefined], "bash");
    equal((await s.runCode("exit 3", { language: "bash" })).error.value, "3", "exit status");
    await throws(() => s.createCodeContext({ language: "bash" }), Error);
    expect((await throws(() => s.runCode("1", { language: "r" }), Error)).message.includes("use python or bash"), "the languages are named");

    // A pause without memory keeps files only.
    await s.commands.run("sleep 1000 >/dev/null 2>&1 & echo $! > left");
    await s.commands.run("sleep 1000", { background: true, timeoutMs: 0 });
    await s.runCode("x = 1; import subprocess; p = subprocess.Popen(['sleep', '1000'])");
    await s.pause({ keepMemory: false });
    equal((await s.getInfo()).state, "paused", "paused");
    equal(await s.getMetrics(), [], "a paused sandbox uses nothing");
    const back = await Sandbox.connect(s.sandboxId);
    equal((await back.runCode("x")).error?.name, "NameError", "variables");
    equal((await back.commands.list()).length, 0, "processes");
    equal((await back.commands.run("grep -c . left; pgrep sleep || true")).stdout, "1\n", "files stay, processes do not");
    equal((await back.files.getInfo("n/a")).metadata, { key: "value with spaces" }, "metadata stays");

    // A pause with memory, and a restart when it ends.
    await back.runCode("x = 2");
    await back.pause();
    const rebooted = await Sandbox.connect(s.sandboxId, { onResume: "reboot" });
    equal((await rebooted.runCode("x")).error?.name, "NameError", "variables after a restart");
    equal(await rebooted.files.read("n/b"), "again", "files after a restart");
  } finally {
    await s.kill();
  }

  // A timeout that pauses without memory.
  const auto = await Sandbox.create({ timeoutMs: 3_000, lifecycle: { onTimeout: { action: "pause", keepMemory: false } } });
  try {
    await auto.runCode("x = 1");
    await auto.files.write("f", "kept");
    await until(async () => (await auto.getInfo()).state === "paused", "the pause");
    const back = await Sandbox.connect(auto.sandboxId);
    equal((await back.runCode("x")).error?.name, "NameError", "variables after the timeout");
    equal(await back.files.read("f"), "kept", "files after the timeout");
    await back.runCode("x = 2");
    await back.pause();
    const again = await Sandbox.connect(auto.sandboxId);
    equal((await again.runCode("x")).text, "2", "a pause by request keeps the memory");
  } finally {
    await auto.kill();
  }
});
