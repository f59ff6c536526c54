// SPDX-License-Identifier: Apache-2.0
// The CUDA kernels of the affine objective (affine_objective.h). One launch evaluates value, gradient and Hessian:
// every block sums its samples, the last block of a group sums the group, the last of all sums the groups and calls
// `finish` with the result, so that an optimiser can take its step in the same launch. The order of summation depends
// on the image's size alone.
//
// Traffic: each fixed and moving voxel is read once (8 bytes a fixed voxel); nothing is written per voxel. SSD is bound
// by instruction issue, NGF by it twice over (ARCHITECTURE.md has the figures).
#ifndef INTRAWARP_ENGINE_METRIC_AFFINE_OBJECTIVE_CUH_
#define INTRAWARP_ENGINE_METRIC_AFFINE_OBJECTIVE_CUH_

#include <algorithm>
#include <cstdint>

#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/image/sample.h"
#include "engine/metric/affine_objective.h"

namespace intrawarp::cuda {

inline constexpr int kSsdThreads = 256, kSsdWarps = kSsdThreads / 32;
// Sums of one block, padded to three warps' width: SSD 60 + 12 + 2, NGF 78 + 12 + 3 (2-D: 21 + 6 + 3).
inline constexpr int kObjectiveSums = 96;
inline constexpr int kMaxObjectiveBlocks = 2048;
inline constexpr int kObjectiveGroup = 32;
inline constexpr int kMaxObjectiveGroups = kMaxObjectiveBlocks / kObjectiveGroup;
// SetUpObjective's part of the workspace; the rest is for a position and a result.
static_assert(sizeof(double) * kObjectiveSums * (kMaxObjectiveBlocks + kMaxObjectiveGroups) + (64 << 10) <=
              AffineObjectiveWorkspaceBytes());

// The lanes of one warp, for functions that take a Lanes.
struct WarpLanes {
  __device__ int rank() const { return threadIdx.x & 31; }
  __device__ int size() const { return 32; }
  __device__ void Sync() const { __syncwarp(); }
};

struct ObjectiveArgs {
  const float* fixed;
  const float* moving;
  const uint8_t* fixed_mask;
  const uint8_t* moving_mask;
  Int3 fixed_size;
  Int3 moving_size;
  Vec3f inverse_radius;
  Vec3f center;
  float intensity_scale;
  Vec3f half_inverse_spacing;
  float fixed_eta2;
  float moving_eta2;
  // Pieces of work; `run` is their length along the axis that a thread marches.
  int run;
  int pieces;
  int pieces_per_worker;
  // Workspace: kMaxObjectiveBlocks and kMaxObjectiveGroups rows of kObjectiveSums, and tickets that are 0 between
  // launches.
  double* block_sums;
  double* group_sums;
  unsigned* tickets;
};

// Moving index as a float function of the fixed index, from W; in shared memory of each block.
__device__ inline void LoadIndexMap(const AffineMap& w, const ObjectiveArgs& args, AffineMapF& map) {
  if (threadIdx.x < 3) {
    const int r = threadIdx.x;
    double offset = w.m[r][3];
    for (int c = 0; c < 3; ++c) {
      const double linear = w.m[r][c] * args.inverse_radius[c];
      map.m[r][c] = static_cast<float>(linear);
      offset -= linear * args.center[c];
    }
    map.m[r][3] = static_cast<float>(offset);
  }
  __syncthreads();
}

template <int kOffset>
__device__ inline void ReduceScatterStep(float (&v)[32], int lane) {
  const bool upper = lane & kOffset;
#pragma unroll
  for (int i = 0; i < kOffset; ++i) {
    const float send = upper ? v[i] : v[i + kOffset];
    const float keep = upper ? v[i + kOffset] : v[i];
    v[i] = keep + __shfl_xor_sync(0xffffffffu, send, kOffset);
  }
  if constexpr (kOffset > 1) ReduceScatterStep<kOffset / 2>(v, lane);
}

// Sums 32 values over the 32 lanes; lane i gets the sum of value i. 31 shuffles instead of 160.
__device__ inline float ReduceScatter(float (&v)[32]) {
  ReduceScatterStep<16>(v, threadIdx.x & 31);
  return v[0];
}

// Column sums of `count` rows of kObjectiveSums doubles into total[0..95]; all threads (192 or more) call it.
__device__ inline void SumRows(const double* rows, int count, double (*scratch)[kObjectiveSums], double* total) {
  const int column = threadIdx.x % kObjectiveSums, slice = threadIdx.x / kObjectiveSums;
  if (slice < 2) {
    double sum = 0;
#pragma unroll 8
    for (int row = slice; row < count; row += 2) sum += __ldcg(rows + row * kObjectiveSums + column);
    scratch[slice][column] = sum;
  }
  __syncthreads();
  if (threadIdx.x < kObjectiveSums) total[threadIdx.x] = scratch[0][threadIdx.x] + scratch[1][threadIdx.x];
  __syncthreads();
}

// Whether this block is the last of `count` to arrive at the ticket, which it then resets. All threads call it.
__device__ inline bool IsLast(unsigned* ticket, unsigned count, bool& shared) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    shared = atomicAdd(ticket, 1u) == count - 1;
    if (shared) *ticket = 0;
  }
  __syncthreads();
  const bool last = shared;
  __threadfence();
  return last;
}

