/** An error answer becomes the exception of its code. */

import { CLASS_OF_CODE, type Problem, type TradingError, UnexpectedAnswer } from "./errors.js";

const MAX_DETAIL_CHARACTERS = 500;
const CODE_OF_STATUS: Readonly<Record<number, string>> = {
  400: "invalid_request",
  401: "unauthorized",
  403: "forbidden",
  404: "not_found",
  405: "method_not_allowed",
  408: "request_timeout",
  409: "conflict",
  410: "cursor_expired",
  412: "version_conflict",
  413: "payload_too_large",
  414: "uri_too_long",
  415: "unsupported_media_type",
  422: "validation_failed",
  429: "rate_limited",
  500: "internal_error",
};

export interface ErrorAnswer {
  status: number;
  headers: Headers;
  text: string;
}

export function errorOf(answer: ErrorAnswer): TradingError {
  const problem = readProblem(answer);
  const codeOfStatus = CODE_OF_STATUS[answer.status] ?? "";
  // A newer server's code is at least of its status's class.
  const kind = CLASS_OF_CODE[problem.code ?? ""] ?? CLASS_OF_CODE[codeOfStatus] ?? UnexpectedAnswer;
  const detail = problem.detail || problem.title || kind.name;
  const error = new kind(detail, answer.status, problem);
  const asked = answer.headers.get("retry-after") ?? "";
  if (/^\d+$/.test(asked)) error.retryAfter = Number(asked);
  return error;
}

function readProblem({ status, headers, text }: ErrorAnswer): Problem {
  const request_id = headers.get("x-request-id") ?? undefined;
  const read = readObject(text);
  if (typeof read.code === "string" && read.code) return { request_id, ...read };
  // The error of a token endpoint (RFC 6749).
  if (typeof read.error === "string") {
    const detail = typeof read.error_description === "string" ? read.error_description : read.error;
    return { code: read.error, detail, request_id };
  }
  // Two endpoints answer errors as plain text, and a proxy may answer anything.
  const detail = text.trim().slice(0, MAX_DETAIL_CHARACTERS) || `status ${status}`;
  return { code: CODE_OF_STATUS[status], detail, request_id };
}

function readObject(text: string): Record<string, unknown> {
  try {
    const read: unknown = JSON.parse(text);
    return typeof read === "object" && read !== null ? { ...read } : {};
  } catch {
    return {};
  }
}
