// SPDX-License-Identifier: Apache-2.0
// The condition that the page shows: one word, one shape, and why. A pure function of what is known, so that no
// picture stays up that is not true any more.

// A shape is an outline and a mark in a square of 100; `hollow` shapes are drawn as lines.
const kCircle = 'M50 4a46 46 0 1 0 .01 0z';
const kTriangle = 'M50 6L97 92H3z';
const kDiamond = 'M50 2L98 50L50 98L2 50z';
const kOctagon = 'M30 4H70L96 30V70L70 96H30L4 70V30z';
const kSquare = 'M6 6H94V94H6z';
export const kShapes = {
  ok: {path: kCircle, mark: 'M28 52L44 68L74 34'},
  review: {path: kTriangle, mark: 'M50 38V62M50 77V78'},
  late: {path: kDiamond, mark: 'M50 26V52L68 62'},
  failed: {path: kDiamond, mark: 'M36 36L64 64M64 36L36 64'},
  stale: {path: kSquare, mark: 'M34 30V70M66 30V70', hollow: true},
  lost: {path: kOctagon, mark: 'M32 32L68 68M68 32L32 68'},
  broken: {path: kOctagon, mark: 'M20 50H38M62 50H80M44 34L56 66'},
  denied: {path: kSquare, mark: 'M50 26V56M50 74V75'},
  empty: {path: kCircle, mark: 'M34 50H66', hollow: true},
  connecting: {path: kCircle, mark: 'M50 26V52L64 62', hollow: true},
};

const kLostStates = {lost: 'The device is lost; the server has to restart', hung: 'The device does not answer'};

// A frame is stale two periods, and not before a second, after it could have been answered: within a period.
export function staleAfter(session, latency) {
  const period = session?.rate_hz ? 1 / session.rate_hz : session?.period_s || 0;
  return Math.max(2 * period, 1) + Math.min(latency, period);
}

const isConnected = (session) => ['ACTIVE', 'OPENING'].includes(session.state);
const whyNotConnected = (session) => `the client is not connected (${session.state.toLowerCase()})`;

export function reasonText(reason) {
  const number = (v) => v == null ? '' : ` ${+v.toPrecision(3)}`;
  const limit = reason.limit == null ? '' : ` (limit${number(reason.limit)})`;
  return `${reason.cause}${number(reason.value)}${limit}`;
}

function ofFrame(frame, age, session) {
  const limit = staleAfter(session, frame.latency_ms / 1000);
  const why = frame.reasons.map(reasonText).join('; ');
  if (age > limit) {
    return {key: 'stale', word: 'STALE', why: `the picture is ${age.toFixed(0)} s old`, old: true, notice: 'STALE'};
  }
  if (frame.fate === 'late') return {key: 'late', word: 'LATE', why: why || 'after its deadline'};
  if (frame.verdict === 'review') return {key: 'review', word: 'REVIEW', why};
  return {key: 'ok', word: 'OK', why};
}

// There is no open session to show: it has ended, it was never there, or nothing is open.
function ofNoSession({wanted, frame}) {
  if (wanted && frame) return {key: 'empty', word: 'SESSION ENDED', old: true, why: `${wanted} is closed`, notice: 'ENDED'};
  if (wanted) return {key: 'empty', word: 'NO SESSION', why: `${wanted} is not open`, notice: 'The session is not open'};
  return {key: 'empty', word: 'NO SESSION', why: 'The page shows a session as soon as one is open', notice: 'No session is open'};
}

const whyMissing = ({part, why}) => `the server refuses the ${part}: ${why}`;
const joined = (...reasons) => reasons.filter(Boolean).join('; ');

function ofNoFrame(session, missing) {
  const noFrame = (why, notice) => ({key: 'empty', word: 'NO FRAME', why, notice});
  const refused = missing.find(({part}) => part === 'frames');
  if (refused) return noFrame(whyMissing(refused), 'The server refuses the frames');
  if (!isConnected(session)) return noFrame(whyNotConnected(session), 'The client is not connected');
  if (session.state === 'OPENING') return noFrame('The session is opening', 'The session is opening');
  return noFrame('The session waits for its first frame', 'No frame yet');
}

// known: {refused: status or 0, connected, state (the last line, or null), session (its entry, or null), wanted: the
// session that is chosen, frame (its head, or null), age (s), failing: frames without an answer since the last one,
// missing: what the server refuses of the session, [{part, status, why}]}
export function judge(known) {
  const {state, session, frame} = known;
  if (known.refused === 401) return {key: 'denied', word: 'SIGN IN', why: 'The server asks for a token', notice: 'No token', old: true};
  if (known.refused) return {key: 'denied', word: 'NO PERMISSION', why: 'This token may not see sessions', notice: 'No permission', old: true};
  if (!known.connected) {
    return state ? {key: 'broken', word: 'NO CONNECTION', why: 'The page tries to reach the server again', old: true, notice: 'NO CONNECTION'}
      : {key: 'connecting', word: 'CONNECTING', why: '', notice: ''};
  }
  const device = state.devices.find((d) => d.name === session?.device) ??
    (session ? null : state.devices.every((d) => d.state !== 'well') ? state.devices[0] : null);
  if (device && device.state !== 'well') {
    return {key: 'lost', word: device.state === 'hung' ? 'DEVICE HANGS' : 'DEVICE LOST', why: `${device.name}: ${kLostStates[device.state]}`,
      old: true, notice: device.state === 'hung' ? 'DEVICE HANGS' : 'DEVICE LOST'};
  }
  if (!session || session.state === 'CLOSED') return ofNoSession(known);
  const denied = known.missing.find(({status}) => [401, 403].includes(status));
  if (denied) return {key: 'denied', word: 'NO PERMISSION', why: whyMissing(denied), notice: 'No permission', old: true};
  const unanswered = {key: 'failed', word: 'NO ANSWER', why: `${known.failing} newer frames have no result: ${known.failingWhy}`};
  if (!frame && known.failing > 0) return {...unanswered, notice: 'No picture'};
  if (!frame) return ofNoFrame(session, known.missing);
  const judged = ofFrame(frame, known.age, session);
  if (judged.key !== 'stale' && known.failing > 0) {
    return unanswered;
  }
  const why = joined(judged.why, ...known.missing.map(whyMissing));
  if (isConnected(session) || judged.key === 'stale') return {...judged, why};
  return {...judged, why: joined(why, whyNotConnected(session))};
}
