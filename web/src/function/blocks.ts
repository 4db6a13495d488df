// What of a function is drawn as a graph: the blocks that ran, and the edges between them.

import { count, decimal, hex, percent } from "../format.ts";
import type { Code } from "./code.ts";

/** More than that nobody reads, and the layout takes more than two seconds. */
const MOST_BLOCKS = 600;
const MOST_EDGES = 1200;
/** Of a block's executions: a smaller difference of what came and what went is the ends of branch stacks. */
const GAP = 0.05;
const LONGEST = 34; // letters of an instruction

export interface Box {
  /** A row of the blocks; -1 for what is not a block. */
  readonly block: number;
  readonly lines: readonly string[];
  readonly share: number;
  readonly few: boolean;
  /** All that is known, as a sentence. */
  readonly description: string;
}

export interface Edge {
  readonly from: number;
  readonly to: number;
  readonly kind: string;
  readonly count: number;
  readonly probability: number;
  readonly mispredicted: number;
  readonly label: string;
  readonly few: boolean;
  readonly description: string;
}

export class Drawing {
  readonly boxes: Box[] = [];
  readonly edges: Edge[] = [];
  /** The box of each block, where it has one. */
  readonly boxOf = new Map<number, number>();
  /** Why it is not drawn; empty where it is. */
  readonly refusal: string;

  constructor(private readonly code: Code) {
    const { answer } = code;
    const source = answer.numbers("block_edges.source");
    const target = answer.numbers("block_edges.target");
    const ran = new Set([...source, ...target].map(Number).filter((block) => block >= 0));
    if (code.missing) this.refusal = `There is no graph without counts of executions: ${code.missing}.`;
    else if (!ran.size) this.refusal = "No block of this function was seen to run.";
    else if (ran.size > MOST_BLOCKS || source.length > MOST_EDGES) {
      this.refusal =
        `${count(ran.size)} blocks ran, with ${count(source.length)} edges between them: ` +
        `more than ${count(MOST_BLOCKS)} blocks or ${count(MOST_EDGES)} edges are not laid out. The assembly has all of them.`;
    } else this.refusal = "";
    if (this.refusal) return;
    this.addBoxes([...ran].sort((a, b) => a - b));
    this.addEdges();
  }

  private addBoxes(ran: readonly number[]): void {
    const { answer } = this.code;
    const [counts, cycles, ipc, came, went] = ["count", "cycles", "ipc", "came", "went"].map((name) =>
      answer.numbers(`blocks.${name}`),
    );
    const executed = Number(answer.header["executed"]);
    for (const block of ran) {
      const first = this.code.first[block] ?? 0;
      const last = this.code.last[block] ?? 0;
      const at = (values: typeof counts): number => values?.[block] ?? NaN;
      const share = executed ? (at(counts) * (last - first + 1)) / executed : NaN;
      const gap = (at(came) - at(went)) / Math.max(at(came), at(went), 1);
      const few = (this.code.observed[block] ?? 0) < this.code.enough;
      const address = hex(this.code.address[first] ?? 0n);
      const time = Number.isNaN(at(cycles)) ? "" : `${decimal(at(cycles))} cycles, IPC ${decimal(at(ipc))}`;
      const flow = Math.abs(gap) > GAP ? `came ${count(at(came))}, went ${count(at(went))}` : "";
      this.boxOf.set(block, this.boxes.length);
      this.boxes.push({
        block,
        share,
        few,
        lines: [
          `${address}  ${count(at(counts))}×  ${percent(share)} %`,
          ...[time, flow].filter(Boolean),
          short(this.code.text[first] ?? ""),
          ...(last > first + 1 ? ["⋮"] : []),
          ...(last > first ? [short(this.code.text[last] ?? "")] : []),
        ],
        description:
          `Block ${address}: ran ${count(at(counts))} times, ${percent(share)} % of the function's instructions; ` +
          `${time || "cycles not recorded"}; ${count(at(came))} came in, ${count(at(went))} went out` +
          (few ? `; ${this.tooFew}.` : "."),
      });
    }
  }

  private addEdges(): void {
    const { answer } = this.code;
    const kinds = answer.texts("block_edges.kind");
    const [source, target, counts, probability, wrong, decided] = [
      "source",
      "target",
      "count",
      "probability",
      "mispredicted",
      "decided",
    ].map((name) => answer.numbers(`block_edges.${name}`));
    kinds.forEach((kind, i) => {
      const from = source?.[i] ?? -1;
      const to = target?.[i] ?? -1;
      const many = counts?.[i] ?? 0;
      const chance = probability?.[i] ?? NaN;
      const missed = wrong?.[i] ?? NaN;
      if (kind === "called") return; // the edge from the call to the block after it is drawn
      const link = kind === "returned" ? to - 1 : from;
      const seen = (block: number): number => this.code.observed[block] ?? 0;
      const few = (from >= 0 ? seen(from) : Math.min(many, seen(to))) < this.code.enough;
      const fewWrong = (decided?.[i] ?? 0) < this.code.enough;
      const parts = [
        from >= 0 && chance < 1 ? `${percent(chance)} %` : "",
        missed >= 0.01 && !fewWrong ? `${percent(missed)} % missed` : "",
      ];
      this.edges.push({
        from: this.boxOf.get(link) ?? this.outside("enter"),
        to: this.boxOf.get(to) ?? this.outside("leave"),
        kind,
        count: many,
        probability: chance,
        mispredicted: missed,
        label: parts.filter(Boolean).join(" · "),
        few,
        description:
          `${NAMES[kind] ?? kind}: ${count(many)}${Number.isNaN(chance) ? "" : `, ${percent(chance)} % of the block's executions`}` +
          `${Number.isNaN(missed) ? "" : `, mispredicted ${percent(missed)} %`}${few ? `; ${this.tooFew}` : ""}`,
      });
    });
  }

  private get tooFew(): string {
    return `fewer than ${this.code.enough} ${this.code.unit}: mostly chance`;
  }

  /** The small box of all that is outside, which edges come from or lead to. */
  private outside(name: "enter" | "leave"): number {
    const found = this.boxes.findIndex((box) => box.block < 0 && box.lines[0] === name);
    if (found >= 0) return found;
    this.boxes.push({ block: -1, lines: [name], share: NaN, few: false, description: NAMES[name] ?? name });
    return this.boxes.length - 1;
  }
}

const NAMES: Readonly<Record<string, string>> = {
  taken: "Taken branch",
  "fall through": "Not taken, or no branch",
  returned: "After a call",
  left: "Leaves the function",
  entered: "Entered from outside",
  enter: "Where the function is entered from outside",
  leave: "Where the function is left",
};

function short(text: string): string {
  const one = text.replace(/\s+/g, " ");
  return one.length > LONGEST ? `${one.slice(0, LONGEST - 1)}…` : one;
}
