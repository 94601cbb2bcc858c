// Signing in: a pasted credential, the issuer's code flow with PKCE, or the code of a demo link.

import { button, el, hint } from "./dom.js";
import { Form } from "./form.js";

const PENDING = "trading-intents-sign-in"; // in sessionStorage, from the way out to the return
// Likewise, while signed in by the issuer: a reload asks it again.
const SIGNED_IN = "trading-intents-issuer";

const BOTH =
  "A key (tip_paper_…, tip_live_…) places orders. A user's token manages controls, keys and the organization, " +
  "and places orders where the user may trade. You can hold both.";

/** @param {Uint8Array} bytes */
function base64url(bytes) {
  const text = btoa(String.fromCharCode(...bytes));
  return text.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

const randomText = () => base64url(crypto.getRandomValues(new Uint8Array(32)));
const returnAddress = () => `${location.origin}/console`;

/** @type {(settings: ConsoleSettings) => Promise<{authorization_endpoint: string, token_endpoint: string}>} */
async function discover(settings) {
  const answer = await fetch(
    `${settings.issuer.replace(/\/$/, "")}/.well-known/openid-configuration`,
  );
  const found = await answer.json();
  if (found.issuer !== settings.issuer)
    throw new Error("the issuer's metadata is of another issuer");
  return found;
}

/** A reload asks for a credential again. */
export const forgetIssuer = () => sessionStorage.removeItem(SIGNED_IN);

/** @type {(settings: ConsoleSettings, isSilent: boolean) => Promise<void>} Silent: the issuer asks the user nothing. */
async function leaveForIssuer(settings, isSilent) {
  if (!crypto.subtle)
    throw new Error("signing in there needs https, or this machine's own address");
  const metadata = await discover(settings);
  const pending = { verifier: randomText(), state: randomText(), view: location.hash, isSilent };
  sessionStorage.setItem(PENDING, JSON.stringify(pending));
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(pending.verifier));
  const target = new URL(metadata.authorization_endpoint);
  if (target.protocol !== "https:" && target.protocol !== "http:")
    throw new Error("the issuer's address is none");
  const { client_id: client, scope, audience } = settings;
  const challenge = {
    code_challenge: base64url(new Uint8Array(digest)),
    code_challenge_method: "S256",
  };
  const asked = {
    response_type: "code",
    client_id: client ?? "",
    redirect_uri: returnAddress(),
    scope,
    audience,
  };
  const query = {
    ...asked,
    ...challenge,
    state: pending.state,
    ...(isSilent ? { prompt: "none" } : {}),
  };
  for (const [name, value] of Object.entries(query)) target.searchParams.set(name, value);
  location.assign(target);
}

/** @type {(settings: ConsoleSettings, form: Record<string, string>) => Promise<Json>} */
async function fetchToken(settings, form) {
  const { token_endpoint: endpoint } = await discover(settings);
  const body = new URLSearchParams({ client_id: settings.client_id ?? "", ...form });
  const answer = await fetch(endpoint, { method: "POST", body });
  const token = await answer.json();
  if (!answer.ok)
    throw new Error(String(token.error_description ?? token.error ?? "the issuer refused"));
  return token;
}

/** @type {(settings: ConsoleSettings, session: Session, token: Json) => Promise<void>} */
async function keepToken(settings, session, token) {
  let refresh = token.refresh_token;
  const renew = async () => {
    const again = await fetchToken(settings, {
      grant_type: "refresh_token",
      refresh_token: refresh,
    });
    refresh = again.refresh_token ?? refresh;
    return String(again.access_token);
  };
  await session.add(String(token.access_token), refresh ? renew : null);
  sessionStorage.setItem(SIGNED_IN, "1");
}

// Finishes what the address says: the issuer's return, or a demo link. The codes leave the address
// at once.
/** @type {(settings: ConsoleSettings, session: Session) => Promise<void>} */
export async function finishSignIn(settings, session) {
  const query = new URLSearchParams(location.search);
  const link = new URLSearchParams(location.hash.slice(1)).get("code");
  const pending = sessionStorage.getItem(PENDING);
  sessionStorage.removeItem(PENDING);
  if (location.search || link) history.replaceState(null, "", "/console");
  if (link) {
    const headers = { "content-type": "application/json" };
    const answer = await fetch("/console/session", {
      method: "POST",
      headers,
      body: JSON.stringify({ code: link }),
    });
    const issued = await answer.json();
    if (!answer.ok) throw new Error(String(issued.detail ?? "the link does not hold"));
    await session.add(issued.api_key);
    return session.add(issued.access_token);
  }
  const code = query.get("code");
  if (!code && !query.get("error")) {
    if (settings.client_id && sessionStorage.getItem(SIGNED_IN))
      await leaveForIssuer(settings, true);
    return undefined;
  }
  const { verifier, state, view = "", isSilent = false } = JSON.parse(pending ?? "{}");
  if (!state || query.get("state") !== state)
    throw new Error("this return belongs to no sign-in that was begun in this tab");
  history.replaceState(null, "", `/console${view}`);
  if (query.get("iss") && query.get("iss") !== settings.issuer)
    throw new Error("another issuer answered");
  if (!code && isSilent) return forgetIssuer(); // it wants to ask the user
  if (!code) throw new Error(String(query.get("error_description") ?? query.get("error")));
  const form = {
    grant_type: "authorization_code",
    code,
    redirect_uri: returnAddress(),
    code_verifier: verifier,
  };
  return keepToken(settings, session, await fetchToken(settings, form));
}

// The form for one more credential, and the way to the issuer.
/** @type {(settings: ConsoleSettings, session: Session, onDone?: () => void) => {form: Form, element: HTMLElement}} */
export function signInForm(settings, session, onDone) {
  const form = new Form({
    name: "signin",
    submit: "Sign in",
    note: "It stays in this tab's memory and is gone when the tab closes.",
    fields: [
      {
        name: "credential",
        label: "API key or user's token",
        isRequired: true,
        isSecret: true,
        hint: BOTH,
      },
    ],
    onSubmit: async (values) => {
      await session.add(String(values.credential));
      form.clear();
      onDone?.();
    },
  });
  const leave = () => void leaveForIssuer(settings, false).catch((error) => form.fail(error));
  const issuer =
    settings.client_id && button("Sign in with your organization", leave, { class: "primary" });
  const command = el("code", {}, "trading-intents console");
  const demo = [
    "For the demo of this machine, type ",
    command,
    " in a terminal and open the link that it prints.",
  ];
  const ways = [issuer, form.element, settings.has_demo_links && hint(...demo)];
  return { form, element: el("div", { class: "signin-ways" }, ...ways) };
}
