// Answers of the server that served this page.

import { keyOf, Refusal, type Parameters, type Provider, type Waiting } from "./provider.ts";
import { decode, type Answer } from "./wire.ts";

const GONE = "The viewer's server does not answer: it was ended, or its terminal was closed.";

export class HttpProvider implements Provider {
  readonly live = true;
  readonly fixed = {};
  readonly notes = [];

  async ask(question: string, parameters: Parameters, { onPart, signal }: Waiting = {}): Promise<Answer> {
    const query = new URLSearchParams(keyOf(question, parameters));
    query.delete("question");
    try {
      const response = await fetch(`watch/${question}?${query}`, signal ? { signal } : {});
      if (!response.ok || !response.body)
        throw new Refusal(`The server refused the question (${response.status}).`, "Open the viewer anew.");
      for await (const { kind, data } of frames(response.body.getReader())) {
        if (kind === "PART") onPart?.(decode(data));
        if (kind === "DONE") return decode(data);
        if (kind === "FAIL") throw refusalOf(data);
      }
    } catch (error) {
      if (error instanceof Refusal || !(error instanceof TypeError)) throw error; // a TypeError: the connection is lost
    }
    throw new Refusal(GONE, "Start it again with `lastbranch view`, and use the address that it opens.");
  }
}

function refusalOf(data: ArrayBuffer): Refusal {
  const { error, hint } = JSON.parse(new TextDecoder().decode(data)) as { error: string; hint: string | null };
  return new Refusal(error, hint);
}

interface Frame {
  readonly kind: string;
  readonly data: ArrayBuffer;
}

const HEAD = 8; // four letters and a uint32 (server.py)

/** The parts of a response, as they arrive. */
async function* frames(reader: ReadableStreamDefaultReader<Uint8Array>): AsyncGenerator<Frame> {
  let waiting: Uint8Array[] = [];
  let length = 0;
  /** `wanted` bytes, or null at the end. */
  const read = async (wanted: number): Promise<Uint8Array<ArrayBuffer> | null> => {
    while (length < wanted) {
      const { value, done } = await reader.read();
      if (done) return null;
      waiting.push(value);
      length += value.length;
    }
    const whole = new Uint8Array(length);
    let at = 0;
    for (const part of waiting) {
      whole.set(part, at);
      at += part.length;
    }
    waiting = [whole.subarray(wanted)];
    length -= wanted;
    return whole.slice(0, wanted);
  };
  for (let head = await read(HEAD); head; head = await read(HEAD)) {
    const size = new DataView(head.buffer).getUint32(4, true);
    const data = await read(size);
    if (!data) return;
    yield { kind: String.fromCharCode(...head.subarray(0, 4)), data: data.buffer };
  }
}
