// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <limits>

#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/transform/control_grid_kernels.h"

namespace intrawarp::cuda {
namespace {

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kWarp = 32;
constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;

unsigned Blocks(int64_t count, int64_t per_block) { return static_cast<unsigned>((count + per_block - 1) / per_block); }

// --- Evaluation ---
//
// A warp owns kVector floats a lane, that is a piece of some rows, and goes through planes. It holds what
// its rows need of the four planes of control points around the current plane, contracted along x and y, in registers:
// a voxel then costs its contraction along z, four multiply-adds a float, and its store. A plane of control points is
// contracted when the first plane of voxels needs it: along x by the warps of a block together, once a row of control
// points (a slot), into shared memory; along y by each warp from there. What is left is bound by stores.
//
// Stores are whole aligned vectors. Where rows do not begin at an aligned address, lanes pass on to their neighbours as
// many floats as shift each vector to alignment; a warp then computes kVector more floats than it stores.

constexpr int kVector = 4;
constexpr int kPiece = kVector * kWarp;
constexpr int kPieceVoxels = kPiece / 3 + 2;
// By which pieces follow each other: where rows are not aligned, the last lane's floats belong to the next piece, too.
__host__ __device__ constexpr int PieceFloats(bool aligned) { return aligned ? kPiece : kPiece - kVector; }
// Rows of control points that kRows rows of voxels see: their bases differ by at most one.
constexpr int kNodeRows = 5;
constexpr int kMaxPlanes = 64;
// Rows of control points that the rows of a block see: 4 * kWarps suffice even where no two rows share any.
constexpr int kSlots = 4 * kWarps;

struct EvaluationPlan {
  AlignedEvaluation t;
  // Rows and planes to go through, and how many of them a warp takes (rows: the kernel's kRows).
  int y_begin, y_end, z_begin, z_end;
  int planes;
  // Pieces of a row, PieceFloats each.
  int pieces;
  // The first and the last row of the run, where the run begins in the first and ends in the last (elements).
  int first_row, last_row, first_begin, last_end;
};

struct ZTaps {
  float4 weight[kMaxPlanes];
  int base[kMaxPlanes];
};

__device__ void LoadZTaps(const AxisMap& z, int begin, int count, ZTaps* taps) {
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const AxisTap tap = MakeAxisTap(z, begin + i);
    taps->weight[i] = make_float4(tap.weight[0], tap.weight[1], tap.weight[2], tap.weight[3]);
    taps->base[i] = tap.base;
  }
}

__device__ void StoreVector(float* to, float a, float b, float c, float d) {
  __stcs(reinterpret_cast<float4*>(to), make_float4(a, b, c, d));
}

// A lane's floats of a row that is wanted whole, `left` of them and those after them in the row. Where the row does not
// begin at an aligned address, each lane passes on to the one before it what shifts their vectors to alignment; the
// last lane's are stored by the next piece's first, which has them, too.
template <bool kAligned>
__device__ void StoreRow(float* to, int left, bool begins_row, const float* v) {
  if (kAligned) {
    // Rows are whole vectors then.
    if (left > 0) StoreVector(to, v[0], v[1], v[2], v[3]);
    return;
  }
  // Floats from here to the first aligned one: the same in all lanes.
  const int shift = -static_cast<int>(reinterpret_cast<uintptr_t>(to) / sizeof(float)) & (kVector - 1);
  const bool stores = threadIdx.x % kWarp < kWarp - 1;
  const float next0 = __shfl_down_sync(kAllLanes, v[0], 1);
  float w[kVector] = {v[0], v[1], v[2], v[3]};
  if (shift == 1) {
    w[0] = v[1], w[1] = v[2], w[2] = v[3], w[3] = next0;
  } else if (shift == 2) {
    w[0] = v[2], w[1] = v[3], w[2] = next0, w[3] = __shfl_down_sync(kAllLanes, v[1], 1);
  } else if (shift == 3) {
    w[0] = v[3], w[1] = next0, w[2] = __shfl_down_sync(kAllLanes, v[1], 1), w[3] = __shfl_down_sync(kAllLanes, v[2], 1);
  }
  if (stores && left >= shift + kVector) {
    StoreVector(to + shift, w[0], w[1], w[2], w[3]);
  } else if (stores) {
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      if (shift + k < left) to[shift + k] = w[k];
    }
  }
  if (begins_row && shift > 0) {
#pragma unroll
    for (int k = 0; k < kVector - 1; ++k) {
      if (k < shift && k < left) to[k] = v[k];
    }
  }
}

