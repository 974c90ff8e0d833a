// A client generated from the document. It is compiled, but not run: the compiler checks the types that it uses.
import createClient from "openapi-fetch";
import type { components, paths } from "./api";

type Equal<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false;
function is<T extends true>(): T | void {}

// Bodies of the answers of an operation in all media types, by status.
type Bodies<O> = O extends { responses: infer R }
  ? { [S in keyof R]: R[S] extends { content: infer C } ? C[keyof C] : never }
  : never;

// Answers that can be a string or another type, and answers of any type, as "path method status".
type Loose<T> = unknown extends T ? true : string extends T ? ([Exclude<T, string>] extends [never] ? false : true) : false;
type LooseAnswers = {
  [P in keyof paths & string]: {
    [M in keyof paths[P] & string]: {
      [S in keyof Bodies<paths[P][M]> & (string | number)]: Loose<Bodies<paths[P][M]>[S]> extends true ? `${P} ${M} ${S}` : never;
    }[keyof Bodies<paths[P][M]> & (string | number)];
  }[keyof paths[P] & string];
}[keyof paths & string];
const loose: [LooseAnswers] extends [never] ? "none" : LooseAnswers = "none";

type Schemas = components["schemas"];
is<Equal<Schemas["Verdict"]["result"], Schemas["Bundle"] | undefined>>();
is<Equal<Schemas["Verdict"]["displays"], Schemas["Bundle"][] | undefined>>();
is<Equal<Schemas["Bundle"]["data"]["text/plain"], string | undefined>>();

const client = createClient<paths, "application/json" | "application/problem+json">({ baseUrl: "http://127.0.0.1:7070" });

export async function run(session: string): Promise<string | undefined> {
  const made = await client.PUT("/v1/sessions/{session}", { params: { path: { session } }, body: {} });
  if (made.error) throw new Error(made.error.code);
  const { data, error } = await client.POST("/v1/sessions/{session}/cells", { params: { path: { session } }, body: { code: "6 * 7" } });
  if (error) throw new Error(`${error.code}: ${error.detail}`);
  const verdict: Schemas["Verdict"] = data;
  return verdict.result?.data["text/plain"];
}

export function show(e: Schemas["OperationStreamEvent"]): string {
  switch (e.event) {
    case "stdout":
    case "stderr":
      return e.data.data;
    case "display":
      return e.data.data["image/png"] ?? "";
    case "verdict":
      return e.data.ended;
    case "problem":
      return e.data.code;
    default:
      return loose;
  }
}
