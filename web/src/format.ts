// Numbers as text: of one width in a column, with their unit, and never 0 for what is not known.

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/** What is not known. Beside it, always say why. */
export const UNKNOWN = "–";

export function count(value: number): string {
  return Number.isNaN(value) ? UNKNOWN : whole.format(value);
}

/** "1 block", "2 blocks". */
export function counted(value: number, noun: string): string {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

/** A share from 0 to 1 in percent, with two decimals as the terminal has it. */
export function percent(value: number): string {
  return Number.isNaN(value) ? UNKNOWN : (100 * value).toFixed(2);
}

export function decimal(value: number): string {
  return Number.isNaN(value) ? UNKNOWN : value.toFixed(2);
}

export function hex(value: bigint | number): string {
  return `0x${value.toString(16)}`;
}

/** Seconds with three digits, or as many as tell thousandths of `span` apart. */
export function seconds(nanoseconds: number, span = 1e9): string {
  const digits = Math.ceil(3 - Math.log10((span || 1e9) / 1e9));
  return (nanoseconds / 1e9).toFixed(Math.max(3, Math.min(9, digits)));
}

/** A length of time in the unit that suits it. */
export function duration(nanoseconds: number): string {
  const [unit, name] = TIMES.find(([least]) => nanoseconds >= least) ?? [1, "ns"];
  return `${Number((nanoseconds / unit).toPrecision(4)).toLocaleString("en-US")} ${name}`;
}

const TIMES = [
  [1e9, "s"],
  [1e6, "ms"],
  [1e3, "µs"],
] as const;

/** The largest of the numbers that are known; 0 of none. */
export function largest(values: Iterable<number>): number {
  let most = 0;
  for (const value of values) if (value > most) most = value;
  return most;
}
