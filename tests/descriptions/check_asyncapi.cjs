// Reads documents and events: prints what AsyncAPI's parser says of each document, and which events
// do not fit the first.
const { readFileSync } = require("node:fs");
const { createRequire } = require("node:module");
const tools = createRequire(`${process.argv[2]}/`);
const { Parser } = tools("@asyncapi/parser");
const Ajv = tools("ajv").default;

const ERROR = 0;
const { documents, events } = JSON.parse(readFileSync(0, "utf8"));

async function complaintsOf(document) {
  const { diagnostics } = await new Parser().parse(JSON.stringify(document));
  return diagnostics.filter((each) => each.severity === ERROR).map((each) => each.message);
}

function misfitsOf(document) {
  const ajv = new Ajv({ strict: false, formats: { "date-time": true, int64: /^-?\d+$/ } });
  ajv.addSchema(document, "document");
  const misfits = [];
  for (const { event, data } of events) {
    const fits = ajv.getSchema(`document#/components/messages/${event}/payload`);
    if (!fits(data)) misfits.push([event, fits.errors]);
  }
  return misfits;
}

Promise.all(documents.map(complaintsOf)).then((complaints) => {
  console.log(JSON.stringify({ complaints, misfits: misfitsOf(documents[0]) }));
});