// Stores the elements within [begin, end) of the row, by the lanes that own them.
__device__ void StorePart(float* row, int element, int begin, int end, const float* v) {
#pragma unroll
  for (int k = 0; k < kVector; ++k) {
    if (element + k >= begin && element + k < end) row[element + k] = v[k];
  }
}

// A lane's floats: their components, where their neighbours along x begin in a row of nodes
// (component included), and the weights.
struct LaneTaps {
  int component[kVector];
  int offset[kVector];
  float weight[kVector][4];
};

// The taps of the voxels that a piece of a row touches, from its first on.
struct XTaps {
  AxisTap tap[kPieceVoxels];
};

__device__ void LoadXTaps(const AxisMap& x, int first, XTaps* taps) {
  for (int i = threadIdx.x; i < kPieceVoxels; i += kThreads) {
    if (first + i < x.voxels) taps->tap[i] = MakeAxisTap(x, first + i);
  }
}

// `first`: the piece's first voxel.
__device__ void MakeLaneTaps(const XTaps& x, int element, int first, int voxels, LaneTaps* taps) {
#pragma unroll
  for (int v = 0; v < kVector; ++v) {
    const int voxel = (element + v) / 3;
    taps->component[v] = element + v - 3 * voxel;
    // A float beyond the row is computed from its last voxel, and not stored.
    const AxisTap& tap = x.tap[min(voxel, voxels - 1) - first];
    taps->offset[v] = 3 * tap.base + taps->component[v];
#pragma unroll
    for (int i = 0; i < 4; ++i) taps->weight[v][i] = tap.weight[i];
  }
}

// Whether the mask selects anything of a warp's rows and planes.
template <int kRows>
__device__ bool AnySelected(const EvaluationPlan& p, int element, int y0, int z0, int z1) {
  const Int3 n = p.t.run.size;
  const int x0 = __shfl_sync(kAllLanes, element / 3, 0);
  bool any = false;
  for (int z = z0; z < z1; ++z) {
    for (int r = 0; r < kRows; ++r) {
      if (y0 + r >= p.y_end) break;
      const uint8_t* row = p.t.run.mask + (static_cast<int64_t>(z) * n.y + y0 + r) * n.x;
      for (int x = x0 + threadIdx.x % kWarp; x < min(x0 + kPieceVoxels, n.x); x += kWarp) any |= row[x] != 0;
    }
  }
  return any;
}

// One slot of a plane of control points: kVector floats a lane of the row of control points, contracted along x.
template <bool kAffine>
__device__ void ContractAlongX(const float* nodes, const LaneTaps& x_taps, int node_stride, const float4* linear,
                               float* row) {
#pragma unroll
  for (int v = 0; v < kVector; ++v) {
    const float* node = nodes + x_taps.offset[v];
    float sum = 0;
    if (kAffine) {
      const int c = x_taps.component[v];
      node -= c;
      const float4 a = linear[c];
#pragma unroll
      for (int i = 0; i < 4; ++i, node += node_stride) {
        const float moved = fmaf(a.z, __ldg(node + 2), fmaf(a.y, __ldg(node + 1), a.x * __ldg(node)));
        sum = fmaf(x_taps.weight[v][i], moved, sum);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i, node += node_stride) sum = fmaf(x_taps.weight[v][i], __ldg(node), sum);
    }
    row[v] = sum;
  }
}

// Weights of control-point rows for the kRows rows of voxels from y0 on, by control-point row from *base on. Rows from
// y_end on get none. All lanes of the warp call it.
template <int kRows>
__device__ void LoadYWeights(const AxisMap& y, int y0, int y_end, float (&weights)[kNodeRows][kRows], int* base) {
  const int lane = threadIdx.x % kWarp;
  if (lane >= kRows) return;
  const int node_row = MakeAxisTap(y, min(y0, y_end - 1)).base;
  AxisTap tap;
  if (y0 + lane < y_end) tap = MakeAxisTap(y, y0 + lane);
  const int shift = y0 + lane < y_end ? tap.base - node_row : 0;
  for (int j = 0; j < kNodeRows; ++j) {
    float w = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) w = j - shift == k ? tap.weight[k] : w;
    weights[j][lane] = w;
  }
  if (lane == 0) *base = node_row;
}

