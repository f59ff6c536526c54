// SPDX-License-Identifier: Apache-2.0
// A coloured picture to draw on, with small letters. Thread-compatible.
#ifndef INTRAWARP_IO_CANVAS_H_
#define INTRAWARP_IO_CANVAS_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "io/png.h"

namespace intrawarp::io {

// Channels from 0 to 1.
struct Color {
  float r = 0, g = 0, b = 0;
};
// a at t = 0, b at t = 1.
Color Mix(Color a, Color b, float t);

class Canvas {
 public:
  Canvas(int width, int height, Color background);

  // Pixels outside the picture are left out.
  void Set(int x, int y, Color color);
  // Letters of 5 x 7 pixels times `scale`, 6 apart, (x, y) the top left corner. Capitals, digits and " .,-/%:" alone;
  // small letters are drawn as capitals, anything else as a space.
  void Text(int x, int y, absl::string_view text, Color color, int scale = 1);
  static int TextWidth(absl::string_view text, int scale = 1);
  static constexpr int kTextHeight = 7;

  const Picture& picture() const { return picture_; }

 private:
  Picture picture_;
};

}  // namespace intrawarp::io

#endif  // INTRAWARP_IO_CANVAS_H_
