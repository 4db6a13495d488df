// What can be looked at beside the assembly. A new panel is a file beside this one and a row here.

import type { ComponentType } from "preact";
import type { PanelProps } from "./code.ts";
import { Cycles } from "./cycles.tsx";
import { Graph } from "./graph.tsx";
import { Loops } from "./loops.tsx";
import { Source } from "./source.tsx";
import { Targets } from "./targets.tsx";

export interface Panel {
  /** Its name in the address of the page. */
  readonly name: string;
  readonly title: string;
  readonly show: ComponentType<PanelProps>;
}

export const PANELS: readonly Panel[] = [
  { name: "source", title: "Source", show: Source },
  { name: "graph", title: "Graph", show: Graph },
  { name: "loops", title: "Loops", show: Loops },
  { name: "cycles", title: "Cycles", show: Cycles },
  { name: "targets", title: "Targets", show: Targets },
];
