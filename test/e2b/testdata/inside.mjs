// The inside of a sandbox: files, watching, signed links, terminals, contexts, results.
import { FileNotFoundError, FilesystemEventType, InvalidArgumentError, NotFoundError } from "e2b";
import { Sandbox } from "@e2b/code-interpreter";
import { equal, expect, run, throws, until } from "./check.mjs";

run(async () => {
  const s = await Sandbox.create({ timeoutMs: 300_000 });
  try {
    // Files.
    const many = await s.files.write([{ path: "m/1", data: "one" }, { path: "/tmp/2", data: new Uint8Array([0, 255]).buffer }]);
    equal(many.map((f) => f.path), ["/home/user/m/1", "/tmp/2"], "several files");
    equal([...(await s.files.read("/tmp/2", { format: "bytes" }))], [0, 255], "bytes");
    await s.files.write("z", "zip".repeat(1000), { gzip: true });
    equal((await s.files.read("z", { gzip: true })).length, 3000, "gzip both ways");
    await s.files.write("stream", new Blob(["blob"]).stream());
    equal(await new Response(await s.files.read("stream", { format: "stream" })).text(), "blob", "streams");
    await s.files.write("empty", "");
    equal(await s.files.read("empty"), "", "an empty file");
    equal(await s.files.makeDir("d/e"), true, "make a directory");
    equal(await s.files.makeDir("d/e"), false, "it exists");
    const moved = await s.files.rename("m/1", "d/e/one");
    equal([moved.path, moved.type], ["/home/user/d/e/one", "file"], "rename");
    equal((await s.files.list("d", { depth: 2 })).map((f) => f.path), ["/home/user/d/e", "/home/user/d/e/one"], "depth");
    await s.commands.run("ln -s one d/e/link");
    const link = await s.files.getInfo("d/e/link");
    equal([link.type, link.symlinkTarget, link.owner], ["file", "/home/user/d/e/one", "user"], "a link");
    expect((await s.files.getInfo("d/e/one")).permissions.startsWith("-rw"), "permissions");
    await s.files.remove("d");
    equal(await s.files.exists("d"), false, "remove");
    await throws(() => s.files.getInfo("d"), NotFoundError);
    await throws(() => s.files.list("d"), NotFoundError);
    await throws(() => s.files.read("m"), InvalidArgumentError);
    await throws(() => s.files.read("z", { user: "nobody" }), InvalidArgumentError);
    await throws(() => s.files.list("z"), InvalidArgumentError);
    await throws(() => s.commands.run("true", { cwd: "/missing" }), InvalidArgumentError);

    // Watching.
    const events = [];
    const w = await s.files.watchDir("m", (e) => events.push(`${e.type} ${e.name}`), { recursive: true });
    await s.files.makeDir("m/sub");
    await until(() => events.includes("create sub"), "a created directory");
    await s.files.write("m/sub/f", "1");
    await until(() => events.some((e) => e.endsWith(" sub/f")), "a file below");
    await s.files.remove("m/sub/f");
    await until(() => events.includes(`${FilesystemEventType.REMOVE} sub/f`), "a removed file: " + events);
    await w.stop();

    // Signed links.
    await s.files.write("signed ü.txt", "read me");
    const get = (url) => fetch(url).then(async (r) => [r.status, await r.text()]);
    equal(await get(await s.downloadUrl("signed ü.txt")), [200, "read me"], "a signed download");
    equal(await get(await s.downloadUrl("signed ü.txt", { useSignatureExpiration: 60 })), [200, "read me"], "with an end");
    const old = new URL(await s.downloadUrl("z", { useSignatureExpiration: -60 }));
    equal((await get(old))[0], 401, "an expired link");
    old.searchParams.set("signature_expiration", "9999999999");
    equal((await get(old))[0], 401, "a forged link");
    const other = new URL(await s.downloadUrl("z"));
    other.searchParams.set("path", "empty");
    equal((await get(other))[0], 401, "a link for another file");
    const form = new FormData();
    form.append("file", new Blob(["up"]), "any");
    equal((await fetch(await s.uploadUrl("up.txt"), { method: "POST", body: form })).status, 200, "a signed upload");
    equal(await s.files.read("up.txt"), "up", "its content");
    equal((await fetch(await s.downloadUrl("z"), { method: "POST", body: form })).status, 401, "a link to read writes nothing");

    // A terminal.
    let screen = "";
    const decoder = new TextDecoder();
    const pty = await s.pty.create({ cols: 80, rows: 24, onData: (d) => (screen += decoder.decode(d)), timeoutMs: 0 });
    await s.pty.resize(pty.pid, { cols: 99, rows: 33 });
    await s.pty.sendInput(pty.pid, new TextEncoder().encode("stty size; echo done-$((1+1))\n"));
    await until(() => screen.includes("done-2"), "output of the terminal");
    expect(screen.includes("33 99"), "its size: " + screen);
    equal(await s.pty.kill(pty.pid), true, "kill the terminal");

    // Contexts.
    await s.commands.run("mkdir -p /tmp/cwd");
    const c = await s.createCodeContext({ cwd: "/tmp/cwd" });
    equal([c.language, c.cwd], ["python", "/tmp/cwd"], "context");
    equal((await s.runCode("import os; v = 1; os.getcwd()", { context: c })).text, "'/tmp/cwd'", "its directory");
    equal((await s.runCode("v")).error.name, "NameError", "contexts are separate");
    expect((await s.listCodeContexts()).some((x) => x.id === c.id && x.cwd === "/tmp/cwd"), "contexts");
    await s.restartCodeContext(c);
    equal((await s.runCode("v", { context: c })).error.name, "NameError", "a restart loses variables");
    equal((await s.runCode("import os; os.getcwd()", { context: c })).text, "'/tmp/cwd'", "the directory after a restart");
    await s.removeCodeContext(c);
    await throws(() => s.runCode("1", { context: c }), NotFoundError);
    await throws(() => s.runCode("1", { language: "r" }), Error);
    await throws(() => s.createCodeContext({ language: "java" }), Error);
    equal((await s.runCode("import os; os.environ['A']", { envs: { A: "b" } })).text, "'b'", "env of a call");

    // Results.
    const all = await s.runCode(`
class All:
    def _repr_html_(self): return "<b>ü</b>"
    def _repr_markdown_(self): return "*m*"
    def _repr_svg_(self): return "<svg/>"
    def _repr_png_(self): return b"png"
    def _repr_jpeg_(self): return b"jpeg"
    def _repr_latex_(self): return "$l$"
    def _repr_json_(self): return {"j": 1}
    def _repr_javascript_(self): return "js"
    def _repr_pdf_(self): return b"pdf"
    def __repr__(self): return "text"
from recluse import display
display(All())
All()`);
    const [first, main] = all.results;
    equal([first.isMainResult, main.isMainResult], [false, true], "the main result");
    for (const r of all.results) {
      equal([r.text, r.html, r.markdown, r.svg, r.latex, r.json], ["text", "<b>ü</b>", "*m*", "<svg/>", "$l$", { j: 1 }], "formats");
      equal([r.png, r.jpeg, r.pdf].map(atob), ["png", "jpeg", "pdf"], "pictures");
      equal(r.javascript, "js", "javascript");
    }
    const seen = [];
    await s.runCode("import time\nfor i in range(3): print(i); time.sleep(0.05)", { onStdout: (o) => seen.push(o.line) });
    equal(seen.join(""), "0\n1\n2\n", "output while it runs");
    equal((await s.runCode("import sys; sys.exit(3)")).error.name, "SystemExit", "exit");

    const shown = await s.runCode(`display({"application/vnd.recluse.chart+json": {"type": "line"},
  "application/vnd.recluse.table+json": {"a": [1]}, "application/x-own": "o", "text/plain": "t"}, raw=True)`);
    const own = shown.results[0];
    equal([own.chart, own.data, own.text, own.extra["application/x-own"]], [{ type: "line" }, { a: [1] }, "t", "o"], "chart and data");

    // Figures and data frames, if the sandbox has the libraries.
    if (process.env.CHARTS) {
      const f = await s.runCode(`
import matplotlib.pyplot as plt
plt.plot([1, 2], [3, 4], label="a"); plt.title("t"); plt.xlabel("time (s)"); plt.ylabel("y")
plt.show()`);
      equal(f.error, undefined, "a figure");
      const chart = f.results[0].chart;
      expect(f.results[0].png.length > 100, "picture of the figure");
      equal([chart.type, chart.title, chart.x_label, chart.y_label, chart.x_unit], ["line", "t", "time (s)", "y", "s"], "chart");
      equal(chart.elements, [{ label: "a", points: [[1, 3], [2, 4]] }], "points");
      const d = await s.runCode('import pandas as pd; pd.DataFrame({"a": [1, 2]})');
      equal(d.results[0].data, { a: [1, 2] }, "data of a data frame");
    }
  } finally {
    await s.kill();
  }
});
