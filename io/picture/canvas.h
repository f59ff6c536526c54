// SPDX-License-Identifier: Apache-2.0
// A coloured picture to draw on, by cairo. Thread-compatible; the static functions are thread-safe.
//
// Text is set in DejaVu Sans, from Debian's fonts-dejavu-core. Where its files are missing, fontconfig chooses another
// font, and without any font cairo draws with its built-in outlines. Text is measured with the font that draws it.
#ifndef INTRAWARP_IO_PICTURE_CANVAS_H_
#define INTRAWARP_IO_PICTURE_CANVAS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "io/picture/colormap.h"
#include "io/picture/png.h"

struct _cairo;  // cairo's

namespace intrawarp::io {

struct Font {
  double size = 12;  // pixels an em
  bool bold = false;
};

// Coordinates are pixels from the top left corner; drawing outside the picture has no effect.
class Canvas {
 public:
  Canvas(int width, int height, Color background);

  void Fill(int x, int y, int width, int height, Color color);
  void Paint(int x, int y, const Picture& picture);
  // (x, y) is the top left corner of the line. UTF-8.
  void Text(double x, double y, absl::string_view text, Font font, Color color);
  // The same on a dark rim, legible over any image.
  void TextOnImage(double x, double y, absl::string_view text, Font font, Color color);

  static double TextWidth(absl::string_view text, Font font);
  static double LineHeight(Font font);

  // The picture so far. RESOURCE_EXHAUSTED where memory was short; INTERNAL for any other failure of cairo's.
  absl::StatusOr<Picture> Finish() const;

 private:
  struct Destroy {
    void operator()(_cairo* context) const;
  };
  std::unique_ptr<_cairo, Destroy> context_;
};

}  // namespace intrawarp::io

#endif  // INTRAWARP_IO_PICTURE_CANVAS_H_
