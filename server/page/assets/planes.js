// SPDX-License-Identifier: Apache-2.0
// The three planes through the crosshair, in the patient's axes as radiology looks at them: where they lie on the
// screen, which point a pixel is, and what is drawn over them.
import {colourAt} from './colours.js';

// Axes of space (0: x to the left, 1: y to the back, 2: z to the head) and the letters at the edges. The patient's
// right is on the viewer's left; the axial plane is seen from the feet.
export const kPlanes = [
  {name: 'axial', right: 0, down: 1, sign: 1, normal: 2, letters: {left: 'R', right: 'L', top: 'A', bottom: 'P'}},
  {name: 'coronal', right: 0, down: 2, sign: -1, normal: 1, letters: {left: 'R', right: 'L', top: 'S', bottom: 'I'}},
  {name: 'sagittal', right: 1, down: 2, sign: -1, normal: 0, letters: {left: 'A', right: 'P', top: 'S', bottom: 'I'}},
];

const extent = (box, axis) => Math.max(box.high[axis] - box.low[axis], 1e-3);

// The rectangles of the planes on a canvas, all at one scale, and the vectors that the shader takes.
export function layOut(box, cross, width, height) {
  const gap = Math.round(Math.min(width, height) * 0.02);
  const tall = width < height;
  const sum = kPlanes.reduce((s, p) => s + extent(box, tall ? p.down : p.right), 0);
  const most = Math.max(...kPlanes.map((p) => extent(box, tall ? p.right : p.down)));
  const scale = tall ? Math.min((height - 4 * gap) / sum, (width - 2 * gap) / most)
    : Math.min((width - 4 * gap) / sum, (height - 2 * gap) / most);
  const used = sum * scale + 2 * gap;
  let at = ((tall ? height : width) - used) / 2;
  return kPlanes.map((plane) => {
    const size = [extent(box, plane.right) * scale, extent(box, plane.down) * scale];
    const x = tall ? (width - size[0]) / 2 : at;
    const y = tall ? at : (height - size[1]) / 2;
    at += size[tall ? 1 : 0] + gap;
    const origin = [0, 0, 0];
    origin[plane.right] = box.low[plane.right];
    origin[plane.down] = plane.sign > 0 ? box.low[plane.down] : box.high[plane.down];
    origin[plane.normal] = cross[plane.normal];
    const right = [0, 0, 0];
    right[plane.right] = extent(box, plane.right);
    const down = [0, 0, 0];
    down[plane.down] = plane.sign * extent(box, plane.down);
    return {plane, x: Math.round(x), y: Math.round(y), width: Math.round(size[0]), height: Math.round(size[1]), origin, right, down};
  });
}

// The point under a pixel of a plane; null outside of it.
export function pointAt(place, x, y) {
  const u = (x - place.x) / place.width;
  const v = (y - place.y) / place.height;
  if (u < 0 || u > 1 || v < 0 || v > 1) return null;
  return place.origin.map((o, axis) => o + u * place.right[axis] + v * place.down[axis]);
}

export function pixelOf(place, point) {
  const {plane} = place;
  const part = (vector, axis) => (point[axis] - place.origin[axis]) / vector[axis];
  return [place.x + place.width * part(place.right, plane.right), place.y + place.height * part(place.down, plane.down)];
}

function letter(context, text, x, y, size) {
  context.font = `700 ${size}px "DejaVu Sans", sans-serif`;
  context.textAlign = 'center';
  context.textBaseline = 'middle';
  context.lineWidth = size / 5;
  context.strokeStyle = '#000';
  context.lineJoin = 'round';
  context.strokeText(text, x, y);
  context.fillStyle = '#fff';
  context.fillText(text, x, y);
}

