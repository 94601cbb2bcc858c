// Calls through a `fetch` that fails: prints how often each was tried, under which keys.
import * as sdk from "trading-intents-client";

const SUBMITTED = { intent_id: "i", seq: 1 };

function problem(status, code, retryAfter = "0") {
  const headers = { "content-type": "application/problem+json", "retry-after": retryAfter };
  return () => new Response(JSON.stringify({ code, status }), { status, headers });
}

function lost(code) {
  return () => {
    throw new TypeError("fetch failed", { cause: Object.assign(new Error(code), { code }) });
  };
}

async function tries(faults, call) {
  const keys = [];
  const client = new sdk.TradingClient({
    url: "http://platform",
    apiKey: "tip_paper_x",
    fetch: async (_, { headers }) => {
      keys.push(headers.get("idempotency-key"));
      const fault = faults[keys.length - 1];
      return fault ? fault() : Response.json(SUBMITTED, { status: 202 });
    },
  });
  const began = performance.now();
  const end = await call(client).then(
    (answer) => answer?.idempotencyKey ?? "answered",
    (error) => [error.name, error.mayBeRecorded, error.idempotencyKey ?? null],
  );
  return { keys, end, millis: performance.now() - began };
}

const read = (client) => client.call("GET", "/v1/caller");
const write = (client) => client.call("POST", "/v1/accounts", { body: {} });
const submit = (client) => client.account("a").buy("AAPL", 1);
const mine = (client) => client.account("a").buy("AAPL", 1, { idempotencyKey: "mine" });
const reset = lost("ECONNRESET");
const calls = {
  "read, lost": [[reset, reset], read],
  "write, lost": [[reset], write],
  "write, refused": [[lost("ECONNREFUSED")], write],
  "write, unavailable": [[problem(503, "unavailable")], write],
  "write, unknown": [[problem(503, "outcome_unknown")], write],
  "submit, lost": [[reset, problem(502, "")], submit],
  "submit, limited": [[problem(429, "rate_limited", "1")], submit],
  "submit, limited for long": [[problem(429, "rate_limited", "61")], mine],
  "submit, never": [[reset, problem(503, "unavailable"), problem(503, "unavailable")], mine],
  "submit, refused": [[problem(409, "a_newer_code")], mine],
};
const made = await Promise.all(
  Object.entries(calls).map(async ([name, given]) => [name, await tries(...given)]),
);
console.log(JSON.stringify(Object.fromEntries(made)));
