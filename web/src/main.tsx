// The frame around the screens: the menu, the filters, and keys that work everywhere.

import "./app.css";
import { render, type ComponentChild } from "preact";
import { useEffect } from "preact/hooks";
import { useOverview, useProvider } from "./asking.ts";
import { EmbeddedProvider } from "./embedded.ts";
import { FilterBar } from "./filters.tsx";
import { HttpProvider } from "./http.ts";
import type { Provider } from "./provider.ts";
import { follow, HINTS, recording, WAITING, WORDS } from "./recording.ts";
import { SCREENS, type Screen } from "./screens/index.ts";
import { fixFilters, go, linkTo, state } from "./state.ts";

const provider: Provider = EmbeddedProvider.find() ?? new HttpProvider();
useProvider(provider);
fixFilters(provider.fixed);

function App(): ComponentChild {
  const screen = SCREENS.find(({ name }) => name === state.value.screen) ?? SCREENS[0];
  const overview = useOverview().answer;
  const before = overview ? String(overview.header["before"]) : "";
  const screens = SCREENS.filter((one) => !one.compares || before || one === screen);
  const file = overview ? String(overview.header["file"]) : "";
  const warnings = overview?.list("warnings") ?? [];
  const short = shortName(file);
  const grows = overview?.header["recording"] === "live";
  const waits = grows && !overview?.header["samples"] && !screen?.unsampled;
  const word = WORDS[recording.value || String(overview?.header["recording"] ?? "")];
  useEffect(() => (grows ? follow() : undefined), [grows]);
  useEffect(() => {
    document.title = [screen?.title, short, "lastbranch"].filter(Boolean).join(" · ");
  }, [screen, short]);
  useEffect(() => {
    const listen = (event: KeyboardEvent): void => onKey(event, screens);
    document.addEventListener("keydown", listen);
    return () => document.removeEventListener("keydown", listen);
  }, [screens.length]);
  return (
    <>
      <header>
        <h1>lastbranch</h1>
        <nav aria-label="Screens">
          {screens.map((one, i) => (
            <Tab key={one.name} screen={one} number={i + 1} chosen={one === screen} />
          ))}
        </nav>
        <span class={`recording ${recording.value}`} role="status" title={HINTS[recording.value]}>
          {word}
        </span>
        <span class="file" title={before ? `${file}, compared with ${before}` : file}>
          {before ? `${shortName(before)} → ${short}` : short}
        </span>
      </header>
      <FilterBar live={provider.live} />
      {provider.notes.length ? <p class="file-notes">{provider.notes.join(" ")}</p> : null}
      {warnings.map((warning) => (
        <p key={warning} class="file-warning" role="status">
          {warning}
        </p>
      ))}
      <main aria-label={screen?.question ?? ""}>
        {waits ? (
          <p class="waiting" role="status">
            {WAITING}
          </p>
        ) : screen ? (
          <screen.show key={screen.name} />
        ) : null}
      </main>
    </>
  );
}

function shortName(file: string): string {
  return file.replace(/^.*[/\\]/, "");
}

function Tab({ screen, number, chosen }: { screen: Screen; number: number; chosen: boolean }): ComponentChild {
  return (
    <a
      class="tab"
      href={linkTo(screen.name)}
      aria-current={chosen ? "page" : undefined}
      title={`${screen.question} (key ${number})`}
    >
      {screen.title}
    </a>
  );
}

/** Digits change the screen, / goes to the search. */
function onKey(event: KeyboardEvent, screens: readonly Screen[]): void {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target instanceof HTMLElement && event.target.matches("input, select, textarea")) return;
  const screen = screens[Number(event.key) - 1];
  if (screen) {
    go(screen.name);
  } else if (event.key === "/") {
    event.preventDefault();
    document.querySelector<HTMLInputElement>(".find")?.focus();
  }
}

const root = document.getElementById("app");
if (root) {
  root.replaceChildren();
  render(<App />, root);
}
