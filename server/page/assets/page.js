// SPDX-License-Identifier: Apache-2.0
// The page: what is known goes in by two streams, the state of the server and the frames of a session, and is shown
// again whenever it changes, and four times a second, since ages grow by themselves.
import * as stream from './stream.js';
import {kShapes, judge} from './condition.js';
import {makeGrid, imageAt, mapPoint, mapBack, jacobianAt, errorAt, boxOf} from './grid.js';
import {kPlanes, drawOverlay, layOut, pointAt} from './planes.js';
import {describeChart, drawChart} from './chart.js';
import {kModes} from './modes.js';
import {inUnit, timeText} from './times.js';
import {Warp} from './warp.js';

const kHistory = 240;
const kTick = 250;
const $ = (id) => document.getElementById(id);

// The state that the page knows. Times of our own clock are performance.now(), which no clock of the wall moves.
const known = {refused: 0, connected: false, state: null, frames: new Map(), stateAt: 0, missing: new Map()};
// The key of the session that is chosen, or what the address of the page names: a key, or an id.
let wanted = new URLSearchParams(location.search).get('session') || '';
let wantedName = wanted;  // for people
let following = null;   // {key, base, owner, stop} of the session whose frames come
let reference = null;   // the resident image
let picture = null;     // the last frame: {head, image, field, error, begin (our clock, ms)}
const look = {mode: 1, cross: null, active: 0, contrast: 1, brightness: 0};
let warp = null;
let planesFromServer = false;
let dirty = true;
let places = [];
const counts = {drawn: 0, received: 0, bytes: 0, firstPicture: null};
window.intrawarpPage = {counts, known, look, get picture() { return picture; }, get reference() { return reference; }};

// Two owners may have sessions with one id, and an admin sees both. An id has no slash.
const keyOf = (session) => session.owner ? `${session.id}/${session.owner}` : session.id;
const sessionOf = (key) => known.state?.sessions.find((s) => keyOf(s) === key) || null;
// The id, and the owner where there are others' sessions with this id.
function nameOf(session) {
  const isOnly = known.state.sessions.filter((s) => s.id === session.id).length === 1;
  return isOnly || !session.owner ? session.id : `${session.id} (${session.owner})`;
}

// ---- what comes ----

function typed(part, type) {
  const bytes = type.BYTES_PER_ELEMENT;
  return part ? new type(part.buffer, part.offset, part.bytes / bytes) : null;
}

function imageOf(head, part) {
  const {grid, type, slope, intercept, window, role} = head;
  return {grid: makeGrid(grid), data: typed(part, type === 'u8' ? Uint8Array : Int16Array), slope, intercept, window, role};
}

function nodeOf(grid) {
  const m = grid.toLps;
  return Math.min(...[0, 1, 2].map((axis) => Math.hypot(m[axis], m[4 + axis], m[8 + axis]) || Infinity));
}

function takeFrame(packet) {
  const {head, parts, now, began} = packet;
  if (head.frame === undefined) return;  // the stream is alive
  const field = head.field && parts.field
    ? {grid: makeGrid(head.field.grid), scale: head.field.scale_mm, data: typed(parts.field, Int16Array)} : null;
  if (field) field.node = nodeOf(field.grid);
  const error = head.error && parts.error ? {grid: makeGrid(head.error.grid), data: typed(parts.error, Float32Array)} : null;
  picture = {head, image: imageOf(head.image, parts.image), field, error, begin: began - 1000 * (now - head.begin), number: head.frame};
  ++counts.received;
  counts.bytes += packet.parts.image ? packet.parts.image.buffer.byteLength : 0;
  if (warp && !warp.fits(picture.image.grid)) usePlanesOfServer();
  dirty = true;
  show();
}

function takeReference(packet) {
  reference = imageOf(packet.head.image, packet.parts.image);
  if (warp && !warp.fits(reference.grid)) usePlanesOfServer();
  look.cross = null;
  dirty = true;
}

function takeState(line, first) {
  known.state = line;
  known.connected = true;
  known.refused = 0;
  known.stateAt = performance.now();
  const listed = new Set(line.sessions.map(keyOf));
  for (const key of known.frames.keys()) {
    if (!listed.has(key)) known.frames.delete(key);
  }
  for (const session of line.sessions) {
    const frames = first ? [] : known.frames.get(keyOf(session)) || [];
    frames.push(...session.frames);
    known.frames.set(keyOf(session), frames.slice(-kHistory));
    const times = frames.slice(-9).map((f) => f.answered);
    session.period_s = times.length > 1 ? (times.at(-1) - times[0]) / (times.length - 1) : 0;
  }
  chooseSession();
  show();
}

