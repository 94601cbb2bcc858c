/** Types of a call by its method and path, from the generated description. */

import type { paths } from "./api.js";

export type Method = "GET" | "POST" | "PUT" | "PATCH" | "DELETE";

/** The paths that take a method. */
export type PathOf<M extends Method> = {
  [P in keyof paths]: paths[P] extends Record<Lowercase<M>, object> ? P : never;
}[keyof paths];

export type OperationOf<M extends Method, P extends keyof paths> = paths[P][Lowercase<M> &
  keyof paths[P]];

type ContentOf<T> = T extends { content: infer C }
  ? C extends { "application/json": infer J }
    ? J
    : string
  : undefined;

type SuccessOf<R> = R extends object ? R[Extract<keyof R, 200 | 201 | 202 | 204>] : never;

/** What a call answers: JSON, a text, or nothing. */
export type AnswerOf<M extends Method, P extends keyof paths> =
  OperationOf<M, P> extends { responses: infer R } ? ContentOf<SuccessOf<R>> : never;

type Parameters<O> = O extends { parameters: infer P } ? P : object;
type Given<O, K extends string> = Pick<Parameters<O>, Extract<keyof Parameters<O>, K>>;
type Body<O> = O extends { requestBody: { content: { "application/json": infer B } } }
  ? { body: B }
  : O extends { requestBody?: { content: { "application/json": infer B } } }
    ? { body?: B }
    : object;

/** A call's parts: what its path, query and body take, and headers such as `if-match`. */
export type RequestOf<M extends Method, P extends keyof paths> = Given<
  OperationOf<M, P>,
  "path" | "query"
> &
  Body<OperationOf<M, P>> & { headers?: Record<string, string>; signal?: AbortSignal };

/** It may be left out where nothing of it is needed. */
export type RequestArguments<M extends Method, P extends keyof paths> =
  object extends RequestOf<M, P> ? [request?: RequestOf<M, P>] : [request: RequestOf<M, P>];

/** The paths of lists, which are read by pages. */
export type ListPath = {
  [P in PathOf<"GET">]: AnswerOf<"GET", P> extends { data: unknown[]; next_cursor: unknown }
    ? P
    : never;
}[PathOf<"GET">];

export type ItemOf<P extends keyof paths> =
  AnswerOf<"GET", P> extends { data: (infer Item)[] } ? Item : never;

/** A path with its parts filled in. */
export function fillPath(path: string, parts: Record<string, string> = {}): string {
  return path.replace(/\{(\w+)\}/g, (_, name: string) => {
    const part = parts[name];
    if (!part) throw new TypeError(`${path} needs ${name}`);
    return encodeURIComponent(part);
  });
}
