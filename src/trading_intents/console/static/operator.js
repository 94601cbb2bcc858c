// For the operator: the processes' metrics as figures and charts, and the outbox's health. Changes
// nothing.

import { showAge, words } from "./amounts.js";
import { NotAllowed, messageOf } from "./api.js";
import { LineChart, Samples } from "./chart.js";
import { cards, el, fill, hint, makeView, markAge, panel, repeat, setText, table } from "./dom.js";

const READ_SECONDS = 2;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;
const LINE = /^(\w+)(?:\{(.*)\})? (\S+)/;
const SUBMIT = { route: "/v1/accounts/{account_id}/intents" };

/** @param {string} text Prometheus' text format, as far as /metrics uses it */
export function parseMetrics(text) {
  /** @type {Sample[]} */
  const samples = [];
  for (const line of text.split("\n")) {
    const found = LINE.exec(line);
    if (!found) continue;
    const labels = Object.fromEntries(
      [...(found[2] ?? "").matchAll(LABEL)].map(([, name, value]) => [name, value]),
    );
    samples.push({ name: String(found[1]), labels, value: Number(found[3]) });
  }
  return samples;
}

/** @type {(samples: Sample[], name: string, labels?: Record<string, string>) => number[]} */
function measured(samples, name, labels = {}) {
  const wanted = Object.entries(labels);
  return samples
    .filter(
      (sample) =>
        sample.name === name && wanted.every(([label, value]) => sample.labels[label] === value),
    )
    .map((sample) => sample.value);
}

/** @type {Measure} */
const total = (samples, name, labels) =>
  measured(samples, name, labels).reduce((all, value) => all + value, 0);

/** @type {Measure} Of the outbox, which every worker measures as a whole. */
const largest = (samples, name, labels) => Math.max(0, ...measured(samples, name, labels));

/** @type {(samples: Sample[], name: string, label: string) => string[]} The values of a label, each once. */
function valuesOf(samples, name, label) {
  return [
    ...new Set(
      samples
        .filter((sample) => sample.name === name)
        .map((sample) => String(sample.labels[label])),
    ),
  ];
}

// The upper edge, in milliseconds, of the bucket in which a histogram's quantile fell between two
// readings.
/** @type {(before: Sample[], now: Sample[], name: string, quantile: number, labels?: Sample["labels"]) => number} */
export function quantileBetween(before, now, name, quantile, labels = {}) {
  const bucket = `${name}_bucket`;
  const edge = (/** @type {string} */ le) => Number(le.replace("+Inf", "Infinity"));
  const edges = valuesOf(now, bucket, "le").sort((one, other) => edge(one) - edge(other));
  const counts = edges.map(
    (le) => total(now, bucket, { ...labels, le }) - total(before, bucket, { ...labels, le }),
  );
  const all = counts.at(-1) ?? 0;
  if (all <= 0) return NaN;
  const index = counts.findIndex((count) => count >= all * quantile);
  return edge(String(edges[index])) * 1000;
}

/** @type {(samples: Sample[]) => [string, string][]} The figures, each with its title. */
export function figuresOf(samples) {
  /** @type {(name: string, label: string, measure: Measure) => [string, string][]} */
  const each = (name, label, measure) => {
    const title = words(
      name.replace(/^ti_(outbox|execution)_/, "").replace(/_(seconds|total|rows)$/, ""),
    );
    return valuesOf(samples, name, label).map((value) => [
      `${title}, ${value}`,
      String(Math.round(measure(samples, name, { [label]: value }) * 10) / 10),
    ]);
  };
  const processes = samples.filter(
    ({ name, labels }) => name === "ti_process_up" && labels["process"],
  );
  return [
    ...processes.map(
      ({ labels, value }) =>
        /** @type {[string, string]} */ ([
          `Process ${labels["process"]}`,
          value ? "answers" : "does not answer",
        ]),
    ),
    ["Accounts worked", String(total(samples, "ti_execution_leases"))],
    ...each("ti_execution_links", "state", total),
    ["Streams", String(total(samples, "ti_stream_subscribers"))],
    ["HTTP connections", String(total(samples, "ti_http_connections"))],
    ["Rate limited", String(total(samples, "ti_rate_limited_total"))],
    ...each("ti_outbox_oldest_pending_seconds", "queue", largest),
    ...each("ti_outbox_oldest_claim_seconds", "queue", largest),
    ...each("ti_execution_alerts_total", "kind", total).filter(([, value]) => value !== "0"),
  ];
}

