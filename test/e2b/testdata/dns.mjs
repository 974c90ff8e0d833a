// Leads all names below sandbox.test to this machine.
import dns from "node:dns";

const { lookup } = dns;
dns.lookup = (name, options, callback) => {
  if (typeof options === "function") [options, callback] = [{}, options];
  if (!name.endsWith(".sandbox.test")) return lookup(name, options, callback);
  const found = { address: "127.0.0.1", family: 4 };
  process.nextTick(() => (options.all ? callback(null, [found]) : callback(null, found.address, found.family)));
};
