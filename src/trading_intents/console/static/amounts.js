// Exact decimal texts, added and shown without floating point; times and ages as people read them.

const PLACES = 18;
const ONE = 10n ** BigInt(PLACES);

/** @param {string} text */
function scaled(text) {
  const [whole = "0", rest = ""] = text.replace("-", "").split(".");
  const value = BigInt(whole) * ONE + BigInt(rest.padEnd(PLACES, "0").slice(0, PLACES));
  return text.startsWith("-") ? -value : value;
}

/** @param {bigint} value */
function unscaled(value) {
  const digits = (value < 0n ? -value : value).toString().padStart(PLACES + 1, "0");
  const rest = digits.slice(-PLACES).replace(/0+$/, "");
  return (value < 0n ? "-" : "") + digits.slice(0, -PLACES) + (rest && `.${rest}`);
}

/** @param {Amount[]} amounts */
export const sum = (amounts) => unscaled(amounts.reduce((total, amount) => total + scaled(amount ?? "0"), 0n));

/** @type {(one: string, other: string) => string} */
export const subtract = (one, other) => unscaled(scaled(one) - scaled(other));

/** @type {(one: Amount, other: Amount) => number} */
export const compareAmounts = (one, other) => Math.sign(Number(scaled(one ?? "0") - scaled(other ?? "0")));

/** @type {(one: string, other: string) => string} Cut to 18 places, as it is for showing. */
export const multiply = (one, other) => unscaled((scaled(one) * scaled(other)) / ONE);

/** @type {(amount: string, places: number) => string} Half away from zero; with that many places. */
export function roundAmount(amount, places) {
  const step = 10n ** BigInt(PLACES - places);
  const value = scaled(amount);
  const units = ((value < 0n ? -value : value) * 2n + step) / (step * 2n);
  const digits = units.toString().padStart(places + 1, "0");
  const text = places ? `${digits.slice(0, -places)}.${digits.slice(-places)}` : digits;
  return value < 0n && units ? `-${text}` : text;
}

/** @param {Amount} amount */
const placesOf = (amount) => amount?.split(".")[1]?.length ?? 0;

/** @type {(amount: Amount, ...prices: Amount[]) => string} An average with the digits of its prices; without any, 4. */
export function showAverage(amount, ...prices) {
  if (!amount) return "–";
  const known = prices.filter((price) => price);
  return showAmount(roundAmount(amount, known.length ? Math.max(2, ...known.map(placesOf)) : 4));
}

/** @param {Amount} amount */
export function showAmount(amount) {
  if (!amount) return "–";
  const [whole = "", rest] = amount.split(".");
  const grouped = whole.replace(/\B(?=(\d{3})+$)/g, ",");
  return (rest ? `${grouped}.${rest}` : grouped).replace("-", "−");
}

/** @param {Amount} amount shown with two places at least and, where there are more, cut to `places` */
export function showMoney(amount, places = 2) {
  if (amount === null || amount === undefined) return "–";
  const [whole = "", rest = ""] = amount.split(".");
  return showAmount(`${whole}.${rest.slice(0, places).padEnd(2, "0")}`);
}

/** @type {(text: string) => number} How many digits a shown number has behind its point. */
export const tailOf = (text) => /\.(\d+)$/.exec(text)?.[1]?.length ?? 0;

/** @type {(text: string, places: number) => string} With blanks for the digits that others in its column have. */
export function padTail(text, places) {
  const tail = tailOf(text);
  if (tail >= places || !/\d$/.test(text)) return text;
  return text + (tail ? "" : "\u2008") + "\u2007".repeat(places - tail);
}

/** @param {Date} time */
export const showClock = (time) => time.toLocaleTimeString([], { hour12: false });

/** @param {string | number | null | undefined} time */
export function showTime(time) {
  if (!time) return "–";
  const then = new Date(time);
  const isToday = then.toDateString() === new Date().toDateString();
  return isToday ? showClock(then) : then.toLocaleString([], { hour12: false });
}

/** @param {string | number | Date | null | undefined} time */
export function showAge(time) {
  if (!time) return "–";
  const seconds = Math.max(0, Math.floor((Date.now() - new Date(time).getTime()) / 1000));
  if (seconds < 100) return `${seconds} s`;
  if (seconds < 6000) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172_800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86_400)} d`;
}

/** @param {string} text */
export function words(text) {
  const spaced = text.replaceAll("_", " ").toLowerCase();
  return spaced.charAt(0).toUpperCase() + spaced.slice(1);
}
