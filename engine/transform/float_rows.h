// SPDX-License-Identifier: Apache-2.0
// The inner loops of the CPU operators on control grids, in SIMD (Highway), for the best instruction set of the machine
// that they run on. Rows of voxels are treated as floats (control_grid_kernels.h); a row in scratch memory has
// RowFloats of them, so that whole vectors may be read and written beyond its last. Internal.
#ifndef INTRAWARP_ENGINE_TRANSFORM_FLOAT_ROWS_H_
#define INTRAWARP_ENGINE_TRANSFORM_FLOAT_ROWS_H_

#include <cstddef>
#include <cstdint>

#include "engine/transform/control_grid_kernels.h"

namespace intrawarp::cpu {

inline constexpr size_t RowFloats(size_t floats) { return (floats + 16 + 15) / 16 * 16; }

// out[3 v + c] = sum over k of weight k of voxel v (or derivative) times nodes[3 base + node_stride k + c]. Both rows
// are in scratch memory.
void ExpandRow(const float* nodes, const AxisTapWithDerivative* taps, int voxels, int node_stride, bool derivative,
               float* out);

// out[e] = sum over k of weight[k] * rows[k][e]. All rows are in scratch memory.
void CombineRows(const float* const rows[4], const float weight[4], int count, float* out);

struct RowSum {
  const float* rows[4];
  float weight[4];
  // Unless null, along_x[e] + base[e % 3] is added.
  const double* along_x = nullptr;
  double base[3] = {};
};
// The elements [begin, end) of a row to `out`, which need not be aligned; writes no other. `streamed`: past the caches,
// and for hwy::FlushStream to finish.
void FinishRow(const RowSum& sum, int begin, int end, bool streamed, float* out);

// out[v] = DeterminantOf the derivatives along the index axes at voxel v. The gradients are in scratch memory.
void DeterminantRow(const float* dx, const float* dy, const float* dz, const AffineMapF& to_index, int voxels,
                    float* out);

// out[k][e] += sum over i < rows of weight[i][k] * in[i * in_stride + e]; rows <= kMaxAddedRows.
inline constexpr int kMaxAddedRows = 8;
void AddRows(const float* in, int64_t in_stride, const float (*weight)[4], int rows, int64_t count,
             float* const out[4]);

// `count` floats to `out`, as FinishRow stores them.
void CopyRow(const float* in, int count, bool streamed, float* out);

}  // namespace intrawarp::cpu

#endif  // INTRAWARP_ENGINE_TRANSFORM_FLOAT_ROWS_H_