// From the block's sums (warp_sums, one row a warp) to the total of all blocks. True in the last block alone, where
// total[] then holds it.
__device__ inline bool ReduceBlocks(const ObjectiveArgs& args, double (*warp_sums)[kObjectiveSums], double* total) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x < kObjectiveSums) {
    double sum = 0;
    for (int w = 0; w < blockDim.x / 32; ++w) sum += warp_sums[w][threadIdx.x];
    args.block_sums[blockIdx.x * kObjectiveSums + threadIdx.x] = sum;
  }
  const int group = blockIdx.x / kObjectiveGroup, groups = (gridDim.x + kObjectiveGroup - 1) / kObjectiveGroup;
  const int first = group * kObjectiveGroup;
  const int members = min(kObjectiveGroup, static_cast<int>(gridDim.x) - first);
  if (!IsLast(args.tickets + 1 + group, members, last)) return false;
  SumRows(args.block_sums + first * kObjectiveSums, members, warp_sums, total);
  if (groups == 1) return true;
  if (threadIdx.x < kObjectiveSums) args.group_sums[group * kObjectiveSums + threadIdx.x] = total[threadIdx.x];
  if (!IsLast(args.tickets, groups, last)) return false;
  SumRows(args.group_sums, groups, warp_sums, total);
  return true;
}

// ---------------------------------------------------------------------------------------------------------------- SSD
// A warp takes a run of rows, one lane a column of x: along the run x and z are constant, so that of the 60 different
// entries of sum (g g^T) kron (q q^T) only 18 have to be summed per voxel (6 of g g^T, with q_y^0, q_y^1, q_y^2).

struct SsdMoments {
  float gg[3][6];  // [power of q_y][xx xy xz yy yz zz]
  float rg[2][3];  // [power of q_y][x y z]
  float value;
  float samples;
};

template <bool kMasked>
__device__ inline void AddSsdSample(const ObjectiveArgs& args, const AffineMapF& map, int x, int y, int z, float qy,
                                    SsdMoments& m) {
  const size_t offset = (static_cast<size_t>(z) * args.fixed_size.y + y) * args.fixed_size.x + x;
  if (kMasked && args.fixed_mask != nullptr && args.fixed_mask[offset] == 0) return;
  const Vec3f index = map({static_cast<float>(x), static_cast<float>(y), static_cast<float>(z)});
  if (!IsInside(args.moving_size, index)) return;
  if (kMasked && args.moving_mask != nullptr && args.moving_mask[NearestOffset(args.moving_size, index)] == 0) return;
  Vec3f g;
  const float t = SampleLinearGradient(args.moving, args.moving_size, index, &g);
  const float r = args.intensity_scale * (t - args.fixed[offset]);
  g = args.intensity_scale * g;
  const float gg[6] = {g.x * g.x, g.x * g.y, g.x * g.z, g.y * g.y, g.y * g.z, g.z * g.z};
  const float rg[3] = {r * g.x, r * g.y, r * g.z};
  const float qy2 = qy * qy;
#pragma unroll
  for (int i = 0; i < 6; ++i) {
    m.gg[0][i] += gg[i];
    m.gg[1][i] += qy * gg[i];
    m.gg[2][i] += qy2 * gg[i];
  }
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    m.rg[0][i] += rg[i];
    m.rg[1][i] += qy * rg[i];
  }
  m.value += 0.5f * r * r;
  m.samples += 1.0f;
}

