// For the operator: this process's metrics as figures and charts, and the outbox's health. Changes nothing.

import { showAge, words } from "./amounts.js";
import { NotAllowed } from "./api.js";
import { LineChart, Samples } from "./chart.js";
import { el, fill, repeat, table, terms } from "./dom.js";

/** @typedef {import("./main.js").Context} Context */
/** @typedef {{name: string, labels: Record<string, string>, value: number}} Sample */

const READ_SECONDS = 2;
const STALE_SECONDS = 10;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;
const LINE = /^(\w+)(?:\{(.*)\})? (\S+)/;
const SUBMIT = "/v1/accounts/{account_id}/intents";

/**
 * Prometheus' text format, as far as /metrics uses it.
 * @param {string} text
 */
export function parseMetrics(text) {
  /** @type {Sample[]} */
  const samples = [];
  for (const line of text.split("\n")) {
    const found = LINE.exec(line);
    if (!found) continue;
    const labels = Object.fromEntries([...(found[2] ?? "").matchAll(LABEL)].map(([, name, value]) => [name, value]));
    samples.push({ name: String(found[1]), labels, value: Number(found[3]) });
  }
  return samples;
}

/**
 * @param {Sample[]} samples
 * @param {string} name
 * @param {Record<string, string>} [labels]
 */
function total(samples, name, labels = {}) {
  const wanted = Object.entries(labels);
  return samples
    .filter((sample) => sample.name === name && wanted.every(([label, value]) => sample.labels[label] === value))
    .reduce((all, sample) => all + sample.value, 0);
}

/**
 * The upper edge, in milliseconds, of the bucket in which a histogram's quantile fell between two readings.
 * @param {Sample[]} before
 * @param {Sample[]} now
 * @param {string} name
 * @param {number} quantile
 * @param {Record<string, string>} [labels]
 */
export function quantileBetween(before, now, name, quantile, labels = {}) {
  const edges = [...new Set(now.filter((sample) => sample.name === `${name}_bucket`).map((sample) => String(sample.labels.le)))];
  edges.sort((one, other) => Number(one.replace("+Inf", "Infinity")) - Number(other.replace("+Inf", "Infinity")));
  const counts = edges.map((le) => total(now, `${name}_bucket`, { ...labels, le }) - total(before, `${name}_bucket`, { ...labels, le }));
  const all = counts.at(-1) ?? 0;
  if (all <= 0) return NaN;
  const place = counts.findIndex((count) => count >= all * quantile);
  return Number(String(edges[place]).replace("+Inf", "Infinity")) * 1000;
}

