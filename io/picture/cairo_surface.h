// SPDX-License-Identifier: Apache-2.0
// Internal to io: pictures as cairo's surfaces, and the font of all text. Thread-safe functions.
#ifndef INTRAWARP_IO_PICTURE_CAIRO_SURFACE_H_
#define INTRAWARP_IO_PICTURE_CAIRO_SURFACE_H_

#include <cairo.h>

#include <memory>

#include "absl/status/status.h"
#include "io/picture/canvas.h"
#include "io/picture/png.h"

namespace intrawarp::io {

struct DestroySurface {
  void operator()(cairo_surface_t* surface) const { cairo_surface_destroy(surface); }
};
using Surface = std::unique_ptr<cairo_surface_t, DestroySurface>;

// A copy of the picture; a surface in an error state where memory is short.
Surface SurfaceOf(const Picture& picture);
// A copy of an image surface of CAIRO_FORMAT_RGB24.
Picture PictureOf(cairo_surface_t* surface);

// The font that Canvas draws with.
void SetCairoFont(cairo_t* context, Font font);

// RESOURCE_EXHAUSTED "picture: ..." without memory, INTERNAL "picture: ..." otherwise.
absl::Status CairoStatus(cairo_status_t status);

}  // namespace intrawarp::io

#endif  // INTRAWARP_IO_PICTURE_CAIRO_SURFACE_H_
