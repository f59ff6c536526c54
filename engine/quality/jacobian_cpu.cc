// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "engine/device/parallel.h"
#include "engine/quality/jacobian_kernels.h"

namespace intrawarp::cpu {
namespace {

template <typename Input, typename Sums>
absl::Status SumVoxels(const Input& in, Sums* partial, Sums* total) {
  const int64_t count = int64_t{in.size.x} * in.size.y * in.size.z, pieces = SumPieces(count);
  ParallelFor(pieces, [&](int64_t piece) {
    Sums sums;
    const int64_t begin = piece * kSumPieceVoxels, end = std::min(begin + kSumPieceVoxels, count);
    for (int64_t i = begin; i < end; ++i) AddAt(in, VoxelAt(in.size, i), &sums);
    partial[piece] = sums;
  });
  *total = Sums();
  for (int64_t i = 0; i < pieces; ++i) total->Add(partial[i]);
  return absl::OkStatus();
}

}  // namespace

absl::Status SumJacobian(const ExecContext&, const JacobianInput& in, JacobianSums* partial, JacobianSums* total) {
  return SumVoxels(in, partial, total);
}

absl::Status SumInverse(const ExecContext&, const InverseInput& in, InverseSums* partial, InverseSums* total) {
  return SumVoxels(in, partial, total);
}

}  // namespace intrawarp::cpu
