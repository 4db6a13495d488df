// A recording that grows while it is looked at: the server says when there is more of it (server-sent events).

import { effect, signal, type ReadonlySignal } from "@preact/signals";
import { askAgain, idle } from "./asking.ts";

interface State {
  /** How often the server has opened the recording anew. */
  readonly revision: number;
  readonly recording: "live" | "ended";
}

const current = signal<State["recording"] | "lost" | "">("");
/** Whether the recording that is followed still grows; empty where none is. */
export const recording: ReadonlySignal<string> = current;

/** What the bar says of it. */
export const WORDS: Readonly<Record<string, string>> = {
  live: "Live",
  ended: "Recording ended",
  lost: "Connection lost",
};

export const HINTS: Readonly<Record<string, string>> = {
  live: "The screens follow the recording.",
  lost: "The viewer was ended, or its terminal was closed. The screens stay as they are.",
};
/** What is there instead of a screen until there are samples. */
export const WAITING = "Waiting for the first samples: they come when the program uses the processor.";

/** Ask again whenever there is more, until the recording has ended. A page that nobody sees does not: the server looks
 * at the recording only for those that listen. Returns what ends that. */
export function follow(): () => void {
  const newest = signal(-1);
  let asked = -1;
  let source: EventSource | null = null;
  const listen = (): void => {
    source?.close();
    source = null;
    if (document.hidden || current.value === "ended") return;
    source = new EventSource("events");
    source.onmessage = ({ data }: MessageEvent<string>) => {
      const state = JSON.parse(data) as State;
      if (asked < 0) asked = 0; // what the page has asked for until now may be of any state
      newest.value = state.revision;
      current.value = state.recording;
      if (state.recording === "ended") source?.close();
    };
    source.onerror = () => (current.value = "lost"); // the browser connects again by itself
  };
  // Answers that are under way are waited for: where they take longer than the recording to grow, none would come else.
  const end = effect(() => {
    if (!idle.value || newest.value <= asked) return;
    asked = newest.value;
    askAgain();
  });
  listen();
  document.addEventListener("visibilitychange", listen);
  return () => {
    end();
    document.removeEventListener("visibilitychange", listen);
    source?.close();
  };
}