function connection(error) {
  const refused = error instanceof stream.Refused && [401, 403].includes(error.status) ? error.status : 0;
  if (error === null) return;  // the first line says more
  known.refused = refused;
  known.connected = false;
  if (refused === 401) signIn(error.message);
  show();
}

// ---- which session ----

// The key of the session that `wanted` means: an id means the own session, then anybody's.
function keyOfWanted() {
  const {sessions, caller} = known.state;
  const named = sessions.filter((s) => s.id === wanted);
  const meant = sessionOf(wanted) || named.find((s) => s.owner === caller) || named[0] || (wanted ? null : sessions[0]);
  return meant ? keyOf(meant) : wanted;
}

function chooseSession() {
  const {sessions} = known.state;
  wanted = keyOfWanted();
  const session = sessionOf(wanted);
  if (session) wantedName = nameOf(session);
  const options = sessions.map((s) => ({key: keyOf(s), name: nameOf(s)}));
  if (wanted && !session) options.unshift({key: wanted, name: wantedName});
  const select = $('session');
  const asText = (list) => list.map((o) => `${o.key}\t${o.name}`).join('\n');
  if (asText(options) !== asText([...select.options].map((o) => ({key: o.value, name: o.text})))) {
    select.replaceChildren(...options.map(({key, name}) => new Option(name, key)));
  }
  select.value = wanted;
  if (session) followSession(session);
  else if (following) stopFollowing();
}

function stopFollowing() {
  following.stop.abort();
  following = null;
  known.missing.clear();
}

// Where a part of the session is; `query` begins with '&' or is empty.
const pathOf = ({base, owner}, part, query = '') => `${base}/${part}?owner=${encodeURIComponent(owner)}${query}`;

// Keeps why a part of the picture does not come; null: it comes.
function tellMissing(part, error) {
  if (error instanceof stream.Refused) known.missing.set(part, {status: error.status, why: error.message});
  else if (error === null) known.missing.delete(part);
}

function followSession(session) {
  const key = keyOf(session);
  if (following?.key === key) return;
  if (following) stopFollowing();
  picture = reference = null;
  const stop = new AbortController();
  const followed = {key, base: `api/sessions/${encodeURIComponent(session.id)}`, owner: session.owner, stop};
  following = followed;
  const changed = (error) => {
    if (following !== followed) return;
    if (error instanceof stream.Refused && error.status === 404) return stopFollowing();
    tellMissing('frames', error);
  };
  const getReference = async () => {
    for (let pause = 500; !stop.signal.aborted; pause = Math.min(2 * pause, 8000)) {
      try {
        const packet = await stream.packet(pathOf(followed, 'reference'), stop.signal);
        tellMissing('resident image', null);
        return takeReference(packet);
      } catch (error) {
        if (following === followed) tellMissing('resident image', error);
        await new Promise((done) => setTimeout(done, pause));
      }
    }
  };
  if (!planesFromServer) getReference();
  stream.followPackets(() => pathOf(followed, 'frames', planesFromServer ? '&picture=0' : ''), stop.signal, takeFrame, changed);
}

function choose(key) {
  wanted = key;
  look.cross = null;
  chooseSession();
  show();
}

// ---- what is shown ----

const ageOf = () => picture ? Math.max(0, (performance.now() - picture.begin) / 1000) : null;

// Frames that were answered after the one in the picture, without a result.
function failures(session) {
  const newer = session ? (known.frames.get(keyOf(session)) || []).filter((f) => f.number > (picture?.number ?? -Infinity)) : [];
  const lost = newer.filter((f) => ['missed', 'refused', 'failed'].includes(f.fate));
  const words = {missed: 'after their deadline', refused: 'refused', failed: 'failed'};
  return {failing: lost.length > 2 ? lost.length : 0, failingWhy: lost.length ? words[lost.at(-1).fate] : ''};
}

