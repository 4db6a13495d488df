// Flame: call stacks as rectangles, callers above the functions that they call, as wide as their samples.

import type { ComponentChild } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { useAnswer } from "../asking.ts";
import { numberColumn, textColumn, Unknown, type Column } from "../columns.tsx";
import { flipped, layout, matched, nodeAt, treeOf, type Layout, type Tree } from "../flame.ts";
import { count, counted, percent } from "../format.ts";
import { Answered } from "../parts.tsx";
import { recording } from "../recording.ts";
import { change, filters, go, state } from "../state.ts";
import { Table } from "../table.tsx";
import type { Answer } from "../wire.ts";

const HEIGHT = 20; // px of a frame
const NARROWEST = 0.5; // px: what is less is not drawn
const DEEPEST = 800; // frames: a canvas can be 32,767 px high, at two of them for one of the page
const COLOURS = 6; // modules with one of their own: --flame-0 to --flame-5

export function Flame(): ComponentChild {
  const { inline = "" } = state.value.parameters;
  const asked = useAnswer("flame", { ...filters.value, inline });
  return <Answered asked={asked}>{(answer) => <Stacks answer={answer} />}</Answered>;
}

/** All that is drawn, listed and said of one answer. */
export interface Shown {
  readonly tree: Tree;
  readonly at: Layout;
  readonly names: readonly string[];
  readonly modules: readonly string[];
  /** The colour of each name, a property of app.css. */
  readonly colours: readonly string[];
  /** 1: the search finds the name. */
  readonly found: Uint8Array;
  readonly searched: boolean;
  readonly whole: number;
  /** The frame that is as wide as the page; -1: all of them. */
  readonly zoomed: number;
  /** Shares that rest on fewer samples are grey. */
  readonly enough: number;
  /** Equal in pictures of the same stacks, of a recording that grows. */
  readonly same?: string;
  /** The colour of each node, where it is not that of its name. */
  readonly fill?: readonly string[];
  /** What else is said of a node. */
  said?(node: number): string;
  /** More columns of the table, of these nodes. */
  more?(nodes: readonly number[]): Column[];
}

function Stacks({ answer }: { answer: Answer }): ComponentChild {
  const { callers = "", inline = "", table = "", find = "", zoom = "" } = state.value.parameters;
  const names = answer.texts("names.function");
  const modules = answer.texts("names.module");
  const [tree, at, closed] = useMemo(() => {
    const { closed: unopened, ...made } = callers ? flipped(treeOf(answer)) : { ...treeOf(answer), closed: 0 };
    return [made, layout(made, names), unopened] as const;
  }, [answer, callers]);
  const legend = useMemo(() => legendOf(answer), [answer]);
  const found = useMemo(() => {
    const wanted = find.toLowerCase();
    return Uint8Array.from(names, (name) => (wanted && name.toLowerCase().includes(wanted) ? 1 : 0));
  }, [answer, find]);
  const zoomed = useMemo(() => (zoom ? at.hash.indexOf(parseInt(zoom, 16)) : -1), [at, zoom]);
  const whole = Number(answer.header["samples"]) || 1;
  const shown: Shown = {
    tree,
    at,
    names,
    modules,
    colours: legend.of,
    found,
    searched: find !== "",
    whole,
    zoomed,
    enough: Number(answer.header["enough"]),
    ...(recording.value ? { same: `${callers} ${inline}` } : {}),
  };
  const zoomTo = (node: number): void => change({ zoom: node < 0 ? "" : (at.hash[node] ?? 0).toString(16) });
  const open = (node: number): void => {
    const name = tree.name[node] ?? 0;
    const start = answer.bigs("names.start")[name];
    const module = answer.numbers("names.module_row")[name] ?? -1;
    if (start && module >= 0) go("function", { at_module: String(module), start: `0x${start.toString(16)}` });
  };
  const share = useMemo(() => (find ? matched(treeOf(answer), found) / whole : 0), [found]); // either way up
  return (
    <>
      <p class="first">{sentence(answer, closed)}</p>
      <div class="above">
        {table ? null : (
          <input
            type="search"
            class="find"
            aria-label="Search functions"
            placeholder="Search names  /"
            value={find}
            onInput={(event) => change({ find: event.currentTarget.value }, true)}
          />
        )}
        {find ? (
          <span class="counted matched" role="status">
            in {percent(share)} % of the samples
          </span>
        ) : null}
        <Choice
          name="callers"
          chosen={callers}
          hint="What was sampled on top, and its callers below it."
          more={{ zoom: "" }}
        >
          Flip to callers
        </Choice>
        <Choice name="inline" chosen={inline} hint="A frame for each inlined function.">
          Inlined frames
        </Choice>
        <Choice name="table" chosen={table} hint="The same frames as rows.">
          Table
        </Choice>
        {zoomed >= 0 ? (
          <button type="button" onClick={() => zoomTo(-1)}>
            Show all (Esc)
          </button>
        ) : null}
      </div>
      {table ? (
        <Frames shown={shown} onZoom={zoomTo} />
      ) : (
        <>
          <ul class="legend" aria-label="Modules, by the samples in their own code">
            {legend.shown.map(({ colour, title, share: part }) => (
              <li key={title}>
                <i style={{ background: `var(${colour})` }} aria-hidden="true" />
                {title} {percent(part)} %
              </li>
            ))}
          </ul>
          <Picture shown={shown} onZoom={zoomTo} onOpen={open} />
        </>
      )}
    </>
  );
}

