// The types that the console's modules share, only for TypeScript's checker: the browser gets no declarations.

type Session = import("../../src/trading_intents/console/static/session.js").Session;
type Api = import("../../src/trading_intents/console/static/api.js").Api;
type AccountFeed = import("../../src/trading_intents/console/static/feed.js").AccountFeed;

/** An object that the API or the stream sent. */
type Json = Record<string, any>;
/** An exact decimal, as the API writes it. */
type Amount = string | null | undefined;
type Environment = "paper" | "live";

// The API's objects, as far as the modules name their fields.
type Account = Json & {
  id: string;
  name: string;
  environment: Environment;
  broker: string;
  connection: string;
};
type Order = Json & {
  order_id: string;
  symbol: string;
  order_state: string;
  order_status: string;
  version: number;
  created_at: string;
};
type Position = Json & { symbol: string; quantity: string; received_at: string };
type Action = Json & { seq: number; hash: string };
type FieldProblem = { pointer: string; detail: string };
type Trigger = { reason: string; detail: string; scope: unknown };
type ConsoleSettings = {
  issuer: string;
  client_id: string | null;
  scope: string;
  audience: string;
  has_demo_links: boolean;
};
interface Caller {
  principal_type: "API_KEY" | "USER" | "SERVICE";
  principal_id: string;
  organization_id: string | null;
  organization_name: string | null;
  environment: Environment | null;
  role: string | null;
  expires_at: string | null;
  policies: string[];
}

// session.js, api.js
type Renew = () => Promise<string>;
type HeldCredential = {
  slot: string;
  secret: string;
  caller: Caller;
  label: string;
  renew: Renew | null;
  isSession?: boolean;
};
interface Call {
  body?: unknown;
  query?: Record<string, string | number | null | undefined>;
  headers?: Record<string, string>;
  signal?: AbortSignal;
}

// dom.js
type Child = Node | string | null | undefined | false;
type Attributes = Record<
  string,
  string | number | boolean | null | undefined | ((event: any) => void)
>;
type Tags = HTMLElementTagNameMap;
type MakeElement = <K extends keyof Tags>(
  tag: K,
  attributes?: Attributes,
  ...children: Child[]
) => Tags[K];
type Stop = () => void;
type View = { element: HTMLElement; close: Stop };

// form.js
type Input = HTMLInputElement | HTMLSelectElement;
type Values = Record<string, string | boolean>;
interface Field {
  name: string;
  label: string;
  kind?: "text" | "select" | "checkbox" | "radio";
  options?: [value: string, label: string][];
  value?: string;
  hint?: string;
  isRequired?: boolean;
  isUpper?: boolean;
  /** Shows digits on a phone's keyboard. */
  isNumber?: boolean;
  isSecret?: boolean;
  isDate?: boolean;
  /** In characters. */
  max?: number;
}
interface FormOptions {
  name: string;
  fields?: Field[];
  /** The button's text. */
  submit: string;
  /** Returns what to say when it is done. */
  onSubmit: (values: Values) => Promise<string | void>;
  onInput?: () => void;
  note?: string;
  isDangerous?: boolean;
}

// orders.js, status.js
/** A sentence, and the class that colours it. */
type Outcome = { text: string; look: string };
/** A reason why orders are not sent: in a word or two for the header, and as a sentence. */
type Trouble = { name: string; text: string; look: string };

// list.js
type Cell = { text: string; class?: string };
interface Column<Row> {
  id: string;
  title: string;
  cell: (row: Row) => string | Cell;
  /** With it the column can be sorted by. */
  compare?: (one: Row, other: Row) => number;
  isNumber?: boolean;
  /** Its whole text is shown where the pointer rests. */
  isLong?: boolean;
}
interface ListOptions<Row> {
  /** The class that gives the columns their widths. */
  name: string;
  label: string;
  columns: Column<Row>[];
  /** The rows; asked for whenever the list is sorted anew. */
  rows: () => Iterable<Row>;
  key: (row: Row) => string;
  /** The text that is shown when there are no rows. */
  empty: string;
  /** A click, or Enter on the row. */
  onOpen?: (row: Row) => void;
  /** A click on a cell of the class `press`, or Delete on the row. */
  onPress?: (row: Row) => unknown;
  rowClass?: (row: Row) => string;
  /** Whether the row has a second line. */
  isTall?: (row: Row) => boolean;
  /** The row beside which this one stays, however the list is sorted. */
  leader?: (row: Row) => Row;
  /** Orders rows of the same leader. */
  compareGrouped?: (one: Row, other: Row) => number;
  sortBy?: string;
  isDescending?: boolean;
}
type ShownRow = { element: HTMLElement; cells: HTMLElement[] };

// equity.js
/** The day of the daily-loss limit: its time zone, its begin in milliseconds, and the result that it counts from. */
type Day = { zone: string; begin: number; base: string; limits: Json | null };

// chart.js, operator.js
type Point = [millis: number, value: number];
type Sample = { name: string; labels: Record<string, string>; value: number };
type Reading = { time: number; samples: Sample[] };
type Measure = (samples: Sample[], name: string, labels?: Record<string, string>) => number;

// stream.js, feed.js
type StreamEvent = { kind: string; id: string; data: any };
type StreamState = "connecting" | "live" | "lost" | "refused";
type FeedStatus = { state: StreamState | "loading"; since: Date; detail: string };
interface StreamHandlers {
  open: (cursor: string, signal: AbortSignal) => Promise<Response>;
  onEvents: (events: StreamEvent[]) => void;
  onState: (state: StreamState, detail: string) => void;
  /** Events after the cursor are no longer kept: begin anew. */
  onGap: () => void;
}

// The views.
interface Context {
  session: Session;
  /** Calls with a credential of the account's environment, or with a user's. */
  api: Api;
  account: Account;
  feed: AccountFeed;
  submit: Submit;
  names: Names;
  /** Filters and choices, kept while other views are shown. */
  kept: Record<string, string>;
  /** Shows a text in the page's one notice, which screen readers read out. */
  notify: (outcome: Outcome) => void;
  accounts: () => Account[];
  readAccounts: () => Promise<void>;
  choose: (accountId: string) => void;
}
/** Names the principals of actions; `prepare` reads the names of their keys, where that is allowed. */
type Names = { prepare: (actions: Json[]) => Promise<void>; describe: (action: Json) => string };
type Submit = (command: Json) => Promise<Json>;
type OpenView = (context: Context) => View;
type Level = {
  title: string;
  base: string;
  write: string;
  level: "organization" | "account" | "symbol";
};
interface BoundOptions extends Omit<FormOptions, "onSubmit"> {
  fields: Field[];
  /** The resource that is read, and the part of it that is shown. */
  url: string;
  part?: string;
  /** The call that sends the values; null where there is nothing to change. */
  write: (values: Values, found: Json | null) => [method: string, url: string, body?: Json] | null;
}
