// The source, in step with the assembly.

import type { ComponentChild } from "preact";
import type { PanelProps } from "./code.ts";

export function Source(_props: PanelProps): ComponentChild {
  return <p class="first">The source is not there yet.</p>;
}