// Entry i of the 96 sums from a lane's moments and its q_x, q_z; i is a compile-time constant after unrolling.
__device__ inline float SsdEntry(const SsdMoments& m, float qx, float qz, int i) {
  if (i < 60) {
    const int a = i / 10, b = i % 10;
    const float s0 = m.gg[0][a], s1 = m.gg[1][a], s2 = m.gg[2][a];
    return b == 0   ? qx * qx * s0
           : b == 1 ? qx * s1
           : b == 2 ? qx * qz * s0
           : b == 3 ? qx * s0
           : b == 4 ? s2
           : b == 5 ? qz * s1
           : b == 6 ? s1
           : b == 7 ? qz * qz * s0
           : b == 8 ? qz * s0
                    : s0;
  }
  if (i < 72) {
    const int a = (i - 60) / 4, c = (i - 60) % 4;
    return c == 0 ? qx * m.rg[0][a] : c == 1 ? m.rg[1][a] : c == 2 ? qz * m.rg[0][a] : m.rg[0][a];
  }
  return i == 72 ? m.value : i == 73 ? m.samples : 0.0f;
}

__device__ inline int Symmetric3(int i, int j) {
  const int a = i < j ? i : j, b = i < j ? j : i;
  return a == 0 ? b : a + b + 1;  // 00 01 02 11 12 22 -> 0 1 2 3 4 5
}
__device__ inline int Symmetric4(int i, int j) {
  const int a = i < j ? i : j, b = i < j ? j : i;
  return a * 4 - a * (a - 1) / 2 + (b - a);
}

// The 96 sums as NormalEquations; all threads of the block call it.
__device__ inline void ExpandSsd(const double* total, NormalEquations& sums) {
  for (int i = threadIdx.x; i < kAffineParameters * kAffineParameters; i += blockDim.x) {
    const int p = i / kAffineParameters, q = i % kAffineParameters;
    if (p <= q) sums.hessian[HessianEntry(p, q)] = total[Symmetric3(p / 4, q / 4) * 10 + Symmetric4(p % 4, q % 4)];
  }
  if (threadIdx.x < kAffineParameters) sums.gradient[threadIdx.x] = total[60 + threadIdx.x];
  if (threadIdx.x == 0) {
    sums.value = total[72];
    sums.weight = sums.samples = total[73];
  }
  __syncthreads();
}

template <bool kMasked, typename Finish>
__global__ void __launch_bounds__(kSsdThreads) SsdKernel(const ObjectiveArgs args, Finish finish) {
  if (finish.Done()) return;
  __shared__ AffineMapF map;
  __shared__ double warp_sums[kSsdWarps][kObjectiveSums];
  __shared__ double total[kObjectiveSums];
  LoadIndexMap(finish.Position(), args, map);
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
  const int worker = blockIdx.x * kSsdWarps + warp;
  const int columns = (args.fixed_size.x + 31) / 32, runs = (args.fixed_size.y + args.run - 1) / args.run;
  double lane_sums[3] = {0, 0, 0};
  const int end = min((worker + 1) * args.pieces_per_worker, args.pieces);
  for (int piece = worker * args.pieces_per_worker; piece < end; ++piece) {
    const int x = piece % columns * 32 + lane, y0 = piece / columns % runs * args.run, z = piece / columns / runs;
    const int y1 = min(y0 + args.run, args.fixed_size.y);
    SsdMoments m = {};
    if (x < args.fixed_size.x) {
#pragma unroll 2
      for (int y = y0; y < y1; ++y) {
        AddSsdSample<kMasked>(args, map, x, y, z, (y - args.center.y) * args.inverse_radius.y, m);
      }
    }
    const float qx = (x - args.center.x) * args.inverse_radius.x, qz = (z - args.center.z) * args.inverse_radius.z;
#pragma unroll
    for (int g = 0; g < 3; ++g) {
      float v[32];
#pragma unroll
      for (int i = 0; i < 32; ++i) v[i] = SsdEntry(m, qx, qz, g * 32 + i);
      lane_sums[g] += ReduceScatter(v);
    }
  }
  for (int g = 0; g < 3; ++g) warp_sums[warp][g * 32 + lane] = lane_sums[g];
  if (!ReduceBlocks(args, warp_sums, total)) return;
  __shared__ NormalEquations sums;
  ExpandSsd(total, sums);
  finish(sums);
}

