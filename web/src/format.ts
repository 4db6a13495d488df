// Numbers as text: of one width in a column, with their unit, and never 0 for what is not known.

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/** What is not known. Beside it, always say why. */
export const UNKNOWN = "–";

export function count(value: number): string {
  return Number.isNaN(value) ? UNKNOWN : whole.format(value);
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

export function seconds(nanoseconds: number): string {
  return (nanoseconds / 1e9).toFixed(3);
}

/** The largest of the numbers that are known; 0 of none. */
export function largest(values: Iterable<number>): number {
  let most = 0;
  for (const value of values) if (value > most) most = value;
  return most;
}