function formatAge(age) {
  if (age === null) return '-';
  if (age < 10) return `${age.toFixed(1)} <small>s</small>`;
  if (age < 600) return `${age.toFixed(0)} <small>s</small>`;
  return `${(age / 60).toFixed(0)} <small>min</small>`;
}

// Numbers of ours only: no text of the server goes in as HTML.
function figure(id, value, digits, unit) {
  $(id).innerHTML = value == null ? '-' : `${value.toFixed(digits)} <small>${unit}</small>`;
}

let shownWord = '';
function showCondition(condition) {
  $('status').dataset.condition = condition.key;
  const shape = kShapes[condition.key];
  $('shape').classList.toggle('hollow', Boolean(shape.hollow));
  $('shape-path').setAttribute('d', shape.path);
  $('shape-mark').setAttribute('d', shape.mark);
  $('word').textContent = condition.word;
  $('why').textContent = condition.why;
  $('why').title = condition.why;
  $('why').classList.toggle('long', condition.why.length > 34);
  $('view').classList.toggle('old', Boolean(condition.old));
  $('notice').textContent = condition.notice || '';
  document.title = `${condition.word} - intrawarp`;
  if (condition.word === shownWord) return;
  shownWord = condition.word;
  $('spoken').textContent = `${condition.word}. ${condition.why}`;
}

function show() {
  const session = sessionOf(wanted);
  const age = ageOf();
  const missing = [...known.missing].map(([part, error]) => ({part, ...error}));
  const condition = judge({...known, missing, session, wanted: wantedName, frame: picture?.head || null, age, ...failures(session)});
  showCondition(condition);
  $('age').innerHTML = formatAge(age);
  const head = picture?.head;
  figure('error', head?.expected_error_mm, 1, 'mm');
  const [latency, unit] = head ? inUnit(head.latency_ms) : [null, ''];
  figure('latency', latency, unit === 's' ? 1 : 0, unit);
  const about = condition.old ? 'old picture' : `${kModes[look.mode].title}`;
  $('view').setAttribute('aria-label', head ? `Frame ${head.frame}, ${age.toFixed(1)} s old, ${condition.word}, ${about}` : condition.word);
  showEngineer(session);
}

const cell = (text) => Object.assign(document.createElement('td'), {textContent: text});
function fill(id, rows) {
  $(id).replaceChildren(...rows.map(({cells, current, bad}) => {
    const row = document.createElement('tr');
    row.append(...cells.map(cell));
    if (current) row.setAttribute('aria-current', 'true');
    row.classList.toggle('bad', Boolean(bad));
    return row;
  }));
}

function bytesText(bytes) {
  if (bytes == null) return '';
  const unit = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let at = 0;
  for (; bytes >= 1024 && at < 4; ++at) bytes /= 1024;
  return `${bytes >= 100 || !at ? bytes.toFixed(0) : bytes.toPrecision(3)} ${unit[at]}`;
}
const latencyText = (ms) => ms == null ? '-' : ms >= 100 ? timeText(ms) : `${ms.toPrecision(3)} ms`;

// Each phase in the unit that the whole frame has.
function phasesText(frame) {
  const unit = inUnit(frame.total_ms)[1];
  const phases = Object.entries(frame.phases_ms).map(([name, ms]) => [name, inUnit(ms, frame.total_ms)[0]])
    .filter(([, value]) => value >= 0.05).map(([name, value]) => `${name} ${value.toFixed(1)}`);
  return `Frame ${frame.number}: ${phases.join(', ')} ${unit}`;
}

let engineerAt = 0;
function showEngineer(session) {
  const {state} = known;
  if (!state || document.body.classList.contains('far') || engineerAt === known.stateAt) return;
  engineerAt = known.stateAt;
  const memory = (d) => d.memory_total ? (d.memory_free == null ? bytesText(d.memory_total)
    : `${bytesText(d.memory_total - d.memory_free)} of ${bytesText(d.memory_total)}`) : '-';
  fill('devices', state.devices.map((d) => ({cells: [`${d.name} ${d.model}`, d.state, memory(d), d.waiting], bad: d.state !== 'well'})));
  fill('memory', state.memory.map((m) => ({cells: [m.name, bytesText(m.in_use), bytesText(m.capacity)]})));
  fill('sessions', state.sessions.map((s) => ({
    cells: [nameOf(s), s.state.toLowerCase(), s.counts.ok, s.counts.late + s.counts.missed + s.counts.refused + s.counts.failed,
      latencyText(s.p50_ms), latencyText(s.p99_ms)],
    current: keyOf(s) === wanted,
  })));
  const frames = session ? known.frames.get(keyOf(session)) : [];
  drawChart($('chart'), frames, kHistory);
  $('chart').setAttribute('aria-label', describeChart(frames));
  const last = frames.at(-1);
  $('phases').textContent = last ? phasesText(last) : '';
  $('about').textContent = `intrawarp ${state.version}` + (state.caller ? `, signed in as ${state.caller}` : '') +
    (session ? `, ${session.method} with ${session.resident}` : '');
}

