// SPDX-License-Identifier: Apache-2.0
#include "io/picture/cairo_surface.h"

#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace intrawarp::io {

// CAIRO_FORMAT_RGB24 is a native 32-bit word a pixel, red in bits 16 to 23.
Surface SurfaceOf(const Picture& picture) {
  Surface surface(cairo_image_surface_create(CAIRO_FORMAT_RGB24, picture.width, picture.height));
  unsigned char* rows = cairo_image_surface_get_data(surface.get());
  if (rows == nullptr) return surface;
  const int stride = cairo_image_surface_get_stride(surface.get());
  const uint8_t* pixel = picture.pixels.data();
  for (int y = 0; y < picture.height; ++y) {
    for (int x = 0; x < picture.width; ++x, pixel += 3) {
      const uint32_t word = uint32_t{pixel[0]} << 16 | uint32_t{pixel[1]} << 8 | pixel[2];
      std::memcpy(rows + size_t(y) * stride + size_t{4} * x, &word, sizeof(word));
    }
  }
  cairo_surface_mark_dirty(surface.get());
  return surface;
}

Picture PictureOf(cairo_surface_t* surface) {
  cairo_surface_flush(surface);
  Picture picture{cairo_image_surface_get_width(surface), cairo_image_surface_get_height(surface), {}};
  picture.pixels.reserve(size_t{3} * picture.width * picture.height);
  const unsigned char* rows = cairo_image_surface_get_data(surface);
  const int stride = cairo_image_surface_get_stride(surface);
  for (int y = 0; y < picture.height; ++y) {
    for (int x = 0; x < picture.width; ++x) {
      uint32_t word;
      std::memcpy(&word, rows + size_t(y) * stride + size_t{4} * x, sizeof(word));
      for (int shift : {16, 8, 0}) picture.pixels.push_back(static_cast<uint8_t>(word >> shift));
    }
  }
  return picture;
}

absl::Status CairoStatus(cairo_status_t status) {
  if (status == CAIRO_STATUS_SUCCESS) return absl::OkStatus();
  const std::string message = absl::StrCat("picture: ", cairo_status_to_string(status));
  return status == CAIRO_STATUS_NO_MEMORY ? absl::ResourceExhaustedError(message) : absl::InternalError(message);
}

}  // namespace intrawarp::io
