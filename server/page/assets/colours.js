// SPDX-License-Identifier: Apache-2.0
// Colours that grow steadily in lightness and do not need red told from green: viridis (van der Walt and Smith 2015) and
// cividis (Nunez, Anderton and Renslow 2018) at equal steps, and the two arms of a difference.

const rgb = (text) => text.split(' ').map((hex) => [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16)));

export const kViridis = rgb('440154 472d7b 3b528b 2c728e 21918c 28ae80 5ec962 addc30 fde725');
export const kCividis = rgb('00224e 1a3a6c 434e6c 61656f 7d7c78 9b9476 bcae6c dec958 fee838');
export const kDifference = rgb('8cc8ff 5a9fe0 3c74ac 234a70 0b0e12 6b4320 a8662c e08b3a ffb868');

// At t in 0..1, in steps between the colours.
export function colourAt(map, t) {
  const at = Math.min(Math.max(t, 0), 1) * (map.length - 1);
  const low = Math.min(Math.floor(at), map.length - 2);
  return map[low].map((v, channel) => v + (at - low) * (map[low + 1][channel] - v));
}

// 256 texels, RGBA, of each map, one row after the other.
export function colourTexels() {
  const rows = [kViridis, kCividis, kDifference];
  const texels = new Uint8Array(rows.length * 256 * 4);
  rows.forEach((map, row) => {
    for (let i = 0; i < 256; ++i) texels.set([...colourAt(map, i / 255).map(Math.round), 255], (row * 256 + i) * 4);
  });
  return {texels, rows: rows.length};
}
