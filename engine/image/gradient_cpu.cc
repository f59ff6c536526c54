// SPDX-License-Identifier: Apache-2.0
#include "engine/device/parallel.h"
#include "engine/image/gradient_kernels.h"
#include "engine/image/row_simd.h"

namespace intrawarp::cpu {
namespace {

double MeanMagnitude(ConstVolumeView volume) {
  const GradientInterior interior = MakeGradientInterior(volume.geometry.size);
  const RowPieces rows = GradientInteriorRows(volume.geometry.size);
  if (rows.pieces == 0) return 0;
  const AffineMapF to_physical = HalfPhysicalToIndex(volume.geometry);
  const auto piece = [&](int64_t i) {
    double sum = 0;
    for (int row = rows.begin(i); row < rows.end(i); ++row) {
      const float* first = volume.data + interior.RowOffset(volume.geometry.size, row);
      sum += SumRowMagnitudes(first, interior.count.x, interior.stride, to_physical);
    }
    return sum;
  };
  const double sum = OrderedReduce(rows.pieces, 0.0, piece, [](double& a, double b) { a += b; });
  return sum / static_cast<double>(interior.voxels());
}

}  // namespace

absl::Status Gradient(const ExecContext&, ConstVolumeView volume, FieldView out) {
  const Int3 n = volume.geometry.size;
  const AffineMapF to_index = PhysicalToIndex(volume.geometry).Cast<float>();
  const size_t plane = static_cast<size_t>(n.x) * n.y;
  ParallelFor(int64_t{n.y} * n.z, [&](int64_t row) {
    const int y = static_cast<int>(row % n.y), z = static_cast<int>(row / n.y);
    const float* at = volume.data + row * n.x;
    float* to = out.data + row * n.x * 3;
    for (int x = 0; x < n.x; ++x, ++at, to += 3) {
      const Vec3f g = to_index.LinearTransposed(
          {AxisDifference(at, 1, x, n.x), AxisDifference(at, n.x, y, n.y), AxisDifference(at, plane, z, n.z)});
      to[0] = g.x;
      to[1] = g.y;
      to[2] = g.z;
    }
  });
  return absl::OkStatus();
}

absl::Status EnqueueMeanGradients(const ExecContext&, absl::Span<const ConstVolumeView> volumes, double* means) {
  for (size_t i = 0; i < volumes.size(); ++i) means[i] = MeanMagnitude(volumes[i]);
  return absl::OkStatus();
}

}  // namespace intrawarp::cpu