// Fills the slots with the block's rows of control points of a plane, contracted along x. Where rows of voxels are
// single (kRows == 1), each warp has four slots of its own; otherwise rows of control points follow each other.
template <int kRows, bool kAffine>
__device__ void FillSlots(const AlignedEvaluation& t, int node_plane, const int (&y_bases)[kWarps], int slot_count,
                          const LaneTaps& x_taps, int node_stride, const float4* linear,
                          float4 (&slots)[kSlots][kWarp]) {
#pragma unroll 2
  for (int slot = threadIdx.x / kWarp; slot < slot_count; slot += kWarps) {
    const int node_row = kRows == 1 ? y_bases[slot / 4] + slot % 4 : y_bases[0] + slot;
    const int at = min(node_row, t.y.nodes - 1);
    float row[kVector];
    ContractAlongX<kAffine>(t.grid + 3 * ((static_cast<int64_t>(node_plane) * t.y.nodes + at) * t.x.nodes), x_taps,
                            node_stride, linear, row);
    slots[slot][threadIdx.x % kWarp] = make_float4(row[0], row[1], row[2], row[3]);
  }
}

// Makes room for a plane of control points, planes[3], and sums it from the slots along y.
template <int kRows>
__device__ void PushPlane(const float4 (&slots)[kSlots][kWarp], int first_slot, int slot_count,
                          const float (&weights)[kNodeRows][kRows], float (&planes)[4][kRows][kVector]) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      planes[0][r][v] = planes[1][r][v];
      planes[1][r][v] = planes[2][r][v];
      planes[2][r][v] = planes[3][r][v];
      planes[3][r][v] = 0;
    }
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < (kRows == 1 ? 4 : kNodeRows); ++j) {
    const float4 row = slots[min(first_slot + j, slot_count - 1)][threadIdx.x % kWarp];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float w = weights[j][r];
      planes[3][r][0] = fmaf(w, row.x, planes[3][r][0]);
      planes[3][r][1] = fmaf(w, row.y, planes[3][r][1]);
      planes[3][r][2] = fmaf(w, row.z, planes[3][r][2]);
      planes[3][r][3] = fmaf(w, row.w, planes[3][r][3]);
    }
  }
}

// The affine part of the field along x, the same for all rows.
__device__ inline void AffineAlongX(const AffineMap& rest, const int (&component)[kVector], int element,
                                    double (&along_x)[kVector]) {
#pragma unroll
  for (int v = 0; v < kVector; ++v) {
    const int c = component[v];
    along_x[v] = fma(rest.m[c][0], static_cast<double>((element + v) / 3), rest.m[c][3]);
  }
}

// The affine part of the field at a row, in float64 from what is alike along it.
__device__ inline void AddAffinePart(const double2 (&rest)[3], const int (&component)[kVector],
                                     const double (&along_x)[kVector], int y, int z, float (&value)[kVector]) {
#pragma unroll
  for (int v = 0; v < kVector; ++v) {
    const double2 m = rest[component[v]];
    const double d = fma(m.y, static_cast<double>(z), fma(m.x, static_cast<double>(y), along_x[v]));
    value[v] += static_cast<float>(d);
  }
}

// 0 for the elements of voxels that the mask does not select.
__device__ inline void ApplyMask(const uint8_t* mask, int nx, int element, bool any_selected, float (&value)[kVector]) {
#pragma unroll
  for (int v = 0; v < kVector; ++v) {
    const int voxel = (element + v) / 3;
    value[v] = any_selected && voxel < nx && mask[voxel] != 0 ? value[v] : 0.0f;
  }
}

// Stores a lane's elements of row `row` of the image, which has row_floats elements from `to` on.
template <bool kAligned, bool kWhole>
__device__ void StoreElements(const EvaluationPlan& p, int row, int row_floats, int element, float* to,
                              const float (&value)[kVector]) {
  if (kWhole) {
    StoreRow<kAligned>(to + element, row_floats - element, element == 0, value);
  } else {
    const int begin = row == p.first_row ? p.first_begin : 0, end = row == p.last_row ? p.last_end : row_floats;
    StorePart(to, element, begin, end, value);
  }
}

