// The loops of the function: how often they were entered, and how often they went round each time.

import type { ComponentChild } from "preact";
import { Figure, Unknown } from "../columns.tsx";
import { count, counted, decimal, hex, UNKNOWN } from "../format.ts";
import { choose } from "./choice.ts";
import type { PanelProps } from "./code.ts";
import { binsOf, LabelledHistogram, type Bin } from "./histogram.tsx";
import { Part } from "./part.tsx";

export function Loops({ code }: PanelProps): ComponentChild {
  const { answer } = code;
  const header = answer.numbers("loops.header");
  if (!header.length) return <p class="first">This function has no loops.</p>;
  const bins = binsOf(answer, "trips", "loop");
  return (
    <>
      {code.missing ? <p class="first">How often they ran is not known: {code.missing}.</p> : null}
      {Array.from(header, (_, loop) => (
        <Loop key={loop} code={code} loop={loop} bins={bins.get(loop) ?? []} />
      ))}
      <Part answer={answer} />
    </>
  );
}

function Loop({ code, loop, bins }: PanelProps & { loop: number; bins: readonly Bin[] }): ComponentChild {
  const { answer } = code;
  const of = (name: string): number => answer.numbers(`loops.${name}`)[loop] ?? NaN;
  const row = code.first[of("header")] ?? 0;
  const at = hex(code.address[row] ?? 0n);
  const cut = "Too many visits reach beyond the end of their branch stack to know.";
  const figures: readonly [key: string, title: string, hint: string, shown: string, why: string][] = [
    ["iterations", "Iterations", "How often the first block of the loop ran.", count(of("iterations")), code.missing],
    [
      "trips",
      "Trips",
      "Iterations for each time that the loop was entered, on average.",
      decimal(of("trips")),
      "It was not seen to be entered.",
    ],
    ["p50", "p50", "Half of the visits go round at most that often.", short(of("trips_p50")), cut],
    ["p90", "p90", "Nine tenths of the visits go round at most that often.", short(of("trips_p90")), cut],
    [
      "longest",
      "Longest",
      "The most iterations in one branch stack, also of visits that reach beyond it.",
      count(of("longest") || NaN),
      "It was not seen to run.",
    ],
    [
      "cycles",
      "Cycles",
      "Of one iteration, on average.",
      decimal(of("cycles")),
      String(answer.header["no_cycles"] ?? "It was not seen to run."),
    ],
  ];
  const size = `${of("depth") > 1 ? `depth ${of("depth")}, ` : ""}${counted(of("blocks"), "block")}`;
  const few = Math.min(of("visits"), code.observed[of("header")] ?? 0) < code.enough;
  return (
    <section class="loop" aria-label={`Loop at ${at}`} data-loop={loop}>
      <h3 title={`${at}: ${size}`}>
        <button type="button" class="plain" onClick={() => choose(code, row)}>
          {at}
        </button>
        <span>{size}</span>
      </h3>
      <dl class="figures">
        {figures.map(([key, title, hint, shown, why]) => (
          <div key={key} title={hint}>
            <dt>{title}</dt>
            <dd data-figure={key}>
              {code.missing || shown === UNKNOWN ? (
                <Unknown why={why} />
              ) : (
                <Figure few={few && key.startsWith("p")}>{shown}</Figure>
              )}
            </dd>
          </div>
        ))}
      </dl>
      {bins.length ? <LabelledHistogram of="Trips of a visit" bins={bins} /> : null}
      {code.missing ? null : <p class="said">{seen(of("visits"), of("cut"), of("unstarted"))}</p>}
    </section>
  );
}

/** What the histogram is made of. */
function seen(visits: number, cut: number, unstarted: number): string {
  if (!visits)
    return unstarted
      ? `No visit was seen from its beginning, only ${count(unstarted)} from within: how trips are distributed is not known.`
      : "";
  const end = cut ? `, ${count(cut)} of them (pale) not to their end: they go round that often at least` : "";
  return `${count(visits)} visits from their beginning${end}${unstarted ? `; ${count(unstarted)} seen from within only ${unstarted === 1 ? "is" : "are"} not in the picture` : ""}.`;
}

function short(value: number): string {
  return Number.isInteger(value) ? count(value) : decimal(value);
}
