// SPDX-License-Identifier: Apache-2.0
#include "io/png.h"

#include <png.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "io/file.h"

namespace intrawarp::io {
namespace {

constexpr int kMaxSide = 32768;

absl::Status Validate(const Picture& p) {
  if (p.width < 1 || p.height < 1 || p.width > kMaxSide || p.height > kMaxSide) {
    return absl::InvalidArgumentError(absl::StrCat("picture: ", p.width, "x", p.height, " must be 1 to ", kMaxSide));
  }
  if (p.channels != 1 && p.channels != 3) return absl::InvalidArgumentError("picture: channels must be 1 or 3");
  if (p.pixels.size() != size_t(p.width) * p.height * p.channels) {
    return absl::InvalidArgumentError("picture: the number of bytes does not match its size");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status WritePng(const std::string& path, const Picture& picture) {
  if (absl::Status valid = Validate(picture); !valid.ok()) return valid;
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = picture.width;
  image.height = picture.height;
  image.format = picture.channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  std::string bytes(PNG_IMAGE_PNG_SIZE_MAX(image), '\0');
  png_alloc_size_t size = bytes.size();
  if (!png_image_write_to_memory(&image, bytes.data(), &size, 0, picture.pixels.data(), 0, nullptr)) {
    return absl::InternalError(absl::StrCat("png: ", image.message));
  }
  return WriteSmallFile(path, absl::string_view(bytes.data(), size));
}

}  // namespace intrawarp::io
