// What a type checker says of uses of the package: those that are wrong must be refused.
import {
  type Account,
  bearer,
  ControlRejected,
  createCommand,
  type Order,
  TradingClient,
} from "trading-intents-client";

class Exact {
  constructor(readonly text: string) {}
  toFixed(): string {
    return this.text;
  }
}

export async function useTexts(client: TradingClient, account: Account): Promise<string> {
  const order: Order = await (await account.buy("AAPL", 10n, { limit: "187.5" })).wait();
  const price: string | null = order.average_price;
  const [first] = await client.list("/v1/brokers").toArray();
  await client.call("PUT", "/v1/controls/accounts/{account_id}/limits", {
    path: { account_id: account.id },
    body: { max_order_quantity: "5" },
    headers: { "if-match": '"1"' },
  });
  const caller = await client.call("GET", "/v1/caller");
  const nothing: undefined = await client.call("DELETE", "/v1/users/me");
  for await (const event of account.events({ kinds: ["broker_trade"] })) {
    if (event.kind === "broker_trade") return event.data.price;
    if (event.kind === "primed") continue;
  }
  return `${price} ${first?.name} ${caller.principal_type} ${nothing}`;
}

export async function useDecimals(url: string): Promise<Exact | null> {
  const client = new TradingClient({
    url,
    credentials: bearer(() => "token"),
    decimal: (text) => new Exact(text),
  });
  const account = await client.findAccount();
  for await (const trade of account.trades()) {
    const price: Exact = trade.price;
    const symbol: string = trade.symbol;
    await account.sell(symbol, trade.quantity, { limit: price, stopLoss: [price, "1"] });
  }
  for await (const event of account.events()) {
    if (event.kind === "broker_order") return event.data.average_price ?? null;
  }
  return (await account.balances()).equity ?? null;
}

export async function areRefused(client: TradingClient, account: Account): Promise<void> {
  // @ts-expect-error no such side
  createCommand("AAPL", "HOLD", 1);
  // @ts-expect-error no such option
  await account.buy("AAPL", 1, { limitPrice: "1" });
  // @ts-expect-error no such path
  await client.call("GET", "/v1/nothing");
  // @ts-expect-error the path's parts are needed
  await client.call("GET", "/v1/accounts/{account_id}");
  // @ts-expect-error no list
  client.list("/v1/caller");
  // @ts-expect-error no such status
  account.orders({ status: ["DONE"] });
  // @ts-expect-error neither a key nor credentials are a URL
  new TradingClient({ apiKey: "tip_paper_x" });
  const order = await account.order("x");
  // @ts-expect-error an amount is a text
  order.quantity * 2;
  // @ts-expect-error no such status
  if (order.order_status === "DONE") throw new ControlRejected("x");
}
