// The blotter: open and recent orders as they change, beside the ticket. A row opens the order's story.

import { showAge, words } from "./amounts.js";
import { el, listen, makeView, repeat } from "./dom.js";
import { KeyedList, amountColumn, byText } from "./list.js";
import { describeAverage, describePrice, describeSide, explainOrder } from "./orders.js";
import { openStory } from "./story.js";
import { makeTicket } from "./ticket.js";

/** @type {Column<Order>[]} */
const COLUMNS = [
  { id: "age", title: "Age", cell: (order) => showAge(order.created_at), compare: byText("created_at") },
  { id: "symbol", title: "Symbol", cell: (order) => order.symbol, compare: byText("symbol") },
  {
    id: "side",
    title: "Side",
    cell: (order) => ({ text: describeSide(order), class: order.order_side === "BUY" ? "buy" : "sell" }),
    compare: byText("order_side"),
  },
  amountColumn("quantity", "Quantity", "quantity"),
  { id: "type", title: "Type", cell: (order) => words(String(order.order_type)) },
  { id: "price", title: "Price", isNumber: true, cell: describePrice },
  amountColumn("filled", "Filled", "filled_quantity"),
  { id: "average", title: "Average", isNumber: true, cell: describeAverage },
  {
    id: "status",
    title: "Status",
    cell: (order) => ({ text: words(order.order_status), class: `status ${order.order_status.toLowerCase()}` }),
    compare: byText("order_status"),
  },
  {
    id: "reason",
    title: "Reason",
    isLong: true,
    cell: (order) => [explainOrder(order), ...(order.flags ?? [])].filter(Boolean).join(", "),
  },
  { id: "reference", title: "Reference", cell: (order) => order.client_reference_id ?? "" },
];
const STATES = { "": "all orders", OPEN: "open", CLOSED: "finished", REJECTED: "rejected" };
const FILTERED = ["symbol", "order_status", "client_reference_id", "reason", "order_id"];

/** @type {(context: Context) => View} */
export function openBlotter(context) {
  const { feed } = context;
  const resort = () => list.resort(true);
  const search = { type: "search", id: "blotter-filter", placeholder: "symbol, status, reference", oninput: resort };
  const filter = el("input", search);
  const options = Object.entries(STATES).map(([value, label]) => el("option", { value }, label));
  const state = el("select", { id: "blotter-state", onchange: resort }, ...options);
  const count = el("span", { class: "hint", role: "status" });

  function* rows() {
    const text = filter.value.trim().toLowerCase();
    for (const order of feed.orders.values())
      if (!state.value || order.order_state === state.value)
        if (FILTERED.some((name) => String(order[name] ?? "").toLowerCase().includes(text))) yield order;
  }

  const list = new KeyedList({
    name: "blotter",
    label: "Orders",
    columns: COLUMNS,
    rows,
    key: (order) => order.order_id,
    empty: "No orders here.",
    sortBy: "age",
    isDescending: true,
    onOpen: (order) => openStory(context, order.order_id),
    rowClass: (order) => (order.order_state === "OPEN" ? "open" : "finished"),
  });
  let membership = -1;
  const onChange = () => {
    if (feed.membership !== membership || list.isSortedByChange || filter.value || state.value) list.resort();
    membership = feed.membership;
    list.touch();
    count.textContent = `${feed.orders.size} orders`;
  };
  onChange();
  const ticket = makeTicket(context);
  const labels = [el("label", { for: filter.id }, "Filter"), el("label", { for: state.id }, "Show")];
  const tools = el("div", { class: "tools" }, labels[0], filter, labels[1], state, count);
  const orders = el("section", { class: "panel figures", "aria-label": "Orders" }, tools, list.element);
  const element = el("div", { class: "split" }, orders, ticket.element);
  const ages = repeat(1, () => list.touch());
  return makeView(element, listen(feed, "change", onChange), ages, ticket.close, list.close);
}