interface ChoiceProps {
  /** Of its parameter in the address. */
  readonly name: string;
  readonly chosen: string;
  readonly hint: string;
  /** What else changes with it. */
  readonly more?: Record<string, string>;
  readonly children: string;
}

export function Choice({ name, chosen, hint, more = {}, children }: ChoiceProps): ComponentChild {
  return (
    <label title={hint}>
      <input type="checkbox" checked={chosen !== ""} onChange={() => change({ [name]: chosen ? "" : "1", ...more })} />{" "}
      {children}
    </label>
  );
}

/** Where the stacks come from, and what is missing in them. */
function sentence(answer: Answer, closed: number): string {
  const samples = Number(answer.header["samples"]);
  const events = answer.header["events"] as [string, number][];
  const of =
    events.length > 1
      ? `: ${events.map(([name, number]) => `${count(number)} of ${name}`).join(", ")}`
      : events[0]
        ? ` of ${events[0][0]}`
        : "";
  const bare = Number(answer.header["bare"]);
  const other = answer.header["other"] as Record<string, number>;
  const parts = [`${counted(samples, "sample")}${of}. Stacks: ${answer.list("sources").join("; ")}.`];
  if (answer.header["rebuilt"])
    parts.push("Rebuilt stacks are only as deep as the calls in a branch stack: callers further out are missing.");
  if (bare) parts.push(`${percent(bare / samples)} % of the samples have no caller.`);
  if (other["nodes"])
    parts.push(
      `Other: ${count(other["nodes"])} narrow frames, summed, with ${percent((other["samples"] ?? 0) / samples)} % of the samples.`,
    );
  if (closed) parts.push(`Callers of the ${count(closed)} narrowest frames are left out.`);
  return parts.join(" ");
}

interface Entry {
  readonly colour: string;
  readonly title: string;
  /** Of the samples, those that are in its own code. */
  readonly share: number;
}

/** The heaviest modules have colours of their own: that of each name, and the list for the reader. */
function legendOf(answer: Answer): { of: string[]; shown: Entry[] } {
  const modules = answer.texts("names.module");
  const { name, own } = treeOf(answer);
  const sums = new Map<string, number>();
  for (let node = 0; node < own.length; node++) {
    const module = modules[name[node] ?? 0] ?? "";
    sums.set(module, (sums.get(module) ?? 0) + (own[node] ?? 0));
  }
  const whole = Number(answer.header["samples"]) || 1;
  const known = [...sums].filter(([module]) => module).sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
  const shown = known
    .slice(0, COLOURS)
    .map(([title, sum], i) => ({ colour: `--flame-${i}`, title, share: sum / whole }));
  const colourOf = new Map(shown.map(({ title, colour }) => [title, colour]));
  const rest = 1 - shown.reduce((sum, { share }) => sum + share, 0);
  const several = known.length > COLOURS || sums.has("");
  return {
    of: modules.map((module) => colourOf.get(module) ?? "--flame-rest"),
    shown: several
      ? [...shown, { colour: "--flame-rest", title: "others, or no module", share: Math.max(0, rest) }]
      : shown,
  };
}

