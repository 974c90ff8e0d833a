// Fifty sandboxes at once.
import { Sandbox } from "e2b";
import { equal, run } from "./check.mjs";

run(async () => {
  const all = await Promise.allSettled(Array.from({ length: 50 }, () => Sandbox.create({ timeoutMs: 300_000 })));
  const made = all.filter((r) => r.status === "fulfilled").map((r) => r.value);
  try {
    equal(all.filter((r) => r.status === "rejected").map((r) => r.reason.message), [], "failures");
    equal(new Set(made.map((s) => s.sandboxId)).size, 50, "sandboxes");
    const out = await Promise.all(made.map((s, i) => s.commands.run(`echo ${i}`)));
    equal(out.map((r) => r.stdout), made.map((_, i) => `${i}\n`), "commands");
  } finally {
    await Promise.all(made.map((s) => s.kill()));
  }
});
