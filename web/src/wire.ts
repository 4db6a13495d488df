// An answer from its bytes. The layout is described in src/lastbranch/view/wire.py, which writes them.
// Lengths are checked against the bytes that are there, so that damage is an error and not a hang.

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };
export type Numbers =
  Float64Array | Float32Array | Uint8Array | Int8Array | Uint16Array | Int16Array | Uint32Array | Int32Array;

const MAGIC = 0x3156424c; // "LBV1"
const ALIGN = 8;

type Make = (buffer: ArrayBuffer, at: number, length: number) => Numbers | BigUint64Array | BigInt64Array;

const KINDS: Record<string, { width: number; make: Make }> = {
  "|u1": { width: 1, make: (b, at, n) => new Uint8Array(b, at, n) },
  "|i1": { width: 1, make: (b, at, n) => new Int8Array(b, at, n) },
  "<u2": { width: 2, make: (b, at, n) => new Uint16Array(b, at, n) },
  "<i2": { width: 2, make: (b, at, n) => new Int16Array(b, at, n) },
  "<u4": { width: 4, make: (b, at, n) => new Uint32Array(b, at, n) },
  "<i4": { width: 4, make: (b, at, n) => new Int32Array(b, at, n) },
  "<u8": { width: 8, make: (b, at, n) => new BigUint64Array(b, at, n) },
  "<i8": { width: 8, make: (b, at, n) => new BigInt64Array(b, at, n) },
  "<f4": { width: 4, make: (b, at, n) => new Float32Array(b, at, n) },
  "<f8": { width: 8, make: (b, at, n) => new Float64Array(b, at, n) },
};

interface Placed {
  kind: string;
  length: number;
  at: number;
}

export class Answer {
  private readonly kept = new Map<string, unknown>();

  constructor(
    readonly header: { [name: string]: Json },
    private readonly buffer: ArrayBuffer,
    private readonly columns: Map<string, Placed>,
  ) {}

  has(name: string): boolean {
    return this.columns.has(name);
  }

  /** How many values a column has. */
  length(name: string): number {
    return this.place(name).length;
  }

  /** A column of numbers. Those of 64 bits become doubles, which are exact up to 2^53. */
  numbers(name: string): Numbers {
    return this.once(`n ${name}`, () => {
      const values = this.typed(name);
      return values instanceof BigUint64Array || values instanceof BigInt64Array
        ? Float64Array.from(values as BigInt64Array, Number)
        : values;
    });
  }

  /** A column of whole numbers of 64 bits, exactly: addresses. */
  bigs(name: string): BigUint64Array | BigInt64Array {
    return this.once(`b ${name}`, () => {
      const values = this.typed(name);
      if (values instanceof BigUint64Array || values instanceof BigInt64Array) return values;
      throw new Error(`column ${name} is not of 64-bit integers`);
    });
  }

  /** A column of texts; an empty one is not known. */
  texts(name: string): string[] {
    return this.once(`t ${name}`, () => {
      const { kind, length, at } = this.place(name);
      if (kind !== "text") throw new Error(`column ${name} is not text`);
      const offsets = new Uint32Array(this.buffer, at, length + 1);
      const bytes = new Uint8Array(this.buffer, at + 4 * (length + 1));
      const decoder = new TextDecoder();
      return Array.from({ length }, (_, i) => decoder.decode(bytes.subarray(offsets[i], offsets[i + 1])));
    });
  }

  /** Notes of the header, or any other list of texts in it. */
  list(name: string): string[] {
    const value = this.header[name];
    return Array.isArray(value) ? value.map(String) : [];
  }

  private place(name: string): Placed {
    const found = this.columns.get(name);
    if (!found) throw new Error(`the answer has no column ${name}`);
    return found;
  }

  private typed(name: string): Numbers | BigUint64Array | BigInt64Array {
    const { kind, length, at } = this.place(name);
    const known = KINDS[kind];
    if (!known) throw new Error(`column ${name} is not of numbers`);
    return known.make(this.buffer, at, length);
  }

  private once<T>(key: string, make: () => T): T {
    if (!this.kept.has(key)) this.kept.set(key, make());
    return this.kept.get(key) as T;
  }
}

/** The answer in `buffer`. Throws where these are not the bytes of one. */
export function decode(buffer: ArrayBuffer): Answer {
  const view = new DataView(buffer);
  if (buffer.byteLength < 8 || view.getUint32(0, true) !== MAGIC) throw new Error("damaged answer: no header");
  const size = view.getUint32(4, true);
  if (size > buffer.byteLength - 8) throw new Error("damaged answer: its header is cut off");
  const text = new TextDecoder().decode(new Uint8Array(buffer, 8, size));
  const whole = JSON.parse(text) as { header: { [name: string]: Json }; columns: [string, string, number][] };
  const columns = new Map<string, Placed>();
  let at = 8 + size;
  for (const [name, kind, length] of whole.columns) {
    const width = kind === "text" ? 4 : KINDS[kind]?.width;
    if (!width || !Number.isSafeInteger(length) || length < 0) throw new Error(`damaged answer: column ${name}`);
    let end = at + width * (kind === "text" ? length + 1 : length);
    if (end > buffer.byteLength) throw new Error(`damaged answer: column ${name} is cut off`);
    if (kind === "text") end += textBytes(buffer, at, length, name);
    columns.set(name, { kind, length, at });
    at = Math.ceil(end / ALIGN) * ALIGN;
  }
  return new Answer(whole.header, buffer, columns);
}

/** How long the bytes of a text column are, whose offsets must ascend and end inside of the buffer. */
function textBytes(buffer: ArrayBuffer, at: number, length: number, name: string): number {
  const offsets = new Uint32Array(buffer, at, length + 1);
  for (let i = 0, before = 0; i <= length; i++) {
    const here = offsets[i] ?? 0;
    if (here < before) throw new Error(`damaged answer: column ${name}`);
    before = here;
  }
  const bytes = offsets[length] ?? 0;
  if (bytes > buffer.byteLength - at - 4 * (length + 1)) throw new Error(`damaged answer: column ${name} is cut off`);
  return bytes;
}
