// SPDX-License-Identifier: Apache-2.0
// Pictures as PNG files.
#ifndef INTRAWARP_IO_PICTURE_PNG_H_
#define INTRAWARP_IO_PICTURE_PNG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace intrawarp::io {

// Rows from the top, red, green and blue of 8 bits each, interleaved.
struct Picture {
  int width = 0, height = 0;
  std::vector<uint8_t> pixels;  // 3 * width * height
};

// The bytes of a PNG file. The errors of WritePng, except the errors of files. Equal pictures give equal bytes.
// Thread-safe.
absl::StatusOr<std::string> EncodePng(const Picture& picture);

// Replaces the file at once or leaves it as it was (AtomicFile in file.h). INVALID_ARGUMENT for a picture whose parts
// do not fit together or with an axis above 32767; RESOURCE_EXHAUSTED without memory; otherwise as in file.h. Equal
// pictures give equal bytes. Thread-safe.
absl::Status WritePng(const std::string& path, const Picture& picture);

}  // namespace intrawarp::io

#endif  // INTRAWARP_IO_PICTURE_PNG_H_
