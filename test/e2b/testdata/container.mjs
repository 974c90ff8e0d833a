// Sandboxes that are containers: metrics, and what needs snapshots of memory is refused.
import { Sandbox as Base, SandboxError } from "e2b";
import { Sandbox } from "@e2b/code-interpreter";
import { equal, expect, run, throws, until } from "./check.mjs";

run(async () => {
  const s = await Sandbox.create({ timeoutMs: 300_000 });
  try {
    equal((await s.runCode("x = 41; x + 1")).text, "42", "code");
    const [before] = await s.getMetrics();
    const info = await s.getInfo();
    equal([before.memTotal, before.cpuCount > 0], [info.memoryMB * 2 ** 20, true], "size");
    expect(before.memUsed > 0 && before.memUsed < before.memTotal, `memory: ${before.memUsed}`);
    expect(before.diskTotal > 0, `disk: ${before.diskTotal}`);
    const spin = await s.commands.run("while :; do :; done", { background: true });
    await s.runCode("y = bytearray(64 << 20)");
    const after = await until(async () => {
      const [m] = await s.getMetrics();
      return m.cpuUsedPct > 10 && m;
    }, "a busy sandbox");
    expect(after.memUsed >= before.memUsed + 2 ** 26, `memory: ${before.memUsed} ${after.memUsed}`);
    await spin.kill();
    const text = (e) => e.message;
    expect(text(await throws(() => s.fork({ count: 1 }), SandboxError)).includes("not support"), "fork is refused");
    expect(text(await throws(() => Base.create({ lifecycle: { onTimeout: "pause" } }), SandboxError)).includes("not support"), "pause is refused");
  } finally {
    await s.kill();
  }
});