// ---------------------------------------------------------------------------------------------------------------- NGF
// A block takes tiles of 32 x 6 voxels and marches along z (3-D). The warped moving image, its derivative and the fixed
// image are kept for three planes, with a rim of one voxel, in shared memory.

inline constexpr int kTileX = 32, kTileY = 6;
inline constexpr int kNgfThreads = kTileX * kTileY, kNgfWarps = kTileY;
inline constexpr int kRimX = kTileX + 2, kRimPoints = kRimX * (kTileY + 2);

struct NgfPlane {
  float4 warped[kRimPoints];  // value (NaN: no source) and its derivative by the moving index
  float fixed[kRimPoints];
};

template <bool kMasked>
__device__ inline void LoadNgfPlane(const ObjectiveArgs& args, const AffineMapF& map, int x0, int y0, int z,
                                    NgfPlane& plane) {
  for (int p = threadIdx.x; p < kRimPoints; p += kNgfThreads) {
    const int x = x0 - 1 + p % kRimX, y = y0 - 1 + p / kRimX;
    float4 warped = {__int_as_float(0x7fffffff), 0, 0, 0};
    float fixed = 0;
    if (x >= 0 && x < args.fixed_size.x && y >= 0 && y < args.fixed_size.y && z >= 0 && z < args.fixed_size.z) {
      fixed = args.fixed[(static_cast<size_t>(z) * args.fixed_size.y + y) * args.fixed_size.x + x];
      const Vec3f index = map({static_cast<float>(x), static_cast<float>(y), static_cast<float>(z)});
      if (IsInside(args.moving_size, index) &&
          (!kMasked || args.moving_mask == nullptr || args.moving_mask[NearestOffset(args.moving_size, index)] != 0)) {
        Vec3f g;
        warped.x = SampleLinearGradient(args.moving, args.moving_size, index, &g);
        warped.y = g.x;
        warped.z = g.y;
        warped.w = g.z;
      }
    }
    plane.warped[p] = warped;
    plane.fixed[p] = fixed;
  }
}

// Whether an index has both neighbours, on an axis of n voxels; one voxel needs none.
__device__ inline bool IsInterior(int i, int n) { return n == 1 ? i == 0 : i >= 1 && i < n - 1; }

template <int kDim>
struct NgfSums {
  static constexpr int kParameters = kDim * (kDim + 1);
  static constexpr int kHessian = kParameters * (kParameters + 1) / 2;
  static constexpr int kTotal = kHessian + kParameters + 3;
  float hessian[kHessian];
  float gradient[kParameters];
  float value;
  float weight;
  float samples;

  __device__ float entry(int i) const {
    return i < kHessian                 ? hessian[i]
           : i < kHessian + kParameters ? gradient[i - kHessian]
           : i == kTotal - 3            ? value
           : i == kTotal - 2            ? weight
           : i == kTotal - 1            ? samples
                                        : 0.0f;
  }
};

// What one sample needs of the six (four) neighbours: differences and sums of the moving derivative along each axis.
template <int kDim>
struct NgfStencil {
  float d[kDim][kDim];  // [axis][component]: derivative(+) - derivative(-)
  float s[kDim][kDim];  //                    derivative(+) + derivative(-)
};

