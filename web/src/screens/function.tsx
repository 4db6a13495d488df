// Function: its instructions, how often they ran, and where its branches went.

import type { ComponentChild } from "preact";
import { useMemo } from "preact/hooks";
import { useAnswer } from "../asking.ts";
import { count, counted, decimal } from "../format.ts";
import { Code } from "../function/code.ts";
import { Listing } from "../function/listing.tsx";
import { PANELS } from "../function/panels.ts";
import { Answered, Counts, countsOf } from "../parts.tsx";
import { change, counts, linkTo, state } from "../state.ts";
import type { Answer } from "../wire.ts";

export function Function(): ComponentChild {
  const { at_module = "", start = "", name = "" } = state.value.parameters;
  const chosen = start ? { at_module, start } : { name };
  const asked = useAnswer(start || name ? "function" : null, { ...counts.value, ...chosen });
  if (!start && !name) {
    return (
      <p class="first">
        Choose a function in <a href={linkTo("hot")}>Hot</a>: Enter, or a click on its name.
      </p>
    );
  }
  return <Answered asked={asked}>{(answer) => <Whole answer={answer} />}</Answered>;
}

function Whole({ answer }: { answer: Answer }): ComponentChild {
  const code = useMemo(() => new Code(answer), [answer]);
  const { header } = answer;
  const facts = [
    String(header["module"]),
    `${header["start"]} to ${header["end"]}`,
    counted(Number(header["samples"]), "sample"),
    header["executed"] === null
      ? null
      : `${count(Number(header["executed"]))} instructions ${countsOf(answer).replaced ? "executed" : "seen"}`,
    header["ipc"] === null
      ? code.missing
        ? null
        : "cycles not recorded"
      : `${decimal(Number(header["ipc"]))} instructions per cycle`,
    code.missing || answer.numbers("blocks.mispredicted").some((value: number) => !Number.isNaN(value))
      ? null
      : "mispredictions not known",
  ];
  return (
    <>
      <div class="over-sides">
        <h2 title={String(header["function"])}>{String(header["function"])}</h2>
        <p>{facts.filter(Boolean).join(", ")}</p>
      </div>
      {code.missing ? null : <Counts answer={answer} />}
      {code.missing ? (
        <p class="refusal">
          No counts of executions: {code.missing}. {header["hint"]}
        </p>
      ) : null}
      <div class="sides">
        <Listing key={`${header["module_row"]} ${header["start"]}`} code={code} />
        <Beside code={code} />
      </div>
    </>
  );
}

/** One of the panels, chosen by tabs. */
function Beside({ code }: { code: Code }): ComponentChild {
  const panel = PANELS.find(({ name }) => name === state.value.parameters["beside"]) ?? PANELS[0];
  if (!panel) return null;
  return (
    <section class="beside" aria-label="Beside the assembly">
      <nav aria-label="Panels">
        {PANELS.map(({ name, title }) => (
          <button
            key={name}
            type="button"
            class="tab"
            aria-pressed={name === panel.name}
            onClick={() => change({ beside: name })}
          >
            {title}
          </button>
        ))}
      </nav>
      <div class="panel" role="region" tabIndex={0} aria-label={panel.title}>
        <panel.show code={code} />
      </div>
    </section>
  );
}
