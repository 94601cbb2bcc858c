/** The caller's credentials, as the headers that they add to a request. */

import { NotConfigured } from "./errors.js";

const RENEW_BEFORE_SECONDS = 60;
const MIN_USE_SHARE = 0.5; // of a token that lives less than twice that long

export interface IssuedToken {
  access_token: string;
  expires_in: number;
}

export interface TokenRequest {
  client_id: string;
  client_secret: string;
  scope?: string;
}

export type FetchToken = (request: TokenRequest) => Promise<IssuedToken>;

export interface Credentials {
  headers(fetchToken: FetchToken): Promise<Record<string, string>>;
  /** The platform answered 401. */
  onUnauthorized?(): void;
}

/** An API key, `tip_paper_...` or `tip_live_...`. */
export function apiKey(key: string): Credentials {
  const headers = { "x-api-key": checkHeader(key, "API key") };
  return { headers: () => Promise.resolve(headers) };
}

/** A token, or a function that gives one whenever a request needs it. */
export function bearer(token: string | (() => string | Promise<string>)): Credentials {
  return {
    async headers() {
      const given = typeof token === "string" ? token : await token();
      return { authorization: `Bearer ${checkHeader(given, "token")}` };
    },
  };
}

/** A service account: its tokens are fetched when one is needed, and renewed before they end. */
export function clientCredentials(request: TokenRequest): Credentials {
  let token: Promise<string> | undefined;
  let renewAt = 0;

  async function fetchAnew(fetchToken: FetchToken): Promise<string> {
    const askedAt = performance.now();
    const issued = await fetchToken(request);
    const seconds = Math.max(
      issued.expires_in - RENEW_BEFORE_SECONDS,
      issued.expires_in * MIN_USE_SHARE,
    );
    renewAt = askedAt + seconds * 1000;
    return issued.access_token;
  }

  return {
    async headers(fetchToken) {
      if (!token || performance.now() >= renewAt) {
        renewAt = Infinity; // whoever comes meanwhile waits for the same token
        token = fetchAnew(fetchToken);
        token.catch(() => (token = undefined));
      }
      return { authorization: `Bearer ${await token}` };
    },
    onUnauthorized() {
      // The issuer may have changed its keys: the next request fetches another token.
      token = undefined;
    },
  };
}

/** Refuses what no header can hold: an error of `fetch` would show it. */
function checkHeader(secret: string, what: string): string {
  if (!/^[\x21-\x7e]+$/.test(secret)) {
    throw new NotConfigured(`the ${what} is empty, or has a character that no header can hold`);
  }
  return secret;
}
