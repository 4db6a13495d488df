// Answers for components: each question is asked once for the same parameters, and the last answers are kept.

import { useEffect, useState } from "preact/hooks";
import { keyOf, Refusal, type Parameters, type Provider } from "./provider.ts";
import type { Answer } from "./wire.ts";

const KEPT = 24;
const answers = new Map<string, Promise<Answer>>();
let provider: Provider;

export function useProvider(chosen: Provider): void {
  provider = chosen;
}

export function ask(question: string, parameters: Parameters): Promise<Answer> {
  const key = keyOf(question, parameters);
  let answer = answers.get(key);
  if (!answer) {
    answer = provider.ask(question, parameters);
    answers.set(key, answer);
    answer.catch(() => answers.delete(key)); // asked again the next time
    const oldest = answers.keys().next();
    if (answers.size > KEPT && !oldest.done) answers.delete(oldest.value);
  }
  return answer;
}

export interface Asked {
  /** The newest answer; while another is under way it is that to the question before, with `pending`. */
  readonly answer: Answer | null;
  readonly refusal: Refusal | null;
  readonly pending: boolean;
}

const NOTHING: Asked = { answer: null, refusal: null, pending: true };

/** The answer to a question, in a component; null asks nothing. */
export function useAnswer(question: string | null, parameters: Parameters): Asked {
  const [asked, setAsked] = useState<Asked>(NOTHING);
  const key = question === null ? null : keyOf(question, parameters);
  useEffect(() => {
    if (question === null) {
      setAsked({ ...NOTHING, pending: false });
      return;
    }
    let wanted = true;
    setAsked((before) => ({ ...before, pending: true }));
    ask(question, parameters).then(
      (answer) => wanted && setAsked({ answer, refusal: null, pending: false }),
      (error: unknown) => wanted && setAsked({ answer: null, refusal: asRefusal(error), pending: false }),
    );
    return () => void (wanted = false);
  }, [key]);
  return asked;
}

function asRefusal(error: unknown): Refusal {
  return error instanceof Refusal ? error : new Refusal(`The viewer failed: ${String(error)}`);
}
