// Distributions of very hot functions are made of a part of the branch stacks.

import type { ComponentChild } from "preact";
import { percent } from "../format.ts";
import type { Answer } from "../wire.ts";

export function Part({ answer }: { answer: Answer }): ComponentChild {
  const part = Number(answer.header["distributions_of"]);
  if (part >= 1) return null;
  return (
    <p class="said">
      The distributions are of {percent(part)} % of the branch stacks, drawn from all over the capture.
    </p>
  );
}
