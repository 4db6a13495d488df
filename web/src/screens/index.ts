// The screens, in the order of the menu. A new one is a file beside this one and a row here.

import type { ComponentType } from "preact";
import { Branches } from "./branches.tsx";
import { Capture } from "./capture.tsx";
import { Flame } from "./flame.tsx";
import { Function } from "./function.tsx";
import { Hot } from "./hot.tsx";

export interface Screen {
  /** Its name in the address of the page. */
  readonly name: string;
  readonly title: string;
  /** The question that it answers. */
  readonly question: string;
  readonly show: ComponentType;
}

export const SCREENS: readonly Screen[] = [
  { name: "hot", title: "Hot", question: "Where does the time go?", show: Hot },
  { name: "flame", title: "Flame", question: "Who calls it?", show: Flame },
  { name: "function", title: "Function", question: "Which way, how often, how surely?", show: Function },
  { name: "branches", title: "Branches", question: "What is predictable?", show: Branches },
  { name: "capture", title: "Capture", question: "What was recorded, and what is missing?", show: Capture },
];
