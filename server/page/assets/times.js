// SPDX-License-Identifier: Apache-2.0
// Times as a person reads them: in milliseconds, and in seconds from ten seconds on.

const kLong = 10000;

// [value, unit]; times that stand beside each other take the unit of one of them, `guide`.
export function inUnit(ms, guide = ms) {
  return Math.round(guide) < kLong ? [ms, 'ms'] : [ms / 1000, 's'];
}

export function timeText(ms, digits = 0) {
  const [value, unit] = inUnit(ms);
  return `${value.toFixed(unit === 's' ? 1 : digits)} ${unit}`;
}
