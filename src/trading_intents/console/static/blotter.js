// The blotter: open and recent orders as they change, beside the ticket. A row opens the order's
// story.

import { showAge, showTime, words } from "./amounts.js";
import { messageOf, path } from "./api.js";
import { button, el, listen, makeView, openDialog, repeat, setText } from "./dom.js";
import { Form } from "./form.js";
import { KeyedList, amountColumn, byText } from "./list.js";
import {
  describeAverage,
  describePrice,
  describeSide,
  entryOf,
  explainOrder,
  isUnprotected,
} from "./orders.js";
import { openStory } from "./story.js";
import { NEEDS_KEY, makeTicket } from "./ticket.js";

/** @param {Order} order */
const showSide = (order) => ({
  text: describeSide(order),
  class: order.order_side === "BUY" ? "buy" : "sell",
});
/** @param {Order} order */
const showStatus = ({ order_status: status }) => ({
  text: words(status),
  class: `status ${status.toLowerCase()}`,
});
/** @param {Order} order in the row's second line */
function explain(order) {
  const bare =
    isUnprotected(order) && "UNPROTECTED: more is held than its exits and other orders close";
  const waits = doesWait(order) && "works as soon as its entry fills";
  const flags = (order.flags ?? []).filter((/** @type {string} */ flag) => flag !== "unprotected");
  return [bare, explainOrder(order), ...flags, waits].filter(Boolean).join(", ");
}
/** @param {Order} order an exit before its entry's first fill */
const doesWait = ({ active, order_state: state }) => active === false && state === "OPEN";
/** @type {(one: Order, other: Order) => number} Entries before their legs. */
const byGroup = (one, other) =>
  entryOf(one).localeCompare(entryOf(other)) ||
  Number(Boolean(one.leg)) - Number(Boolean(other.leg));

/** @type {Column<Order>[]} */
const COLUMNS = [
  { id: "time", title: "Time", cell: (order) => showTime(order.created_at) },
  {
    id: "age",
    title: "Age",
    cell: (order) => showAge(order.created_at),
    compare: byText("created_at"),
  },
  {
    id: "symbol",
    title: "Symbol",
    cell: ({ leg, symbol }) => (leg ? `↳ ${symbol}` : symbol),
    compare: byText("symbol"),
  },
  { id: "side", title: "Side", cell: showSide, compare: byText("order_side") },
  { id: "status", title: "Status", cell: showStatus, compare: byText("order_status") },
  amountColumn("quantity", "Quantity", "quantity"),
  { id: "type", title: "Type", cell: (order) => words(String(order.leg || order.order_type)) },
  { id: "price", title: "Price", isNumber: true, cell: describePrice },
  amountColumn("filled", "Filled", "filled_quantity"),
  { id: "average", title: "Average", isNumber: true, cell: describeAverage },
  { id: "reason", title: "Reason", isLong: true, cell: explain },
  {
    id: "reference",
    title: "Reference",
    isLong: true,
    cell: (order) => order.client_reference_id ?? "",
  },
];
const STATES = { "": "all orders", OPEN: "open", CLOSED: "finished", REJECTED: "rejected" };
const FILTERED = ["symbol", "order_status", "client_reference_id", "reason", "order_id"];

/** @param {Context} context */
function openCancelAll({ api, account, feed }) {
  const url = path`/v1/accounts/${account.id}/intents/cancel-all`;
  const open = [...feed.orders.values()].filter((order) => order.order_state === "OPEN").length;
  const form = new Form({
    name: "cancel-all",
    submit: `Cancel every ${account.environment === "live" ? "LIVE " : ""}order`,
    isDangerous: true,
    onSubmit: async () => {
      let count = 0;
      let answer;
      do {
        answer = await api.json("submit_intent", "POST", url, { body: {} });
        count += answer.intents.length;
      } while (answer.more && answer.intents.length);
      return `Accepted: ${count} cancels are on their way.`;
    },
  });
  form.setCredential(api.pick("submit_intent"), NEEDS_KEY);
  const what = `${open} orders of ${account.name} are open. All of them are cancelled, whatever the filter shows.`;
  openDialog("Cancel all orders", [el("p", {}, what), form.element]);
}

