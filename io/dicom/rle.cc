// SPDX-License-Identifier: Apache-2.0
#include "io/dicom/rle.h"

#include <cstddef>

#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"

namespace intrawarp::io::dicom {
namespace {

constexpr size_t kHeader = 64;
constexpr size_t kMostSegments = 15;

absl::Status Corrupt() {
  return FieldError(absl::StatusCode::kDataLoss, "data", "the compressed pixels are truncated or corrupt");
}

uint32_t Number(absl::Span<const uint8_t> header, size_t i) {
  const uint8_t* const b = header.data() + 4 * i;
  return uint32_t{b[3]} << 24 | uint32_t{b[2]} << 16 | uint32_t{b[1]} << 8 | b[0];
}

// PackBits: every `step`th byte from `first` on. A run beyond the last cell is cut; padding may follow.
absl::Status Unpack(absl::Span<const uint8_t> segment, size_t first, size_t step, absl::Span<uint8_t> cells) {
  size_t at = 0, to = first;
  while (to < cells.size()) {
    if (at >= segment.size()) return Corrupt();
    const uint8_t control = segment[at++];
    if (control == 0x80) continue;
    const bool is_run = control > 0x80;
    const size_t count = is_run ? 257 - size_t{control} : size_t{control} + 1;
    if (segment.size() - at < (is_run ? 1 : count)) return Corrupt();
    for (size_t i = 0; i < count && to < cells.size(); ++i, to += step) cells[to] = segment[at + (is_run ? 0 : i)];
    at += is_run ? 1 : count;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status DecodeRle(absl::Span<const uint8_t> stream, int bytes_per_cell, absl::Span<uint8_t> cells) {
  const auto segments = static_cast<size_t>(bytes_per_cell);
  if (stream.size() < kHeader || segments > kMostSegments || Number(stream, 0) != segments) return Corrupt();
  for (size_t s = 0; s < segments; ++s) {
    const size_t begin = Number(stream, 1 + s);
    const size_t end = s + 1 < segments ? Number(stream, 2 + s) : stream.size();
    if (begin < kHeader || begin > end || end > stream.size()) return Corrupt();
    // The most significant bytes come first.
    INTRAWARP_RETURN_IF_ERROR(Unpack(stream.subspan(begin, end - begin), segments - 1 - s, segments, cells));
  }
  return absl::OkStatus();
}

}  // namespace intrawarp::io::dicom