template <int kRows, bool kAligned, bool kWhole, bool kAffine, bool kMasked>
__global__ void __launch_bounds__(kThreads, kRows == 4 ? (kAffine || kMasked ? 3 : 4) : 5)
    EvaluateKernel(const __grid_constant__ EvaluationPlan p) {
  __shared__ ZTaps z_taps;
  __shared__ XTaps x_row;
  __shared__ float y_weights[kWarps][kNodeRows][kRows];
  __shared__ int y_bases[kWarps];
  __shared__ float4 linear[3];
  __shared__ double2 rest[3];
  // Twice, so that one plane is written while slower warps still read the one before.
  __shared__ float4 slots[2][kSlots][kWarp];
  const AlignedEvaluation& t = p.t;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int z0 = p.z_begin + blockIdx.y * p.planes, z1 = min(z0 + p.planes, p.z_end);
  LoadZTaps(t.z, z0, z1 - z0, &z_taps);
  if (kAffine && threadIdx.x < 3) {
    const int c = threadIdx.x;
    linear[c] = make_float4(t.linear.m[c][0], t.linear.m[c][1], t.linear.m[c][2], 0);
    rest[c] = make_double2(t.rest.m[c][1], t.rest.m[c][2]);
  }
  const int block_y = p.y_begin + static_cast<int>(blockIdx.x) / p.pieces * kWarps * kRows;
  // Rows beyond the last compute with the last one's neighbours and store nothing.
  const int y0 = block_y + warp * kRows;
  const int piece_begin = static_cast<int>(blockIdx.x) % p.pieces * PieceFloats(kAligned);
  LoadXTaps(t.x, piece_begin / 3, &x_row);
  const int element = piece_begin + lane * kVector;
  LoadYWeights(t.y, y0, p.y_end, y_weights[warp], &y_bases[warp]);
  __syncthreads();

  const int nx = t.run.size.x, row_floats = 3 * nx;
  const int64_t plane_floats = static_cast<int64_t>(row_floats) * t.run.size.y;
  float* out = t.run.out + (z0 * plane_floats + static_cast<int64_t>(y0) * row_floats - 3 * t.run.first);
  bool selected = true;
  if (kMasked) selected = __syncthreads_or(AnySelected<kRows>(p, element, y0, z0, z1));

  // FillSlots explains these numbers.
  const int slot_count = kRows == 1 ? kSlots : min(y_bases[kWarps - 1] + kNodeRows - y_bases[0], kSlots);
  const int first_slot = kRows == 1 ? 4 * warp : y_bases[warp] - y_bases[0];

  LaneTaps x_taps;
  MakeLaneTaps(x_row, element, piece_begin / 3, t.x.voxels, &x_taps);
  const int node_stride = 3 * t.x.stride();
  double along_x[kVector];
  if (kAffine) AffineAlongX(t.rest, x_taps.component, element, along_x);
  const int rows = min(kRows, p.y_end - y0);

  // planes[k][r][v]: float v of row r, from plane base + k of control points.
  float planes[4][kRows][kVector] = {};
  int base = z_taps.base[0] - 4, buffer = 0;
  for (int z = z0; z < z1; ++z, out += plane_floats) {
    base = max(base, z_taps.base[z - z0] - 4);
    while (base < z_taps.base[z - z0] && (!kMasked || selected)) {
      ++base;
      buffer ^= 1;
      const int node_plane = min(base + 3, t.z.nodes - 1);
      FillSlots<kRows, kAffine>(t, node_plane, y_bases, slot_count, x_taps, node_stride, linear, slots[buffer]);
      PushPlane(slots[buffer], first_slot, slot_count, y_weights[warp], planes);
    }
    const float4 w = z_taps.weight[z - z0];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int y = y0 + r, row = z * t.run.size.y + y;
      if (r >= rows || (!kWhole && (row < p.first_row || row > p.last_row))) continue;
      float value[kVector];
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        value[v] =
            fmaf(w.w, planes[3][r][v], fmaf(w.z, planes[2][r][v], fmaf(w.y, planes[1][r][v], w.x * planes[0][r][v])));
      }
      if (kAffine) AddAffinePart(rest, x_taps.component, along_x, y, z, value);
      if (kMasked) ApplyMask(t.run.mask + static_cast<int64_t>(row) * nx, nx, element, selected, value);
      StoreElements<kAligned, kWhole>(p, row, row_floats, element, out + r * row_floats, value);
    }
  }
}

