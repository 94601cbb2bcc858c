/** text/event-stream: the `data` of each whole message of one connection. */

const MAX_EVENT_CHARACTERS = 1 << 20;

/** A message that the connection cuts is left out: it comes again after the cursor. */
export class MessageReader {
  readonly #decoder = new TextDecoder();
  #rest = "";

  push(chunk: Uint8Array): string[] {
    const text = this.#rest + this.#decoder.decode(chunk, { stream: true });
    const messages = text.replaceAll("\r\n", "\n").split("\n\n");
    this.#rest = messages.pop() ?? "";
    if (this.#rest.length > MAX_EVENT_CHARACTERS) {
      throw new RangeError(`an event of more than ${MAX_EVENT_CHARACTERS} characters`);
    }
    return messages.map(dataOf).filter((data) => data !== "");
  }
}

function dataOf(message: string): string {
  const lines = message.split("\n").filter((line) => line.startsWith("data:"));
  return lines.map((line) => line.slice(5).trimStart()).join("\n");
}
