// The screens, in the order of the menu. A new one is a file beside this one and a row here.

import type { ComponentType } from "preact";
import { Branches } from "./branches.tsx";
import { Capture } from "./capture.tsx";
import { Diff } from "./diff.tsx";
import { Flame } from "./flame.tsx";
import { Function } from "./function.tsx";
import { Hot } from "./hot.tsx";
import { Time } from "./time.tsx";

export interface Screen {
  /** Its name in the address of the page. */
  readonly name: string;
  readonly title: string;
  /** The question that it answers. */
  readonly question: string;
  readonly show: ComponentType;
  /** Whether it needs a capture to compare with. */
  readonly compares?: true;
  /** Whether it says something of a capture without samples. */
  readonly unsampled?: true;
}

export const SCREENS: readonly Screen[] = [
  { name: "hot", title: "Hot", question: "Where does the time go?", show: Hot },
  { name: "flame", title: "Flame", question: "Who calls it?", show: Flame },
  { name: "function", title: "Function", question: "Which way, how often, how surely?", show: Function },
  { name: "branches", title: "Branches", question: "What is predictable?", show: Branches },
  { name: "time", title: "Time", question: "When did it change?", show: Time },
  {
    name: "diff",
    title: "Diff",
    question: "What has a larger or smaller share than before?",
    show: Diff,
    compares: true,
  },
  {
    name: "capture",
    title: "Capture",
    question: "What was recorded, and what is missing?",
    show: Capture,
    unsampled: true,
  },
];
