/** Lists: iterated over, the pages behind them are read as they are needed. */

import type { HttpRequest, Transport } from "./transport.js";

const MAX_PAGE = 100;

export interface Page<T> {
  data: T[];
  /** Null on the last page. */
  next_cursor: string | null;
}

export interface PageOptions {
  limit?: number;
  cursor?: string | undefined;
}

/** `for await (const item of pages)` reads all, `await pages.page()` one page. */
export class Pages<T, Raw = T> implements AsyncIterable<T> {
  readonly #transport: Transport;
  readonly #request: HttpRequest;
  readonly #bind: (raw: Raw) => T;

  constructor(transport: Transport, request: HttpRequest, bind: (raw: Raw) => T) {
    this.#transport = transport;
    this.#request = request;
    this.#bind = bind;
  }

  async page({ limit = MAX_PAGE, cursor }: PageOptions = {}): Promise<Page<T>> {
    const query = { ...this.#request.query, limit, next_cursor: cursor };
    const read = (await this.#transport.call({ ...this.#request, query })) as Page<Raw>;
    return { data: read.data.map((raw) => this.#bind(raw)), next_cursor: read.next_cursor };
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<T, void, undefined> {
    let cursor: string | undefined;
    do {
      const page = await this.page({ cursor });
      yield* page.data;
      cursor = page.next_cursor ?? undefined;
    } while (cursor);
  }

  async toArray(): Promise<T[]> {
    const items: T[] = [];
    for await (const item of this) items.push(item);
    return items;
  }
}