// row = sum over axes of c_a * d g_a / dW, where g_a is the (undivided) difference along axis a.
template <int kDim>
__device__ inline void NgfRow(const NgfStencil<kDim>& stencil, const float (&c)[kDim], const float (&q)[kDim],
                              const float (&q_step)[kDim], float (&row)[kDim * (kDim + 1)]) {
#pragma unroll
  for (int r = 0; r < kDim; ++r) {
    float k = 0;
#pragma unroll
    for (int a = 0; a < kDim; ++a) k += c[a] * stencil.d[a][r];
#pragma unroll
    for (int a = 0; a < kDim; ++a) row[r * (kDim + 1) + a] = q[a] * k + c[a] * q_step[a] * stencil.s[a][r];
    row[r * (kDim + 1) + kDim] = k;
  }
}

// Two (one) vectors of length `length` that complete the unit vector n to an orthogonal basis (Duff et al. 2017).
__device__ inline void Complement(const float (&n)[3], float length, float (&e)[2][3]) {
  const float sign = copysignf(1.0f, n[2]), a = -1.0f / (sign + n[2]), b = n[0] * n[1] * a;
  e[0][0] = length * (1.0f + sign * n[0] * n[0] * a);
  e[0][1] = length * sign * b;
  e[0][2] = -length * sign * n[0];
  e[1][0] = length * b;
  e[1][1] = length * (sign + n[1] * n[1] * a);
  e[1][2] = -length * n[1];
}
__device__ inline void Complement(const float (&n)[2], float length, float (&e)[1][2]) {
  e[0][0] = -length * n[1];
  e[0][1] = length * n[0];
}

__device__ inline float CrossSquared(const float (&a)[3], const float (&b)[3]) {
  const float x = a[1] * b[2] - a[2] * b[1], y = a[2] * b[0] - a[0] * b[2], z = a[0] * b[1] - a[1] * b[0];
  return x * x + y * y + z * z;
}
__device__ inline float CrossSquared(const float (&a)[2], const float (&b)[2]) {
  const float z = a[0] * b[1] - a[1] * b[0];
  return z * z;
}