interface PictureProps {
  readonly shown: Shown;
  onZoom(node: number): void;
  onOpen(node: number): void;
}

/** From where to where the page shows, in samples. */
function windowOf({ tree, at, whole, zoomed }: Shown): [number, number] {
  return zoomed < 0 ? [0, whole] : [at.left[zoomed] ?? 0, tree.samples[zoomed] ?? 1];
}

export function Picture({ shown, onZoom, onOpen }: PictureProps): ComponentChild {
  const { tree, at, names, modules, whole, zoomed } = shown;
  const canvas = useRef<HTMLCanvasElement>(null);
  const scroller = useRef<HTMLDivElement>(null);
  const [chosen, setNode] = useState({ of: at, node: -1, hash: 0, same: shown.same });
  const setChosen = (next: number): void => setNode({ of: at, node: next, hash: at.hash[next] ?? 0, same: shown.same });
  const [byMouse, setByMouse] = useState(false);
  const grown = chosen.node >= 0 && shown.same !== undefined && shown.same === chosen.same;
  const node = chosen.of === at ? chosen.node : grown ? at.hash.indexOf(chosen.hash) : -1; // else of an answer before
  const [from, width] = windowOf(shown);
  useEffect(() => {
    const element = canvas.current;
    if (!element) return undefined;
    const draw = (): void => paint(element, shown, node);
    const observer = new ResizeObserver(draw);
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    observer.observe(element);
    scheme.addEventListener("change", draw);
    return () => {
      observer.disconnect();
      scheme.removeEventListener("change", draw);
    };
  }, [at, shown.found, shown.fill, zoomed, node]);
  const under = (event: MouseEvent): number => {
    const place = from + (event.offsetX / (canvas.current?.clientWidth || 1)) * width;
    return nodeAt(at, tree, at.rows[Math.floor(event.offsetY / HEIGHT)], place);
  };
  const choose = (next: number, mouse = false): void => {
    setChosen(next);
    setByMouse(mouse);
    const depth = at.depth[next] ?? 0;
    const box = scroller.current;
    if (mouse || !box || next < 0) return;
    if (depth * HEIGHT < box.scrollTop) box.scrollTop = depth * HEIGHT;
    else if ((depth + 2) * HEIGHT > box.scrollTop + box.clientHeight)
      box.scrollTop = (depth + 2) * HEIGHT - box.clientHeight;
  };
  const onKeyDown = (event: KeyboardEvent): void => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const depth = at.depth[node] ?? 0;
    const row = at.rows[depth] ?? [];
    const inWindow = (next: number | undefined): number =>
      next !== undefined && (at.left[next] ?? 0) >= from && (at.left[next] ?? 0) < from + width ? next : node;
    const first = at.rows[0]?.find((one) => one === zoomed || inWindow(one) === one) ?? -1;
    const moves: Record<string, () => number> = {
      ArrowUp: () => tree.parent[node] ?? -1,
      ArrowDown: () => at.rows[depth + 1]?.find((one) => tree.parent[one] === node) ?? node,
      ArrowLeft: () => inWindow(row[row.indexOf(node) - 1]),
      ArrowRight: () => inWindow(row[row.indexOf(node) + 1]),
    };
    const move = moves[event.key];
    if (move) {
      const next = node < 0 ? (zoomed < 0 ? first : zoomed) : move();
      choose(next < 0 ? node : next);
    } else if (event.key === "Enter" && node >= 0) onZoom(node);
    else if (event.key === "o" && node >= 0) onOpen(node);
    else if (event.key === "Escape") onZoom(-1);
    else return;
    event.preventDefault();
  };
  const samples = tree.samples[node] ?? 0;
  const own = tree.own[node] ?? 0;
  const x = Math.min(0.6, Math.max(0, ((at.left[node] ?? 0) - from) / width));
  return (
    <div
      ref={scroller}
      class="scrolled"
      tabIndex={0}
      role="application"
      aria-roledescription="flame graph"
      aria-label={`Flame graph of ${counted(whole, "sample")}. Arrow keys move, Enter zooms, Escape shows all, o opens the function. The table has the same frames.`}
      onKeyDown={onKeyDown}
    >
      <div class="flames">
        <canvas
          ref={canvas}
          class="flame"
          style={{ height: `${Math.min(DEEPEST, at.rows.length) * HEIGHT}px` }}
          aria-hidden="true"
          onMouseMove={(event) => choose(under(event), true)}
          onMouseLeave={() => byMouse && setChosen(-1)}
          onClick={(event) => {
            const next = under(event);
            if (next >= 0) onZoom(next === zoomed ? -1 : next);
          }}
        />
        <div
          class="tip"
          role="status"
          hidden={node < 0}
          style={{ left: `${100 * x}%`, top: `${((at.depth[node] ?? 0) + 1) * HEIGHT + 4}px` }}
        >
          {node < 0 ? null : (
            <>
              <b>{cut(names[tree.name[node] ?? 0] ?? "")}</b>
              {modules[tree.name[node] ?? 0] || "no module"}
              <br />
              total {count(samples)} samples, {percent(samples / whole)} %; self {count(own)}, {percent(own / whole)} %
              {shown.said ? (
                <>
                  <br />
                  {shown.said(node)}
                </>
              ) : null}
              {zoomed >= 0 && (
                <>
                  <br />
                  {percent(samples / width)} % of {cut(names[tree.name[zoomed] ?? 0] ?? "")}
                </>
              )}
            </>
          )}
        </div>
      </div>
      {at.rows.length > DEEPEST ? <p>Frames deeper than {DEEPEST} are in the table only.</p> : null}
    </div>
  );
}

