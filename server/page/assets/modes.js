// SPDX-License-Identifier: Apache-2.0
// The pictures that the planes can show, in the order of their keys. `bar`: the colours and what they stand for.
import {kCividis, kDifference, kViridis} from './colours.js';

export const kJacobianRange = [0, 2];
export const kErrorRange = [0, 8];  // mm

export const kModes = [
  {name: 'fixed', title: 'Fixed'},
  {name: 'warped', title: 'Warped'},
  {name: 'checkerboard', title: 'Checkerboard', note: 'fixed and warped, 20 mm'},
  {name: 'difference', title: 'Difference', bar: {colours: kDifference, low: 'warped brighter', high: 'fixed brighter'}},
  {name: 'grid', title: 'Deformed grid', note: 'lines each 10 mm of the moving image'},
  {name: 'jacobian', title: 'Jacobian', bar: {colours: kViridis, low: 'shrinks 0', high: '2 grows', hatched: 'folds'}},
  {name: 'error', title: 'Expected error', bar: {colours: kCividis, low: '0 mm', high: '8 mm', hatched: 'not known'}},
];
