// Branches: from where to where, how often, how surely, how quickly.

import type { ComponentChild } from "preact";
import { useMemo } from "preact/hooks";
import { useAnswer } from "../asking.ts";
import { count, decimal, percent } from "../format.ts";
import { Answered, Notes } from "../parts.tsx";
import { filters } from "../state.ts";
import { numberColumn, Table, textColumn, type Column } from "../table.tsx";
import type { Answer } from "../wire.ts";

export function Branches(): ComponentChild {
  return <Answered asked={useAnswer("branches", filters.value)}>{(answer) => <Sites answer={answer} />}</Answered>;
}

function Sites({ answer }: { answer: Answer }): ComponentChild {
  const columns = useMemo(() => columnsOf(answer), [answer]);
  return (
    <>
      <p class="first">{summaryOf(answer)}</p>
      <Table
        label="Branches"
        columns={columns}
        rows={answer.length("count")}
        sort="-count"
        note={<Notes notes={answer.list("notes")} />}
      />
    </>
  );
}

function summaryOf(answer: Answer): string {
  const [branches, all, shown] = ["branches", "count", "shown"].map((name) => Number(answer.header[name]));
  const rows = answer.length("count");
  const said = `${count(branches ?? 0)} branches were taken ${count(all ?? 0)} times`;
  return rows === branches ? `${said}.` : `${said}. The hottest ${count(rows)} are here: ${percent((shown ?? 0) / (all || 1))} % of that.`;
}

function columnsOf(answer: Answer): Column[] {
  const share = answer.numbers("share");
  const unknown = "The processor did not report it.";
  const noName = "No symbol is known there.";
  return [
    textColumn("from_function", "From", answer.texts("from_function"), { grow: 1, hint: "Function and offset of the branch.", unknown: noName }),
    textColumn("to_function", "To", answer.texts("to_function"), { grow: 1, hint: "Function and offset of its target.", unknown: noName }),
    textColumn("type", "Type", answer.texts("type"), { width: 5, unknown: "The record does not say." }),
    numberColumn("count", "Taken", answer.numbers("count"), count, { hint: "Entries of branch stacks with this branch." }),
    numberColumn("share", "Share", share, percent, { unit: "%", bar: share[0] ?? 0, hint: "Of all entries that recorded a branch." }),
    numberColumn("mispredicted", "Mispredicted", answer.numbers("mispredicted"), percent, {
      unit: "%",
      width: 8,
      bar: 1,
      hint: "Of the times that it was taken.",
      unknown,
    }),
    numberColumn("cycles", "Cycles", answer.numbers("cycles"), decimal, { width: 4.5, hint: "Since the branch before it, on average.", unknown }),
    textColumn("from", "From address", answer.texts("from"), { width: 9, hint: "As linked." }),
    textColumn("to", "To address", answer.texts("to"), { width: 9, hint: "As linked." }),
  ];
}
