// Exact decimal texts, added and shown without floating point; times and ages as people read them.

const DECIMALS = 18;
const ONE = 10n ** BigInt(DECIMALS);

/** @param {string} text */
function scaled(text) {
  const [whole = "0", rest = ""] = text.replace("-", "").split(".");
  const value = BigInt(whole) * ONE + BigInt(rest.padEnd(DECIMALS, "0").slice(0, DECIMALS));
  return text.startsWith("-") ? -value : value;
}

/** @param {bigint} value */
function unscaled(value) {
  const digits = (value < 0n ? -value : value).toString().padStart(DECIMALS + 1, "0");
  const rest = digits.slice(-DECIMALS).replace(/0+$/, "");
  return (value < 0n ? "-" : "") + digits.slice(0, -DECIMALS) + (rest && `.${rest}`);
}

/** @param {Amount[]} amounts */
export const sum = (amounts) =>
  unscaled(amounts.reduce((total, amount) => total + scaled(amount ?? "0"), 0n));

/** @type {(one: string, other: string) => string} */
export const subtract = (one, other) => unscaled(scaled(one) - scaled(other));

/** @type {(one: Amount, other: Amount) => number} */
export const compareAmounts = (one, other) =>
  Math.sign(Number(scaled(one ?? "0") - scaled(other ?? "0")));

/** @type {(one: string, other: string) => string} Cut to 18 decimals, enough to show. */
export const multiply = (one, other) => unscaled((scaled(one) * scaled(other)) / ONE);

/** @type {(amount: string, decimals: number) => string} Rounds half away from zero. */
export function roundAmount(amount, decimals) {
  const step = 10n ** BigInt(DECIMALS - decimals);
  const value = scaled(amount);
  const units = ((value < 0n ? -value : value) * 2n + step) / (step * 2n);
  const digits = units.toString().padStart(decimals + 1, "0");
  const text = decimals ? `${digits.slice(0, -decimals)}.${digits.slice(-decimals)}` : digits;
  return value < 0n && units ? `-${text}` : text;
}

/** @param {Amount} amount */
const decimalsOf = (amount) => amount?.split(".")[1]?.length ?? 0;

/** @type {(amount: Amount, ...prices: Amount[]) => string} An average with the digits of its prices; without any, 4. */
export function showAverage(amount, ...prices) {
  if (!amount) return "–";
  const known = prices.filter((price) => price);
  return showAmount(roundAmount(amount, known.length ? Math.max(2, ...known.map(decimalsOf)) : 4));
}

/** @param {Amount} amount */
export function showAmount(amount) {
  if (!amount) return "–";
  const [whole = "", rest] = amount.split(".");
  const grouped = whole.replace(/\B(?=(\d{3})+$)/g, ",");
  return (rest ? `${grouped}.${rest}` : grouped).replace("-", "−");
}

/** @param {Amount} amount shown with two decimals at least and, where there are more, cut to `decimals` */
export function showMoney(amount, decimals = 2) {
  if (amount === null || amount === undefined) return "–";
  const [whole = "", rest = ""] = amount.split(".");
  return showAmount(`${whole}.${rest.slice(0, decimals).padEnd(2, "0")}`);
}

/** @type {(text: string) => number} The number of decimals of a shown number. */
export const tailOf = (text) => /\.(\d+)$/.exec(text)?.[1]?.length ?? 0;

/** @type {(text: string, length: number) => string} Pads with blanks for the digits that others in its column have. */
export function padTail(text, length) {
  const tail = tailOf(text);
  if (tail >= length || !/\d$/.test(text)) return text;
  return text + (tail ? "" : "\u2008") + "\u2007".repeat(length - tail);
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