// Whether the bases of `rows` neighbouring rows, in groups from y_begin, differ by at most one.
bool BasesFit(const AxisMap& y, int y_begin, int y_end, int rows) {
  for (int first = y_begin; first < y_end; first += rows) {
    if (MakeAxisTap(y, std::min(first + rows, y_end) - 1).base - MakeAxisTap(y, first).base > kNodeRows - 4)
      return false;
  }
  return true;
}

template <int kRows, bool kAligned, bool kWhole, bool kAffine>
void LaunchEvaluation(const ExecContext& ctx, const EvaluationPlan& p) {
  const dim3 blocks(p.pieces * Blocks(p.y_end - p.y_begin, kWarps * kRows), Blocks(p.z_end - p.z_begin, p.planes));
  if (p.t.run.mask != nullptr) {
    EvaluateKernel<kRows, kAligned, kWhole, kAffine, true><<<blocks, kThreads, 0, CudaStream(ctx)>>>(p);
  } else {
    EvaluateKernel<kRows, kAligned, kWhole, kAffine, false><<<blocks, kThreads, 0, CudaStream(ctx)>>>(p);
  }
}

template <int kRows, bool kAligned, bool kWhole>
void LaunchEvaluation(const ExecContext& ctx, const EvaluationPlan& p) {
  p.t.is_affine ? LaunchEvaluation<kRows, kAligned, kWhole, true>(ctx, p)
                : LaunchEvaluation<kRows, kAligned, kWhole, false>(ctx, p);
}

template <int kRows>
void LaunchEvaluation(const ExecContext& ctx, const EvaluationPlan& p, bool aligned) {
  const Int3 n = p.t.run.size;
  const bool whole = p.t.run.count == int64_t{n.x} * n.y * n.z;
  if (aligned) {
    whole ? LaunchEvaluation<kRows, true, true>(ctx, p) : LaunchEvaluation<kRows, true, false>(ctx, p);
  } else {
    whole ? LaunchEvaluation<kRows, false, true>(ctx, p) : LaunchEvaluation<kRows, false, false>(ctx, p);
  }
}

// Through shared memory, so that consecutive threads write consecutive floats.
constexpr int kVoxelsPerThread = 4;
constexpr int kVoxelsPerBlock = kThreads * kVoxelsPerThread;

__global__ void __launch_bounds__(kThreads)
    EvaluateGeneralKernel(const __grid_constant__ ForwardMap map, const __grid_constant__ VoxelRun run) {
  __shared__ float stage[3 * kThreads];
  const int64_t block = int64_t{blockIdx.x} * kVoxelsPerBlock;
  const Int3 base = VoxelAt(run.size, run.first + block);
  for (int part = 0; part < kVoxelsPerThread; ++part) {
    const int64_t from = block + part * kThreads, i = from + threadIdx.x;
    if (i < run.count) {
      const Vec3f d = EvaluateVoxel(map, run, run.first + i, VoxelAfter(run.size, base, part * kThreads + threadIdx.x));
      stage[3 * threadIdx.x] = d.x;
      stage[3 * threadIdx.x + 1] = d.y;
      stage[3 * threadIdx.x + 2] = d.z;
    }
    __syncthreads();
    for (int e = threadIdx.x; e < 3 * kThreads; e += kThreads) {
      if (3 * from + e < 3 * run.count) run.out[3 * from + e] = stage[e];
    }
    __syncthreads();
  }
}

// --- Determinant: as above with one voxel a lane, one row a warp, and the three derivatives instead of the value ---

struct DeterminantPlan {
  AlignedDeterminant t;
  int pieces, planes;
};

struct ZTapsWithDerivatives {
  ZTaps tap;
  float4 derivative[kMaxPlanes];
};

