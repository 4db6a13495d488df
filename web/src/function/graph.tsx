// The graph of basic blocks: which edges, how often, how probable. Drag and wheel, or arrow keys, + and -, move about it.

import type { ComponentChild } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { useAnswer, useOverview } from "../asking.ts";
import { count, hex, largest, percent } from "../format.ts";
import { filters } from "../state.ts";
import { Drawing, type Box, type Edge } from "./blocks.ts";
import { changesOf, type Change } from "./changes.ts";
import { choose, chosenRow, point, pointed } from "./choice.ts";
import type { Code, PanelProps } from "./code.ts";
import { layOut, type Laid, type Point, type Size } from "./layout.ts";

const LETTER = 6.7; // pixels of the widest monospaced font of 11 px
const LINE = 15;
const SMALLEST = 0.8; // of the scale that the graph is shown with at first
const STEP = 1.25;

export function Graph({ code }: PanelProps): ComponentChild {
  const drawing = useMemo(() => new Drawing(code), [code]);
  const compared = Boolean(useOverview().answer?.header["before"]);
  const place = { at_module: String(code.answer.header["module_row"]), start: String(code.answer.header["start"]) };
  const { answer, refusal } = useAnswer(compared ? "diff_blocks" : null, { ...filters.value, ...place });
  const changes = useMemo(() => (answer ? changesOf(code, answer) : null), [code, answer]);
  const [done, setDone] = useState<{ of: Drawing; laid?: Laid; failed?: string } | null>(null);
  useEffect(() => {
    if (drawing.refusal) return;
    const stop = new AbortController();
    const finish = (more: { laid?: Laid; failed?: string }): void => {
      if (!stop.signal.aborted) setDone({ of: drawing, ...more });
    };
    layOut(
      drawing.boxes.map(sizeOf),
      drawing.edges.map(({ from, to }) => [from, to] as const),
      stop.signal,
    ).then(
      (laid) => finish({ laid }),
      (error: unknown) => finish({ failed: error instanceof Error ? error.message : String(error) }),
    );
    return () => stop.abort();
  }, [drawing]);
  if (drawing.refusal)
    return (
      <p class="first refused" role="status">
        {drawing.refusal}
      </p>
    );
  if (done?.of !== drawing)
    return (
      <p class="waiting" role="status">
        Laying out {count(drawing.boxOf.size)} blocks…
      </p>
    );
  if (!done.laid) return <p class="first refused">The graph could not be laid out: {done.failed}.</p>;
  return (
    <>
      {compared ? <Compared changes={changes} why={refusal?.message ?? ""} /> : null}
      <Drawn key={code} code={code} drawing={drawing} laid={done.laid} changes={changes} />
    </>
  );
}

/** What the colours say. */
function Compared({ changes, why }: { changes: ReadonlyMap<number, Change> | null; why: string }): ComponentChild {
  const said = why
    ? `How blocks changed is not known: ${why}.`
    : !changes
      ? "Comparing…"
      : changes.size
        ? "Red blocks have a larger share of the ranges than before, blue ones a smaller share. Dashed: it could be chance."
        : "Blocks can be compared only where the code of the function is the same in both captures.";
  return (
    <p class="hint said" role="status" aria-label="Changes of blocks">
      {said}
    </p>
  );
}

function sizeOf({ lines, block }: Box): Size {
  return {
    width: Math.max(...lines.map((line) => line.length)) * LETTER + 16,
    height: lines.length * LINE + (block < 0 ? 4 : 8),
  };
}

interface View extends Point {
  readonly scale: number;
}

interface DrawnProps {
  readonly code: Code;
  readonly drawing: Drawing;
  readonly laid: Laid;
  /** Of each block, where two captures are compared. */
  readonly changes: ReadonlyMap<number, Change> | null;
}

