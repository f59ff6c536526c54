// SPDX-License-Identifier: Apache-2.0
// The CPU and CUDA versions of the operators in control_grid.h, and the arithmetic that they share; arguments have been
// validated. Internal to this room.
//
// Where an image has the grid's direction, each of its axes maps to one of the grid's (AxisMap), and contractions over
// 4 x 4 x 4 neighbours are done one axis after the other. Rows are treated as floats: element e of a row belongs to
// voxel e / 3, component e % 3, so that neighbouring lanes write neighbouring floats.
#ifndef INTRAWARP_ENGINE_TRANSFORM_CONTROL_GRID_KERNELS_H_
#define INTRAWARP_ENGINE_TRANSFORM_CONTROL_GRID_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "engine/device/exec_context.h"
#include "engine/image/bspline.h"
#include "engine/image/volume.h"
#include "engine/transform/displacement.h"

namespace intrawarp {

// Voxel i of an image's axis lies at index origin + step * i of the grid's axis; step > 0.
struct AxisMap {
  double origin = 0;
  double step = 1;
  int voxels = 1;
  int nodes = 1;

  // Control points between a voxel's neighbours: 0 for an axis that has one.
  INTRAWARP_HD int stride() const { return nodes > 1 ? 1 : 0; }
};

// The four neighbours (base, base + stride, ...) of a voxel along one axis and their weights; 0 outside u's domain.
struct AxisTap {
  int base = 0;
  float weight[4] = {};
};

struct AxisTapWithDerivative {
  AxisTap tap;
  float derivative[4] = {};
};

INTRAWARP_HD inline AxisTapWithDerivative MakeAxisTapWithDerivative(const AxisMap& map, int voxel) {
  AxisTapWithDerivative result;
  // Rounded once, on the host as on every device, so that all agree on the neighbours.
  const double index = fma(map.step, static_cast<double>(voxel), map.origin);
  if (map.nodes == 1) {
    const bool inside = index >= -0.5 - kSplineDomainTolerance && index <= 0.5 + kSplineDomainTolerance;
    result.tap.weight[0] = inside ? 1.0f : 0.0f;
    return result;
  }
  const SplinePosition position = MakeSplinePosition(index, map.nodes);
  result.tap.base = position.base;
  if (!position.inside) return result;
  double w[4], d[4];
  BsplineWeights(position.t, w);
  BsplineDerivatives(position.t, d);
  for (int k = 0; k < 4; ++k) {
    result.tap.weight[k] = static_cast<float>(w[k]);
    result.derivative[k] = static_cast<float>(d[k]);
  }
  return result;
}

// Bases never fall from one voxel to the next.
INTRAWARP_HD inline AxisTap MakeAxisTap(const AxisMap& map, int voxel) {
  return MakeAxisTapWithDerivative(map, voxel).tap;
}

// The voxels [first, first + count) of an image, count > 0, of those that the mask (may be null) selects; the others
// get 0. out[0] belongs to voxel `first`.
struct VoxelRun {
  Int3 size;
  int64_t first = 0;
  int64_t count = 0;
  const uint8_t* mask = nullptr;
  float* out = nullptr;
};

// A(p + u(p)) - p in the grid's direction.
struct AlignedEvaluation {
  VoxelRun run;
  const float* grid = nullptr;
  AxisMap x, y, z;
  // Whether A is not the identity; nothing below counts otherwise.
  bool is_affine = false;
  // Voxel to (A - I)p, and A.
  AffineMap rest;
  AffineMapF linear;
};

struct AlignedDeterminant {
  const float* grid = nullptr;
  AxisMap x, y, z;
  // Millimetres to the grid's index.
  AffineMapF to_index;
  float* out = nullptr;
};

struct Transposition {
  const float* field = nullptr;
  AxisMap x, y, z;
  // nodes.z rows of planes that are still whole in x and y; the same with y contracted, too.
  float* along_z = nullptr;
  float* along_y = nullptr;
  float* grid = nullptr;
};

// `to_index`: voxel to the index of the grid.
struct GeneralDeterminant {
  const float* grid = nullptr;
  Int3 nodes;
  Int3 size;
  AffineMap to_grid_index;
  AffineMap to_index;
  float* out = nullptr;
};

struct Refinement {
  const float* coarse = nullptr;
  Int3 coarse_size;
  float* fine = nullptr;
  Int3 fine_size;
};

struct Resampling {
  const float* grid = nullptr;
  Int3 size;
  // Index of an output node to the index of the grid.
  AffineMap to_index;
  float* out = nullptr;
  Int3 out_size;
};

INTRAWARP_DECLARE_ON_DEVICES(
    absl::Status EvaluateAligned(const ExecContext& ctx, const AlignedEvaluation& task);
    absl::Status EvaluateGeneral(const ExecContext& ctx, const ForwardMap& map, const VoxelRun& run);
    absl::Status EvaluateDeterminantAligned(const ExecContext& ctx, const AlignedDeterminant& task);
    absl::Status EvaluateDeterminantGeneral(const ExecContext& ctx, const GeneralDeterminant& task);
    absl::Status Transpose(const ExecContext& ctx, const Transposition& task);
    absl::Status Refine(const ExecContext& ctx, const Refinement& task);
    absl::Status Resample(const ExecContext& ctx, const Resampling& task);)

// The cut of the CUDA kernel's work: rows (1, 2 or 4) and planes that a warp goes through; 0: by the sizes. For
// benches.
struct EvaluationTuning {
  int rows = 0;
  int planes = 0;
};
namespace cuda {
absl::Status EvaluateAligned(const ExecContext& ctx, const AlignedEvaluation& task, const EvaluationTuning& tuning);
}  // namespace cuda

// The arguments that EvaluateControlGrid hands to EvaluateAligned; absent where the image has another direction than
// the grid.
std::optional<AlignedEvaluation> MakeAlignedEvaluation(ConstFieldView grid, const AffineMap& affine,
                                                       const Geometry& image, const VoxelRun& run);

// The result at one voxel of a run.
INTRAWARP_HD inline Vec3f EvaluateVoxel(const ForwardMap& map, const VoxelRun& run, int64_t place, Int3 voxel) {
  if (run.mask != nullptr && run.mask[place] == 0) return {};
  Vec3d d;
  map(ToVec3d(voxel), &d);
  return ToVec3f(d);
}

INTRAWARP_HD inline float DeterminantAt(const GeneralDeterminant& t, Int3 voxel) {
  return static_cast<float>(ControlGridDeterminant(t.grid, t.nodes, t.to_index, t.to_grid_index(ToVec3d(voxel))));
}

// det(I + sum over axes a of the derivative of u along index axis a times row a of `to_index`).
INTRAWARP_HD inline float DeterminantOf(const AffineMapF& to_index, Vec3f dx, Vec3f dy, Vec3f dz) {
  AffineMapF g = AffineMapF::Identity();
  for (int r = 0; r < 3; ++r) {
    for (int c = 0; c < 3; ++c) {
      g.m[r][c] += dx[r] * to_index.m[0][c] + dy[r] * to_index.m[1][c] + dz[r] * to_index.m[2][c];
    }
  }
  return Determinant(g);
}

// One axis of the subdivision (Lane and Riesenfeld 1980): a node of the fine grid that lies on a node of the coarse one
// takes 1/8 6/8 1/8 of it and its neighbours, one in the middle between two takes half of each.
struct SubdivisionTap {
  int base, count;
  float weight[3];
};
INTRAWARP_HD inline SubdivisionTap MakeSubdivisionTap(int fine, int coarse_nodes) {
  if (coarse_nodes == 1) return {0, 1, {1, 0, 0}};
  if (fine % 2 == 0) return {fine / 2, 2, {0.5f, 0.5f, 0}};
  return {(fine - 1) / 2, 3, {0.125f, 0.75f, 0.125f}};
}

INTRAWARP_HD inline Vec3f RefinedNode(const Refinement& t, Int3 node) {
  const SubdivisionTap x = MakeSubdivisionTap(node.x, t.coarse_size.x), y = MakeSubdivisionTap(node.y, t.coarse_size.y),
                       z = MakeSubdivisionTap(node.z, t.coarse_size.z);
  Vec3f sum;
  for (int k = 0; k < z.count; ++k) {
    for (int j = 0; j < y.count; ++j) {
      const float* row =
          t.coarse + 3 * ((static_cast<size_t>(z.base + k) * t.coarse_size.y + y.base + j) * t.coarse_size.x + x.base);
      const float wzy = z.weight[k] * y.weight[j];
      for (int i = 0; i < x.count; ++i)
        sum = sum + wzy * x.weight[i] * Vec3f{row[3 * i], row[3 * i + 1], row[3 * i + 2]};
    }
  }
  return sum;
}

// u at the point of its domain that is nearest, along the grid's axes, to a node of the other grid.
INTRAWARP_HD inline Vec3f ResampledNode(const Resampling& t, Int3 node) {
  Vec3d index = t.to_index(ToVec3d(node));
  for (int a = 0; a < 3; ++a) {
    const double low = t.size[a] == 1 ? -0.5 : 1.0, high = t.size[a] == 1 ? 0.5 : t.size[a] - 2.0;
    index[a] = fmin(fmax(index[a], low), high);
  }
  return ToVec3f(SampleControlGrid(t.grid, t.size, index));
}

// In place, from the values at `count` nodes (`stride` floats apart) to the coefficients of the cubic spline that takes
// them, mirrored at the ends: the recursive filter of Unser 1999 ("Splines: a perfect fit", box 2).
INTRAWARP_HD inline void PrefilterLine(float* line, int64_t stride, int count) {
  if (count == 1) return;
  const double pole = -0.26794919243112270;  // sqrt(3) - 2
  double power = 1, sum = 0;
  const int period = 2 * count - 2;
  for (int k = 0; k < period; ++k, power *= pole) sum += power * line[stride * (k < count ? k : period - k)];
  double last = 6 * sum / (1 - power), before_last = last;
  line[0] = static_cast<float>(last);
  for (int k = 1; k < count; ++k) {
    before_last = last;
    last = 6 * line[stride * k] + pole * last;
    line[stride * k] = static_cast<float>(last);
  }
  double next = pole / (pole * pole - 1) * (last + pole * before_last);
  line[stride * (count - 1)] = static_cast<float>(next);
  for (int k = count - 2; k >= 0; --k) {
    next = pole * (next - line[stride * k]);
    line[stride * k] = static_cast<float>(next);
  }
}

// The lines of an array of nodes (3 floats each) along axis a: line i starts at Start(i), its nodes lie Stride apart.
struct Lines {
  int64_t stride = 0;
  int64_t count = 0;
  int length = 0;

  INTRAWARP_HD Lines(Int3 size, int axis) {
    stride = axis == 0 ? 3 : axis == 1 ? int64_t{3} * size.x : int64_t{3} * size.x * size.y;
    length = size[axis];
    count = int64_t{3} * size.x * size.y * size.z / length;
  }
  INTRAWARP_HD int64_t Start(int64_t line) const { return line / stride * stride * length + line % stride; }
};

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_TRANSFORM_CONTROL_GRID_KERNELS_H_
