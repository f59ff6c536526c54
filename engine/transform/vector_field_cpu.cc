// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/device/parallel.h"
#include "engine/image/row_simd.h"
#include "engine/image/rows.h"
#include "engine/transform/vector_field_kernels.h"
#include "engine/transform/vector_rows.h"

namespace intrawarp::cpu {
namespace {

constexpr int64_t kRowsPerTask = 8;

bool IsSkipped(const int* skip) { return skip != nullptr && *skip != 0; }

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

// Along x, where neighbours are three floats apart.
void SmoothAlongX(const SmoothPass& pass, const GaussianKernel& kernel) {
  const int r = kernel.radius, n = pass.size.x;
  float both[2 * kMaxRadius + 1];
  for (int k = -r; k <= r; ++k) both[k + r] = kernel.weights[std::abs(k)];
  const int begin = std::min(r, n), end = std::max(begin, n - r);
  ForEachRow(pass.size, [&](int64_t row, int, int) {
    const float* const in = pass.in + 3 * row * n;
    float* const out = pass.out + 3 * row * n;
    const auto at_face = [&](int x) {
      WeightedRows(in + 3 * x, 3, both + r, std::max(-r, -x), std::min(r, n - 1 - x), kernel.Scale(x, n), 3,
                   out + 3 * x);
    };
    for (int x = 0; x < begin; ++x) at_face(x);
    WeightedRows(in + 3 * begin, 3, both + r, -r, r, 1.0f, 3 * (end - begin), out + 3 * begin);
    for (int x = end; x < n; ++x) at_face(x);
  });
}

// a and b as in ComposeVoxel.
void Compose(const float* a, const float* b, Int3 size, ComposeScales scales, float* out) {
  ForEachRow(size, [&](int64_t row, int y, int z) {
    ComposeRow(a + 3 * row * size.x, b, size, y, z, scales, out + 3 * row * size.x);
  });
}

}  // namespace

absl::Status SmoothVectorAxis(const ExecContext& ctx, const SmoothPass& pass, const GaussianKernel& kernel) {
  if (IsSkipped(pass.skip)) return absl::OkStatus();
  if (pass.axis == 0) {
    SmoothAlongX(pass, kernel);
  } else {
    const Int3 floats{3 * pass.size.x, pass.size.y, pass.size.z};
    INTRAWARP_RETURN_IF_ERROR(SmoothAxis(ctx, pass.in, pass.out, floats, pass.axis, kernel));
  }
  if (pass.add == nullptr && pass.largest == nullptr) return absl::OkStatus();
  const int64_t row = 3 * int64_t{pass.size.x};
  const float largest = OrderedReduce(
      int64_t{pass.size.y} * pass.size.z, 0.0f,
      [&](int64_t i) {
        return AddAndLargest(pass.add == nullptr ? nullptr : pass.add + i * row, row, pass.out + i * row);
      },
      [](float& total, float part) { total = std::max(total, part); });
  if (pass.largest != nullptr) *pass.largest = largest;
  return absl::OkStatus();
}

absl::Status ComposeVectorFields(const ExecContext&, const float* inner, const float* outer, Int3 size, float* out,
                                 const int* skip) {
  if (!IsSkipped(skip)) Compose(inner, outer, size, ComposeScales(), out);
  return absl::OkStatus();
}

absl::Status LargestComponent(const ExecContext&, const float* field, Int3 size, float* largest, const int* skip) {
  if (IsSkipped(skip)) return absl::OkStatus();
  const int64_t row = 3 * int64_t{size.x};
  *largest = OrderedReduce(
      int64_t{size.y} * size.z, 0.0f, [&](int64_t i) { return LargestOf(field + i * row, row); },
      [](float& total, float part) { total = std::max(total, part); });
  return absl::OkStatus();
}

absl::Status ExponentiateVectorField(const ExecContext&, const float* velocity, Int3 size, float factor,
                                     const float* largest, int max_squarings, float* out, float* other,
                                     const int* skip) {
  if (IsSkipped(skip)) return absl::OkStatus();
  const int n = Squarings(*largest, factor, max_squarings);
  float* to = n % 2 == 0 ? out : other;
  float* from = n % 2 == 0 ? other : out;
  Compose(velocity, velocity, size, MidpointScales(std::ldexp(factor, -n)), to);
  for (int i = 0; i < n; ++i) {
    std::swap(from, to);
    Compose(from, from, size, ComposeScales(), to);
  }
  return absl::OkStatus();
}

absl::Status BchUpdate(const ExecContext&, const float* v, const float* u, Int3 size, float* out, const int* skip) {
  if (IsSkipped(skip)) return absl::OkStatus();
  ForEachRow(size, [&](int64_t row, int y, int z) {
    for (int x = 0; x < size.x; ++x) {
      const int64_t at = 3 * (row * size.x + x);
      StoreVector(BchVoxel(v + at, u + at, size, {x, y, z}), out + at);
    }
  });
  return absl::OkStatus();
}

absl::Status HarmonicEnergy(const ExecContext&, const float* field, Int3 size, double* partial, double* energy,
                            const int* skip) {
  if (IsSkipped(skip)) return absl::OkStatus();
  const RowPieces pieces = MakeRowPieces(size.y * size.z, size.x);
  ParallelFor(pieces.pieces, [&](int64_t piece) {
    double sum = 0;
    for (int row = pieces.begin(piece); row < pieces.end(piece); ++row) {
      for (int x = 0; x < size.x; ++x) {
        sum += EnergyVoxel(field + 3 * (int64_t{row} * size.x + x), size, {x, row % size.y, row / size.y});
      }
    }
    partial[piece] = sum;
  });
  double sum = 0;
  for (int i = 0; i < pieces.pieces; ++i) sum += partial[i];
  *energy = sum / (static_cast<double>(size.x) * size.y * size.z);
  return absl::OkStatus();
}

absl::Status ResampleVectorField(const ExecContext&, const float* in, Int3 in_size, const GridScale& scale, float* out,
                                 Int3 out_size) {
  ForEachRow(out_size, [&](int64_t row, int y, int z) {
    for (int x = 0; x < out_size.x; ++x) {
      StoreVector(scale.Vector(SampleVector(in, in_size, scale.Index({x, y, z}))), out + 3 * (row * out_size.x + x));
    }
  });
  return absl::OkStatus();
}

absl::Status MapVectors(const ExecContext&, const AffineMapF& map, Int3 size, float* field) {
  ForEachRow(size, [&](int64_t row, int, int) {
    float* const to = field + 3 * row * size.x;
    for (int x = 0; x < size.x; ++x) StoreVector(map.Linear(LoadVector(to + 3 * x)), to + 3 * x);
  });
  return absl::OkStatus();
}

}  // namespace intrawarp::cpu