function Drawn({ code, drawing, laid, changes }: DrawnProps): ComponentChild {
  const frame = useRef<HTMLDivElement>(null);
  const dragged = useRef<{ x: number; y: number; far: boolean } | null>(null);
  const [view, setView] = useState<View>({ x: 0, y: 0, scale: 1 });
  const row = chosenRow(code);
  const chosen = row >= 0 ? (code.block[row] ?? -1) : -1;
  const box = drawing.boxes[drawing.boxOf.get(chosen) ?? -1];
  const hottest = useMemo(() => drawing.boxes.reduce((a, b) => ((b.share || 0) > (a.share || 0) ? b : a)), [drawing]);

  /** All of it, or the hottest part where that would be too small to read. */
  const fit = (least: number): void => {
    const { clientWidth: width = 0, clientHeight: height = 0 } = frame.current ?? {};
    const whole = Math.min(1, (width - 16) / laid.width, (height - 16) / laid.height);
    const scale = Math.max(least, whole);
    const middle = whole < least ? placeOf(box ?? hottest) : { x: laid.width / 2, y: laid.height / 2 };
    const high = whole < least ? height / 4 : height / 2; // what follows is below
    setView({ x: width / 2 - middle.x * scale, y: high - middle.y * scale, scale });
  };
  const placeOf = (one: Box): Point => laid.boxes[drawing.boxes.indexOf(one)] ?? { x: 0, y: 0 };
  const zoom = (by: number, at?: Point): void =>
    setView((old) => {
      const { clientWidth = 0, clientHeight = 0 } = frame.current ?? {};
      const { x, y } = at ?? { x: clientWidth / 2, y: clientHeight / 2 };
      const scale = Math.min(3, Math.max(0.02, old.scale * by));
      const grown = scale / old.scale;
      return { x: x - (x - old.x) * grown, y: y - (y - old.y) * grown, scale };
    });
  const move = (x: number, y: number): void => setView((old) => ({ ...old, x: old.x + x, y: old.y + y }));

  useEffect(() => fit(SMALLEST), [laid]);
  useEffect(() => {
    // A block that was chosen elsewhere comes into view.
    const { clientWidth = 0, clientHeight = 0 } = frame.current ?? {};
    if (!box) return;
    setView((old) => {
      const { x, y } = placeOf(box);
      const [left, top] = [old.x + x * old.scale, old.y + y * old.scale];
      const seen = left > 20 && top > 20 && left < clientWidth - 20 && top < clientHeight - 20;
      return seen ? old : { ...old, x: clientWidth / 2 - x * old.scale, y: clientHeight / 2 - y * old.scale };
    });
  }, [chosen]);
  useEffect(() => {
    const element = frame.current;
    const onWheel = (event: WheelEvent): void => {
      event.preventDefault();
      const { left = 0, top = 0 } = element?.getBoundingClientRect() ?? {};
      zoom(Math.exp(-event.deltaY / 400), { x: event.clientX - left, y: event.clientY - top });
    };
    element?.addEventListener("wheel", onWheel, { passive: false });
    return () => element?.removeEventListener("wheel", onWheel);
  }, []);

  const chooseBlock = (block: number | undefined): void => {
    if (block !== undefined && block >= 0) choose(code, code.first[block] ?? 0);
  };
  const onKey = (event: KeyboardEvent): void => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const act = (event.shiftKey ? MOVES : KEYS)[event.key] ?? KEYS[event.key];
    if (!act) return;
    event.preventDefault();
    event.stopPropagation();
    act({ drawing, chosen, zoom, move, fit, chooseBlock });
  };

  const most = useMemo(() => largest(Array.from(changes?.values() ?? [], ({ change }) => Math.abs(change))), [changes]);
  const picture = useMemo(
    () => (
      <>
        {drawing.edges.map((edge, i) => (
          <Arrow key={i} edge={edge} at={laid.edges[i]} />
        ))}
        {drawing.boxes.map((one, i) => (
          <Block
            key={i}
            box={one}
            at={laid.boxes[i] ?? { x: 0, y: 0 }}
            code={code}
            change={changes?.get(one.block)}
            most={most}
          />
        ))}
        {labelled(drawing, laid).map(({ edge, text, at, few }) => (
          <text
            key={edge}
            data-edge={edge}
            class={few ? "label few" : "label"}
            x={at.x}
            y={at.y}
            text-anchor="middle"
            dominant-baseline="central"
          >
            {text}
          </text>
        ))}
      </>
    ),
    [drawing, laid, changes],
  );
  const changed = changes?.get(chosen)?.description;
  const marked = new Set(pointed.value.map((one) => code.block[one] ?? -1));
  return (
    <div class="graph">
      <p class="above">
        <button type="button" onClick={() => zoom(STEP)} aria-label="Larger" title="Larger (+)">
          +
        </button>
        <button type="button" onClick={() => zoom(1 / STEP)} aria-label="Smaller" title="Smaller (-)">
          −
        </button>
        <button type="button" onClick={() => fit(0)} title="All of it (0)">
          Fit
        </button>
        <span class="hint">{count(drawing.boxOf.size)} blocks ran</span>
      </p>
      <div
        ref={frame}
        class="frame"
        role="application"
        tabIndex={0}
        aria-label="Graph of basic blocks"
        aria-description="Down and up follow the most frequent edge, left and right go by address, shift with arrows moves the picture, plus and minus zoom, 0 shows all."
        onKeyDown={onKey}
        onPointerDown={(event) => {
          dragged.current = { x: event.clientX, y: event.clientY, far: false };
        }}
        onPointerMove={(event) => {
          const from = dragged.current;
          if (!from || !event.buttons) return;
          const [x, y] = [event.clientX - from.x, event.clientY - from.y];
          if (!from.far && Math.hypot(x, y) < 4) return;
          event.currentTarget.setPointerCapture(event.pointerId);
          dragged.current = { x: event.clientX, y: event.clientY, far: true };
          move(x, y);
        }}
        onClick={(event) => {
          if (dragged.current?.far) return;
          const found = (event.target as Element).closest<SVGGElement>("[data-block]");
          if (found) chooseBlock(Number(found.dataset["block"]));
        }}
      >
        <svg width="100%" height="100%" aria-hidden="true">
          <g transform={`translate(${view.x} ${view.y}) scale(${view.scale})`}>
            {picture}
            {drawing.boxes.map((one, i) =>
              one.block >= 0 && (one.block === chosen || marked.has(one.block)) ? (
                <Frame
                  key={i}
                  size={sizeOf(one)}
                  at={laid.boxes[i] ?? { x: 0, y: 0 }}
                  name={one.block === chosen ? "chosen" : "pointed"}
                />
              ) : null,
            )}
          </g>
        </svg>
      </div>
      <p class="hint said" role="status">
        {box && changed ? `${box.description} Changed: ${changed}.` : null}
        {box && changed
          ? null
          : (box?.description ??
            `Edges: grey for fewer than ${code.enough} ${code.unit}, dashed over a call, red where often mispredicted.`)}
      </p>
      <EdgesTable code={code} drawing={drawing} />
    </div>
  );
}

