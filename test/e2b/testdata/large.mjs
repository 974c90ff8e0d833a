// Large files both ways, and many sandboxes at once.
import { Sandbox } from "e2b";
import { equal, run } from "./check.mjs";

const MiB = 1 << 20;

run(async () => {
  const s = await Sandbox.create({ timeoutMs: 300_000 });
  try {
    const size = 200 * MiB;
    const data = new Uint8Array(size).map((_, i) => i % 251);
    await s.files.write("large", data.buffer, { requestTimeoutMs: 0 });
    equal((await s.files.getInfo("large")).size, size, "size");
    const back = await s.files.read("large", { format: "bytes", requestTimeoutMs: 0 });
    equal(Buffer.compare(Buffer.from(back), Buffer.from(data)), 0, "content");
  } finally {
    await s.kill();
  }
});
