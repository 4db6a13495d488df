// The columns of a table: what is in their cells, and how that is sorted and searched.

import type { ComponentChild } from "preact";
import { count, decimal, percent, UNKNOWN } from "./format.ts";
import type { Answer, Numbers } from "./wire.ts";

export interface Column {
  /** Its name in the address of the page, and in tests (data-column). */
  readonly key: string;
  readonly title: string;
  /** What the numbers are: %, ns... */
  readonly unit?: string;
  /** One sentence: what the column says. */
  readonly hint?: string;
  /** What it is sorted by. NaN and "" are not known, and come last. */
  readonly values: Numbers | BigUint64Array | BigInt64Array | readonly string[];
  /** In rem; the least where it may grow. */
  readonly width: number;
  /** Its part of the room that is left; without it the width is fixed. */
  readonly grow?: number;
  readonly numeric: boolean;
  /** Why rows have no value. */
  readonly unknown?: string | undefined;
  /** Whether the search looks at it. */
  readonly searched?: boolean;
  cell(row: number): ComponentChild;
}

interface NumberOptions {
  readonly unit?: string;
  readonly hint?: string;
  readonly width?: number;
  /** The number that fills the whole cell with a bar; no bar without it. */
  readonly bar?: number;
  /** Why some rows have no number. */
  readonly unknown?: string;
  /** Where a number rests on so few counts that it is mostly chance: it is grey. */
  few?(row: number): boolean;
}

/** A column of numbers, right-aligned. */
export function numberColumn(
  key: string,
  title: string,
  values: Numbers,
  format: (value: number) => string,
  { bar, unknown, few, width = 6, ...rest }: NumberOptions = {},
): Column {
  const cell = (row: number): ComponentChild => {
    const value = values[row] ?? NaN;
    if (Number.isNaN(value)) return <Unknown why={unknown} />;
    const faint = few?.(row) ?? false;
    const text = <Figure few={faint}>{format(value)}</Figure>;
    if (bar === undefined) return text;
    const share = bar > 0 ? Math.min(1, value / bar) : 0;
    return (
      <>
        <span class={faint ? "bar faint" : "bar"} style={{ width: `${100 * share}%` }} aria-hidden="true" />
        <span class="over">{text}</span>
      </>
    );
  };
  return { key, title, values, width, unknown, numeric: true, cell, ...rest };
}

interface Declared {
  readonly name: string;
  readonly title: string;
  readonly unit: string;
  readonly meaning: string;
  readonly form: string;
}

const FORMATS: { readonly [form: string]: (value: number) => string } = { count, decimal, percent };

/** The columns that an answer declares (its `header`) and that the page has no columns of its own for: none of the
 * `known` ones. Their values have the `prefix` of their table. */
export function declaredColumns(answer: Answer, header: string, known: readonly string[], prefix = ""): Column[] {
  const declared = (answer.header[header] ?? []) as unknown as readonly Declared[];
  return declared
    .filter(({ name }) => !known.includes(name))
    .map(({ name, title, unit, meaning, form }) => {
      const heading = unit === "%" ? title.replace(/ %$/, "") : title;
      const values = prefix + name;
      return form === "text"
        ? textColumn(name, heading, answer.texts(values), { hint: meaning })
        : numberColumn(name, heading, answer.numbers(values), FORMATS[form] ?? count, { unit, hint: meaning });
    });
}

/** Whether any row of a column has a number; a column of texts always counts as known. */
export function isKnown({ numeric, values }: Column): boolean {
  return (
    !numeric || !values.length || Array.from(values as ArrayLike<number | bigint>).some((value) => !Number.isNaN(value))
  );
}

/** A number; grey where it rests on so few counts that it is mostly chance. */
export function Figure({ few, children }: { few: boolean; children: string }): ComponentChild {
  return few ? (
    <span class="few" title="Mostly chance: it rests on too few counts.">
      {children}
    </span>
  ) : (
    children
  );
}

interface TextOptions {
  readonly hint?: string;
  readonly width?: number;
  readonly grow?: number;
  readonly unknown?: string;
  /** Where a click on the text leads; null: nowhere. */
  link?(row: number): string | null;
}

/** A column of names: all of one width, cut off with … where they are longer (`Place`), whole in the tooltip. */
export function textColumn(
  key: string,
  title: string,
  values: readonly string[],
  { link, unknown, width = 11, ...rest }: TextOptions = {},
): Column {
  const cell = (row: number): ComponentChild => {
    const text = values[row];
    if (!text) return <Unknown why={unknown} />;
    const shown = text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text;
    const target = link?.(row);
    return target ? (
      <a href={target} title={shown} tabIndex={-1}>
        <Place name={shown} />
      </a>
    ) : (
      <span title={shown}>
        <Place name={shown} />
      </span>
    );
  };
  return { key, title, values, width, numeric: false, searched: true, cell, ...rest };
}

const LONGEST = 1000;

/** A name in one line. What is cut off where there is no room is its end, but never the offset of a place in it. */
export function Place({ name }: { name: string }): ComponentChild {
  const offset = /\+0x[0-9a-f]+$/.exec(name)?.[0];
  if (!offset) return name;
  return (
    <>
      <span class="named" style={{ maxWidth: `calc(100% - ${offset.length}ch)` }}>
        {name.slice(0, -offset.length)}
      </span>
      {offset}
    </>
  );
}

/** Why something is not known, where nothing better is. */
export const WHY = "The capture does not say.";

export function Unknown({ why = WHY }: { why?: string | undefined }): ComponentChild {
  return (
    <span class="unknown" title={why}>
      {UNKNOWN}
    </span>
  );
}