interface Acting {
  readonly drawing: Drawing;
  readonly chosen: number;
  zoom(by: number): void;
  move(x: number, y: number): void;
  fit(least: number): void;
  chooseBlock(block: number | undefined): void;
}

type Act = (on: Acting) => void;

/** The block that is most often reached from the chosen one, or comes to it. */
function follow({ drawing, chosen, chooseBlock }: Acting, from: "from" | "to", to: "from" | "to"): void {
  const here = drawing.boxOf.get(chosen);
  const edges = drawing.edges.filter(
    (edge) => edge[from] === here && (drawing.boxes[edge[to]]?.block ?? -1) >= 0 && edge.from !== edge.to,
  );
  const most = edges.reduce<Edge | undefined>((a, b) => (!a || b.count > a.count ? b : a), undefined);
  chooseBlock(here === undefined ? drawing.boxes[0]?.block : most && drawing.boxes[most[to]]?.block);
}

function beside({ drawing, chosen, chooseBlock }: Acting, step: number): void {
  const blocks = [...drawing.boxOf.keys()];
  chooseBlock(blocks[Math.min(blocks.length - 1, Math.max(0, blocks.indexOf(chosen) + step))]);
}

const FAR = 60;
const KEYS: Readonly<Record<string, Act>> = {
  ArrowDown: (on) => follow(on, "from", "to"),
  ArrowUp: (on) => follow(on, "to", "from"),
  ArrowRight: (on) => beside(on, 1),
  ArrowLeft: (on) => beside(on, -1),
  "+": (on) => on.zoom(STEP),
  "=": (on) => on.zoom(STEP),
  "-": (on) => on.zoom(1 / STEP),
  "0": (on) => on.fit(0),
};
const MOVES: Readonly<Record<string, Act>> = {
  ArrowDown: (on) => on.move(0, -FAR),
  ArrowUp: (on) => on.move(0, FAR),
  ArrowRight: (on) => on.move(-FAR, 0),
  ArrowLeft: (on) => on.move(FAR, 0),
};

