// The graph of basic blocks.

import type { ComponentChild } from "preact";
import type { PanelProps } from "./code.ts";

export function Graph(_props: PanelProps): ComponentChild {
  return <p class="first">The graph is not there yet.</p>;
}