const LONGEST = 400; // letters of a name in the tooltip

function cut(name: string): string {
  return name.length > LONGEST ? `${name.slice(0, LONGEST)}…` : name;
}

function paint(canvas: HTMLCanvasElement, shown: Shown, chosen: number): void {
  const { tree, at, names, colours, found, searched, zoomed, fill } = shown;
  const ratio = Math.min(2, window.devicePixelRatio || 1);
  const wide = canvas.clientWidth;
  canvas.width = wide * ratio;
  canvas.height = canvas.clientHeight * ratio;
  const pen = canvas.getContext("2d");
  if (!pen) return;
  const style = getComputedStyle(canvas);
  const colour = new Map(
    [...new Set(colours), "--found", "--accent"].map((name) => [name, style.getPropertyValue(name)]),
  );
  const colourOf = colours.map((name) => colour.get(name) ?? "");
  pen.scale(ratio, ratio);
  pen.font = `11px ${style.fontFamily}`;
  pen.textBaseline = "middle";
  const letter = pen.measureText("0").width;
  const [from, width] = windowOf(shown);
  const scale = wide / width;
  at.rows.slice(0, DEEPEST).forEach((row, depth) => {
    for (const node of row) {
      const start = Math.max(0, ((at.left[node] ?? 0) - from) * scale);
      const end = Math.min(wide, ((at.left[node] ?? 0) + (tree.samples[node] ?? 0) - from) * scale);
      if (end - start < NARROWEST) continue;
      const name = tree.name[node] ?? 0;
      const top = depth * HEIGHT;
      const above = zoomed >= 0 && depth < (at.depth[zoomed] ?? 0);
      pen.globalAlpha = above || (searched && !found[name]) ? 0.45 : 1;
      pen.fillStyle = fill?.[node] ?? colourOf[name] ?? "";
      pen.fillRect(start, top, Math.max(NARROWEST, end - start - 1), HEIGHT - 1);
      if (found[name]) {
        pen.fillStyle = colour.get("--found") ?? "";
        pen.fillRect(start, top + HEIGHT - 4, Math.max(NARROWEST, end - start - 1), 3);
      }
      if (end - start < 3 * letter + 8) continue;
      pen.globalAlpha = above ? 0.7 : 1;
      pen.fillStyle = style.color;
      pen.fillText(fitted(names[name] ?? "", Math.floor((end - start - 8) / letter)), start + 4, top + HEIGHT / 2);
    }
  });
  pen.globalAlpha = 1;
  const start = ((at.left[chosen] ?? 0) - from) * scale;
  if (chosen < 0) return;
  pen.strokeStyle = colour.get("--accent") ?? "";
  pen.lineWidth = 2;
  const left = Math.max(0, start);
  const right = Math.min(wide, start + (tree.samples[chosen] ?? 0) * scale);
  pen.strokeRect(left + 1, (at.depth[chosen] ?? 0) * HEIGHT + 1, Math.max(1, right - left - 3), HEIGHT - 3);
}

