// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>

#include "engine/device/parallel.h"
#include "engine/quality/similarity_kernels.h"

namespace intrawarp::cpu {
namespace {

// --- Sums and joint histogram ---

void ComparePiece(const SimilarityInput& in, int64_t piece, const SimilarityWorkspace& workspace) {
  const int64_t begin = piece * kPieceVoxels,
                end = std::min(begin + kPieceVoxels, int64_t{in.fixed_size.x} * in.fixed_size.y * in.fixed_size.z);
  uint32_t histogram[kHistogramBins * kHistogramBins] = {};
  SimilaritySums sums;
  Int3 voxel = VoxelAt(in.fixed_size, begin);
  for (int64_t place = begin; place < end; ++place) {
    int bin = -1;
    Compare(in, place, voxel, &sums, &workspace.warped[place], &bin);
    if (bin >= 0) ++histogram[bin];
    if (++voxel.x == in.fixed_size.x) {
      voxel.x = 0;
      if (++voxel.y == in.fixed_size.y) {
        voxel.y = 0;
        ++voxel.z;
      }
    }
  }
  workspace.sums[piece] = sums;
  for (int i = 0; i < kHistogramBins * kHistogramBins; ++i) {
    if (histogram[i] == 0) continue;
    std::atomic_ref(workspace.totals->histogram[i]).fetch_add(histogram[i], std::memory_order_relaxed);
  }
}

// --- SSIM: the window is applied along x, y and z in turn, plane by plane through a tile ---

constexpr int kWidth = 64;
constexpr int kRows = kTileY + 2 * kWindowRadius;

// A thread keeps its own: some 300 KB, which stay in its cache.
struct Scratch {
  alignas(64) float product[kSsimChannels][kWidth + 2 * kWindowRadius];
  alignas(64) float along_x[kSsimChannels][kRows][kWidth];
  // The last planes, each windowed in its plane; plane z is in slot z modulo kWindowTaps.
  alignas(64) float plane[kWindowTaps][kSsimChannels][kTileY][kWidth];
};

// out[i] = sum over t of weight(t) * rows[t][i].
void Window(const float* const rows[kWindowTaps], float* __restrict out) {
  constexpr int kCenter = kWindowRadius;
  const float* const c = rows[kCenter];
  for (int i = 0; i < kWidth; ++i) {
    float sum = c[i];
    for (int t = 1; t <= kWindowRadius; ++t) sum += WindowWeight(t) * (rows[kCenter - t][i] + rows[kCenter + t][i]);
    out[i] = sum;
  }
}

// A tile: voxels from `first`, at most kWidth x kTileY x kTileZ of them.
struct Tile {
  const float* fixed;
  const float* warped;
  Int3 size;
  Int3 first;
  SsimScale scale;
  Scratch* scratch;
};

void WindowRow(const Tile& t, int row, int y, int z) {
  auto& product = t.scratch->product;
  const int64_t start = (int64_t{z} * t.size.y + y) * t.size.x;
  constexpr int kSpan = kWidth + 2 * kWindowRadius;
  const int x0 = t.first.x - kWindowRadius;
  const int begin = std::max(0, -x0), end = std::min(kSpan, t.size.x - x0);
  for (auto& channel : product) {
    std::fill(channel, channel + begin, 0.0f);
    std::fill(channel + std::max(begin, end), channel + kSpan, 0.0f);
  }
  const float* fixed = t.fixed + start + x0;
  const float* warped = t.warped + start + x0;
  for (int i = begin; i < end; ++i) {
    const bool valid = warped[i] == warped[i];
    const float f = valid ? (fixed[i] - t.scale.fixed_shift) * t.scale.inverse_range : 0.0f;
    const float m = valid ? (warped[i] - t.scale.moving_shift) * t.scale.inverse_range : 0.0f;
    product[0][i] = valid ? 1.0f : 0.0f;
    product[1][i] = f;
    product[2][i] = m;
    product[3][i] = f * f;
    product[4][i] = m * m;
    product[5][i] = f * m;
  }
  for (int c = 0; c < kSsimChannels; ++c) {
    const float* rows[kWindowTaps];
    for (int k = 0; k < kWindowTaps; ++k) rows[k] = product[c] + k;
    Window(rows, t.scratch->along_x[c][row]);
  }
}

// Plane z of the tile into its slot; zeros outside the image.
void WindowPlane(const Tile& t, int z) {
  auto& plane = t.scratch->plane[(z + kWindowTaps) % kWindowTaps];
  if (z < 0 || z >= t.size.z) {
    std::fill(&plane[0][0][0], &plane[0][0][0] + sizeof(plane) / sizeof(float), 0.0f);
    return;
  }
  auto& along_x = t.scratch->along_x;
  for (int row = 0; row < kRows; ++row) {
    const int y = t.first.y - kWindowRadius + row;
    if (y >= 0 && y < t.size.y) {
      WindowRow(t, row, y, z);
    } else {
      for (auto& channel : along_x) std::fill(channel[row], channel[row] + kWidth, 0.0f);
    }
  }
  for (int c = 0; c < kSsimChannels; ++c) {
    for (int y = 0; y < kTileY; ++y) {
      const float* rows[kWindowTaps];
      for (int k = 0; k < kWindowTaps; ++k) rows[k] = along_x[c][y + k];
      Window(rows, plane[c][y]);
    }
  }
}

// The sum of SSIM over the valid voxels of plane z of the tile, whose neighbours' planes are in their slots.
double SumPlane(const Tile& t, int z) {
  double sum = 0;
  const int width = std::min(kWidth, t.size.x - t.first.x), height = std::min(kTileY, t.size.y - t.first.y);
  for (int y = 0; y < height; ++y) {
    alignas(64) float windowed[kSsimChannels][kWidth];
    for (int c = 0; c < kSsimChannels; ++c) {
      const float* rows[kWindowTaps];
      for (int k = 0; k < kWindowTaps; ++k) {
        rows[k] = t.scratch->plane[(z + k - kWindowRadius + kWindowTaps) % kWindowTaps][c][y];
      }
      Window(rows, windowed[c]);
    }
    const float* warped = t.warped + (int64_t{z} * t.size.y + t.first.y + y) * t.size.x + t.first.x;
    for (int x = 0; x < width; ++x) {
      if (!(warped[x] == warped[x])) continue;
      const float sums[kSsimChannels] = {windowed[0][x], windowed[1][x], windowed[2][x],
                                         windowed[3][x], windowed[4][x], windowed[5][x]};
      sum += Ssim(t.scale, sums);
    }
  }
  return sum;
}

double SumTile(const Tile& t) {
  const int end = std::min(t.first.z + kTileZ, t.size.z);
  for (int z = t.first.z - kWindowRadius; z < t.first.z + kWindowRadius; ++z) WindowPlane(t, z);
  double sum = 0;
  for (int z = t.first.z; z < end; ++z) {
    WindowPlane(t, z + kWindowRadius);
    sum += SumPlane(t, z);
  }
  return sum;
}

double SumSsim(const SimilarityInput& in, const SimilarityWorkspace& workspace) {
  const Int3 size = in.fixed_size;
  const int64_t tiles = Tiles(size, kWidth), tiles_x = (size.x + kWidth - 1) / kWidth,
                tiles_y = (size.y + kTileY - 1) / kTileY;
  const SsimScale scale = MakeSsimScale(in);
  ParallelFor(tiles, [&](int64_t i) {
    const Int3 first{static_cast<int>(i % tiles_x) * kWidth, static_cast<int>(i / tiles_x % tiles_y) * kTileY,
                     static_cast<int>(i / tiles_x / tiles_y) * kTileZ};
    workspace.ssim[i] = SumTile({in.fixed, workspace.warped, size, first, scale, ThreadScratch<Scratch>(1)});
  });
  double sum = 0;
  for (int64_t i = 0; i < tiles; ++i) sum += workspace.ssim[i];
  return sum;
}

}  // namespace

absl::Status SumSimilarity(const ExecContext&, const SimilarityInput& in, const SimilarityWorkspace& workspace) {
  *workspace.totals = SimilarityTotals();
  const int64_t pieces = Pieces(int64_t{in.fixed_size.x} * in.fixed_size.y * in.fixed_size.z);
  ParallelFor(pieces, [&](int64_t piece) { ComparePiece(in, piece, workspace); });
  for (int64_t i = 0; i < pieces; ++i) workspace.totals->sums.Add(workspace.sums[i]);
  if (in.range > 0) workspace.totals->ssim = SumSsim(in, workspace);
  return absl::OkStatus();
}

}  // namespace intrawarp::cpu