__global__ void __launch_bounds__(kThreads) DeterminantKernel(const __grid_constant__ DeterminantPlan p) {
  __shared__ ZTapsWithDerivatives z_taps;
  const AlignedDeterminant& t = p.t;
  const int z0 = blockIdx.y * p.planes, z1 = min(z0 + p.planes, t.z.voxels);
  for (int i = threadIdx.x; i < z1 - z0; i += kThreads) {
    const AxisTapWithDerivative tap = MakeAxisTapWithDerivative(t.z, z0 + i);
    z_taps.tap.weight[i] = make_float4(tap.tap.weight[0], tap.tap.weight[1], tap.tap.weight[2], tap.tap.weight[3]);
    z_taps.derivative[i] = make_float4(tap.derivative[0], tap.derivative[1], tap.derivative[2], tap.derivative[3]);
    z_taps.tap.base[i] = tap.tap.base;
  }
  __syncthreads();
  const int column = blockIdx.x * kWarps + threadIdx.x / kWarp;
  const int x = column % p.pieces * kWarp + threadIdx.x % kWarp, y = column / p.pieces;
  if (y >= t.y.voxels || x >= t.x.voxels) return;
  const AxisTapWithDerivative xt = MakeAxisTapWithDerivative(t.x, x), yt = MakeAxisTapWithDerivative(t.y, y);
  const int x_stride = 3 * t.x.stride(), y_stride = t.y.stride();

  // Per plane of control points: with the derivative along x, with that along y, with none.
  Vec3f along_x[4], along_y[4], plain[4];
  int base = z_taps.tap.base[0] - 4;
  for (int z = z0; z < z1; ++z) {
    base = max(base, z_taps.tap.base[z - z0] - 4);
    for (; base < z_taps.tap.base[z - z0]; ++base) {
      const int node_plane = min(base + 4, t.z.nodes - 1);
#pragma unroll
      for (int k = 0; k < 3; ++k) {
        along_x[k] = along_x[k + 1];
        along_y[k] = along_y[k + 1];
        plain[k] = plain[k + 1];
      }
      along_x[3] = along_y[3] = plain[3] = {};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int at = yt.tap.base + j * y_stride;
        const float* node =
            t.grid + 3 * ((static_cast<int64_t>(node_plane) * t.y.nodes + at) * t.x.nodes + xt.tap.base);
        Vec3f value, slope;
#pragma unroll
        for (int i = 0; i < 4; ++i, node += x_stride) {
          const Vec3f c{__ldg(node), __ldg(node + 1), __ldg(node + 2)};
          value = value + xt.tap.weight[i] * c;
          slope = slope + xt.derivative[i] * c;
        }
        along_x[3] = along_x[3] + yt.tap.weight[j] * slope;
        along_y[3] = along_y[3] + yt.derivative[j] * value;
        plain[3] = plain[3] + yt.tap.weight[j] * value;
      }
    }
    const float4 w = z_taps.tap.weight[z - z0], d = z_taps.derivative[z - z0];
    const Vec3f dx = w.x * along_x[0] + w.y * along_x[1] + w.z * along_x[2] + w.w * along_x[3];
    const Vec3f dy = w.x * along_y[0] + w.y * along_y[1] + w.z * along_y[2] + w.w * along_y[3];
    const Vec3f dz = d.x * plain[0] + d.y * plain[1] + d.z * plain[2] + d.w * plain[3];
    __stcs(t.out + (static_cast<int64_t>(z) * t.y.voxels + y) * t.x.voxels + x, DeterminantOf(t.to_index, dx, dy, dz));
  }
}

__global__ void DeterminantGeneralKernel(const __grid_constant__ GeneralDeterminant t, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) t.out[i] = DeterminantAt(t, VoxelAt(t.size, i));
}

// --- Transpose ---
//
// One axis: in[outer][voxels][inner] to out[outer][nodes][inner]. A thread goes along the axis with the sums of the
// four nodes around it and writes each node once, when no further voxel has it as a neighbour.

constexpr int kTapsAtOnce = 128;
constexpr int kLoadsAtOnce = 8;

