// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cstring>

#include "engine/device/parallel.h"
#include "engine/transform/velocity_unfolding_kernels.h"

namespace intrawarp::cpu {
namespace {

constexpr int64_t kRowsPerTask = 8;
constexpr int64_t kPiece = 1 << 15;

// body(row, y, z) for all rows, several a task.
template <typename Body>
void ForEachRow(Int3 size, const Body& body) {
  const int64_t rows = int64_t{size.y} * size.z;
  ParallelFor((rows + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task) {
    for (int64_t row = task * kRowsPerTask; row < std::min(rows, (task + 1) * kRowsPerTask); ++row) {
      body(row, static_cast<int>(row % size.y), static_cast<int>(row / size.y));
    }
  });
}

// The number of cells that fold in row (y, z).
unsigned long long MarkRow(const FoldCheck& t, int y, int z, uint8_t* folds) {
  std::memset(folds, 0, t.size.x);
  if (!IsCell(t.size, {0, y, z})) return 0;
  unsigned long long folded = 0;
  Vec3f columns[2][4];
  t.LoadColumn(0, y, z, columns[0]);
  for (int x = 0; x < t.size.x && IsCell(t.size, {x, y, z}); ++x) {
    t.LoadColumn(std::min(x + 1, t.size.x - 1), y, z, columns[(x + 1) % 2]);
    folds[x] = CellFolds(columns[x % 2], columns[(x + 1) % 2]);
    folded += folds[x];
  }
  return folded;
}

}  // namespace

absl::Status MarkFolds(const ExecContext&, const FoldCheck& t) {
  *t.folded = OrderedReduce<unsigned long long>(
      int64_t{t.size.y} * t.size.z, 0,
      [&](int64_t row) {
        return MarkRow(t, static_cast<int>(row % t.size.y), static_cast<int>(row / t.size.y), t.folds + row * t.size.x);
      },
      [](unsigned long long& total, unsigned long long part) { total += part; });
  return absl::OkStatus();
}

absl::Status MarkPaths(const ExecContext&, const FoldPaths& t) {
  ForEachRow(t.size, [&](int64_t row, int, int) {
    for (int64_t voxel = row * t.size.x; voxel < (row + 1) * t.size.x; ++voxel) {
      if (t.folds[voxel] == 0) continue;
      // Paths cross.
      ForPathsOfCell(t, voxel,
                     [&](int64_t at) { std::atomic_ref<uint8_t>(t.marks[at]).store(1, std::memory_order_relaxed); });
    }
  });
  return absl::OkStatus();
}

absl::Status Dilate(const ExecContext&, const uint8_t* marks, Int3 size, uint8_t* out) {
  ForEachRow(size, [&](int64_t row, int y, int z) {
    for (int x = 0; x < size.x; ++x) {
      const int64_t i = row * size.x + x;
      out[i] = AnyMarked(marks + i, size, {x, y, z});
    }
  });
  return absl::OkStatus();
}

absl::Status SmoothMarked(const ExecContext&, const float* in, const uint8_t* marks, Int3 size, float* out) {
  ForEachRow(size, [&](int64_t row, int y, int z) {
    for (int x = 0; x < size.x; ++x) {
      const int64_t i = row * size.x + x;
      if (marks[i] != 0) StoreVector(BinomialMean(in + 3 * i, size, {x, y, z}), out + 3 * i);
    }
  });
  return absl::OkStatus();
}

absl::Status Halve(const ExecContext&, int64_t floats, float* field) {
  ParallelFor((floats + kPiece - 1) / kPiece, [&](int64_t piece) {
    for (int64_t i = piece * kPiece; i < std::min(floats, (piece + 1) * kPiece); ++i) field[i] *= 0.5f;
  });
  return absl::OkStatus();
}

}  // namespace intrawarp::cpu
