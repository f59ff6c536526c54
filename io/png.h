// SPDX-License-Identifier: Apache-2.0
// Pictures as PNG files.
#ifndef INTRAWARP_IO_PNG_H_
#define INTRAWARP_IO_PNG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace intrawarp::io {

// Rows from the top, 8 bits a channel, 1 channel (grey) or 3 (red, green, blue), interleaved.
struct Picture {
  int width = 0, height = 0, channels = 1;
  std::vector<uint8_t> pixels;  // width * height * channels
};

// INVALID_ARGUMENT for a picture whose parts do not fit together or of an axis above 32768; otherwise of the file, as
// in file.h. A file that could not be written whole is removed. Equal pictures give equal bytes. Thread-safe.
absl::Status WritePng(const std::string& path, const Picture& picture);

}  // namespace intrawarp::io

#endif  // INTRAWARP_IO_PNG_H_