template <int kDim>
__device__ inline void AddNgfSample(const ObjectiveArgs& args, const NgfPlane* below, const NgfPlane* plane,
                                    const NgfPlane* above, int p, const float (&q)[kDim], NgfSums<kDim>& sums) {
  // Along an axis of one voxel the neighbours are the voxel itself, and half_inverse_spacing is 0.
  const int dx = args.fixed_size.x > 1 ? 1 : 0, dy = args.fixed_size.y > 1 ? kRimX : 0;
  const float4 plus[3] = {plane->warped[p + dx], plane->warped[p + dy],
                          kDim == 3 ? above->warped[p] : make_float4(0, 0, 0, 0)};
  const float4 minus[3] = {plane->warped[p - dx], plane->warped[p - dy],
                           kDim == 3 ? below->warped[p] : make_float4(0, 0, 0, 0)};
  const float fixed_difference[3] = {plane->fixed[p + dx] - plane->fixed[p - dx],
                                     plane->fixed[p + dy] - plane->fixed[p - dy],
                                     kDim == 3 ? above->fixed[p] - below->fixed[p] : 0.0f};
  float g[kDim], f[kDim], all = plane->warped[p].x;
  float g2 = args.moving_eta2, f2 = args.fixed_eta2, f_norm2 = 0;
#pragma unroll
  for (int a = 0; a < kDim; ++a) {
    g[a] = (plus[a].x - minus[a].x) * args.half_inverse_spacing[a];
    f[a] = fixed_difference[a] * args.half_inverse_spacing[a];
    all += plus[a].x + minus[a].x;
    g2 += g[a] * g[a];
    f_norm2 += f[a] * f[a];
  }
  if (all != all) return;  // some point has no source
  f2 += f_norm2;
  sums.samples += 1.0f;
  const float g_inverse = rsqrtf(fmaxf(g2, 1e-30f)), f_inverse = rsqrtf(fmaxf(f2, 1e-30f));
  float u[kDim], v[kDim], uv = 0;
#pragma unroll
  for (int a = 0; a < kDim; ++a) {
    u[a] = g[a] * g_inverse;
    v[a] = f[a] * f_inverse;
    uv += u[a] * v[a];
  }
  if (!(f_norm2 > 0)) return;
  const float weight = f_norm2 * f_inverse * f_inverse;
  // |v|^2 - <u, v>^2 without its cancellation: |u x v|^2 + |v|^2 (1 - |u|^2).
  sums.value += weight * args.moving_eta2 * g_inverse * g_inverse + CrossSquared(u, v);
  sums.weight += weight;
  NgfStencil<kDim> stencil;
  float q_step[kDim];
#pragma unroll
  for (int a = 0; a < kDim; ++a) {
    const float dp[3] = {plus[a].y, plus[a].z, plus[a].w}, dm[3] = {minus[a].y, minus[a].z, minus[a].w};
#pragma unroll
    for (int r = 0; r < kDim; ++r) {
      stencil.d[a][r] = dp[r] - dm[r];
      stencil.s[a][r] = dp[r] + dm[r];
    }
    q_step[a] = args.inverse_radius[a];
  }
  float c[kDim], row[kDim * (kDim + 1)];
#pragma unroll
  for (int a = 0; a < kDim; ++a) {
    c[a] = -2.0f * uv * (v[a] - uv * u[a]) * g_inverse * args.half_inverse_spacing[a];
  }
  NgfRow<kDim>(stencil, c, q, q_step, row);
#pragma unroll
  for (int i = 0; i < kDim * (kDim + 1); ++i) sums.gradient[i] += row[i];
  float e[kDim - 1][kDim], n[kDim];
  const float f_norm_inverse = rsqrtf(f_norm2);
#pragma unroll
  for (int a = 0; a < kDim; ++a) n[a] = f[a] * f_norm_inverse;
  Complement(n, 1.41421356f * fabsf(uv), e);
#pragma unroll
  for (int k = 0; k < kDim - 1; ++k) {
    float ue = 0;
#pragma unroll
    for (int a = 0; a < kDim; ++a) ue += u[a] * e[k][a];
#pragma unroll
    for (int a = 0; a < kDim; ++a) c[a] = (e[k][a] - ue * u[a]) * g_inverse * args.half_inverse_spacing[a];
    NgfRow<kDim>(stencil, c, q, q_step, row);
    int entry = 0;
#pragma unroll
    for (int i = 0; i < kDim * (kDim + 1); ++i) {
#pragma unroll
      for (int j = i; j < kDim * (kDim + 1); ++j) sums.hessian[entry++] += row[i] * row[j];
    }
  }
}

template <int kDim>
__device__ inline void ExpandNgf(const double* total, NormalEquations& sums) {
  constexpr int kParameters = kDim * (kDim + 1), kHessian = kParameters * (kParameters + 1) / 2;
  for (int i = threadIdx.x; i < kAffineHessianEntries; i += blockDim.x) sums.hessian[i] = 0;
  if (threadIdx.x < kAffineParameters) sums.gradient[threadIdx.x] = 0;
  __syncthreads();
  const auto entry = [](int p) { return p / (kDim + 1) * 4 + (p % (kDim + 1) == kDim ? 3 : p % (kDim + 1)); };
  for (int i = threadIdx.x; i < kParameters * kParameters; i += blockDim.x) {
    const int p = i / kParameters, q = i % kParameters;
    if (p <= q) sums.hessian[HessianEntry(entry(p), entry(q))] = total[p * kParameters - p * (p - 1) / 2 + (q - p)];
  }
  if (threadIdx.x < kParameters) sums.gradient[entry(threadIdx.x)] = total[kHessian + threadIdx.x];
  if (threadIdx.x == 0) {
    sums.value = total[kHessian + kParameters];
    sums.weight = total[kHessian + kParameters + 1];
    sums.samples = total[kHessian + kParameters + 2];
  }
  __syncthreads();
}

