// Answers of the server that served this page.

import { keyOf, Refusal, type Parameters, type Provider } from "./provider.ts";
import { decode, type Answer } from "./wire.ts";

const GONE = "The viewer's server does not answer: it was ended, or its terminal was closed.";

export class HttpProvider implements Provider {
  readonly live = true;
  readonly fixed = {};
  readonly notes = [];

  async ask(question: string, parameters: Parameters): Promise<Answer> {
    const query = new URLSearchParams(keyOf(question, parameters));
    query.delete("question");
    let response: Response;
    try {
      response = await fetch(`ask/${question}?${query}`);
    } catch {
      throw new Refusal(GONE, "Start it again with `lastbranch view`, and use the address that it opens.");
    }
    if (response.ok) return decode(await response.arrayBuffer());
    if (response.headers.get("content-type")?.startsWith("application/json")) {
      const { error, hint } = (await response.json()) as { error: string; hint: string | null };
      throw new Refusal(error, hint);
    }
    throw new Refusal(`The server refused the question (${response.status}).`, "Open the viewer anew.");
  }
}