// ---- the planes ----

function scene() {
  if (!picture) return null;
  const resident = reference?.role === picture.image.role ? null : reference;
  const images = {[picture.image.role]: picture.image, ...(resident ? {[resident.role]: resident} : {})};
  if (!images.fixed || !images.moving) return null;
  return {...images, field: picture.field, error: picture.error, mode: look.mode};
}

const fixedBox = () => {
  if (planesFromServer) return picture?.head.fixed ? boxOf(makeGrid(picture.head.fixed)) : null;
  const shown = scene();
  return shown ? boxOf(shown.fixed.grid) : null;
};

function adjusted(image) {
  const [low, high] = image.window;
  const middle = (low + high) / 2 + look.brightness * (high - low);
  const half = (high - low) / 2 * look.contrast;
  return {...image, window: [middle - half, middle + half]};
}

// The tip is in the frame's space: for a moving frame the point of the fixed image that is mapped there.
function tipNow() {
  const tip = sessionOf(wanted)?.tip;
  if (!tip || tip.age_s + (performance.now() - known.stateAt) / 1000 > 2 || !picture) return null;
  const point = picture.image.role === 'fixed' ? tip.point : picture.field ? mapBack(picture.field, tip.point) : null;
  return point && {point};
}

function drawPlanes(canvas) {
  const box = fixedBox();
  if (!box) {
    warp?.clear();
    $('overlay').getContext('2d').clearRect(0, 0, canvas.width, canvas.height);
    places = [];
    return;
  }
  look.cross ??= box.middle.slice();
  places = layOut(box, look.cross, $('overlay').width, $('overlay').height);
  if (planesFromServer) {
    requestPlanes(canvas);
  } else {
    const shown = scene();
    warp.draw({...shown, fixed: adjusted(shown.fixed), moving: adjusted(shown.moving)}, places);
    counts.firstPicture ??= performance.now();
    ++counts.drawn;
  }
  drawOverlay($('overlay').getContext('2d'), places, {cross: look.cross, tip: tipNow(), active: look.active, mode: kModes[look.mode]},
    window.devicePixelRatio || 1);
  showValues();
}

function showValues() {
  const values = $('values');
  const shown = scene();
  const entry = (name, text) => {
    const span = document.createElement('span');
    span.textContent = `${name} `;
    const box = document.createElement('div');
    box.append(span, text);
    return box;
  };
  const text = (v, digits, unit = '') => Number.isFinite(v) ? `${v.toFixed(digits)}${unit}` : '-';
  const entries = [entry('L P S', `${look.cross.map((v) => v.toFixed(1)).join('  ')} mm`)];
  if (shown) {
    const {fixed, moving, field, error} = shown;
    const to = field ? mapPoint(field, look.cross) : null;
    entries.push(entry('fixed', text(imageAt(fixed, look.cross), 0)), entry('warped', text(to ? imageAt(moving, to) : NaN, 0)));
    if (to) entries.push(entry('moves', `${text(Math.hypot(...to.map((v, i) => v - look.cross[i])), 1)} mm`));
    if (field) entries.push(entry('Jacobian', text(jacobianAt(field, look.cross), 2)));
    entries.push(entry('expected error', error ? text(errorAt(error, look.cross), 1, ' mm') : '-'));
  }
  values.replaceChildren(...entries);
}

