// What the page shows is in its address, behind the #: `#/hot?pid=4&sort=-samples`. A link or the back button brings it
// back, and it works for a page that is a file.

import { computed, signal, type ReadonlySignal } from "@preact/signals";
import type { Parameters } from "./provider.ts";

export interface State {
  /** One of screens/index.ts. */
  readonly screen: string;
  readonly parameters: Parameters;
}

/** Parameters that hold on every screen, and go with every question (view/loaded.py). */
export const FILTERS = ["pid", "tid", "event", "module", "from", "to"] as const;
/** Parameters that hold on every screen. */
const EVERYWHERE: readonly string[] = [...FILTERS, "estimate"];
export type Filter = (typeof FILTERS)[number];

const FIRST = "hot";

function read(): State {
  const [path = "", query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  return { screen: path || FIRST, parameters: Object.fromEntries(new URLSearchParams(query)) };
}

const current = signal(read());
export const state: ReadonlySignal<State> = current;
window.addEventListener("hashchange", () => (current.value = read()));

let fixed: Parameters = {};

/** The filters of a page whose answers are in it cannot be changed. */
export function fixFilters(filters: Parameters): void {
  fixed = filters;
  current.value = read();
}

/** The filters in force, without those that do not restrict. */
export const filters: ReadonlySignal<Parameters> = computed(() => {
  const given = { ...current.value.parameters, ...fixed };
  return Object.fromEntries(FILTERS.flatMap((name) => (given[name] ? [[name, given[name]]] : [])));
});

/** The filters, and what counts of branches and instructions are to be: for questions about these. */
export const counts: ReadonlySignal<Parameters> = computed(() => {
  const { estimate } = { ...current.value.parameters, ...fixed };
  return { ...filters.value, ...(estimate ? { estimate } : {}) };
});

function addressOf({ screen, parameters }: State): string {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== ""));
  return `#/${screen}${`${query}` && `?${query}`}`;
}

/** The address of another screen with the same filters, for links. */
export function linkTo(screen: string, more: Parameters = {}): string {
  const kept = Object.entries(current.value.parameters).filter(([name]) => EVERYWHERE.includes(name));
  return addressOf({ screen, parameters: { ...Object.fromEntries(kept), ...more } });
}

/** Go to another screen; the back button returns. */
export function go(screen: string, more: Parameters = {}): void {
  location.hash = linkTo(screen, more);
}

/** Change parameters of this screen; "" removes one. `passing`: the back button skips this state (sorting, typing). */
export function change(parameters: Parameters, passing = false): void {
  const next = { ...current.value, parameters: { ...current.value.parameters, ...parameters } };
  const address = addressOf(next);
  if (passing) {
    history.replaceState(null, "", address);
    current.value = read();
  } else {
    location.hash = address;
  }
}