template <int kDim, bool kMasked, typename Finish>
__global__ void __launch_bounds__(kNgfThreads, 2) NgfKernel(const ObjectiveArgs args, Finish finish) {
  if (finish.Done()) return;
  __shared__ AffineMapF map;
  __shared__ union {
    NgfPlane planes[kDim == 3 ? 3 : 1];
    struct {
      double warp_sums[kNgfWarps][kObjectiveSums];
      double total[kObjectiveSums];
    };
  } shared;
  LoadIndexMap(finish.Position(), args, map);
  const int tx = threadIdx.x % kTileX, ty = threadIdx.x / kTileX;
  const int p = (ty + 1) * kRimX + tx + 1;
  const int tiles_x = (args.fixed_size.x + kTileX - 1) / kTileX, tiles_y = (args.fixed_size.y + kTileY - 1) / kTileY;
  NgfSums<kDim> sums = {};
  const int end = min((static_cast<int>(blockIdx.x) + 1) * args.pieces_per_worker, args.pieces);
  for (int piece = blockIdx.x * args.pieces_per_worker; piece < end; ++piece) {
    const int x0 = piece % tiles_x * kTileX, y0 = piece / tiles_x % tiles_y * kTileY;
    const int z0 = piece / tiles_x / tiles_y * args.run, z1 = min(z0 + args.run, args.fixed_size.z);
    const int x = x0 + tx, y = y0 + ty;
    const bool interior = IsInterior(x, args.fixed_size.x) && IsInterior(y, args.fixed_size.y);
    __syncthreads();
    if constexpr (kDim == 3) {
      LoadNgfPlane<kMasked>(args, map, x0, y0, z0 - 1, shared.planes[(z0 + 2) % 3]);
      LoadNgfPlane<kMasked>(args, map, x0, y0, z0, shared.planes[z0 % 3]);
    }
    for (int z = z0; z < z1; ++z) {
      LoadNgfPlane<kMasked>(args, map, x0, y0, kDim == 3 ? z + 1 : z, shared.planes[kDim == 3 ? (z + 1) % 3 : 0]);
      __syncthreads();
      const bool counts =
          interior && (kDim == 2 || IsInterior(z, args.fixed_size.z)) &&
          (!kMasked || args.fixed_mask == nullptr ||
           args.fixed_mask[(static_cast<size_t>(z) * args.fixed_size.y + y) * args.fixed_size.x + x] != 0);
      if (counts) {
        float q[kDim];
        q[0] = (x - args.center.x) * args.inverse_radius.x;
        q[1] = (y - args.center.y) * args.inverse_radius.y;
        if constexpr (kDim == 3) q[2] = (z - args.center.z) * args.inverse_radius.z;
        const int dz = kDim == 3 && args.fixed_size.z > 1 ? 1 : 0;
        AddNgfSample<kDim>(args, &shared.planes[kDim == 3 ? (z + 3 - dz) % 3 : 0],
                           &shared.planes[kDim == 3 ? z % 3 : 0], &shared.planes[kDim == 3 ? (z + dz) % 3 : 0], p, q,
                           sums);
      }
      __syncthreads();
    }
  }
  __syncthreads();
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
#pragma unroll
  for (int g = 0; g < 3; ++g) {
    float v[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) v[i] = sums.entry(g * 32 + i);
    shared.warp_sums[warp][g * 32 + lane] = ReduceScatter(v);
  }
  if (!ReduceBlocks(args, shared.warp_sums, shared.total)) return;
  __shared__ NormalEquations equations;
  ExpandNgf<kDim>(shared.total, equations);
  finish(equations);
}

// ------------------------------------------------------------------------------------------------------------- launch

