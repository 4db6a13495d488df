// Rows of columns, of which only those in view are elements, moved in by the keyboard: tables, and the assembly.

import type { ComponentChild } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import type { Column } from "./columns.tsx";

const AROUND = 8; // rows that are made beyond those in view
const NEAR = 2; // rows out of view: scrolling to these moves the others no more than needed

/** What is in view, in px. */
export interface View {
  readonly top: number;
  readonly height: number;
}

interface GridProps {
  readonly label: string;
  readonly columns: readonly Column[];
  /** Numbers of rows, as the columns know them, from top to bottom. */
  readonly order: Uint32Array;
  /** px, as --row in app.css. */
  readonly rowHeight: number;
  /** px: the padding of a row in app.css, both sides. */
  readonly padding?: number;
  /** The place of the chosen row in the order; -1: none is chosen. */
  readonly active: number;
  /** The place to which the chosen row went by itself: what is in view stays. */
  readonly moved?: number;
  /** The place that comes into view where no row is chosen. */
  readonly start?: number;
  /** Of the ids of rows, where a screen has several grids. */
  readonly prefix?: string;
  /** The key of the column that rows are sorted by, with - for descending. */
  readonly sorted?: string;
  onSort?(column: Column): void;
  onChoose(place: number): void;
  /** Enter, or a double click. */
  onOpen?(row: number): void;
  /** The mouse is on a row; -1: on none. */
  onPoint?(row: number): void;
  /** Classes of a row, beside those that every row has. */
  classOf?(row: number): string;
  /** What is drawn over the rows. */
  children?(view: View): ComponentChild;
}

export function Grid(props: GridProps): ComponentChild {
  const {
    label,
    columns,
    order,
    rowHeight,
    padding = 16,
    active,
    moved = -1,
    start = 0,
    prefix = "",
    onChoose,
    onOpen,
    onPoint,
    classOf,
  } = props;
  const [view, setView] = useState<View>({ top: 0, height: 800 });
  const scroller = useRef<HTMLDivElement>(null);

  useLayoutEffect(() => {
    const element = scroller.current;
    if (!element) return undefined;
    const measure = (): void => setView({ top: element.scrollTop, height: element.clientHeight });
    measure(); // an observer reports a frame later: until then, rows of a height that is not there would be drawn
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    element.addEventListener("scroll", measure, { passive: true });
    return () => {
      observer.disconnect();
      element.removeEventListener("scroll", measure);
    };
  }, []);
  const shown = active < 0 ? start : active;
  useLayoutEffect(() => {
    if (shown !== moved) reveal(scroller.current, shown, rowHeight);
  }, [shown]);

  const page = Math.max(1, Math.floor(view.height / rowHeight) - 2);
  const step = active < 0 ? 0 : 1; // the first one chooses what is in view
  const moves: Record<string, number> = {
    ArrowDown: shown + step,
    ArrowUp: shown - step,
    PageDown: shown + page,
    PageUp: shown - page,
    Home: 0,
    End: order.length - 1,
  };
  const onKeyDown = (event: KeyboardEvent): void => {
    if (event.target !== scroller.current) return;
    const to = moves[event.key];
    const row = order[active];
    if (to !== undefined) {
      event.preventDefault();
      onChoose(Math.max(0, Math.min(order.length - 1, to)));
    } else if (event.key === "Enter" && row !== undefined) {
      onOpen?.(row);
    }
  };

  const first = Math.max(0, Math.floor(view.top / rowHeight) - AROUND);
  const made = order.subarray(first, Math.ceil((view.top + view.height) / rowHeight) + AROUND);
  const template = {
    gridTemplateColumns: columns
      .map(({ width, grow }) => (grow ? `minmax(${width}rem, ${grow}fr)` : `${width}rem`))
      .join(" "),
  };
  const minWidth = `calc(${columns.reduce((sum, { width }) => sum + width, 0)}rem + ${padding}px)`;
  const id = (place: number): string => `${prefix}row-${place}`;
  return (
    <div
      ref={scroller}
      class="grid"
      role="grid"
      tabIndex={0}
      aria-label={label}
      aria-rowcount={order.length + 1}
      aria-colcount={columns.length}
      aria-activedescendant={active >= 0 && active < order.length ? id(active) : undefined}
      onKeyDown={onKeyDown}
      onMouseLeave={() => onPoint?.(-1)}
    >
      <div role="rowgroup" class="head" style={{ minWidth }}>
        <div role="row" aria-rowindex={1} class="row" style={template}>
          {columns.map((column) => (
            <Heading key={column.key} column={column} sorted={props.sorted} onSort={props.onSort} />
          ))}
        </div>
      </div>
      {props.children?.(view)}
      <div role="rowgroup" class="body" style={{ minWidth, height: `${order.length * rowHeight}px` }}>
        {Array.from(made, (row, i) => {
          const place = first + i;
          return (
            <div
              key={row}
              id={id(place)}
              role="row"
              class={["row", place === active ? "active" : "", classOf?.(row) ?? ""].filter(Boolean).join(" ")}
              style={{ ...template, transform: `translateY(${place * rowHeight}px)` }}
              aria-rowindex={place + 2}
              aria-selected={place === active}
              data-row={row}
              onMouseEnter={() => onPoint?.(row)}
              onClick={() => onChoose(place)}
              onDblClick={() => onOpen?.(row)}
            >
              {columns.map((column) => (
                <div key={column.key} role="gridcell" class={classOfCell(column)} data-column={column.key}>
                  {column.cell(row)}
                </div>
              ))}
            </div>
          );
        })}
      </div>
    </div>
  );
}

function classOfCell({ numeric }: Column): string {
  return numeric ? "cell number" : "cell";
}

interface HeadingProps {
  readonly column: Column;
  readonly sorted: string | undefined;
  readonly onSort: ((column: Column) => void) | undefined;
}

function Heading({ column, sorted, onSort }: HeadingProps): ComponentChild {
  const { key, title, unit, hint } = column;
  const named = (
    <>
      {title}
      {unit ? <span class="unit"> {unit}</span> : null}
    </>
  );
  if (!onSort)
    return (
      <div role="columnheader" title={hint} class={classOfCell(column)}>
        {named}
      </div>
    );
  const by = sorted === key ? "ascending" : sorted === `-${key}` ? "descending" : "none";
  return (
    <div role="columnheader" aria-sort={by} class={classOfCell(column)}>
      <button type="button" title={hint} onClick={() => onSort(column)}>
        {named}
        {by === "none" ? null : <span aria-hidden="true">{by === "ascending" ? " ↑" : " ↓"}</span>}
      </button>
    </div>
  );
}

/** Brings a row into view: one that is far away with what surrounds it. */
function reveal(element: HTMLElement | null, place: number, rowHeight: number): void {
  if (!element) return;
  const room = element.clientHeight - rowHeight; // below the headings, which stay
  const top = place * rowHeight;
  const above = element.scrollTop - top;
  const below = top + rowHeight - element.scrollTop - room;
  if (Math.max(above, below) > NEAR * rowHeight) element.scrollTop = top - room / 3;
  else if (above > 0) element.scrollTop = top;
  else if (below > 0) element.scrollTop += below;
}
