// SPDX-License-Identifier: Apache-2.0
// An input that stands for several files or messages: each part begins with its size, four bytes little endian. A size
// beyond the input's end takes what is left.
#ifndef INTRAWARP_TESTS_FUZZ_PARTS_H_
#define INTRAWARP_TESTS_FUZZ_PARTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace intrawarp::fuzz {

// At most `most` parts; what follows them does not count.
inline std::vector<std::string> SplitParts(const uint8_t* data, size_t size, size_t most) {
  std::vector<std::string> parts;
  while (size >= 4 && parts.size() < most) {
    size_t length = 0;
    for (size_t i = 4; i > 0; --i) length = length << 8 | data[i - 1];
    length = std::min(length, size - 4);
    parts.emplace_back(reinterpret_cast<const char*>(data) + 4, length);
    data += 4 + length;
    size -= 4 + length;
  }
  return parts;
}

inline std::string JoinParts(const std::vector<std::string>& parts) {
  std::string all;
  for (const std::string& part : parts) {
    for (int i = 0; i < 4; ++i) all.push_back(static_cast<char>(part.size() >> (8 * i)));
    all += part;
  }
  return all;
}

}  // namespace intrawarp::fuzz

#endif  // INTRAWARP_TESTS_FUZZ_PARTS_H_
