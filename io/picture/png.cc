// SPDX-License-Identifier: Apache-2.0
#include "io/picture/png.h"

#include <cairo.h>

#include "absl/strings/str_cat.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "io/file/file.h"
#include "io/picture/cairo_surface.h"

namespace intrawarp::io {
namespace {

constexpr int kMaxSide = 32767;  // cairo's

absl::Status Validate(const Picture& p) {
  if (p.width < 1 || p.height < 1 || p.width > kMaxSide || p.height > kMaxSide) {
    return FieldError(absl::StatusCode::kInvalidArgument, "picture",
                      absl::StrCat(p.width, "x", p.height, " must be 1 to ", kMaxSide));
  }
  if (p.pixels.size() != size_t{3} * p.width * p.height) {
    return FieldError(absl::StatusCode::kInvalidArgument, "picture", "the number of bytes does not match its size");
  }
  return absl::OkStatus();
}

cairo_status_t Append(void* text, const unsigned char* data, unsigned length) {
  static_cast<std::string*>(text)->append(reinterpret_cast<const char*>(data), length);
  return CAIRO_STATUS_SUCCESS;
}

}  // namespace

absl::StatusOr<std::string> EncodePng(const Picture& picture) {
  INTRAWARP_RETURN_IF_ERROR(Validate(picture));
  const Surface surface = SurfaceOf(picture);
  std::string bytes;
  INTRAWARP_RETURN_IF_ERROR(CairoStatus(cairo_surface_write_to_png_stream(surface.get(), Append, &bytes)));
  return bytes;
}

absl::Status WritePng(const std::string& path, const Picture& picture) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::string bytes, EncodePng(picture));
  return WriteSmallFile(path, bytes);
}

}  // namespace intrawarp::io
