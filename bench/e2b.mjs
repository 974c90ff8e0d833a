// Measures the SDK of E2B beside plain requests to the own API of the same server, in turn, and prints the times of both
// in milliseconds as JSON. PART is create, calls or transfers.
import { Sandbox } from "@e2b/code-interpreter";

const pairs = Number(process.env.PAIRS);
const api = process.env.E2B_API_URL;
const headers = { authorization: `Bearer ${process.env.E2B_API_KEY}` };
const took = {};

async function plain(method, path, body, kind = "application/json") {
  const r = await fetch(`${api}/v1/${path}`, { method, body, headers: body === undefined ? headers : { ...headers, "content-type": kind } });
  if (!r.ok) throw new Error(`${method} ${path}: ${r.status} ${await r.text()}`);
  return r;
}

async function measure(name, n, ours, theirs) {
  const times = (took[name] = { sdk: [], plain: [] });
  for (let i = 0; i <= n; i++) {
    for (const [kind, f] of i % 2 ? [["sdk", theirs], ["plain", ours]] : [["plain", ours], ["sdk", theirs]]) {
      const began = performance.now();
      const after = await f();
      if (i > 0) times[kind].push(performance.now() - began); // the first pair makes the connections
      await after?.();
    }
  }
}

const check = (ok, what) => {
  if (!ok) throw new Error("a wrong result: " + what);
};

let made = 0;
const cell = async (name) => {
  const r = await (await plain("POST", `sessions/${name}/cells`, JSON.stringify({ code: "1+1" }))).json();
  check(JSON.stringify(r).includes('"2"'), JSON.stringify(r));
};
const code = async (s) => check((await s.runCode("1+1")).text === "2", "runCode");

// The pool makes another sandbox after each one, which must not share the processors with the next measurement.
const settle = () => new Promise((r) => setTimeout(r, Number(process.env.SETTLE)));

const create = () => measure(
  "create",
  pairs,
  async () => {
    const name = `plain-${made++}`;
    await plain("POST", "sessions", JSON.stringify({ name }));
    await cell(name);
    return async () => {
      await plain("DELETE", `sessions/${name}`);
      await settle();
    };
  },
  async () => {
    const s = await Sandbox.create();
    await code(s);
    return async () => {
      await s.kill();
      await settle();
    };
  },
);

const calls = async (s, name) => {
  await measure("cell", pairs * 4, () => cell(name), () => code(s));
  await measure(
    "command",
    pairs,
    async () => {
      await (await plain("POST", `sessions/${name}/commands`, JSON.stringify({ args: ["/bin/bash", "-l", "-c", "true"] }))).text();
    },
    async () => {
      await s.commands.run("true");
    },
  );
};

const transfers = async (s, name) => {
  const data = new Uint8Array(100 << 20).map((_, i) => i % 251).buffer;
  await measure(
    "upload",
    pairs,
    async () => {
      await (await plain("PUT", `sessions/${name}/files?path=plain`, data, "application/octet-stream")).text();
    },
    async () => {
      await s.files.write("sdk", data, { requestTimeoutMs: 0 });
    },
  );
  await measure(
    "download",
    pairs,
    async () => check((await (await plain("GET", `sessions/${name}/files?path=plain`)).arrayBuffer()).byteLength === 100 << 20, "size"),
    async () => check((await s.files.read("sdk", { format: "bytes", requestTimeoutMs: 0 })).length === 100 << 20, "size"),
  );
};

if (process.env.PART === "create") {
  await create();
} else {
  const s = await Sandbox.create({ timeoutMs: 3600_000 });
  try {
    await { calls, transfers }[process.env.PART](s, s.sandboxId); // both sides use the same sandbox
  } finally {
    await s.kill();
  }
}
console.log(JSON.stringify(took));
process.exit(0);
