// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "engine/device/parallel.h"
#include "engine/image/convert_kernels.h"

namespace intrawarp::cpu {
namespace {

constexpr int64_t kPiece = 1 << 16;

// Calls body(begin, end) for pieces of [0, count).
template <typename Body>
void ForPieces(int64_t count, const Body& body) {
  ParallelFor((count + kPiece - 1) / kPiece, [&](int64_t i) { body(i * kPiece, std::min(count, (i + 1) * kPiece)); });
}

// `pixels` may be unaligned: it comes straight from a message or a file.
template <typename T>
void Convert(const char* pixels, double slope, double intercept, int64_t begin, int64_t end, float* out) {
  for (int64_t i = begin; i < end; ++i) {
    T pixel;
    std::memcpy(&pixel, pixels + i * sizeof(T), sizeof(T));
    out[i] = static_cast<float>(static_cast<double>(pixel) * slope + intercept);
  }
}

}  // namespace

absl::Status ConvertPixels(const ExecContext&, const void* pixels, PixelType type, double slope, double intercept,
                           VolumeView out) {
  return VisitPixelType(type, [&](auto pixel) {
    ForPieces(out.geometry.voxels(), [&](int64_t begin, int64_t end) {
      Convert<decltype(pixel)>(static_cast<const char*>(pixels), slope, intercept, begin, end, out.data);
    });
    return absl::OkStatus();
  });
}

absl::Status BinarizeMask(const ExecContext&, ConstVolumeView volume, MaskView out) {
  ForPieces(volume.geometry.voxels(), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out.data[i] = volume.data[i] != 0.0f;
  });
  return absl::OkStatus();
}

absl::Status QuantizeWeights(const ExecContext&, ConstVolumeView weights, ConstVolumeView mask, MaskView out) {
  ForPieces(out.geometry.voxels(), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const bool counts = mask.data == nullptr || mask.data[i] != 0.0f;
      out.data[i] = counts ? WeightByte(weights.data[i]) : 0;
    }
  });
  return absl::OkStatus();
}

}  // namespace intrawarp::cpu
