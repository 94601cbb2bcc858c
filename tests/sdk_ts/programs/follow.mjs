// Follows an account's events until a symbol is traded; prints each as JSON.
import { connect } from "trading-intents-client/node";

const [accountId, last, after] = process.argv.slice(2);
const client = connect();
const stream = await client.account(accountId).events({ after }).open();
console.log("open");
for await (const event of stream) {
  const said = { kind: event.kind, cursor: event.cursor, data: event.data };
  console.log(JSON.stringify(said));
  if (event.kind === "broker_position" && event.data.symbol === last) break;
}
client.close();