/** @type {(context: Context) => View} */
export function openBlotter(context) {
  const { feed, kept, api } = context;
  const resort = () => {
    Object.assign(kept, { filter: filter.value, state: state.value });
    list.resort(true);
  };
  const search = {
    type: "search",
    id: "blotter-filter",
    placeholder: "symbol, status, reference",
    oninput: resort,
  };
  const filter = el("input", search);
  const options = Object.entries(STATES).map(([value, label]) => el("option", { value }, label));
  const state = el("select", { id: "blotter-state", onchange: resort }, ...options);
  const count = el("span", { class: "hint", role: "status" });
  filter.value = kept.filter ?? "";
  state.value = kept.state ?? "";
  const mayCancel = (/** @type {Order} */ order) =>
    order.order_state === "OPEN" &&
    order.order_status !== "PENDING_CANCEL" &&
    Boolean(api.pick("submit_intent"));

  /** @param {Order} order */
  function cancel(order) {
    const what = `Cancel of ${describeSide(order)} ${order.quantity} ${order.symbol}`;
    void context.submit({ type: "CANCEL", payload: { ref_intent_id: order.order_id } }).then(
      () => context.notify({ text: `${what}: accepted, on its way.`, look: "" }),
      (error) => context.notify({ text: `${what}: ${messageOf(error)}`, look: "loss" }),
    );
  }

  function* rows() {
    const text = filter.value.trim().toLowerCase();
    const { size } = feed.orders;
    let shown = 0;
    for (const order of feed.orders.values())
      if (!state.value || order.order_state === state.value)
        if (
          FILTERED.some((name) =>
            String(order[name] ?? "")
              .toLowerCase()
              .includes(text),
          )
        ) {
          shown += 1;
          yield order;
        }
    setText(count, shown === size ? `${size} orders` : `${shown} of ${size} orders`);
  }

  const list = new KeyedList({
    name: "blotter",
    label: "Orders",
    columns: [
      ...COLUMNS,
      {
        id: "cancel",
        title: "",
        cell: (order) => ({ text: mayCancel(order) ? "Cancel" : "", class: "press" }),
      },
    ],
    rows,
    onPress: (order) => mayCancel(order) && cancel(order),
    key: (order) => order.order_id,
    empty: "No orders here.",
    sortBy: "age",
    isDescending: true,
    onOpen: (order) => openStory(context, order.order_id),
    rowClass: (order) => {
      const looks = [order.leg && "leg", isUnprotected(order) && "unprotected"]
        .filter(Boolean)
        .join(" ");
      return `${order.order_state === "OPEN" ? "open" : "finished"} ${looks}`;
    },
    isTall: (order) =>
      Boolean(order.reason || order.detail || order.flags?.length || doesWait(order)),
    leader: (order) => feed.orders.get(entryOf(order)) ?? order,
    compareGrouped: byGroup,
  });
  let membership = -1;
  const onChange = () => {
    if (feed.membership !== membership || list.isSortedByChange || filter.value || state.value)
      list.resort();
    membership = feed.membership;
    list.touch();
  };
  onChange();
  const ticket = makeTicket(context);
  const all = button("Cancel all", () => openCancelAll(context), { class: "cancels" });
  const labels = [
    el("label", { for: filter.id }, "Filter"),
    el("label", { for: state.id }, "Show"),
  ];
  const tools = el("div", { class: "tools" }, labels[0], filter, labels[1], state, count, all);
  const orders = el(
    "section",
    { class: "panel figures", "aria-label": "Orders" },
    tools,
    list.element,
  );
  const element = el("div", { class: "split" }, orders, ticket.element);
  const ages = repeat(1, () => list.touch());
  return makeView(element, listen(feed, "change", onChange), ages, ticket.close, list.close);
}
