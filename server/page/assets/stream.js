// SPDX-License-Identifier: Apache-2.0
// The server's interface: requests that carry the token, streams of lines and of packets that come back when they
// break. The token lives in this tab's session storage; nothing is a cookie, so that another site's request has none.

const kFirstPause = 500;
const kLongestPause = 8000;
// A stream says something each second; one that is silent for so long is broken.
const kSilence = 5000;

export class Refused extends Error {
  constructor(status, text) {
    super(text || `status ${status}`);
    this.status = status;
  }
}

let token = sessionStorage.getItem('token') || '';
export function setToken(text) {
  token = text.trim();
  token ? sessionStorage.setItem('token', token) : sessionStorage.removeItem('token');
}

async function get(path, signal) {
  const headers = token ? {Authorization: `Bearer ${token}`} : {};
  const answer = await fetch(path, {headers, signal, cache: 'no-store', credentials: 'omit', redirect: 'error'});
  if (!answer.ok) throw new Refused(answer.status, (await answer.text()).trim());
  return answer;
}

export async function blob(path, signal) {
  return (await get(path, signal)).blob();
}

// Reads a stream until it ends, and throws when it is silent for too long.
async function read(path, signal, take) {
  const stop = new AbortController();
  const end = () => stop.abort();
  signal.addEventListener('abort', end);
  let timer = setTimeout(end, kSilence);
  try {
    const reader = (await get(path, stop.signal)).body.getReader();
    for (;;) {
      const {done, value} = await reader.read();
      if (done) return;
      clearTimeout(timer);
      timer = setTimeout(end, kSilence);
      take(value);
    }
  } finally {
    clearTimeout(timer);
    signal.removeEventListener('abort', end);
    stop.abort();
  }
}

// Calls `take` for each piece until `signal`, and `changed` with null when the stream is there, with the error when it
// breaks. A refusal of the caller (401, 403, 404) ends it; anything else is tried again, later and later.
async function follow(path, signal, makeTake, changed) {
  let pause = kFirstPause;
  while (!signal.aborted) {
    const take = makeTake();
    try {
      await read(path(), signal, (bytes) => {
        pause = kFirstPause;
        changed(null);
        take(bytes);
      });
      if (!signal.aborted) changed(new Error('the server ended the stream'));
    } catch (error) {
      if (signal.aborted) return;
      changed(error);
      if (error instanceof Refused && [401, 403, 404].includes(error.status)) return;
    }
    await new Promise((done) => setTimeout(done, pause));
    pause = Math.min(2 * pause, kLongestPause);
  }
}

// Lines of JSON.
export function followLines(path, signal, line, changed) {
  return follow(() => path, signal, () => {
    const decoder = new TextDecoder();
    let rest = '';
    let first = true;
    return (bytes) => {
      const lines = (rest + decoder.decode(bytes, {stream: true})).split('\n');
      rest = lines.pop();
      for (const text of lines) {
        line(JSON.parse(text), first);
        first = false;
      }
    };
  }, changed);
}

const kPrefix = 16;  // bytes after the length, bytes of the head, the server's clock
const kLargest = 1 << 28;
const padded = (bytes) => (bytes + 7) & ~7;

// Puts packets together out of pieces: server/page/packet.h draws one.
class Packets {
  constructor(take) {
    this.take = take;
    this.prefix = new Uint8Array(kPrefix);
    this.have = 0;
    this.packet = null;
    this.began = 0;
  }
  add(bytes) {
    let at = 0;
    while (at < bytes.length) {
      if (this.have === 0) this.began = performance.now();
      const target = this.have < kPrefix ? this.prefix : this.packet;
      const count = Math.min(target.length - this.have, bytes.length - at);
      target.set(bytes.subarray(at, at + count), this.have);
      this.have += count;
      at += count;
      if (this.have === kPrefix && target === this.prefix) this.begin();
      if (this.packet && this.have === this.packet.length) this.end();
    }
  }
  begin() {
    const size = 4 + new DataView(this.prefix.buffer).getUint32(0, true);
    if (size < kPrefix || size > kLargest) throw new Error('a packet of an impossible size');
    this.packet = new Uint8Array(size);
    this.packet.set(this.prefix);
  }
  end() {
    const {packet} = this;
    this.packet = null;
    this.have = 0;
    this.take(parsePacket(packet, this.began));
  }
}

// {head, parts: {name: bytes}, now: the server's clock, s, began: ours, ms}
function parsePacket(packet, began) {
  const view = new DataView(packet.buffer);
  const headBytes = view.getUint32(4, true);
  const head = JSON.parse(new TextDecoder().decode(packet.subarray(kPrefix, kPrefix + headBytes)));
  const parts = {};
  let at = padded(kPrefix + headBytes);
  for (const [name, bytes] of head.parts || []) {
    if (at + bytes > packet.length) throw new Error('a packet that is cut');
    parts[name] = {buffer: packet.buffer, offset: at, bytes};
    at = padded(at + bytes);
  }
  return {head, parts, now: view.getFloat64(8, true), began};
}

export function followPackets(path, signal, take, changed) {
  return follow(path, signal, () => {
    const packets = new Packets(take);
    return (bytes) => packets.add(bytes);
  }, changed);
}

export async function packet(path, signal) {
  const began = performance.now();
  const bytes = new Uint8Array(await (await get(path, signal)).arrayBuffer());
  return parsePacket(bytes, began);
}
