// Trades at the address given by Alpaca's own npm package, and prints what it understood as JSON.
const [url, key, secret, location] = process.argv.slice(2);
const { Alpaca, streaming } = require(location);
const { EVENT, TradingStream } = streaming;

const fetchApi = (target, init) => fetch(String(target).replace("https://paper-api.alpaca.markets", url), init);
const alpaca = new Alpaca({ keyId: key, secret, paper: true, fetchApi });
const stream = new TradingStream({ credentials: { keyId: key, secret }, url: `${url.replace("http", "ws")}/stream` });
const updates = [];
let wake = () => {};
stream.onTradeUpdate((update) => {
  updates.push(update);
  wake();
});
stream.on(EVENT.SUBSCRIPTION, () => wake("listening"));
stream.subscribeTradeUpdates();

async function until(last) {
  while (!updates.some((update) => update.event === last)) {
    await new Promise((resolve) => (wake = resolve));
  }
}

async function main() {
  const listening = new Promise((resolve) => (wake = resolve));
  stream.connect();
  await listening;
  const orders = alpaca.trading.orders;
  const bought = await orders.market({ symbol: "ACME", qty: "3", side: "buy", clientOrderId: "n1" });
  await until("fill");
  const resting = await orders.limit({
    symbol: "ACME", qty: "5", side: "buy", limitPrice: "50", timeInForce: "gtc", clientOrderId: "n2",
  });
  await orders.deleteOrderByOrderID({ orderId: resting.id });
  await until("canceled");
  const fill = updates.find((update) => update.event === "fill");
  const found = await orders.getOrderByClientOrderId({ clientOrderId: "n1" });
  const positions = await alpaca.trading.positions.getAllOpenPositions();
  const account = await alpaca.trading.account.getAccount();
  console.log(JSON.stringify({
    bought: [bought.clientOrderId, bought.status],
    events: updates.map((update) => update.event),
    fill: [String(fill.price), String(fill.qty), Boolean(fill.executionId)],
    found: [found.status, String(found.filledQty)],
    positions: positions.map((each) => [each.symbol, String(each.qty)]),
    account: account.status,
  }));
  stream.disconnect();
}

main().then(() => process.exit(0), (error) => {
  console.error(error);
  process.exit(1);
});
