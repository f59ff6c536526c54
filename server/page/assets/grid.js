// SPDX-License-Identifier: Apache-2.0
// Grids in the patient's space (LPS, mm) and values on them. A grid is {size, toLps, toIndex}: maps of 3 x 4 numbers,
// row after row, between indices of voxels and mm.

export function makeGrid({size, to_lps: toLps}) {
  return {size, toLps, toIndex: invert(toLps)};
}

export function apply(m, [x, y, z]) {
  return [
    m[0] * x + m[1] * y + m[2] * z + m[3], m[4] * x + m[5] * y + m[6] * z + m[7],
    m[8] * x + m[9] * y + m[10] * z + m[11],
  ];
}

function invert(m) {
  const [a, b, c, , d, e, f, , g, h, i] = m;
  const det = a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g);
  const r = [e * i - f * h, c * h - b * i, b * f - c * e, 0, f * g - d * i, a * i - c * g, c * d - a * f, 0,
    d * h - e * g, b * g - a * h, a * e - b * d, 0].map((v) => v / det);
  const t = apply(r, [m[3], m[7], m[11]]);
  [r[3], r[7], r[11]] = t.map((v) => -v);
  return r;
}

// The box of the voxels' centres: {low, high, middle}.
export function boxOf(grid) {
  const low = [Infinity, Infinity, Infinity];
  const high = [-Infinity, -Infinity, -Infinity];
  for (let corner = 0; corner < 8; ++corner) {
    const p = apply(grid.toLps, grid.size.map((n, axis) => (corner >> axis & 1) * (n - 1)));
    p.forEach((v, axis) => {
      low[axis] = Math.min(low[axis], v);
      high[axis] = Math.max(high[axis], v);
    });
  }
  return {low, high, middle: low.map((v, axis) => (v + high[axis]) / 2)};
}

// The linear interpolation of component `c` of `components` at a point of space; NaN outside.
function sample(grid, data, components, c, point) {
  const index = apply(grid.toIndex, point);
  const [nx, ny, nz] = grid.size;
  const at = [];
  for (let axis = 0; axis < 3; ++axis) {
    const n = grid.size[axis];
    if (!(index[axis] > -0.5 && index[axis] < n - 0.5)) return NaN;
    const clamped = Math.min(Math.max(index[axis], 0), n - 1);
    const low = Math.min(Math.floor(clamped), Math.max(n - 2, 0));
    at.push([low, Math.min(low + 1, n - 1), clamped - low]);
  }
  const value = (x, y, z) => data[((z * ny + y) * nx + x) * components + c];
  let sum = 0;
  for (let corner = 0; corner < 8; ++corner) {
    let weight = 1;
    const where = at.map(([low, high, t], axis) => {
      const upper = corner >> axis & 1;
      weight *= upper ? t : 1 - t;
      return upper ? high : low;
    });
    if (weight > 0) sum += weight * value(...where);
  }
  return nz > 0 ? sum : NaN;
}

export const imageAt = (image, point) => image.slope * sample(image.grid, image.data, 1, 0, point) + image.intercept;

// T(p), mm; null outside.
export function mapPoint(field, point) {
  const to = [0, 1, 2].map((c) => point[c] + field.scale * sample(field.grid, field.data, 3, c, point));
  return to.some(Number.isNaN) ? null : to;
}

// The p with T(p) = q, by fixed-point iteration from q; null where it does not come to rest.
export function mapBack(field, q) {
  let p = q.slice();
  for (let i = 0; i < 40; ++i) {
    const to = mapPoint(field, p);
    if (!to) return null;
    const step = to.map((v, axis) => q[axis] - v);
    p = p.map((v, axis) => v + step[axis]);
    if (Math.hypot(...step) < 0.01) return p;
  }
  return null;
}

// det grad T by differences over a node of the field; NaN outside.
export function jacobianAt(field, point) {
  const columns = [0, 1, 2].map((axis) => {
    const h = field.node / 2;
    const shifted = (s) => mapPoint(field, point.map((v, a) => v + (a === axis ? s : 0)));
    const [before, after] = [shifted(-h), shifted(h)];
    return before && after ? after.map((v, c) => (v - before[c]) / (2 * h)) : null;
  });
  if (columns.some((column) => !column)) return NaN;
  const [[a, d, g], [b, e, h], [c, f, i]] = columns;
  return a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g);
}

// The expected error of the block nearest to a point; NaN where none is known.
export function errorAt(map, point) {
  const index = apply(map.grid.toIndex, point).map(Math.round);
  const [nx, ny, nz] = map.grid.size;
  if (index.some((v, axis) => v < 0 || v >= map.grid.size[axis])) return NaN;
  return nz > 0 ? map.data[(index[2] * ny + index[1]) * nx + index[0]] : NaN;
}
