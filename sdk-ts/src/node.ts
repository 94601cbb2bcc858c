/** For Node.js: where the platform is, and who calls, from the environment or a local demo. */

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { TradingClient, type ClientOptions } from "./client.js";
import { NotConfigured } from "./errors.js";

const DEMO_URL = "http://127.0.0.1:8080";
const URL_VARIABLE = "TRADING_INTENTS_URL";
const KEY_VARIABLE = "TRADING_INTENTS_API_KEY";
const DATA_DIR_VARIABLE = "TRADING_INTENTS_DATA_DIR";

export * from "./index.js";

/**
 * A client by the options; what they leave out is taken from TRADING_INTENTS_URL and
 * TRADING_INTENTS_API_KEY, else from the demo of a `make run` in the current folder.
 */
export function connect<D = string>(options: Partial<ClientOptions<D>> = {}): TradingClient<D> {
  const url = options.url ?? (process.env[URL_VARIABLE] || demoUrl());
  if (options.credentials || options.apiKey !== undefined) {
    return new TradingClient({ ...options, url });
  }
  return new TradingClient({ ...options, url, apiKey: process.env[KEY_VARIABLE] || demoKey() });
}

function demoFile(name: string): string {
  return join(process.env[DATA_DIR_VARIABLE] ?? ".data", name);
}

function demoUrl(): string {
  try {
    return readFileSync(demoFile("demo-url"), "utf8").trim() || DEMO_URL;
  } catch {
    return DEMO_URL;
  }
}

function demoKey(): string {
  const file = demoFile("demo.json");
  try {
    const { api_key } = JSON.parse(readFileSync(file, "utf8")) as { api_key: string };
    return api_key;
  } catch {
    const ways = `set ${KEY_VARIABLE}, or work in the folder in which \`make run\` made ${file}`;
    throw new NotConfigured(`no API key: pass apiKey, ${ways}`);
  }
}