__global__ void __launch_bounds__(kThreads)
    TransposeKernel(AxisMap map, const float* in, float* out, int64_t inner, int64_t count) {
  __shared__ float4 weights[kTapsAtOnce];
  __shared__ int bases[kTapsAtOnce];
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const bool active = i < count;
  const int64_t outer = i / inner, e = i - outer * inner;
  const float* from = in + outer * map.voxels * inner + e;
  float* const to = out + outer * map.nodes * inner + e;
  float sum[4] = {};
  int node = 0;
  for (int first = 0; first < map.voxels; first += kTapsAtOnce) {
    const int taps = min(kTapsAtOnce, map.voxels - first);
    __syncthreads();
    if (threadIdx.x < taps) {
      const AxisTap tap = MakeAxisTap(map, first + threadIdx.x);
      weights[threadIdx.x] = make_float4(tap.weight[0], tap.weight[1], tap.weight[2], tap.weight[3]);
      bases[threadIdx.x] = tap.base;
    }
    __syncthreads();
    if (!active) continue;
    for (int begin = 0; begin < taps; begin += kLoadsAtOnce) {
      float v[kLoadsAtOnce];
#pragma unroll
      for (int k = 0; k < kLoadsAtOnce; ++k, from += inner) v[k] = begin + k < taps ? __ldcs(from) : 0.0f;
#pragma unroll
      for (int k = 0; k < kLoadsAtOnce; ++k) {
        if (begin + k >= taps) break;
        for (const int base = bases[begin + k]; node < base; ++node) {
          to[node * inner] = sum[0];
          sum[0] = sum[1];
          sum[1] = sum[2];
          sum[2] = sum[3];
          sum[3] = 0;
        }
        const float4 w = weights[begin + k];
        sum[0] += w.x * v[k];
        sum[1] += w.y * v[k];
        sum[2] += w.z * v[k];
        sum[3] += w.w * v[k];
      }
    }
  }
  if (!active) return;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (node + k < map.nodes) to[(node + k) * inner] = sum[k];
  }
  for (node += 4; node < map.nodes; ++node) to[node * inner] = 0;
}
static_assert(kThreads >= kTapsAtOnce && kTapsAtOnce % kLoadsAtOnce == 0);

absl::Status TransposeAxis(const ExecContext& ctx, const AxisMap& map, const float* in, float* out, int64_t outer,
                           int64_t inner) {
  const int64_t count = outer * inner;
  TransposeKernel<<<Blocks(count, kThreads), kThreads, 0, CudaStream(ctx)>>>(map, in, out, inner, count);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

// --- Refinement and resampling ---

__device__ void StoreNode(Vec3f value, float* out) {
  out[0] = value.x;
  out[1] = value.y;
  out[2] = value.z;
}

__global__ void RefineKernel(Refinement t, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) StoreNode(RefinedNode(t, VoxelAt(t.fine_size, i)), t.fine + 3 * i);
}

__global__ void ResampleKernel(const __grid_constant__ Resampling t, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) StoreNode(ResampledNode(t, VoxelAt(t.out_size, i)), t.out + 3 * i);
}

__global__ void PrefilterKernel(Lines lines, float* data) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < lines.count) PrefilterLine(data + lines.Start(i), lines.stride, lines.length);
}

int64_t Voxels(Int3 size) { return int64_t{size.x} * size.y * size.z; }

// The planes that a block goes through: so many that the blocks fill whole waves and few planes of control points are
// contracted twice. What is computed does not depend on it.
int PlanesAtOnce(int64_t columns, int planes) {
  // Blocks that an H100 or H200 runs at once, and what a block's start costs in planes.
  constexpr int64_t kWave = 4 * 132, kStart = 10;
  int best = kMaxPlanes;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int at_once = kMaxPlanes; at_once >= 8; --at_once) {
    const int64_t waves = (columns * Blocks(planes, at_once) + kWave - 1) / kWave;
    const int64_t cost = waves * (at_once + kStart);
    if (cost < least) {
      least = cost;
      best = at_once;
    }
  }
  return best;
}

}  // namespace