interface BlockProps {
  readonly box: Box;
  readonly at: Point;
  readonly code: Code;
  readonly change: Change | undefined;
  /** The largest change of all blocks. */
  readonly most: number;
}

function Block({ box, at, code, change, most }: BlockProps): ComponentChild {
  const { width, height } = sizeOf(box);
  const [x, y] = [at.x - width / 2, at.y - height / 2];
  const outside = box.block < 0;
  return (
    <g
      class={outside ? "block outside" : box.few ? "block few" : "block"}
      data-block={outside ? undefined : box.block}
      data-address={outside ? undefined : hex(code.address[code.first[box.block] ?? 0] ?? 0n)}
      onMouseEnter={() => point(outside ? [] : code.rowsOf(box.block))}
      onMouseLeave={() => point([])}
    >
      <title>{change ? `${box.description} Changed: ${change.description}.` : box.description}</title>
      <rect x={x} y={y} width={width} height={height} rx={3} />
      {change ? (
        <rect
          class={changeClass(change)}
          data-change={percent(change.change)}
          x={x}
          y={y}
          width={width}
          height={height}
          rx={3}
          fill-opacity={most ? 0.08 + (0.45 * Math.abs(change.change)) / most : 0}
        />
      ) : null}
      {outside || change || !(box.share > 0) ? null : (
        <rect class="heat" x={x} y={y} width={width * Math.min(1, box.share)} height={LINE + 4} rx={3} />
      )}
      {box.lines.map((line, i) => (
        <text
          key={i}
          x={outside ? at.x : x + 8}
          y={y + (i + 1) * LINE}
          text-anchor={outside ? "middle" : "start"}
          class={i ? "" : "top"}
        >
          {line}
        </text>
      ))}
    </g>
  );
}

function changeClass({ change, significant }: Change): string {
  return `changed ${change > 0 ? "grew" : "shrank"}${significant ? "" : " unsure"}`;
}

function Frame({ size, at, name }: { size: Size; at: Point; name: string }): ComponentChild {
  return (
    <rect
      class={name}
      x={at.x - size.width / 2 - 2}
      y={at.y - size.height / 2 - 2}
      width={size.width + 4}
      height={size.height + 4}
      rx={4}
    />
  );
}

function Arrow({ edge, at }: { edge: Edge; at: Laid["edges"][number] | undefined }): ComponentChild {
  if (!at) return null;
  const [start, ...rest] = at.curve;
  const last = rest.at(-1) ?? start;
  if (!start || !last) return null;
  const text = (one: Point): string => `${one.x.toFixed(1)} ${one.y.toFixed(1)}`;
  const far = Math.hypot(at.end.x - last.x, at.end.y - last.y) || 1;
  const [dx, dy] = [((at.end.x - last.x) / far) * 4, ((at.end.y - last.y) / far) * 4];
  const width = 1 + Math.min(3, Math.max(0, Math.log10(edge.count / 100)) * 0.8);
  return (
    <g
      data-from={edge.from}
      data-to={edge.to}
      class={["edge", edge.kind.replace(" ", "-"), edge.few ? "few" : "", edge.mispredicted >= 0.05 ? "missed" : ""]
        .filter(Boolean)
        .join(" ")}
    >
      <title>{edge.description}</title>
      <path d={`M${text(start)}C${rest.map(text).join(" ")}`} stroke-width={width} />
      <path
        class="head"
        d={`M${text(at.end)}L${text({ x: last.x - dy, y: last.y + dx })}L${text({ x: last.x + dy, y: last.y - dx })}Z`}
      />
    </g>
  );
}

