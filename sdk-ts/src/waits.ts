/** Pauses and waits that an AbortSignal ends. */

/** The promise's result, or the signal's reason if that comes first. */
export async function abortable<T>(promise: Promise<T>, signal: AbortSignal): Promise<T> {
  let forget = (): void => undefined;
  const aborted = new Promise<never>((_, reject) => {
    const end = () => {
      reject(reasonOf(signal));
    };
    if (signal.aborted) end();
    signal.addEventListener("abort", end);
    forget = () => {
      signal.removeEventListener("abort", end);
    };
  });
  try {
    return await Promise.race([promise, aborted]);
  } finally {
    forget();
  }
}

/**
 * What comes of a body. It is cancelled at its end, whatever that is: `fetch` may lose its own signal
 * to the garbage collector once it has answered, and the connection would stay open for ever.
 */
export async function* chunksOf(
  body: ReadableStream<Uint8Array>,
  signal: AbortSignal,
): AsyncGenerator<Uint8Array, undefined, undefined> {
  const reader = body.getReader();
  try {
    for (;;) {
      const { value, done } = await abortable(reader.read(), signal);
      if (done) return;
      yield value;
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
}

export async function textOf(response: Response, signal: AbortSignal): Promise<string> {
  const decoder = new TextDecoder();
  let text = "";
  if (response.body) {
    for await (const chunk of chunksOf(response.body, signal)) {
      text += decoder.decode(chunk, { stream: true });
    }
  }
  return text + decoder.decode();
}

export async function sleep(seconds: number, signal: AbortSignal): Promise<void> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const over = new Promise<void>((resolve) => {
    timer = setTimeout(resolve, seconds * 1000);
  });
  try {
    await abortable(over, signal);
  } finally {
    clearTimeout(timer);
  }
}

function reasonOf(signal: AbortSignal): Error {
  return signal.reason instanceof Error ? signal.reason : new Error(String(signal.reason));
}

/** Items in the order in which they came, for one reader. It keeps `max` of them at most. */
export class Queue<T> {
  #items: T[] = [];
  #wake: (() => void) | undefined;

  constructor(
    readonly max: number,
    /** Stands for all items when there are too many. */
    readonly overflow: T,
  ) {}

  push(item: T): void {
    if (this.#items.length >= this.max) this.#items = [this.overflow];
    else this.#items.push(item);
    this.#wake?.();
  }

  async next(signal: AbortSignal): Promise<T> {
    for (;;) {
      const item = this.#items.shift();
      if (item !== undefined) return item;
      const woken = new Promise<void>((resolve) => (this.#wake = resolve));
      await abortable(woken, signal);
    }
  }
}