// Takes workspace from the arena (it stays taken: use an ArenaScope) and clears it.
inline absl::Status SetUpObjective(const ExecContext& ctx, const AffineObjective& objective, ObjectiveArgs* args) {
  const Geometry& fixed = objective.fixed.geometry;
  args->fixed = objective.fixed.data;
  args->moving = objective.moving.data;
  args->fixed_mask = objective.fixed_mask.data;
  args->moving_mask = objective.moving_mask.data;
  args->fixed_size = fixed.size;
  args->moving_size = objective.moving.geometry.size;
  for (int a = 0; a < 3; ++a) {
    args->center[a] = 0.5f * (fixed.size[a] - 1);
    args->inverse_radius[a] = 2.0f / std::max(fixed.size[a] - 1, 1);
    args->half_inverse_spacing[a] = fixed.size[a] > 1 ? static_cast<float>(0.5 / fixed.spacing[a]) : 0.0f;
  }
  args->intensity_scale = static_cast<float>(objective.intensity_scale);
  args->fixed_eta2 = static_cast<float>(objective.fixed_edge * objective.fixed_edge);
  args->moving_eta2 = static_cast<float>(objective.moving_edge * objective.moving_edge);
  INTRAWARP_ASSIGN_OR_RETURN(args->block_sums, ctx.arena().Allocate<double>(kObjectiveSums * kMaxObjectiveBlocks));
  INTRAWARP_ASSIGN_OR_RETURN(args->group_sums, ctx.arena().Allocate<double>(kObjectiveSums * kMaxObjectiveGroups));
  INTRAWARP_ASSIGN_OR_RETURN(args->tickets, ctx.arena().Allocate<unsigned>(kMaxObjectiveGroups + 1));
  return ctx.device().Fill(args->tickets, 0, sizeof(unsigned) * (kMaxObjectiveGroups + 1), ctx.stream());
}

inline int CeilDivide(int64_t a, int64_t b) { return static_cast<int>((a + b - 1) / b); }

// Enqueues one evaluation. Finish, on the device: Done() skips the launch, Position() is W, and operator()(sums) is
// called by every thread of the last block, with the sums in shared memory.
template <typename Finish>
absl::Status LaunchAffineObjective(const ExecContext& ctx, const AffineObjective& objective, ObjectiveArgs args,
                                   const Finish& finish) {
  const Int3 n = args.fixed_size;
  const int64_t voxels = int64_t{n.x} * n.y * n.z;
  const bool masked = args.fixed_mask != nullptr || args.moving_mask != nullptr;
  const cudaStream_t stream = CudaStream(ctx);
  if (objective.metric == MetricKind::kSsd) {
    args.run = voxels >= (1 << 21) ? 32 : voxels >= (1 << 18) ? 16 : 8;
    args.pieces = CeilDivide(n.x, 32) * CeilDivide(n.y, args.run) * n.z;
    args.pieces_per_worker = CeilDivide(args.pieces, 528 * kSsdWarps);
    const int blocks = CeilDivide(args.pieces, int64_t{args.pieces_per_worker} * kSsdWarps);
    if (masked) {
      SsdKernel<true><<<blocks, kSsdThreads, 0, stream>>>(args, finish);
    } else {
      SsdKernel<false><<<blocks, kSsdThreads, 0, stream>>>(args, finish);
    }
  } else {
    const bool is_3d = n.z > 1 || args.moving_size.z > 1;
    const int tiles = CeilDivide(n.x, kTileX) * CeilDivide(n.y, kTileY);
    args.run = 1;
    if (is_3d) {
      args.run = 32;
      while (args.run > 4 && tiles * CeilDivide(n.z, args.run) < 264) args.run /= 2;
    }
    args.pieces = tiles * CeilDivide(n.z, args.run);
    args.pieces_per_worker = CeilDivide(args.pieces, is_3d ? kMaxObjectiveBlocks : 1056);
    const int blocks = CeilDivide(args.pieces, args.pieces_per_worker);
    if (is_3d && masked) {
      NgfKernel<3, true><<<blocks, kNgfThreads, 0, stream>>>(args, finish);
    } else if (is_3d) {
      NgfKernel<3, false><<<blocks, kNgfThreads, 0, stream>>>(args, finish);
    } else if (masked) {
      NgfKernel<2, true><<<blocks, kNgfThreads, 0, stream>>>(args, finish);
    } else {
      NgfKernel<2, false><<<blocks, kNgfThreads, 0, stream>>>(args, finish);
    }
  }
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace intrawarp::cuda

#endif  // INTRAWARP_ENGINE_METRIC_AFFINE_OBJECTIVE_CUH_
