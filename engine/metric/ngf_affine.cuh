// SPDX-License-Identifier: Apache-2.0
// The kernel of the affine objective's NGF (ngf.h, affine_objective.h) on CUDA.
//
// A block takes tiles of 32 x 6 voxels and marches along z (3-D). The warped moving image, its derivative and the fixed
// image are kept for three planes, with a rim of one voxel, in shared memory.
#ifndef INTRAWARP_ENGINE_METRIC_NGF_AFFINE_CUH_
#define INTRAWARP_ENGINE_METRIC_NGF_AFFINE_CUH_

#include "engine/image/sample.h"
#include "engine/metric/affine_reduce.cuh"
#include "engine/metric/ngf_kernels.h"
#include "engine/metric/soft_mask.h"

namespace intrawarp::cuda {

inline constexpr int kNgfTileX = 32, kNgfTileY = 6;
inline constexpr int kNgfThreads = kNgfTileX * kNgfTileY, kNgfWarps = kNgfTileY;
inline constexpr int kNgfRimX = kNgfTileX + 2, kNgfRimPoints = kNgfRimX * (kNgfTileY + 2);

struct NgfPlane {
  float4 warped[kNgfRimPoints];  // value (NaN: no source) and its derivative by the moving index
  float fixed[kNgfRimPoints];
};

template <bool kMasked>
__device__ inline void LoadNgfPlane(const ObjectiveArgs& args, const AffineMapF& map, int x0, int y0, int z,
                                    NgfPlane& plane) {
  for (int p = threadIdx.x; p < kNgfRimPoints; p += kNgfThreads) {
    const int x = x0 - 1 + p % kNgfRimX, y = y0 - 1 + p / kNgfRimX;
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

template <int kDim>
struct AffineNgfSums {
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

// A sample's six (four) neighbours: differences and sums of the moving derivative along each axis.
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

// The weight of a voxel that counts.
__device__ inline float NgfMaskWeight(const ObjectiveArgs& args, const AffineMapF& map, int x, int y, int z) {
  float weight = 1;
  if (args.fixed_mask != nullptr) {
    const size_t offset = (static_cast<size_t>(z) * args.fixed_size.y + y) * args.fixed_size.x + x;
    weight = MaskWeight(args.fixed_mask[offset], args.fixed_weight_per_unit);
  }
  const Vec3f index = map({static_cast<float>(x), static_cast<float>(y), static_cast<float>(z)});
  if (args.moving_mask == nullptr || !IsInside(args.moving_size, index)) return weight;
  return weight * MaskWeight(args.moving_mask[NearestOffset(args.moving_size, index)], args.moving_weight_per_unit);
}

// kWeighted: the voxel has the weight `of_masks`, otherwise 1.
template <int kDim, bool kWeighted>
__device__ inline void AddNgfSample(const ObjectiveArgs& args, const NgfPlane* below, const NgfPlane* plane,
                                    const NgfPlane* above, int p, const float (&q)[kDim], float of_masks,
                                    AffineNgfSums<kDim>& sums) {
  // Along an axis of one voxel the neighbours are the voxel itself, and half_inverse_spacing is 0.
  const int dx = args.fixed_size.x > 1 ? 1 : 0, dy = args.fixed_size.y > 1 ? kNgfRimX : 0;
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
  const float value = weight * args.moving_eta2 * g_inverse * g_inverse + CrossSquared(u, v);
  sums.value += kWeighted ? of_masks * value : value;
  sums.weight += kWeighted ? of_masks * weight : weight;
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
  const float twice = kWeighted ? of_masks * (-2.0f * uv) : -2.0f * uv;
#pragma unroll
  for (int a = 0; a < kDim; ++a) {
    c[a] = twice * (v[a] - uv * u[a]) * g_inverse * args.half_inverse_spacing[a];
  }
  NgfRow<kDim>(stencil, c, q, q_step, row);
#pragma unroll
  for (int i = 0; i < kDim * (kDim + 1); ++i) sums.gradient[i] += row[i];
  float e[kDim - 1][kDim], n[kDim];
  const float f_norm_inverse = rsqrtf(f_norm2);
#pragma unroll
  for (int a = 0; a < kDim; ++a) n[a] = f[a] * f_norm_inverse;
  Complement(n, kWeighted ? sqrtf(of_masks) * (1.41421356f * fabsf(uv)) : 1.41421356f * fabsf(uv), e);
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

template <int kDim, Masking kMasking, typename Finish>
__global__ void __launch_bounds__(kNgfThreads, 2) AffineNgfKernel(const ObjectiveArgs args, Finish finish) {
  constexpr bool kMasked = kMasking != Masking::kNone, kWeighted = kMasking == Masking::kWeighted;
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
  const int tx = threadIdx.x % kNgfTileX, ty = threadIdx.x / kNgfTileX;
  const int p = (ty + 1) * kNgfRimX + tx + 1;
  const int tiles_x = (args.fixed_size.x + kNgfTileX - 1) / kNgfTileX,
            tiles_y = (args.fixed_size.y + kNgfTileY - 1) / kNgfTileY;
  AffineNgfSums<kDim> sums = {};
  const int end = min((static_cast<int>(blockIdx.x) + 1) * args.pieces_per_worker, args.pieces);
  for (int piece = blockIdx.x * args.pieces_per_worker; piece < end; ++piece) {
    const int x0 = piece % tiles_x * kNgfTileX, y0 = piece / tiles_x % tiles_y * kNgfTileY;
    const int z0 = piece / tiles_x / tiles_y * args.run, z1 = min(z0 + args.run, args.fixed_size.z);
    const int x = x0 + tx, y = y0 + ty;
    const bool interior = HasNeighbors(x, args.fixed_size.x) && HasNeighbors(y, args.fixed_size.y);
    __syncthreads();
    if constexpr (kDim == 3) {
      LoadNgfPlane<kMasked>(args, map, x0, y0, z0 - 1, shared.planes[(z0 + 2) % 3]);
      LoadNgfPlane<kMasked>(args, map, x0, y0, z0, shared.planes[z0 % 3]);
    }
    for (int z = z0; z < z1; ++z) {
      LoadNgfPlane<kMasked>(args, map, x0, y0, kDim == 3 ? z + 1 : z, shared.planes[kDim == 3 ? (z + 1) % 3 : 0]);
      __syncthreads();
      const bool counts =
          interior && (kDim == 2 || HasNeighbors(z, args.fixed_size.z)) &&
          (!kMasked || args.fixed_mask == nullptr ||
           args.fixed_mask[(static_cast<size_t>(z) * args.fixed_size.y + y) * args.fixed_size.x + x] != 0);
      if (counts) {
        float q[kDim];
        q[0] = (x - args.center.x) * args.inverse_radius.x;
        q[1] = (y - args.center.y) * args.inverse_radius.y;
        if constexpr (kDim == 3) q[2] = (z - args.center.z) * args.inverse_radius.z;
        const int dz = kDim == 3 && args.fixed_size.z > 1 ? 1 : 0;
        const float of_masks = kWeighted ? NgfMaskWeight(args, map, x, y, z) : 1.0f;
        AddNgfSample<kDim, kWeighted>(args, &shared.planes[kDim == 3 ? (z + 3 - dz) % 3 : 0],
                                      &shared.planes[kDim == 3 ? z % 3 : 0],
                                      &shared.planes[kDim == 3 ? (z + dz) % 3 : 0], p, q, of_masks, sums);
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

}  // namespace intrawarp::cuda

#endif  // INTRAWARP_ENGINE_METRIC_NGF_AFFINE_CUH_