// The next picture is drawn when the one before it is there: a slow GPU shows fewer pictures and holds up nothing.
function paint() {
  requestAnimationFrame(paint);
  if (warp && !warp.isDone()) return;
  const unit = window.devicePixelRatio || 1;
  for (const [canvas, part] of [[$('pixels'), warp?.scale ?? 1], [$('overlay'), 1]]) {
    const size = [Math.round(canvas.clientWidth * unit * part), Math.round(canvas.clientHeight * unit * part)];
    if (canvas.width === size[0] && canvas.height === size[1]) continue;
    [canvas.width, canvas.height] = size;
    dirty = true;
  }
  if (!dirty || !$('pixels').width) return;
  dirty = false;
  drawPlanes($('pixels'));
}

// ---- without WebGL2: the server's planes ----

function usePlanesOfServer() {
  if (planesFromServer) return;
  planesFromServer = true;
  warp = null;
  // A canvas that has had a WebGL2 context has no other.
  const fresh = $('pixels').cloneNode();
  $('pixels').replaceWith(fresh);
  if (following) stopFollowing();
  dirty = true;
}

let planesUnderWay = false;
let planesWanted = false;
async function requestPlanes(canvas) {
  planesWanted = true;
  if (planesUnderWay || !following) return;
  planesUnderWay = true;
  const followed = following;
  const {stop} = followed;
  while (planesWanted && !stop.signal.aborted) {
    planesWanted = false;
    const [x, y, z] = look.cross.map((v) => v.toFixed(2));
    const at = places;
    try {
      const shown = await Promise.all(kPlanes.map(async (plane, i) => createImageBitmap(await stream.blob(
        pathOf(followed, 'planes.png', `&plane=${plane.name}&mode=${kModes[look.mode].name}&x=${x}&y=${y}&z=${z}` +
        `&width=${Math.min(at[i].width, 512)}`), stop.signal))));
      tellMissing('planes', null);
      const context = canvas.getContext('2d');
      context.clearRect(0, 0, canvas.width, canvas.height);
      shown.forEach((bitmap, i) => {
        context.drawImage(bitmap, at[i].x, at[i].y, at[i].width, at[i].height);
        bitmap.close();  // frees its pixels, which the collector does not count
      });
      counts.firstPicture ??= performance.now();
      ++counts.drawn;
    } catch (error) {
      if (following === followed) tellMissing('planes', error);
      await new Promise((done) => setTimeout(done, 1000));
    }
  }
  planesUnderWay = false;
}

// ---- what a person does ----

function setMode(mode) {
  look.mode = mode;
  for (const [i, button] of [...$('modes').children].entries()) {
    button.setAttribute('aria-checked', String(i === mode));
    button.tabIndex = i === mode ? 0 : -1;
  }
  $('spoken').textContent = kModes[mode].title;
  dirty = true;
}

// Steps of a voxel, by which the crosshair moves in the active plane or along its normal.
function move(right, down, normal) {
  const box = fixedBox();
  if (!box || !look.cross) return;
  const shown = scene();
  const step = shown ? nodeOf(shown.fixed.grid) : 1;
  const plane = kPlanes[look.active];
  for (const [axis, by] of [[plane.right, right], [plane.down, down * plane.sign], [plane.normal, normal]]) {
    look.cross[axis] = Math.min(Math.max(look.cross[axis] + by * step, box.low[axis]), box.high[axis]);
  }
  dirty = true;
}

function pick(event) {
  const unit = window.devicePixelRatio || 1;
  const bounds = $('overlay').getBoundingClientRect();
  const at = [(event.clientX - bounds.left) * unit, (event.clientY - bounds.top) * unit];
  places.forEach((place, i) => {
    const point = pointAt(place, ...at);
    if (!point) return;
    look.active = i;
    look.cross = point;
    dirty = true;
  });
}

function toggleFar() {
  const far = document.body.classList.toggle('far');
  $('far-button').setAttribute('aria-pressed', String(far));
  engineerAt = 0;
  dirty = true;
  show();
}

function nextSession() {
  const keys = known.state?.sessions.map(keyOf) || [];
  if (keys.length) choose(keys[(keys.indexOf(wanted) + 1) % keys.length]);
}

function centre() {
  look.cross = null;
  look.contrast = 1;
  look.brightness = 0;
  dirty = true;
}

function toTip() {
  const tip = tipNow();
  if (tip) look.cross = tip.point.slice();
  dirty = true;
}

function change(name, by) {
  look[name] = name === 'contrast' ? Math.min(Math.max(look.contrast * by, 0.05), 8) : look.brightness + by;
  dirty = true;
}