interface Label {
  /** A row of the edges. */
  readonly edge: number;
  readonly text: string;
  /** Its middle. */
  readonly at: Point;
  readonly few: boolean;
}

/** The labels of the edges, each beside or on its edge where no box and no other label is. */
function labelled(drawing: Drawing, laid: Laid): Label[] {
  const taken = laid.boxes.map((at, i): Rectangle => ({ at, size: sizeOf(drawing.boxes[i] ?? EMPTY) }));
  return drawing.edges.flatMap(({ label, few }, i) => {
    if (!label) return [];
    const size = { width: label.length * LETTER + 4, height: LINE - 2 };
    const curve = laid.edges[i]?.curve ?? [];
    const places = ALONG.flatMap((part) => {
      const { x, y } = pointAt(curve, part);
      return [size.width / 2 + 4, -size.width / 2 - 4, 0].map((aside) => ({ x: x + aside, y }));
    });
    const at = places.find((place) => !taken.some((other) => overlap({ at: place, size }, other))) ??
      places[0] ?? { x: 0, y: 0 };
    taken.push({ at, size });
    return [{ edge: i, text: label, at, few }];
  });
}

const EMPTY: Box = { block: -1, lines: [""], share: NaN, few: false, description: "" };
/** Parts of an edge at which its label is tried. */
const ALONG = [0.5, 0.4, 0.6, 0.3, 0.7, 0.2, 0.8, 0.1, 0.9];

interface Rectangle {
  /** Its middle. */
  readonly at: Point;
  readonly size: Size;
}

function overlap(a: Rectangle, b: Rectangle): boolean {
  return (
    2 * Math.abs(a.at.x - b.at.x) < a.size.width + b.size.width &&
    2 * Math.abs(a.at.y - b.at.y) < a.size.height + b.size.height
  );
}

/** The point of a chain of Bézier curves at a part of it. */
function pointAt(curve: readonly Point[], part: number): Point {
  const curves = (curve.length - 1) / 3;
  const which = Math.max(0, Math.min(curves - 1, Math.floor(part * curves)));
  const [a, b, c, d] = curve.slice(3 * which, 3 * which + 4);
  if (!a || !b || !c || !d) return curve[0] ?? { x: 0, y: 0 };
  const t = part * curves - which;
  const s = 1 - t;
  const mixed = (axis: "x" | "y"): number =>
    s * s * s * a[axis] + 3 * s * s * t * b[axis] + 3 * s * t * t * c[axis] + t * t * t * d[axis];
  return { x: mixed("x"), y: mixed("y") };
}

/** The same for those who do not see the picture. */
function EdgesTable({ code, drawing }: { code: Code; drawing: Drawing }): ComponentChild {
  const [open, setOpen] = useState(false);
  const place = (box: number): ComponentChild => {
    const block = drawing.boxes[box]?.block ?? -1;
    const first = code.first[block] ?? 0;
    if (block < 0) return "outside";
    return (
      <button type="button" class="plain" onClick={() => choose(code, first)}>
        {hex(code.address[first] ?? 0n)}
      </button>
    );
  };
  return (
    <details class="edges" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>As a table</summary>
      {open ? (
        <table aria-label="Edges">
          <thead>
            <tr>
              <th>From</th>
              <th>To</th>
              <th>How</th>
              <th>Count</th>
              <th>Probability %</th>
              <th>Mispredicted %</th>
            </tr>
          </thead>
          <tbody>
            {drawing.edges.map((edge, i) => (
              <tr key={i}>
                <td>{place(edge.from)}</td>
                <td>{place(edge.to)}</td>
                <td>{edge.kind}</td>
                <td>{count(edge.count)}</td>
                <td>{percent(edge.probability)}</td>
                <td>{percent(edge.mispredicted)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      ) : null}
    </details>
  );
}
