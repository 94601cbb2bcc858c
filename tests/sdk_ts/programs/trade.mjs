// Places orders through a network that fails, each once; says how many are done as it goes.
import * as sdk from "trading-intents-client/node";

const [count, atOnce, seconds] = process.argv.slice(2).map(Number);
const AGAIN = [
  sdk.AnswerLost,
  sdk.Unreachable,
  sdk.OutcomeUnknown,
  sdk.Unavailable,
  sdk.RateLimited,
];

const isAgain = (error) => AGAIN.some((kind) => error instanceof kind);

// As a careful program does it: what has no answer is asked again under its key.
async function place(account, number) {
  let idempotencyKey;
  for (;;) {
    try {
      const options = {
        clientReferenceId: `n${number}`,
        ...(idempotencyKey && { idempotencyKey }),
      };
      const placed = await account.buy("AAPL", 1, options);
      return await placed.wait({ until: "FILLED", seconds });
    } catch (error) {
      if (!isAgain(error)) throw error;
      idempotencyKey = error.idempotencyKey ?? idempotencyKey;
    }
  }
}

async function findAccount(client) {
  for (;;) {
    try {
      return await client.findAccount("sim");
    } catch (error) {
      if (!isAgain(error)) throw error;
    }
  }
}

const client = sdk.connect({ maxRetries: 6 });
const account = await findAccount(client);
let next = 0;
async function work() {
  while (next < count) {
    const number = next++;
    const order = await place(account, number);
    console.log(order.client_reference_id, order.order_status);
  }
}
await Promise.all(Array.from({ length: atOnce }, work));
client.close();
