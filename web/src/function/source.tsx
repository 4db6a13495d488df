// The source, in step with the assembly: a line points at its instructions, and the other way round.

import type { ComponentChild } from "preact";
import { useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { count, counted, largest } from "../format.ts";
import type { Answer } from "../wire.ts";
import { choose, chosenRow, point, pointed } from "./choice.ts";
import type { Code, PanelProps } from "./code.ts";
import { coloured, type Piece } from "./colours.ts";

/** A source line that is shown; `row` of the lines with code, -1 for what is around them. */
interface Line {
  readonly file: number;
  readonly number: number;
  readonly row: number;
  readonly pieces: readonly Piece[];
}

export function Source({ code }: PanelProps): ComponentChild {
  const { answer } = code;
  const lines = useMemo(() => linesOf(answer), [answer]);
  const instructions = useMemo(() => byLine(answer), [answer]);
  const chosen = useRef<HTMLLIElement>(null);
  const of = answer.numbers("instructions.line");
  const files = answer.texts("files.name");
  const samples = answer.numbers("lines.samples");
  const executed = answer.numbers("lines.count");
  const most = largest(samples) || largest(executed);
  const weights = largest(samples) ? samples : executed;
  const active = of[chosenRow(code)] ?? -1;
  const at = active < 0 ? (of[code.hottest] ?? -1) : active; // what is in view
  const under = new Set(pointed.value.map((row) => of[row] ?? -1));
  useLayoutEffect(() => chosen.current?.scrollIntoView({ block: "nearest" }), [at]);
  if (!files.length) {
    return (
      <p class="first">
        No source lines are known: the binary's debug information (gcc -g) was not found, or has none here.
      </p>
    );
  }
  const hasText = answer.length("source.text") > 0;
  return (
    <>
      {hasText ? null : (
        <p class="first">The text was not found, only its line numbers: give its folder with --source-root.</p>
      )}
      {files.map((file, number) => (
        <section key={file} aria-label={file}>
          <h3 title={file}>{file}</h3>
          <ol class="source">
            {lines
              .filter((line) => line.file === number)
              .map((line, i, all) => {
                const { row } = line;
                const names = [under.has(row) && row >= 0 ? "pointed" : "", row === active && row >= 0 ? "active" : ""];
                if (i && (all[i - 1]?.number ?? 0) + 1 < line.number) names.push("gap");
                const rows = instructions.get(row) ?? [];
                const text = line.pieces.map((piece, k) => (
                  <span key={k} class={piece.scope}>
                    {piece.text}
                  </span>
                ));
                return (
                  <li
                    key={line.number}
                    ref={row === at && row >= 0 ? chosen : null}
                    class={names.filter(Boolean).join(" ")}
                    data-line={line.number}
                    onMouseEnter={() => point(rows)}
                    onMouseLeave={() => point([])}
                  >
                    <span
                      class="times"
                      title={
                        row < 0
                          ? undefined
                          : `${counted(samples[row] ?? 0, "sample")}, executed ${counted(executed[row] ?? NaN, "time")}`
                      }
                    >
                      {row >= 0 && most ? (
                        <span
                          class="bar"
                          style={{ width: `${(100 * (weights[row] ?? 0)) / most}%` }}
                          aria-hidden="true"
                        />
                      ) : null}
                      <span class="over">{row >= 0 ? count(executed[row] ?? NaN) : ""}</span>
                    </span>
                    {row >= 0 ? (
                      <button
                        type="button"
                        class="plain line"
                        aria-label={`Line ${line.number}: show its instructions`}
                        onClick={() => choose(code, best(code, rows))}
                      >
                        {line.number}
                      </button>
                    ) : (
                      <span class="line">{line.number}</span>
                    )}
                    <code onClick={() => rows.length && choose(code, best(code, rows))}>{text}</code>
                  </li>
                );
              })}
          </ol>
        </section>
      ))}
    </>
  );
}

/** The instruction of a line that ran most often. */
function best(code: Code, rows: readonly number[]): number {
  const times = (row: number): number => code.counted[code.block[row] ?? 0] || 0;
  return rows.reduce((one, other) => (times(other) > times(one) ? other : one), rows[0] ?? 0);
}

function byLine(answer: Answer): Map<number, number[]> {
  const found = new Map<number, number[]>();
  answer.numbers("instructions.line").forEach((line: number, row: number) => {
    const rows = found.get(line);
    if (rows) rows.push(row);
    else found.set(line, [row]);
  });
  return found;
}

/** Lines with their text where it was found; without it those with code. */
function linesOf(answer: Answer): Line[] {
  const files = answer.texts("files.name");
  const file = answer.numbers("lines.file");
  const number = answer.numbers("lines.line");
  const rows = new Map<string, number>();
  for (let row = 0; row < number.length; row++) rows.set(`${file[row]} ${number[row]}`, row);
  const where = answer.numbers("source.file");
  const numbers = answer.numbers("source.line");
  const texts = answer.texts("source.text");
  const out: Line[] = [];
  files.forEach((name, of) => {
    const mine = Array.from(where.keys()).filter((i) => where[i] === of);
    const pieces = coloured(
      name,
      mine.map((i) => texts[i] ?? ""),
      String(answer.header["arch"]),
    );
    mine.forEach((i, k) =>
      out.push({
        file: of,
        number: numbers[i] ?? 0,
        row: rows.get(`${of} ${numbers[i]}`) ?? -1,
        pieces: pieces[k] ?? [],
      }),
    );
    if (!mine.length) {
      for (let row = 0; row < number.length; row++)
        if (file[row] === of) out.push({ file: of, number: number[row] ?? 0, row, pieces: [] });
    }
  });
  return out;
}
