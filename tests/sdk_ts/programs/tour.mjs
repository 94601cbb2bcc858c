// One call after the other; prints what each answered as JSON, a line each.
import { inspect } from "node:util";
import * as sdk from "trading-intents-client/node";

const [accountId, closedPort] = process.argv.slice(2);
const say = (value) => console.log(JSON.stringify(value));

class Exact {
  constructor(text) {
    this.text = text;
  }
  toFixed() {
    return this.text;
  }
}

async function failureOf(call) {
  try {
    return { unexpected: await call() };
  } catch (error) {
    const { name, code, status, requestId, idempotencyKey, mayBeRecorded } = error;
    const more = { errors: error.errors, triggered: error.triggered?.map((each) => each.reason) };
    const is = error instanceof sdk.TradingError;
    return { name, code, status, is, hasId: !!requestId, key: idempotencyKey, mayBeRecorded, more };
  }
}

if (accountId === "codes") {
  say(
    Object.fromEntries(Object.entries(sdk.CLASS_OF_CODE).map(([code, kind]) => [code, kind.name])),
  );
  process.exit();
}

const client = sdk.connect();
const account = client.account(accountId);

const resting = await account.buy("ACME", "5", { limit: "1.50", timeInForce: "GOOD_TILL_CANCEL" });
await resting.wait({ until: "NEW" });
await resting.replace({ quantity: 4 });
await resting.wait({ until: "NEW" });
const changed = await resting.refresh();
say([changed.quantity, changed.limit_price, changed.client_reference_id]);

for (let number = 0; number < 6; number += 1) {
  await account.buy("AAPL", 1, { clientReferenceId: `p${number}`, idempotencyKey: `k${number}` });
}
const again = await account.buy("AAPL", 1, { clientReferenceId: "p5", idempotencyKey: "k5" });
say([again.isReplayed, again.idempotencyKey]);
const pages = account.orders({ symbol: "AAPL" });
const first = await pages.page({ limit: 4 });
const second = await pages.page({ limit: 4, cursor: first.next_cursor });
say([...first.data, ...second.data].map((order) => order.client_reference_id));
say([first.data.length, second.next_cursor]);
const references = [];
for await (const order of account.orders({ status: ["NEW", "FILLED"] })) {
  references.push(order.client_reference_id);
}
say(references.length);

const exact = sdk.connect({ decimal: (text) => new Exact(text) });
const order = await exact.account(accountId).order(resting.intent_id);
say([order.quantity instanceof Exact, order.limit_price.text, typeof order.version, order.symbol]);
await order.replace({ limit: new Exact("1.25") });
say((await (await order.cancel()).wait()).order_status);
exact.close();

say((await account.evaluate(sdk.createCommand("AAPL", "BUY", 1n))).allowed);
say((await client.call("GET", "/v1/caller")).environment);
say(await client.call("GET", "/healthz"));
const shown = inspect([client, account, resting], { depth: 9, showHidden: true });
say(shown.includes(process.env.TRADING_INTENTS_API_KEY));
say(await failureOf(() => account.sell("AAPL", "many")));
say(await failureOf(() => account.order("01a1dd48-2166-7b29-aa0c-4afddaa7c207")));
say(await failureOf(() => account.buy("AAPL", 2, { idempotencyKey: "k5" })));
say(await failureOf(() => resting.wait({ until: "FILLED" })));
say(await failureOf(() => account.buy("AAPL", 0.1)));
say(await failureOf(() => account.buy("AAPL", 1, { idempotencyKey: "" })));
const stranger = sdk.connect({ apiKey: "tip_paper_none" });
say(await failureOf(() => stranger.call("GET", "/v1/accounts")));
const nobody = sdk.connect({ url: `http://127.0.0.1:${closedPort}`, maxRetries: 1 });
say(await failureOf(() => nobody.account(accountId).buy("AAPL", 1)));
say(await failureOf(() => nobody.account(accountId).events().next()));
await account.halt("a test");
say(await failureOf(() => account.buy("AAPL", 1)));
await account.resume();
client.close();
say(await failureOf(() => client.call("GET", "/healthz")));
