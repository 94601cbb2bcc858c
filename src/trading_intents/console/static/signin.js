// Signing in: a pasted credential, the issuer's code flow with PKCE, or the code of a demo link.

import { el } from "./dom.js";
import { Form } from "./form.js";

/** @typedef {import("./session.js").Session} Session */
/** @typedef {{issuer: string, client_id: string | null, scope: string, audience: string, has_demo_links: boolean}} ConsoleSettings */

const PENDING = "trading-intents-sign-in"; // in sessionStorage, from the way out to the return

/** @param {Uint8Array} bytes */
function base64url(bytes) {
  return btoa(String.fromCharCode(...bytes))
    .replaceAll("+", "-")
    .replaceAll("/", "_")
    .replaceAll("=", "");
}

function randomText() {
  return base64url(crypto.getRandomValues(new Uint8Array(32)));
}

/**
 * @param {ConsoleSettings} settings
 * @returns {Promise<{authorization_endpoint: string, token_endpoint: string}>}
 */
async function discover(settings) {
  const answer = await fetch(`${settings.issuer.replace(/\/$/, "")}/.well-known/openid-configuration`);
  const found = await answer.json();
  if (found.issuer !== settings.issuer) throw new Error("the issuer's metadata is of another issuer");
  return found;
}

/** @param {ConsoleSettings} settings */
async function leaveForIssuer(settings) {
  if (!crypto.subtle) throw new Error("signing in there needs https, or this machine's own address");
  const metadata = await discover(settings);
  const pending = { verifier: randomText(), state: randomText() };
  sessionStorage.setItem(PENDING, JSON.stringify(pending));
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(pending.verifier));
  const target = new URL(metadata.authorization_endpoint);
  if (target.protocol !== "https:" && target.protocol !== "http:") throw new Error("the issuer's address is none");
  const query = {
    response_type: "code",
    client_id: settings.client_id ?? "",
    redirect_uri: returnAddress(),
    scope: settings.scope,
    state: pending.state,
    code_challenge: base64url(new Uint8Array(digest)),
    code_challenge_method: "S256",
    audience: settings.audience,
  };
  for (const [name, value] of Object.entries(query)) target.searchParams.set(name, value);
  location.assign(target);
}

function returnAddress() {
  return `${location.origin}/console`;
}

/**
 * @param {ConsoleSettings} settings
 * @param {Record<string, string>} form
 */
async function fetchToken(settings, form) {
  const { token_endpoint: endpoint } = await discover(settings);
  const answer = await fetch(endpoint, {
    method: "POST",
    body: new URLSearchParams({ client_id: settings.client_id ?? "", ...form }),
  });
  const told = await answer.json();
  if (!answer.ok) throw new Error(String(told.error_description ?? told.error ?? "the issuer refused"));
  return told;
}

/**
 * @param {ConsoleSettings} settings
 * @param {Session} session
 * @param {any} told the issuer's answer; with a refresh token the session renews itself
 */
async function keepToken(settings, session, told) {
  let refresh = told.refresh_token;
  const renew = async () => {
    const again = await fetchToken(settings, { grant_type: "refresh_token", refresh_token: refresh });
    refresh = again.refresh_token ?? refresh;
    return String(again.access_token);
  };
  await session.add(String(told.access_token), refresh ? renew : null);
}

/**
 * Finishes what the address says: the issuer's return, or a demo link. The codes leave the address at once.
 * @param {ConsoleSettings} settings
 * @param {Session} session
 */
export async function finishSignIn(settings, session) {
  const query = new URLSearchParams(location.search);
  const link = new URLSearchParams(location.hash.slice(1)).get("code");
  const pending = sessionStorage.getItem(PENDING);
  sessionStorage.removeItem(PENDING);
  if (location.search || link) history.replaceState(null, "", "/console");
  if (link) {
    const answer = await fetch("/console/session", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ code: link }),
    });
    const told = await answer.json();
    if (!answer.ok) throw new Error(String(told.detail ?? "the link does not hold"));
    await session.add(told.api_key);
    await session.add(told.access_token);
    return;
  }
  const code = query.get("code");
  if (!code && !query.get("error")) return;
  const { verifier, state } = JSON.parse(pending ?? "{}");
  if (!state || query.get("state") !== state) throw new Error("this return belongs to no sign-in that was begun in this tab");
  if (query.get("iss") && query.get("iss") !== settings.issuer) throw new Error("another issuer answered");
  if (!code) throw new Error(String(query.get("error_description") ?? query.get("error")));
  await keepToken(
    settings,
    session,
    await fetchToken(settings, {
      grant_type: "authorization_code",
      code,
      redirect_uri: returnAddress(),
      code_verifier: verifier,
    }),
  );
}

/**
 * The form for one more credential, and the way to the issuer.
 * @param {ConsoleSettings} settings
 * @param {Session} session
 * @param {() => void} onDone
 */
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
        hint: "A key (tip_paper_…, tip_live_…) places orders. A user's token manages controls, keys and the organization. You can hold both.",
      },
    ],
    onSubmit: async (values) => {
      await session.add(String(values.credential));
      form.clear();
      onDone();
    },
  });
  const issuer = settings.client_id
    ? el(
        "button",
        { type: "button", class: "primary", onclick: () => leaveForIssuer(settings).catch((error) => form.fail(error)) },
        "Sign in with your organization",
      )
    : null;
  const demo = settings.has_demo_links
    ? el(
        "p",
        { class: "hint" },
        "For the demo of this machine, type ",
        el("code", {}, "trading-intents console"),
        " in a terminal and open the link that it prints.",
      )
    : null;
  return { form, element: el("div", { class: "signin-ways" }, issuer, form.element, demo) };
}
