// One account's event stream over fetch, which can send headers: reads events, resumes after the
// last one, backs off.

import { NotAllowed, Problem, messageOf } from "./api.js";

const FIRST_WAIT_MILLIS = 500;
const MAX_WAIT_MILLIS = 10_000;
const SILENCE_MILLIS = 25_000; // a heartbeat comes after 10 seconds without events

/** Reads `text/event-stream` from pieces of text that are cut anywhere. */
export class EventParser {
  constructor() {
    this._rest = this._kind = this._id = "";
    /** @type {string[]} */
    this._data = [];
  }

  /** @param {string} piece */
  push(piece) {
    const lines = (this._rest + piece).split("\n");
    this._rest = lines.pop() ?? "";
    /** @type {StreamEvent[]} */
    const events = [];
    for (const line of lines) {
      if (line === "") {
        if (this._data.length)
          events.push({ kind: this._kind, id: this._id, data: JSON.parse(this._data.join("\n")) });
        this._kind = this._id = "";
        this._data = [];
      } else if (line.startsWith("event: ")) this._kind = line.slice(7);
      else if (line.startsWith("id: ")) this._id = line.slice(4);
      else if (line.startsWith("data: ")) this._data.push(line.slice(6));
    }
    return events;
  }
}

export class EventStream {
  /** @param {StreamHandlers} handlers */
  constructor(handlers) {
    this._handlers = handlers;
    this._stop = new AbortController();
    this._cursor = "";
  }

  async run() {
    let wait = FIRST_WAIT_MILLIS;
    while (!this._stop.signal.aborted) {
      try {
        await this._follow(() => (wait = FIRST_WAIT_MILLIS));
        this._handlers.onState("lost", "the platform ended the stream");
      } catch (error) {
        if (this._stop.signal.aborted) return;
        const status = error instanceof Problem ? error.status : 0;
        if (status === 410 || status === 400) {
          this._cursor = "";
          this._handlers.onGap();
        } else if ([401, 403, 404].includes(status) || error instanceof NotAllowed) {
          this._handlers.onState("refused", messageOf(error));
          return;
        }
        this._handlers.onState("lost", messageOf(error));
      }
      await new Promise((resolve) => setTimeout(resolve, wait * (0.5 + Math.random() / 2)));
      wait = Math.min(wait * 2, MAX_WAIT_MILLIS);
    }
  }

  stop() {
    this._stop.abort();
  }

  /** @param {() => void} onOpen */
  async _follow(onOpen) {
    const attempt = new AbortController();
    const cancel = () => attempt.abort();
    this._stop.signal.addEventListener("abort", cancel);
    let watchdog = setTimeout(cancel, SILENCE_MILLIS);
    try {
      const answer = await this._handlers.open(this._cursor, attempt.signal);
      if (!answer.body) return;
      onOpen();
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      const parser = new EventParser();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        clearTimeout(watchdog);
        watchdog = setTimeout(cancel, SILENCE_MILLIS);
        const events = parser.push(value);
        for (const event of events) if (event.id) this._cursor = event.id;
        if (events.length) this._handlers.onEvents(events);
      }
    } catch (error) {
      if (attempt.signal.aborted && !this._stop.signal.aborted)
        throw new Error("nothing came for too long");
      throw error;
    } finally {
      clearTimeout(watchdog);
      this._stop.signal.removeEventListener("abort", cancel);
    }
  }
}