function fitted(name: string, letters: number): string {
  return name.length <= letters ? name : `${name.slice(0, Math.max(0, letters - 1))}…`;
}

/** The frames as rows, each below its caller: what the picture shows, for readers of any kind. */
export function Frames({ shown, onZoom }: { shown: Shown; onZoom(node: number): void }): ComponentChild {
  const { nodes, columns } = useMemo(() => listed(shown), [shown.tree, shown.zoomed]);
  return (
    <Table
      label="Frames"
      columns={columns}
      rows={nodes.length}
      sort="order"
      onOpen={(row) => onZoom(nodes[row] ?? -1)}
    />
  );
}

function listed({ tree, at, names, modules, whole, zoomed, enough, more }: Shown): {
  nodes: number[];
  columns: Column[];
} {
  const children = new Map<number, number[]>();
  for (const row of at.rows) {
    for (const node of row) {
      const up = tree.parent[node] ?? -1;
      const list = children.get(up);
      if (list) list.push(node);
      else children.set(up, [node]);
    }
  }
  const nodes: number[] = [];
  const todo = zoomed >= 0 ? [zoomed] : [...(children.get(-1) ?? [])].reverse();
  for (let node = todo.pop(); node !== undefined; node = todo.pop()) {
    nodes.push(node);
    for (const child of [...(children.get(node) ?? [])].reverse()) todo.push(child);
  }
  const top = zoomed >= 0 ? (at.depth[zoomed] ?? 0) : 0;
  const of = (values: Tree["own"], by = 1): Float64Array =>
    Float64Array.from(nodes, (node) => (values[node] ?? 0) / by);
  const functions = nodes.map((node) => names[tree.name[node] ?? 0] ?? "");
  const name: Column = {
    ...textColumn("function", "Function", functions, {
      width: 18,
      grow: 3,
      hint: "Each below its caller, or below what it calls where the stacks are flipped.",
    }),
    cell: (row) => {
      const depth = (at.depth[nodes[row] ?? 0] ?? 0) - top;
      const text = cut(functions[row] ?? "");
      return text ? (
        <span title={text} style={{ paddingLeft: `${Math.min(12, 0.7 * depth)}rem` }}>
          {text}
        </span>
      ) : (
        <Unknown />
      );
    },
  };
  const shares = of(tree.samples, whole);
  const few = (row: number): boolean => (tree.samples[nodes[row] ?? 0] ?? 0) < enough;
  const columns = [
    numberColumn(
      "order",
      "#",
      Float64Array.from(nodes, (_, row) => row + 1),
      count,
      { width: 4, hint: "From the top, the heaviest first." },
    ),
    numberColumn(
      "depth",
      "Depth",
      Float64Array.from(nodes, (node) => (at.depth[node] ?? 0) + 1),
      count,
      { width: 4.5 },
    ),
    name,
    textColumn(
      "module",
      "Module",
      nodes.map((node) => modules[tree.name[node] ?? 0] ?? ""),
      { width: 7, grow: 1, unknown: "Nothing was mapped there." },
    ),
    numberColumn("samples", "Total", of(tree.samples), count, {
      unit: "samples",
      width: 8,
      hint: "Samples with this frame in their stack.",
    }),
    numberColumn("share", "Total", shares, percent, { unit: "%", bar: 1, few, hint: "Of all samples with stacks." }),
    numberColumn("own", "Self", of(tree.own), count, {
      unit: "samples",
      width: 8,
      hint: "Samples whose own address is in this frame.",
    }),
    ...(more?.(nodes) ?? []),
  ];
  return { nodes, columns };
}