/** @param {Context} context */
export function openOperator(context) {
  const { api } = context;
  const charts = {
    rates: new LineChart("Requests and events a second", (value) => value.toFixed(1)),
    latency: new LineChart("Submit latency, ms (upper edge of the bucket)", (value) => value.toFixed(1)),
    backlog: new LineChart("Outbox rows that wait", (value) => value.toFixed(0)),
  };
  const lines = {
    requests: new Samples("requests/s"),
    events: new Samples("events/s"),
    p50: new Samples("p50"),
    p99: new Samples("p99"),
  };
  /** @type {Map<string, Samples>} */
  const backlogs = new Map();
  const figures = el("div", { class: "figures" });
  const health = el("div", { class: "figures" });
  const age = el("p", { class: "hint", role: "status" });
  /** @type {{time: number, samples: Sample[]} | null} */
  let before = null;

  async function read() {
    try {
      const answer = await fetch("/metrics", { cache: "no-store", credentials: "omit" });
      if (!answer.ok) throw new Error(String(answer.status));
      const samples = parseMetrics(await answer.text());
      const time = Date.now();
      if (before) add(before, { time, samples });
      before = { time, samples };
      showFigures(samples);
    } catch {
      // The age that is shown says how old the figures are.
    }
    await readHealth();
  }

  /**
   * @param {{time: number, samples: Sample[]}} earlier
   * @param {{time: number, samples: Sample[]}} now
   */
  function add(earlier, now) {
    const seconds = (now.time - earlier.time) / 1000;
    const rate = (/** @type {string} */ name) => (total(now.samples, name) - total(earlier.samples, name)) / seconds;
    lines.requests.add(now.time, rate("ti_http_requests_total"));
    lines.events.add(now.time, rate("ti_stream_events_total"));
    lines.p50.add(now.time, quantileBetween(earlier.samples, now.samples, "ti_http_request_seconds", 0.5, { route: SUBMIT }));
    lines.p99.add(now.time, quantileBetween(earlier.samples, now.samples, "ti_http_request_seconds", 0.99, { route: SUBMIT }));
    for (const queue of new Set(
      now.samples.filter((sample) => sample.name === "ti_outbox_backlog_rows").map((sample) => String(sample.labels.queue)),
    )) {
      const samples = backlogs.get(queue) ?? new Samples(queue);
      backlogs.set(queue, samples);
      samples.add(now.time, total(now.samples, "ti_outbox_backlog_rows", { queue }));
    }
    charts.rates.draw([lines.requests, lines.events]);
    charts.latency.draw([lines.p50, lines.p99]);
    charts.backlog.draw([...backlogs.values()]);
  }

  /** @param {Sample[]} samples */
  function showFigures(samples) {
    /** @param {string} name @param {string} label @returns {[string, string][]} */
    const each = (name, label) =>
      samples
        .filter((sample) => sample.name === name)
        .map((sample) => [
          `${words(name.replace(/^ti_(outbox|execution)_/, "").replace(/_(seconds|total|rows)$/, ""))}, ${sample.labels[label]}`,
          String(Math.round(sample.value * 10) / 10),
        ]);
    /** @type {[string, string][]} */
    const alerts = each("ti_execution_alerts_total", "kind").filter(([, value]) => value !== "0");
    fill(
      figures,
      terms(
        [
          ["Accounts worked here", String(total(samples, "ti_execution_leases"))],
          ...each("ti_execution_links", "state"),
          ["Streams", String(total(samples, "ti_stream_subscribers"))],
          ["HTTP connections", String(total(samples, "ti_http_connections"))],
          ["Answered 429", String(total(samples, "ti_rate_limited_total"))],
          ...each("ti_outbox_oldest_pending_seconds", "queue"),
          ...each("ti_outbox_oldest_claim_seconds", "queue"),
          ...alerts,
        ],
        "terms cards",
      ),
    );
  }

  async function readHealth() {
    try {
      const told = await api.json("outbox_health", "GET", "/v1/accounts/outbox/health");
      /** @type {Record<string, any>[]} */
      const entries = told.entries;
      fill(
        health,
        terms(
          [
            ["Pending", String(told.pending)],
            ["Processing", String(told.processing)],
            ["Failed", String(told.failed)],
            ["Oldest pending", showAge(told.oldest_pending_at)],
            ["Oldest claim", showAge(told.oldest_claim_at)],
            ["Oldest failed", showAge(told.oldest_failed_at)],
          ],
          "terms cards",
        ),
        table(
          "Rows by status and event",
          ["Status", "Event", "Rows", "Most attempts", "Oldest"],
          entries.map((entry) => [
            entry.status,
            entry.event_type,
            String(entry.count),
            String(entry.max_attempts),
            `${showAge(entry.oldest_created_at)} ago`,
          ]),
        ),
      );
    } catch (error) {
      const text =
        error instanceof NotAllowed
          ? "Reading it takes an admin of an internal organization, or a service account with credential:read."
          : `It cannot be read: ${error instanceof Error ? error.message : ""}`;
      fill(health, el("p", { class: "hint" }, text));
    }
  }

  const stops = [
    repeat(READ_SECONDS, read),
    repeat(1, () => {
      const isStale = !before || Date.now() - before.time > STALE_SECONDS * 1000;
      figures.classList.toggle("stale", isStale);
      age.textContent = before
        ? `Read ${showAge(before.time)} ago from this process${isStale ? ": these figures are old" : ""}.`
        : "Reading …";
    }),
  ];
  return {
    element: el(
      "div",
      { class: "stack" },
      el("section", { class: "panel" }, el("h2", {}, "This process"), age, figures),
      el("div", { class: "charts" }, ...Object.values(charts).map((chart) => el("section", { class: "panel" }, chart.element))),
      el(
        "section",
        { class: "panel" },
        el("h2", {}, "Outbox of accounts"),
        health,
        el(
          "p",
          { class: "hint" },
          "Failed rows are settled by command: ",
          el("code", {}, "trading-intents outbox list"),
          ", ",
          el("code", {}, "retry"),
          ", ",
          el("code", {}, "drop"),
          ".",
        ),
      ),
    ),
    close: () => stops.forEach((stop) => stop()),
  };
}