/** @type {(context: Context) => View} */
export function openOperator({ api }) {
  const charts = {
    rates: new LineChart("Requests and events a second", (value) => value.toFixed(1)),
    latency: new LineChart("Submit latency, ms (upper edge of the bucket)", (value) =>
      value.toFixed(1),
    ),
    backlog: new LineChart("Outbox rows that wait", (value) => value.toFixed(0)),
  };
  const requests = new Samples("requests/s");
  const events = new Samples("events/s");
  const p50 = new Samples("p50");
  const p99 = new Samples("p99");
  /** @type {Map<string, Samples>} */
  const backlogs = new Map();
  const figures = el("div", { class: "figures" });
  const health = el("div", { class: "figures" });
  const age = el("p", { class: "hint", role: "status" });
  /** @type {Reading | null} */
  let before = null;

  async function read() {
    try {
      const answer = await fetch("/metrics", { cache: "no-store", credentials: "omit" });
      if (!answer.ok) throw new Error(String(answer.status));
      const now = { samples: parseMetrics(await answer.text()), time: Date.now() };
      if (before) draw(before, now);
      before = now;
      fill(figures, cards(figuresOf(now.samples)));
    } catch {
      // The age that is shown says how old the figures are.
    }
    await readHealth();
  }

  /** @type {(earlier: Reading, now: Reading) => void} */
  function draw({ time: since, samples: earlier }, { time, samples }) {
    const seconds = (time - since) / 1000;
    const rate = (/** @type {string} */ name) =>
      (total(samples, name) - total(earlier, name)) / seconds;
    requests.add(time, rate("ti_http_requests_total"));
    events.add(time, rate("ti_stream_events_total"));
    p50.add(time, quantileBetween(earlier, samples, "ti_http_request_seconds", 0.5, SUBMIT));
    p99.add(time, quantileBetween(earlier, samples, "ti_http_request_seconds", 0.99, SUBMIT));
    for (const queue of valuesOf(samples, "ti_outbox_backlog_rows", "queue")) {
      const backlog = backlogs.get(queue) ?? new Samples(queue);
      backlogs.set(queue, backlog);
      const statuses = valuesOf(samples, "ti_outbox_backlog_rows", "status");
      const rows = statuses.map((status) =>
        largest(samples, "ti_outbox_backlog_rows", { queue, status }),
      );
      backlog.add(
        time,
        rows.reduce((all, count) => all + count, 0),
      );
    }
    charts.rates.draw([requests, events]);
    charts.latency.draw([p50, p99]);
    charts.backlog.draw([...backlogs.values()]);
  }

  async function readHealth() {
    try {
      const answer = await api.json("outbox_health", "GET", "/v1/accounts/outbox/health");
      const counts = cards([
        ["Pending", `${answer.pending}`],
        ["Processing", `${answer.processing}`],
        ["Failed", `${answer.failed}`],
        ["Oldest pending", showAge(answer.oldest_pending_at)],
        ["Oldest claim", showAge(answer.oldest_claim_at)],
        ["Oldest failed", showAge(answer.oldest_failed_at)],
      ]);
      const entries = table("Rows by status and event", answer.entries, {
        Status: (entry) => entry.status,
        Event: (entry) => entry.event_type,
        Rows: (entry) => String(entry.count),
        "Most attempts": (entry) => String(entry.max_attempts),
        Oldest: (entry) => `${showAge(entry.oldest_created_at)} ago`,
      });
      fill(health, counts, entries);
    } catch (error) {
      const needs =
        "Reading it takes an admin of an internal organization, or a service account with credential:read.";
      fill(
        health,
        hint(error instanceof NotAllowed ? needs : `It cannot be read: ${messageOf(error)}`),
      );
    }
  }

  const command = (/** @type {string} */ text) => el("code", {}, text);
  const commands = [
    command("trading-intents outbox list"),
    ", ",
    command("retry"),
    ", ",
    command("drop"),
    ".",
  ];
  const drawn = Object.values(charts).map((chart) =>
    el("section", { class: "panel" }, chart.element),
  );
  const outbox = panel(
    "Outbox of accounts",
    health,
    hint("Failed rows are handled by command: ", ...commands),
  );
  const process = panel("Processes", age, figures);
  const element = el(
    "div",
    { class: "stack" },
    process,
    el("div", { class: "charts" }, ...drawn),
    outbox,
  );
  const showReading = () => setText(age, markAge(before?.time ?? 0, figures));
  return makeView(element, repeat(READ_SECONDS, read), repeat(1, showReading));
}
