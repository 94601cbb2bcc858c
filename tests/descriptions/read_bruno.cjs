// Reads a collection by Bruno's own parser, and prints it as JSON by its files' names.
const { readFileSync } = require("node:fs");
const { createRequire } = require("node:module");
const tools = createRequire(`${process.argv[2]}/`);
const bruno = tools("@usebruno/lang");

function readerOf(name) {
  if (name.startsWith("environments/")) return bruno.bruToEnvJsonV2;
  return /(collection|folder)\.bru$/.test(name) ? bruno.collectionBruToJson : bruno.bruToJsonV2;
}

const read = {};
for (const [name, text] of Object.entries(JSON.parse(readFileSync(0, "utf8")))) {
  if (name.endsWith(".bru")) read[name] = readerOf(name)(text);
}
console.log(JSON.stringify(read));