absl::Status EvaluateAligned(const ExecContext& ctx, const AlignedEvaluation& task, const EvaluationTuning& tuning) {
  const VoxelRun& run = task.run;
  const Int3 n = run.size;
  EvaluationPlan p;
  p.t = task;
  const int64_t last = run.first + run.count - 1;
  p.first_row = static_cast<int>(run.first / n.x);
  p.last_row = static_cast<int>(last / n.x);
  p.first_begin = 3 * static_cast<int>(run.first - int64_t{p.first_row} * n.x);
  p.last_end = 3 * static_cast<int>(last - int64_t{p.last_row} * n.x + 1);
  p.z_begin = p.first_row / n.y;
  p.z_end = p.last_row / n.y + 1;
  const bool one_plane = p.z_end - p.z_begin == 1;
  p.y_begin = one_plane ? p.first_row % n.y : 0;
  p.y_end = one_plane ? p.last_row % n.y + 1 : n.y;

  const int64_t first_float =
      static_cast<int64_t>(reinterpret_cast<uintptr_t>(run.out) / sizeof(float)) - 3 * run.first;
  const bool aligned = 3 * n.x % kVector == 0 && first_float % kVector == 0;
  p.pieces = static_cast<int>(Blocks(3 * int64_t{n.x}, PieceFloats(aligned)));
  int rows = tuning.rows > 0 ? tuning.rows : 4;
  while (rows > 1 && !BasesFit(task.y, p.y_begin, p.y_end, rows)) rows /= 2;
  const int64_t columns = int64_t{p.pieces} * Blocks(p.y_end - p.y_begin, kWarps * rows);
  p.planes = tuning.planes > 0 ? std::min(tuning.planes, kMaxPlanes) : PlanesAtOnce(columns, p.z_end - p.z_begin);
  if (rows == 4) {
    LaunchEvaluation<4>(ctx, p, aligned);
  } else if (rows == 2) {
    LaunchEvaluation<2>(ctx, p, aligned);
  } else {
    LaunchEvaluation<1>(ctx, p, aligned);
  }
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

absl::Status EvaluateAligned(const ExecContext& ctx, const AlignedEvaluation& task) {
  return EvaluateAligned(ctx, task, EvaluationTuning());
}

absl::Status EvaluateGeneral(const ExecContext& ctx, const ForwardMap& map, const VoxelRun& run) {
  EvaluateGeneralKernel<<<Blocks(run.count, kVoxelsPerBlock), kThreads, 0, CudaStream(ctx)>>>(map, run);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

absl::Status EvaluateDeterminantAligned(const ExecContext& ctx, const AlignedDeterminant& task) {
  constexpr int kPlanes = 32;
  const DeterminantPlan p{task, static_cast<int>(Blocks(task.x.voxels, kWarp)), kPlanes};
  const dim3 blocks(Blocks(int64_t{p.pieces} * task.y.voxels, kWarps), Blocks(task.z.voxels, kPlanes));
  DeterminantKernel<<<blocks, kThreads, 0, CudaStream(ctx)>>>(p);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

absl::Status EvaluateDeterminantGeneral(const ExecContext& ctx, const GeneralDeterminant& task) {
  const int64_t count = Voxels(task.size);
  DeterminantGeneralKernel<<<Blocks(count, kThreads), kThreads, 0, CudaStream(ctx)>>>(task, count);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

absl::Status Transpose(const ExecContext& ctx, const Transposition& t) {
  const int64_t row = 3 * int64_t{t.x.voxels};
  INTRAWARP_RETURN_IF_ERROR(TransposeAxis(ctx, t.z, t.field, t.along_z, 1, row * t.y.voxels));
  INTRAWARP_RETURN_IF_ERROR(TransposeAxis(ctx, t.y, t.along_z, t.along_y, t.z.nodes, row));
  return TransposeAxis(ctx, t.x, t.along_y, t.grid, int64_t{t.z.nodes} * t.y.nodes, 3);
}

absl::Status Refine(const ExecContext& ctx, const Refinement& task) {
  const int64_t count = Voxels(task.fine_size);
  RefineKernel<<<Blocks(count, kThreads), kThreads, 0, CudaStream(ctx)>>>(task, count);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

absl::Status Resample(const ExecContext& ctx, const Resampling& task) {
  const int64_t count = Voxels(task.out_size);
  ResampleKernel<<<Blocks(count, kThreads), kThreads, 0, CudaStream(ctx)>>>(task, count);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  for (int a = 0; a < 3; ++a) {
    const Lines lines(task.out_size, a);
    PrefilterKernel<<<Blocks(lines.count, kThreads), kThreads, 0, CudaStream(ctx)>>>(lines, task.out);
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  }
  return absl::OkStatus();
}

}  // namespace intrawarp::cuda
