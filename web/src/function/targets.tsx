// Where each indirect jump and call went.

import type { ComponentChild } from "preact";
import type { PanelProps } from "./code.ts";

export function Targets(_props: PanelProps): ComponentChild {
  return <p class="first">Targets of indirect branches are not there yet.</p>;
}
