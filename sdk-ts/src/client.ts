/** The client: its endpoint, its credentials, its accounts, and every call of the API. */

import { Account } from "./account.js";
import type { ReadDecimal, With } from "./amounts.js";
import type { paths } from "./api.js";
import {
  type AnswerOf,
  fillPath,
  type ItemOf,
  type ListPath,
  type Method,
  type PathOf,
  type RequestArguments,
} from "./calls.js";
import { apiKey, type Credentials } from "./credentials.js";
import { NotConfigured, NotFound } from "./errors.js";
import { Pages } from "./pages.js";
import { type HttpRequest, Transport } from "./transport.js";

const TIMEOUT_SECONDS = 10;
const MAX_RETRIES = 2;

export interface ClientOptions<D = string> {
  url: string;
  /** `tip_paper_...` or `tip_live_...`. */
  apiKey?: string;
  /** Instead of an API key: `bearer(token)` or `clientCredentials({ ... })`. */
  credentials?: Credentials;
  /** Of service accounts only, which name the organization that they read. */
  organizationId?: string;
  /** Of one try, until its answer is there completely: 10. */
  timeoutSeconds?: number;
  /** Tries beyond the first: 2. */
  maxRetries?: number;
  fetch?: typeof fetch;
  /** Makes amounts of another type than `string`: `(text) => new Decimal(text)`. */
  decimal?: ReadDecimal<D>;
}

interface Parts {
  path?: Record<string, string>;
  query?: HttpRequest["query"];
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal;
}

export class TradingClient<D = string> {
  readonly #transport: Transport;
  readonly #accounts = new Map<string, Account<D>>();

  constructor(options: ClientOptions<D>) {
    const { apiKey: key, credentials, url, organizationId } = options;
    const given = credentials ?? (key === undefined ? undefined : apiKey(key));
    if (!given || (credentials && key !== undefined)) {
      throw new NotConfigured("give an apiKey or credentials, and not both");
    }
    this.#transport = new Transport({
      url,
      credentials: given,
      ...(organizationId && { organizationId }),
      timeoutSeconds: options.timeoutSeconds ?? TIMEOUT_SECONDS,
      maxRetries: options.maxRetries ?? MAX_RETRIES,
      fetch: options.fetch ?? fetch,
      decimal: options.decimal,
    });
  }

  get url(): string {
    return this.#transport.options.url;
  }

  /** Ends the streams, the waits and the calls that are on their way. */
  close(): void {
    this.#transport.close();
  }

  /** An account by its id. This asks the platform nothing. */
  account(id: string): Account<D> {
    const account = this.#accounts.get(id) ?? new Account(this, this.#transport, id);
    this.#accounts.set(id, account);
    return account;
  }

  /** The open account with this name or id; without a name the only one. */
  async findAccount(name?: string): Promise<Account<D>> {
    const accounts = await this.list("/v1/accounts").toArray();
    const open = accounts.filter((account) => account.closed_at === null);
    const found = open.filter(({ name: own, id }) => [own, id].includes(name ?? id));
    const [account] = found;
    if (account && found.length === 1) return this.account(account.id);
    if (!account) throw new NotFound(`there is no open account ${name ?? ""}`.trim());
    const names = found.map(({ name: own, id }) => `${own} (${id})`).join(", ");
    throw new NotFound(`${found.length} accounts fit, name one: ${names}`);
  }

  /** Any call of the API, typed by its description: `call("GET", "/v1/caller")`. */
  async call<M extends Method, P extends PathOf<M>>(
    method: M,
    path: P,
    ...[request]: RequestArguments<M, P>
  ): Promise<With<AnswerOf<M, P>, D>> {
    const answer = await this.#transport.call(requestOf(method, path, request));
    return answer as With<AnswerOf<M, P>, D>;
  }

  /** Any list of the API, by pages: `list("/v1/api-keys")`. */
  list<P extends ListPath>(
    path: P,
    ...[request]: RequestArguments<"GET", P>
  ): Pages<With<ItemOf<P>, D>> {
    return new Pages(this.#transport, requestOf("GET", path, request), (item) => item);
  }
}

function requestOf(method: string, path: keyof paths, parts: Parts = {}): HttpRequest {
  const { path: names, ...rest } = parts;
  return { method, path: fillPath(path, names), ...rest };
}
