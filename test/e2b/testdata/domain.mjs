// Host names of ports, with a certificate.
import { Sandbox } from "e2b";
import { equal, expect, run, until } from "./check.mjs";

run(async () => {
  const s = await Sandbox.create({ timeoutMs: 120_000 });
  try {
    const name = s.getHost(8000);
    equal(name, `8000-${s.sandboxId}.${process.env.E2B_DOMAIN}`, "name of a port");
    await s.files.write("www/f", "inside");
    await s.commands.run("cd www && exec python3 -m http.server 8000", { background: true, timeoutMs: 0 });
    const page = await until(async () => {
      const r = await fetch(`https://${name}/f`);
      return r.ok && (await r.text());
    }, "the program listens");
    equal(page, "inside", "a port");
    // Signed links name the sandbox by their host.
    const link = await s.downloadUrl("www/f");
    expect(link.startsWith(`https://49983-${s.sandboxId}.${process.env.E2B_DOMAIN}/`), link);
    equal(await (await fetch(link)).text(), "inside", "a signed link");
    // Names that are not those of a sandbox or of the API.
    for (const other of [`evil.${process.env.E2B_DOMAIN}`]) {
      equal((await fetch(`https://${other}/health`)).status, 421, other);
    }
    const [port, id] = [s.getHost(8000).split("-")[0], "0".repeat(20)];
    equal((await fetch(`https://${port}-${id}.${process.env.E2B_DOMAIN}/`)).ok, false, "an unknown sandbox");
  } finally {
    await s.kill();
  }
});