function drawCross(context, place, cross, active, unit) {
  const [x, y] = pixelOf(place, cross);
  const gap = 9 * unit;
  context.strokeStyle = '#000';
  for (const [style, width] of [['#000', 3 * unit], [active ? '#ffffff' : '#9fb2c4', 1.2 * unit]]) {
    context.strokeStyle = style;
    context.lineWidth = width;
    context.beginPath();
    for (const [a, b, c, d] of [[place.x, y, x - gap, y], [x + gap, y, place.x + place.width, y],
      [x, place.y, x, y - gap], [x, y + gap, x, place.y + place.height]]) {
      context.moveTo(a, b);
      context.lineTo(c, d);
    }
    context.stroke();
  }
}

// A ring with a dot: filled near the plane, hollow and with its distance away from it.
function drawTip(context, place, tip, unit) {
  const off = tip.point[place.plane.normal] - place.origin[place.plane.normal];
  const [x, y] = pixelOf(place, tip.point);
  if (x < place.x || x > place.x + place.width || y < place.y || y > place.y + place.height) return;
  const radius = 11 * unit;
  for (const [style, width] of [['#000', 7 * unit], ['#ffd23f', 3.5 * unit]]) {
    context.strokeStyle = style;
    context.lineWidth = width;
    context.beginPath();
    context.arc(x, y, radius, 0, 2 * Math.PI);
    context.stroke();
  }
  const near = Math.abs(off) < 3;
  context.fillStyle = '#ffd23f';
  if (near) {
    context.beginPath();
    context.arc(x, y, radius * 0.45, 0, 2 * Math.PI);
    context.fill();
  }
  letter(context, near ? 'tip' : `tip ${off > 0 ? '+' : ''}${off.toFixed(0)} mm`, x, y + radius + 13 * unit, 15 * unit);
}

function drawBar(context, bar, width, height, unit) {
  const barWidth = Math.min(260 * unit, width * 0.24);
  const x = width / 2 - barWidth / 2;
  const y = height - 26 * unit;
  for (let i = 0; i < barWidth; ++i) {
    const [r, g, b] = colourAt(bar.colours, i / (barWidth - 1));
    context.fillStyle = `rgb(${r} ${g} ${b})`;
    context.fillRect(x + i, y, 1.5, 14 * unit);
  }
  context.font = `${16 * unit}px "DejaVu Sans", sans-serif`;
  context.textBaseline = 'middle';
  context.fillStyle = '#fff';
  context.shadowColor = '#000';
  context.shadowBlur = 4;
  context.textAlign = 'right';
  context.fillText(bar.low, x - 8 * unit, y + 7 * unit);
  context.textAlign = 'left';
  context.fillText(bar.high + (bar.hatched ? `    hatched: ${bar.hatched}` : ''), x + barWidth + 8 * unit, y + 7 * unit);
  context.shadowBlur = 0;
}

// scene: {cross, tip (or null), mode, active: index of a plane}
export function drawOverlay(context, places, scene, unit) {
  const {width, height} = context.canvas;
  context.clearRect(0, 0, width, height);
  places.forEach((place, index) => {
    drawCross(context, place, scene.cross, index === scene.active, unit);
    if (scene.tip) drawTip(context, place, scene.tip, unit);
    const size = Math.min(Math.max(place.height * 0.09, 22 * unit), 64 * unit);
    const {left, right, top, bottom} = place.plane.letters;
    const inset = size * 0.75;
    letter(context, left, place.x + inset, place.y + place.height / 2, size);
    letter(context, right, place.x + place.width - inset, place.y + place.height / 2, size);
    letter(context, top, place.x + place.width / 2, place.y + inset, size);
    letter(context, bottom, place.x + place.width / 2, place.y + place.height - inset, size);
    if (index === scene.active) {
      context.strokeStyle = '#ffffff';
      context.lineWidth = 2 * unit;
      context.strokeRect(place.x, place.y, place.width, place.height);
    }
  });
  if (scene.mode.bar) drawBar(context, scene.mode.bar, width, height, unit);
}
