// A table of any length: sorted by its columns and searched by its texts. Both are in the address of the page.

import type { ComponentChild } from "preact";
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { isKnown, WHY, type Column } from "./columns.tsx";
import { count, counted } from "./format.ts";
import { Grid } from "./grid.tsx";
import { change, state } from "./state.ts";

const ROW = 26; // px, as in app.css

interface TableProps {
  /** What the rows are, for screen readers and tests. */
  readonly label: string;
  readonly columns: readonly Column[];
  readonly rows: number;
  /** The key of the column that sorts at first, with - for the largest first. */
  readonly sort: string;
  /** Of its parameters in the address, where a screen has several tables. */
  readonly prefix?: string;
  /** Enter, or a double click. */
  onOpen?(row: number): void;
  /** Beside the search: what the table cannot say. */
  readonly note?: ComponentChild;
}

/** Columns of which nothing is known are named beside the search, with the reason, and not shown. */
export function Table({ label, columns: given, rows, sort, prefix = "", onOpen, note }: TableProps): ComponentChild {
  const { [`${prefix}sort`]: asked = sort, [`${prefix}find`]: find = "" } = state.value.parameters;
  const [active, setActive] = useState(0);
  const columns = useMemo(() => given.filter(isKnown), [given]);
  const unknown = given.filter((column) => !columns.includes(column));
  const order = useMemo(() => ordered(columns, rows, asked, find), [columns, rows, asked, find]);
  const at = Math.min(active, order.length - 1);
  const moved = useFollowing(columns, order, at, setActive);
  const onSort = (column: Column): void => {
    const descending = asked === column.key ? true : asked === `-${column.key}` ? false : column.numeric;
    change({ [`${prefix}sort`]: `${descending ? "-" : ""}${column.key}` }, true);
  };
  return (
    <section class="table" aria-label={label}>
      <div class="above">
        <input
          type="search"
          class="find"
          aria-label={`Search ${label}`}
          placeholder="Search names  /"
          value={find}
          onInput={(event) => change({ [`${prefix}find`]: event.currentTarget.value }, true)}
        />
        <span class="counted" role="status">
          {order.length === rows ? "" : `${count(order.length)} of `}
          {counted(rows, "row")}
        </span>
        {unknown.length ? (
          <span class="counted" title={unknown.map(({ title, unknown: why = WHY }) => `${title}: ${why}`).join("\n")}>
            Not known: {unknown.map(({ title }) => title).join(", ")}
          </span>
        ) : null}
        {note}
      </div>
      <Grid
        label={label}
        columns={columns}
        order={order}
        rowHeight={ROW}
        active={at}
        moved={moved}
        prefix={prefix}
        sorted={asked}
        onSort={onSort}
        onChoose={setActive}
        onOpen={(row) => onOpen?.(row)}
      />
    </section>
  );
}

/** Keeps the row chosen that was, where an answer about more of a recording has it at another place. Returns the place
 * to which it went, -1 where it is still where the user chose it. */
function useFollowing(
  columns: readonly Column[],
  order: Uint32Array,
  at: number,
  setActive: (place: number) => void,
): number {
  const before = useRef({ columns, at, name: "" });
  const moved = useRef(-1);
  useLayoutEffect(() => {
    const texts = columns.flatMap(({ searched, values }) => (searched ? [values as readonly string[]] : []));
    const nameOf = (place: number): string => texts.map((names) => names[order[place] ?? -1] ?? "").join("\0");
    const name = nameOf(at);
    const { current: last } = before;
    before.current = { columns, at, name };
    if (last.at !== at) {
      if (moved.current !== at) moved.current = -1;
    } else if (last.columns !== columns && last.name !== name && at > 0) {
      const now = order.findIndex((_, place) => nameOf(place) === last.name);
      if (now < 0) return;
      before.current = { columns, at: now, name: last.name };
      moved.current = now;
      setActive(now);
    }
  }, [columns, order, at]);
  return moved.current;
}

/** The rows that the search leaves, in the order that is asked for. */
function ordered(columns: readonly Column[], rows: number, sort: string, find: string): Uint32Array {
  const wanted = find.toLowerCase();
  const texts = columns.flatMap(({ searched, values }) => (searched ? [values as readonly string[]] : []));
  let order = Uint32Array.from({ length: rows }, (_, row) => row);
  if (wanted) order = order.filter((row) => texts.some((names) => names[row]?.toLowerCase().includes(wanted)));
  const column = columns.find(({ key }) => key === sort.replace(/^-/, ""));
  return column ? order.sort(compare(column.values, sort.startsWith("-") ? -1 : 1)) : order;
}

function compare(values: Column["values"], sign: number): (a: number, b: number) => number {
  return (a, b) => {
    const x = values[a] as number;
    const y = values[b] as number;
    const xKnown = !Number.isNaN(x) && (x as unknown) !== "";
    const yKnown = !Number.isNaN(y) && (y as unknown) !== "";
    if (!xKnown || !yKnown) return xKnown ? -1 : yKnown ? 1 : a - b;
    return x < y ? -sign : x > y ? sign : a - b;
  };
}