const kKeys = [
  ['1 to 7', 'what the planes show'],
  ['arrows', 'move the crosshair in the active plane (Shift: ten steps)'],
  ['Page up, Page down', 'the slice of the active plane'],
  ['P', 'the next plane becomes the active one'],
  ['S', 'the next session'],
  ['C', 'crosshair to the middle, brightness and contrast as they were'],
  ['T', 'crosshair to the tip of the tool'],
  ['+ and -', 'contrast'],
  ['[ and ]', 'brightness'],
  ['F', 'the view for three metres, and back'],
  ['?', 'this list'],
];

const kActions = {
  ArrowLeft: (n) => move(-n, 0, 0), ArrowRight: (n) => move(n, 0, 0), ArrowUp: (n) => move(0, -n, 0), ArrowDown: (n) => move(0, n, 0),
  PageUp: (n) => move(0, 0, n), PageDown: (n) => move(0, 0, -n),
  p: () => { look.active = (look.active + 1) % 3; dirty = true; }, s: nextSession, c: centre, t: toTip, f: toggleFar,
  '+': () => change('contrast', 1 / 1.15), '-': () => change('contrast', 1.15), '[': () => change('brightness', 0.05),
  ']': () => change('brightness', -0.05), '?': () => $('help').showModal(),
};

function onKey(event) {
  if (event.ctrlKey || event.altKey || event.metaKey || document.querySelector('dialog[open]')) return;
  if (event.target.closest('select, input')) return;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (event.target.closest('#modes') && key.startsWith('Arrow')) {
    const by = key === 'ArrowRight' || key === 'ArrowDown' ? 1 : kModes.length - 1;
    setMode((look.mode + by) % kModes.length);
    $('modes').children[look.mode].focus();
  } else if (key >= '1' && key <= String(kModes.length) && key.length === 1) {
    setMode(Number(key) - 1);
  } else if (kActions[key]) {
    kActions[key](event.shiftKey ? 10 : 1);
  } else {
    return;
  }
  event.preventDefault();
}

function signIn(why) {
  $('sign-in-why').textContent = why;
  if (!$('sign-in').open) $('sign-in').showModal();
}

function begin() {
  $('modes').append(...kModes.map((mode, i) => {
    const button = document.createElement('button');
    button.type = 'button';
    button.setAttribute('role', 'radio');
    button.append(mode.title, ' ', Object.assign(document.createElement('kbd'), {textContent: i + 1}));
    button.addEventListener('click', () => setMode(i));
    return button;
  }));
  setMode(look.mode);
  $('keys').append(...kKeys.map(([keys, text]) => {
    const row = document.createElement('tr');
    row.append(Object.assign(document.createElement('th'), {scope: 'row', textContent: keys}), cell(text));
    return row;
  }));
  document.addEventListener('keydown', onKey);
  $('session').addEventListener('change', (event) => choose(event.target.value));
  $('far-button').addEventListener('click', toggleFar);
  $('help-button').addEventListener('click', () => $('help').showModal());
  $('token-form').addEventListener('submit', () => {
    stream.setToken($('token').value);
    $('token').value = '';
    // The streams of the token before have ended.
    if (following) stopFollowing();
    followState();
  });
  $('overlay').addEventListener('pointerdown', (event) => {
    $('overlay').setPointerCapture(event.pointerId);
    pick(event);
  });
  $('overlay').addEventListener('pointermove', (event) => event.buttons && pick(event));
  $('view').addEventListener('wheel', (event) => {
    pick(event);
    move(0, 0, event.deltaY > 0 ? -1 : 1);
    event.preventDefault();
  }, {passive: false});
  if (new URLSearchParams(location.search).has('far')) toggleFar();
  startPictures();
  followState();
  setInterval(show, kTick);
  requestAnimationFrame(paint);
}

function startPictures() {
  try {
    warp = new URLSearchParams(location.search).has('png') ? null : Warp.create($('pixels'));
  } catch (error) {
    warp = null;
  }
  if (!warp) return void (planesFromServer = true);
  $('pixels').addEventListener('webglcontextlost', usePlanesOfServer);
}

let stateStop = new AbortController();
function followState() {
  stateStop.abort();
  stateStop = new AbortController();
  stream.followLines('api/state', stateStop.signal, takeState, connection);
}

begin();
