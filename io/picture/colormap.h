// SPDX-License-Identifier: Apache-2.0
// Colours for values, legible in every common form of colour blindness: the two arms of a difference are orange and
// blue, and lightness grows steadily with the value. Thread-safe functions.
#ifndef INTRAWARP_IO_PICTURE_COLORMAP_H_
#define INTRAWARP_IO_PICTURE_COLORMAP_H_

namespace intrawarp::io {

// sRGB, channels from 0 to 1.
struct Color {
  float r = 0, g = 0, b = 0;
};
// a at t = 0, b at t = 1, channel by channel.
Color Mix(Color a, Color b, float t);

// Signed values: orange at 1, nearly black at 0, blue at -1. Straight lines in Oklab (Ottosson 2020), so that equal
// differences of the value are equal differences of lightness, and both arms are equally light. Clamped to -1..1.
Color Diverging(float value);

// Lengths: the upper three quarters of viridis (van der Walt and Smith 2015), from dark blue at 0 by green to yellow at
// 1, which stand out from black. Clamped to 0..1.
Color Sequential(float value);

}  // namespace intrawarp::io

#endif  // INTRAWARP_IO_PICTURE_COLORMAP_H_
