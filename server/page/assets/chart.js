// SPDX-License-Identifier: Apache-2.0
// The latency of the last frames against their deadline. Points differ by shape: a disc in time, a triangle late, a
// cross without an answer.
import {inUnit, timeText} from './times.js';

const kColours = {ok: '#6cc4ff', late: '#ff9d5c', lost: '#ffffff'};
export const kindOf = (frame) => frame.fate === 'ok' ? 'ok' : frame.fate === 'late' ? 'late' : 'lost';

function roundUp(value) {
  const step = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 3, 4, 5, 6, 8, 10].map((n) => n * step).find((v) => v >= value);
}

function mark(context, kind, x, y, r) {
  context.fillStyle = context.strokeStyle = kColours[kind];
  context.lineWidth = r * 0.7;
  context.beginPath();
  if (kind === 'ok') {
    context.arc(x, y, r * 0.8, 0, 2 * Math.PI);
    context.fill();
  } else if (kind === 'late') {
    context.moveTo(x, y - r * 1.4);
    context.lineTo(x + r * 1.3, y + r);
    context.lineTo(x - r * 1.3, y + r);
    context.fill();
  } else {
    context.moveTo(x - r, y - r);
    context.lineTo(x + r, y + r);
    context.moveTo(x + r, y - r);
    context.lineTo(x - r, y + r);
    context.stroke();
  }
}

function drawAxis(context, box, most, unit) {
  context.font = `${13 * unit}px "DejaVu Sans", sans-serif`;
  context.textAlign = 'right';
  context.textBaseline = 'middle';
  context.fillStyle = '#a9b6c4';
  context.strokeStyle = '#2a3440';
  context.lineWidth = unit;
  for (let i = 0; i <= 2; ++i) {
    const y = box.bottom - (box.bottom - box.top) * i / 2;
    context.beginPath();
    context.moveTo(box.left, y);
    context.lineTo(box.right, y);
    context.stroke();
    const [value, name] = inUnit(most * i / 2, most);
    context.fillText(`${+value.toPrecision(3)} ${name}`, box.left - 6 * unit, y);
  }
}

// frames: [{number, total_ms, limit_ms (or null), fate}], the oldest first; `shown` of them fit.
export function drawChart(canvas, frames, shown = 240) {
  const unit = window.devicePixelRatio || 1;
  canvas.width = canvas.clientWidth * unit;
  canvas.height = canvas.clientHeight * unit;
  const context = canvas.getContext('2d');
  if (!canvas.width || !canvas.height) return;
  const box = {left: 66 * unit, right: canvas.width - 10 * unit, top: 14 * unit, bottom: canvas.height - 10 * unit};
  const last = frames.slice(-shown);
  const limits = last.map((f) => f.limit_ms).filter((v) => v);
  const most = roundUp(Math.max(1, ...last.map((f) => f.total_ms), ...limits.map((v) => v * 1.15)));
  drawAxis(context, box, most, unit);
  const xOf = (i) => box.right - (box.right - box.left) * (last.length - 1 - i + 0.5) / shown;
  const yOf = (ms) => box.bottom - (box.bottom - box.top) * Math.min(ms / most, 1);
  if (limits.length) {
    const y = yOf(limits.at(-1));
    context.strokeStyle = '#ffd23f';
    context.lineWidth = 2.5 * unit;
    context.setLineDash([9 * unit, 6 * unit]);
    context.beginPath();
    context.moveTo(box.left, y);
    context.lineTo(box.right, y);
    context.stroke();
    context.setLineDash([]);
    context.fillStyle = '#ffd23f';
    context.textAlign = 'left';
    context.textBaseline = 'bottom';
    const [limit, name] = inUnit(limits.at(-1));
    context.fillText(`deadline ${+limit.toPrecision(4)} ${name}`, box.left + 6 * unit, y - 3 * unit);
  }
  last.forEach((frame, i) => mark(context, kindOf(frame), xOf(i), yOf(frame.total_ms || most), 3.2 * unit));
}

export function describeChart(frames) {
  if (!frames.length) return 'No frames yet';
  const late = frames.filter((f) => kindOf(f) !== 'ok').length;
  const limit = frames.at(-1).limit_ms;
  return `The last frame took ${timeText(frames.at(-1).total_ms)}` +
    (limit ? ` of ${timeText(limit)}` : '') + `; ${late} of the last ${frames.length} were late or without an answer`;
}
