// The blotter: open and recent orders as they change, beside the ticket. A row opens the order's story.

import { compareAmounts, showAge, showAmount, words } from "./amounts.js";
import { el } from "./dom.js";
import { KeyedList } from "./list.js";
import { openStory } from "./story.js";
import { describePrice, describeSide, makeTicket } from "./ticket.js";

/** @typedef {import("./main.js").Context} Context */
/** @typedef {import("./feed.js").Order} Order */

/**
 * @param {keyof Order & string} name
 * @returns {(one: Order, other: Order) => number}
 */
const byText = (name) => (one, other) => (one[name] < other[name] ? -1 : one[name] > other[name] ? 1 : 0);

/** @type {import("./list.js").Column<Order>[]} */
const COLUMNS = [
  { id: "age", title: "Age", cell: (order) => showAge(order.created_at), compare: byText("created_at") },
  { id: "symbol", title: "Symbol", cell: (order) => order.symbol, compare: byText("symbol") },
  {
    id: "side",
    title: "Side",
    cell: (order) => ({ text: describeSide(order.order_side), class: order.order_side === "BUY" ? "buy" : "sell" }),
    compare: byText("order_side"),
  },
  {
    id: "quantity",
    title: "Quantity",
    isNumber: true,
    cell: (order) => showAmount(order.quantity),
    compare: (one, other) => compareAmounts(one.quantity, other.quantity),
  },
  { id: "type", title: "Type", cell: (order) => words(String(order.order_type)) },
  { id: "price", title: "Price", isNumber: true, cell: describePrice },
  {
    id: "filled",
    title: "Filled",
    isNumber: true,
    cell: (order) => showAmount(order.filled_quantity),
    compare: (one, other) => compareAmounts(one.filled_quantity, other.filled_quantity),
  },
  { id: "average", title: "Average", isNumber: true, cell: (order) => showAmount(order.average_price) },
  {
    id: "status",
    title: "Status",
    cell: (order) => ({ text: words(order.order_status), class: `status ${order.order_status.toLowerCase()}` }),
    compare: byText("order_status"),
  },
  { id: "reason", title: "Reason", cell: (order) => [order.reason, ...(order.flags ?? [])].filter(Boolean).join(", ") },
  { id: "reference", title: "Reference", cell: (order) => order.client_reference_id ?? "" },
];

/** @param {Context} context */
export function openBlotter(context) {
  const { feed } = context;
  const filter = el("input", {
    type: "search",
    id: "blotter-filter",
    placeholder: "symbol, status, reference",
    oninput: () => list.resort(true),
  });
  const state = el(
    "select",
    { id: "blotter-state", onchange: () => list.resort(true) },
    el("option", { value: "" }, "all orders"),
    el("option", { value: "OPEN" }, "open"),
    el("option", { value: "CLOSED" }, "finished"),
    el("option", { value: "REJECTED" }, "rejected"),
  );
  const count = el("span", { class: "hint", role: "status" });
  const list = new KeyedList({
    name: "blotter",
    label: "Orders",
    columns: COLUMNS,
    key: (order) => order.order_id,
    empty: "No orders here.",
    sortBy: "age",
    isDescending: true,
    onOpen: (order) => openStory(context, order.order_id),
    rowClass: (order) => (order.order_state === "OPEN" ? "open" : "finished"),
  });
  list.setSource(() => {
    const text = filter.value.trim().toLowerCase();
    const wanted = state.value;
    return [...feed.orders.values()].filter(
      (order) =>
        (!wanted || order.order_state === wanted) &&
        (!text ||
          [order.symbol, order.order_status, order.client_reference_id, order.reason, order.order_id].some((part) =>
            String(part ?? "")
              .toLowerCase()
              .includes(text),
          )),
    );
  });
  let membership = -1;
  const onChange = () => {
    if (feed.membership !== membership || list.isSortedByChange || filter.value || state.value) list.resort();
    membership = feed.membership;
    list.touch();
    count.textContent = `${feed.orders.size} orders`;
  };
  feed.addEventListener("change", onChange);
  const ages = window.setInterval(() => list.touch(), 1_000);
  const ticket = makeTicket(context);
  onChange();
  const tools = el(
    "div",
    { class: "tools" },
    el("label", { for: "blotter-filter" }, "Filter"),
    filter,
    el("label", { for: "blotter-state" }, "Show"),
    state,
    count,
  );
  return {
    element: el(
      "div",
      { class: "split" },
      el("section", { class: "panel figures", "aria-label": "Orders" }, tools, list.element),
      ticket.element,
    ),
    close: () => {
      feed.removeEventListener("change", onChange);
      window.clearInterval(ages);
      ticket.close();
      list.close();
    },
  };
}
