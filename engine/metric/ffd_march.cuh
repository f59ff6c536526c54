// SPDX-License-Identifier: Apache-2.0
// The march of the FFD objective's passes (ffd_objective.h) over the fixed image on CUDA: the displacement from the
// control points, the sample of the moving image, and the way of forces back to the control points.
//
// A block owns a tile of 32 x kTileY columns of fixed voxels, one thread a column, and marches along z over a piece of
// at most kMaxRun voxels. u is contracted separably (x once per row of control points, y once per plane of them, both
// through shared memory; z per voxel in registers), in moving voxels: control points are taken through the linear part
// of the map into the moving index as they come in. A voxel's force (metric derivative times the moving image's) goes
// the same way back: into four accumulators, one a plane of control points, and, when a plane is left, by the
// transposed contractions of y and x into one partial sum a control point of the tile. A partial sum has a place of its
// own in scratch memory; GatherKernel adds those of each control point in a fixed order.
//
// Positions are kept relative to an integer origin near the piece, so that float32 resolves them to about 1e-5 voxels
// anywhere in an image, and exactly where a map takes voxels to voxels.
//
// The cut of an image depends on its size alone.
#ifndef INTRAWARP_ENGINE_METRIC_FFD_MARCH_CUH_
#define INTRAWARP_ENGINE_METRIC_FFD_MARCH_CUH_

#include <cuda_pipeline.h>

#include <cstdint>

#include "engine/feature/descriptor.h"
#include "engine/image/sample.h"
#include "engine/image/volume.h"
#include "engine/metric/ffd_objective.h"
#include "engine/metric/nmi.h"
#include "engine/metric/soft_mask.h"

namespace intrawarp::cuda {

inline constexpr int kFfdTileX = 32;
inline constexpr int kMaxRun = 64;
// Planes of control points that a voxel sees.
inline constexpr int kPlanes = 4;
// Rows of 32 floats in shared memory that are read four at a time.
inline constexpr int kVectorPitch = 36;

// The cut of the fixed image for one kernel.
struct FfdTiles {
  int tiles_x = 0, tiles_y = 0, runs = 0;
  int run = 0;
  // The most control points of a tile along x and y, always with four taps, and planes of control points of a run.
  int columns = 0, rows = 0, planes = 0;
  __host__ __device__ int pieces() const { return tiles_x * tiles_y * runs; }
  // Partial sums of one plane of one tile.
  __host__ __device__ int patch() const { return 3 * rows * columns; }
};

struct FfdArgs {
  const int* skip;
  const float* grid;
  const float* fixed;
  const float* moving;
  // MIND.
  const Descriptor* fixed_descriptors;
  const Descriptor* moving_descriptors;
  const uint8_t* fixed_mask;
  const uint8_t* moving_mask;
  // ConstMaskView::weight_per_unit.
  float fixed_weight, moving_weight;
  Int3 size, moving_size, nodes;
  FfdTiles tiles;
  // Per axis and voxel: the first control point, and its weights.
  const int* base[3];
  const float4* weights[3];
  AffineMap to_moving;
  AffineMapF linear;
  // Partial sums of the gradient: [run][plane][tile y][tile x][component][row][column].
  float* partials;
  // SSD and MIND: kSampleSums a block, and all samples' weight.
  double* block_sums;
  unsigned* ticket;
  double scale;
  double* total_weight;
  MetricValue* value;
  // NMI.
  const uint8_t* fixed_bins;
  NmiScale moving_bins;
  const float* nmi_derivative;
  unsigned long long* histogram;
  unsigned* next_piece;
  // With soft masks: the number of samples, which is 0 between evaluations.
  unsigned long long* samples;
  // LNCC and NGF; and the warped voxels' weights, of soft masks.
  float* warped;
  float* warped_weights;
  const float* voxel_gradient;
};

// The parts of a block's shared memory, in floats. What a piece begins with (the control points of four planes, and
// what their contraction along x gives) and ends with (the accumulators of four planes, and what their contraction
// along y gives) overlap; in between one plane of each is in use.
template <int kTileY, bool kGradient>
struct FfdShared {
  int raw_size, expanded_size, stage_size, reduced_size;
  int x_weights, y_weights, z_weights, z_base, area, total;

  __host__ __device__ explicit FfdShared(const FfdTiles& t) {
    raw_size = (t.patch() + 3) / 4 * 4;
    expanded_size = 3 * t.rows * kFfdTileX;
    stage_size = 3 * kTileY * kFfdTileX;
    reduced_size = 3 * t.rows * kVectorPitch;
    x_weights = 0;
    y_weights = x_weights + (kGradient ? t.columns * kVectorPitch : 0);
    z_weights = y_weights + (kGradient ? t.rows * kTileY : 0);
    z_base = z_weights + 4 * kMaxRun;
    area = z_base + kMaxRun;
    const int begin = kPlanes * (raw_size + expanded_size);
    const int end = kGradient ? kPlanes * (stage_size + reduced_size) : 0;
    const int middle = raw_size + expanded_size + (kGradient ? stage_size + reduced_size : 0);
    const int most = begin > end ? begin : end;
    total = area + (most > middle ? most : middle);
  }
};

// ---- Sampling ----

// Adding it rounds a float of magnitude below 2^22 to an integer, which the low bits of the sum hold.
inline constexpr float kRounder = 12582912.0f;
inline constexpr unsigned kRounderBits = 0x4b400000u;

// The moving image as a block sees it: positions are relative to `origin`.
struct MovingFrame {
  int origin[3];
};

struct MovingSample {
  float value = 0;
  // By the moving index.
  Vec3f gradient;
  // In a soft moving mask.
  float weight = 1;
};

// Whether a voxel counts in the mask. kWeighted: writes its weight.
template <Masking kMasking>
__device__ inline bool IsInMask(const uint8_t* byte, float weight_per_unit, float* weight) {
  const uint8_t b = __ldg(byte);
  if (kMasking == Masking::kWeighted) *weight = MaskWeight(b, weight_per_unit);
  return b != 0;
}

// The weight of a voxel of the fixed image that counts.
__device__ inline float FixedWeight(const FfdArgs& a, size_t offset) {
  return a.fixed_mask == nullptr ? 1.0f : MaskWeight(__ldg(a.fixed_mask + offset), a.fixed_weight);
}

// One axis of a position that is not well inside. False outside the domain.
__device__ inline bool EdgeAxis(float r, int origin, int n, int* lower, int* upper, int* nearest, float* weight,
                                bool* interior) {
  const float o = static_cast<float>(origin);
  if (!(r >= -0.5f - o && r <= static_cast<float>(n) - 0.5f - o)) return false;
  const float clamped = fminf(fmaxf(r, -o), static_cast<float>(n - 1) - o);
  const float floored = fminf(floorf(clamped), static_cast<float>(n > 1 ? n - 2 : 0) - o);
  *lower = static_cast<int>(floored) + origin;
  *upper = n > 1 ? *lower + 1 : *lower;
  *weight = clamped - floored;
  *nearest = *weight >= 0.5f ? *upper : *lower;
  *interior = clamped == r && n > 1;
  return true;
}

// SampleLinearGradient (engine/image/sample.h) for any position; false where it is not a sample.
template <Masking kMasking>
__device__ inline bool SampleEdge(const FfdArgs& a, const MovingFrame& frame, Vec3f r, MovingSample* sample) {
  int lower[3], upper[3], nearest[3];
  float w[3];
  bool interior[3];
  const Int3 n = a.moving_size;
  if (!EdgeAxis(r.x, frame.origin[0], n.x, &lower[0], &upper[0], &nearest[0], &w[0], &interior[0])) return false;
  if (!EdgeAxis(r.y, frame.origin[1], n.y, &lower[1], &upper[1], &nearest[1], &w[1], &interior[1])) return false;
  if (!EdgeAxis(r.z, frame.origin[2], n.z, &lower[2], &upper[2], &nearest[2], &w[2], &interior[2])) return false;
  const size_t row = n.x, plane = row * n.y;
  if (kMasking != Masking::kNone && a.moving_mask != nullptr &&
      !IsInMask<kMasking>(a.moving_mask + nearest[2] * plane + nearest[1] * row + nearest[0], a.moving_weight,
                          &sample->weight)) {
    return false;
  }
  float c[2], dx[2], dy[2];
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const float* p = a.moving + (k == 0 ? lower[2] : upper[2]) * plane;
    const float* p0 = p + lower[1] * row;
    const float* p1 = p + upper[1] * row;
    const float v00 = __ldg(p0 + lower[0]), v01 = __ldg(p0 + upper[0]), v10 = __ldg(p1 + lower[0]),
                v11 = __ldg(p1 + upper[0]);
    const float d0 = v01 - v00, d1 = v11 - v10;
    const float c0 = fmaf(w[0], d0, v00), c1 = fmaf(w[0], d1, v10);
    dx[k] = fmaf(w[1], d1 - d0, d0);
    dy[k] = c1 - c0;
    c[k] = fmaf(w[1], dy[k], c0);
  }
  sample->value = fmaf(w[2], c[1] - c[0], c[0]);
  sample->gradient.x = interior[0] ? fmaf(w[2], dx[1] - dx[0], dx[0]) : 0.0f;
  sample->gradient.y = interior[1] ? fmaf(w[2], dy[1] - dy[0], dy[0]) : 0.0f;
  sample->gradient.z = interior[2] ? c[1] - c[0] : 0.0f;
  return true;
}

template <Masking kMasking>
__device__ inline bool SampleMoving(const FfdArgs& a, const MovingFrame& frame, Vec3f r, MovingSample* sample) {
  const float fx = __fadd_rd(r.x, kRounder), fy = __fadd_rd(r.y, kRounder), fz = __fadd_rd(r.z, kRounder);
  // Positions far away, and NaN, come out as large numbers.
  const unsigned ix = __float_as_uint(fx) + (frame.origin[0] - kRounderBits),
                 iy = __float_as_uint(fy) + (frame.origin[1] - kRounderBits),
                 iz = __float_as_uint(fz) + (frame.origin[2] - kRounderBits);
  const unsigned nx = a.moving_size.x, ny = a.moving_size.y, nz = a.moving_size.z;
  if (!(ix < nx - 1 && iy < ny - 1 && iz < nz - 1)) return SampleEdge<kMasking>(a, frame, r, sample);
  const float wx = r.x - (fx - kRounder), wy = r.y - (fy - kRounder), wz = r.z - (fz - kRounder);
  if (kMasking != Masking::kNone && a.moving_mask != nullptr) {
    const unsigned mx = ix + (wx >= 0.5f), my = iy + (wy >= 0.5f), mz = iz + (wz >= 0.5f);
    if (!IsInMask<kMasking>(a.moving_mask + (mz * ny + my) * nx + mx, a.moving_weight, &sample->weight)) return false;
  }
  const unsigned offset = (iz * ny + iy) * nx + ix;
  const float* const row1 = a.moving + nx;
  const float* const plane1 = a.moving + static_cast<size_t>(nx) * ny;
  const float* const plane1_row1 = plane1 + nx;
  // The march goes along z: its next voxel, more often than not, needs the plane after these two.
  if (iz + 2 < nz) {
    asm volatile("prefetch.global.L1 [%0];" ::"l"(plane1 + (static_cast<size_t>(nx) * ny + offset)));
  }
  const float v000 = __ldg(a.moving + offset), v001 = __ldg(a.moving + offset + 1);
  const float v010 = __ldg(row1 + offset), v011 = __ldg(row1 + offset + 1);
  const float v100 = __ldg(plane1 + offset), v101 = __ldg(plane1 + offset + 1);
  const float v110 = __ldg(plane1_row1 + offset), v111 = __ldg(plane1_row1 + offset + 1);
  const float d00 = v001 - v000, d01 = v011 - v010, d10 = v101 - v100, d11 = v111 - v110;
  const float c00 = fmaf(wx, d00, v000), c01 = fmaf(wx, d01, v010), c10 = fmaf(wx, d10, v100),
              c11 = fmaf(wx, d11, v110);
  const float dx0 = fmaf(wy, d01 - d00, d00), dx1 = fmaf(wy, d11 - d10, d10);
  const float dy0 = c01 - c00, dy1 = c11 - c10;
  const float c0 = fmaf(wy, dy0, c00), c1 = fmaf(wy, dy1, c10);
  sample->value = fmaf(wz, c1 - c0, c0);
  sample->gradient = {fmaf(wz, dx1 - dx0, dx0), fmaf(wz, dy1 - dy0, dy0), c1 - c0};
  return true;
}

// ---- The march ----

// A thread's place in its piece, and the contractions through shared memory. All threads of a block make the same
// calls.
template <int kTileY, bool kGradient>
class PieceMarch {
 public:
  static constexpr int kThreads = kFfdTileX * kTileY, kWarps = kTileY;

  __device__ PieceMarch(const FfdArgs& args, float* shared) : a(args), layout(args.tiles), shared_(shared) {
    const FfdTiles& t = a.tiles;
    item_row_ = threadIdx.x / t.columns;
    item_column_ = threadIdx.x - item_row_ * t.columns;
    step_row_ = kThreads / t.columns;
    step_column_ = kThreads - step_row_ * t.columns;
  }

  // Fills the tables and the first four planes.
  __device__ void Begin(int piece) {
    const FfdTiles& t = a.tiles;
    const int tile_x = piece % t.tiles_x, rest = piece / t.tiles_x;
    const int tile_y = rest % t.tiles_y, run = rest / t.tiles_y;
    x = tile_x * kFfdTileX + lane();
    y = tile_y * kTileY + warp();
    z0 = run * t.run;
    count = min(t.run, a.size.z - z0);
    valid = x < a.size.x && y < a.size.y;
    const int cx = min(x, a.size.x - 1), cy = min(y, a.size.y - 1);
    first_x_ = __ldg(a.base[0] + tile_x * kFfdTileX);
    first_y_ = __ldg(a.base[1] + tile_y * kTileY);
    base_z = __ldg(a.base[2] + z0);
    last_z_ = __ldg(a.base[2] + z0 + count - 1);
    if constexpr (kGradient) {
      partials_ =
          a.partials + ((static_cast<size_t>(run) * t.planes * t.tiles_y + tile_y) * t.tiles_x + tile_x) * t.patch();
    }
    x_weights_ = __ldg(a.weights[0] + cx);
    y_weights_ = __ldg(a.weights[1] + cy);
    column_ = __ldg(a.base[0] + cx) - first_x_;
    row_ = __ldg(a.base[1] + cy) - first_y_;
    __syncthreads();  // the piece before is done with shared memory
    float* const raw = shared_ + layout.area;
    float* const expanded = raw + kPlanes * layout.raw_size;
    for (int k = 0; k < kPlanes; ++k) FetchPlane(base_z + k, raw + k * layout.raw_size);
    FillTables();
    SetFrame(tile_x, tile_y);
    __pipeline_wait_prior(0);
    __syncthreads();
    for (int k = 0; k < kPlanes; ++k) ContractX(raw + k * layout.raw_size, expanded + k * layout.expanded_size);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kPlanes; ++k) {
      ContractY(expanded + k * layout.expanded_size, plane_[k]);
      force_[k][0] = force_[k][1] = force_[k][2] = 0;
    }
    __syncthreads();
    FetchNext();
  }

  // On to the next plane of control points.
  __device__ void Advance() {
    float* const raw = shared_ + layout.area;
    float* const expanded = raw + layout.raw_size;
    float* const stage = expanded + layout.expanded_size;
    float* const reduced = stage + layout.stage_size;
    if constexpr (kGradient) StageForce(0, stage);
    __pipeline_wait_prior(0);
    __syncthreads();
    if constexpr (kGradient) TransposeY(stage, reduced);
    ContractX(raw, expanded);
    __syncthreads();
    if constexpr (kGradient) TransposeX(reduced);
    ++base_z;
    FetchNext();
#pragma unroll
    for (int c = 0; c < 3; ++c) {
#pragma unroll
      for (int k = 0; k + 1 < kPlanes; ++k) {
        plane_[k][c] = plane_[k + 1][c];
        force_[k][c] = force_[k + 1][c];
      }
      force_[kPlanes - 1][c] = 0;
    }
    ContractY(expanded, plane_[kPlanes - 1]);
  }

  // Stores the partial sums of the planes that the last voxel sees.
  __device__ void End() {
    if (!kGradient) return;
    float* const stage = shared_ + layout.area;
    float* const reduced = stage + kPlanes * layout.stage_size;
    const int planes = min(kPlanes, a.nodes.z - base_z);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kPlanes; ++k) StageForce(k, stage + k * layout.stage_size);
    __syncthreads();
    for (int k = 0; k < planes; ++k) TransposeY(stage + k * layout.stage_size, reduced + k * layout.reduced_size);
    __syncthreads();
    for (int k = 0; k < planes; ++k) TransposeX(reduced + k * layout.reduced_size);
  }

  // The first plane of control points of the piece's voxel i < count, and their weights.
  __device__ int VoxelBase(int i) const { return reinterpret_cast<const int*>(shared_ + layout.z_base)[i]; }
  __device__ float4 VoxelWeights(int i) const { return reinterpret_cast<const float4*>(shared_ + layout.z_weights)[i]; }

  // Moving index of voxel i, relative to the frame's origin; base_z is the voxel's.
  __device__ Vec3f Position(int i, float4 w) const {
    const float z = static_cast<float>(i);
    float r[3];
#pragma unroll
    for (int c = 0; c < 3; ++c) {
      r[c] = fmaf(z, step_[c], start_[c]);
      r[c] = fmaf(w.x, plane_[0][c], r[c]);
      r[c] = fmaf(w.y, plane_[1][c], r[c]);
      r[c] = fmaf(w.z, plane_[2][c], r[c]);
      r[c] = fmaf(w.w, plane_[3][c], r[c]);
    }
    return {r[0], r[1], r[2]};
  }

  __device__ void AddForce(float4 w, Vec3f f) {
    const float weights[4] = {w.x, w.y, w.z, w.w}, parts[3] = {f.x, f.y, f.z};
#pragma unroll
    for (int k = 0; k < kPlanes; ++k) {
#pragma unroll
      for (int c = 0; c < 3; ++c) force_[k][c] = fmaf(weights[k], parts[c], force_[k][c]);
    }
  }

  __device__ static int lane() { return threadIdx.x & 31; }
  __device__ static int warp() { return threadIdx.x / 32; }

  const FfdArgs& a;
  const FfdShared<kTileY, kGradient> layout;
  // The thread's column of voxels z0 + i, i < count. Threads beyond the image are not valid.
  int x, y, z0, count;
  bool valid;
  // The plane of control points that plane_[0] and force_[0] belong to.
  int base_z;
  MovingFrame frame;

 private:
  __device__ void FillTables() {
    for (int i = threadIdx.x; i < count; i += kThreads) {
      reinterpret_cast<int*>(shared_ + layout.z_base)[i] = __ldg(a.base[2] + z0 + i);
      reinterpret_cast<float4*>(shared_ + layout.z_weights)[i] = __ldg(a.weights[2] + z0 + i);
    }
    if constexpr (kGradient) FillTransposedTables();
  }

  // Weights by control point and voxel, 0 where they do not meet.
  __device__ void FillTransposedTables() {
    const FfdTiles& t = a.tiles;
    for (int i = threadIdx.x; i < t.columns * kVectorPitch; i += kThreads) shared_[layout.x_weights + i] = 0;
    for (int i = threadIdx.x; i < t.rows * kTileY; i += kThreads) shared_[layout.y_weights + i] = 0;
    __syncthreads();
    const float wx[4] = {x_weights_.x, x_weights_.y, x_weights_.z, x_weights_.w};
    const float wy[4] = {y_weights_.x, y_weights_.y, y_weights_.z, y_weights_.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (warp() == 0 && x < a.size.x) shared_[layout.x_weights + (column_ + k) * kVectorPitch + lane()] = wx[k];
      if (lane() == 0 && y < a.size.y) shared_[layout.y_weights + (row_ + k) * kTileY + warp()] = wy[k];
    }
  }

  // Positions are evaluated in float64 once a column.
  __device__ void SetFrame(int tile_x, int tile_y) {
    const Vec3d corner = a.to_moving(
        {static_cast<double>(tile_x * kFfdTileX), static_cast<double>(tile_y * kTileY), static_cast<double>(z0)});
    const Vec3d start = a.to_moving({static_cast<double>(x), static_cast<double>(y), static_cast<double>(z0)});
#pragma unroll
    for (int c = 0; c < 3; ++c) {
      frame.origin[c] = static_cast<int>(floor(fmin(fmax(corner[c], -1e6), 1e6)));
      start_[c] = static_cast<float>(start[c] - frame.origin[c]);
      step_[c] = static_cast<float>(a.to_moving.m[c][2]);
    }
  }

  // The tile's control points of one plane into shared memory, without waiting; 0 beyond the grid.
  __device__ void FetchPlane(int z, float* raw) const {
    const FfdTiles& t = a.tiles;
    const Int3 n = a.nodes;
    int row = item_row_, column = item_column_;
    for (int i = threadIdx.x; i < t.rows * t.columns; i += kThreads) {
      const int nx = first_x_ + column, ny = first_y_ + row;
      if (nx < n.x && ny < n.y && z < n.z) {
        const float* const node = a.grid + 3 * ((static_cast<size_t>(z) * n.y + ny) * n.x + nx);
#pragma unroll
        for (int c = 0; c < 3; ++c) __pipeline_memcpy_async(raw + 3 * i + c, node + c, sizeof(float));
      } else {
        raw[3 * i] = raw[3 * i + 1] = raw[3 * i + 2] = 0;
      }
      NextItem(&row, &column);
    }
    __pipeline_commit();
  }
  __device__ void FetchNext() const {
    if (base_z < last_z_) FetchPlane(base_z + kPlanes, shared_ + layout.area);
  }

  // u in moving voxels at the tile's columns, for each row of control points: [component][row][x].
  __device__ void ContractX(const float* raw, float* expanded) const {
    const FfdTiles& t = a.tiles;
    for (int row = warp(); row < t.rows; row += kWarps) {
      const float* const node = raw + 3 * (row * t.columns + column_);
      Vec3f u;
      u.x = x_weights_.x * node[0] + x_weights_.y * node[3] + x_weights_.z * node[6] + x_weights_.w * node[9];
      u.y = x_weights_.x * node[1] + x_weights_.y * node[4] + x_weights_.z * node[7] + x_weights_.w * node[10];
      u.z = x_weights_.x * node[2] + x_weights_.y * node[5] + x_weights_.z * node[8] + x_weights_.w * node[11];
      u = a.linear.Linear(u);
      float* const out = expanded + row * kFfdTileX + lane();
      out[0] = u.x;
      out[t.rows * kFfdTileX] = u.y;
      out[2 * t.rows * kFfdTileX] = u.z;
    }
  }

  __device__ void ContractY(const float* expanded, float (&u)[3]) const {
    const float* p = expanded + row_ * kFfdTileX + lane();
#pragma unroll
    for (int c = 0; c < 3; ++c, p += a.tiles.rows * kFfdTileX) {
      u[c] = y_weights_.x * p[0] + y_weights_.y * p[kFfdTileX] + y_weights_.z * p[2 * kFfdTileX] +
             y_weights_.w * p[3 * kFfdTileX];
    }
  }

  __device__ void StageForce(int k, float* stage) const {
#pragma unroll
    for (int c = 0; c < 3; ++c) stage[(c * kTileY + warp()) * kFfdTileX + lane()] = force_[k][c];
  }

  // [component][y][x] to [component][row][x].
  __device__ void TransposeY(const float* stage, float* reduced) const {
    const int rows = a.tiles.rows;
    for (int row = warp(); row < rows; row += kWarps) {
      const float4* const weights = reinterpret_cast<const float4*>(shared_ + layout.y_weights + row * kTileY);
      float sum[3] = {0, 0, 0};
#pragma unroll
      for (int q = 0; q < kTileY / 4; ++q) {
        const float4 w = weights[q];
#pragma unroll
        for (int c = 0; c < 3; ++c) {
          const float* const p = stage + (c * kTileY + 4 * q) * kFfdTileX + lane();
          sum[c] += w.x * p[0] + w.y * p[kFfdTileX] + w.z * p[2 * kFfdTileX] + w.w * p[3 * kFfdTileX];
        }
      }
#pragma unroll
      for (int c = 0; c < 3; ++c) reduced[(c * rows + row) * kVectorPitch + lane()] = sum[c];
    }
  }

  // [component][row][x] to the partial sums of one plane, and on to the next plane's place.
  __device__ void TransposeX(const float* reduced) {
    const FfdTiles& t = a.tiles;
    int row = item_row_, column = item_column_;
    for (int i = threadIdx.x; i < t.patch(); i += kThreads) {
      const float4* const values = reinterpret_cast<const float4*>(reduced + row * kVectorPitch);
      const float4* const weights = reinterpret_cast<const float4*>(shared_ + layout.x_weights + column * kVectorPitch);
      float sum = 0;
#pragma unroll
      for (int q = 0; q < kFfdTileX / 4; ++q) {
        const float4 v = values[q], w = weights[q];
        sum += v.x * w.x + v.y * w.y + v.z * w.z + v.w * w.w;
      }
      partials_[i] = sum;
      NextItem(&row, &column);
    }
    partials_ += static_cast<size_t>(t.tiles_x) * t.tiles_y * t.patch();
  }

  // From item i of rows of columns to item i + kThreads.
  __device__ void NextItem(int* row, int* column) const {
    *row += step_row_;
    *column += step_column_;
    if (*column >= a.tiles.columns) {
      *column -= a.tiles.columns;
      ++*row;
    }
  }

  float* shared_;
  float* partials_;
  int last_z_;
  int first_x_, first_y_;
  // The place of the thread's column in the tile's control points.
  int column_, row_;
  float4 x_weights_, y_weights_;
  float start_[3], step_[3];
  // u (moving voxels) and the force's sums at the thread's x and y, at the planes base_z .. base_z + 3.
  float plane_[kPlanes][3];
  float force_[kPlanes][3];
  int item_row_, item_column_, step_row_, step_column_;
};

}  // namespace intrawarp::cuda

#endif  // INTRAWARP_ENGINE_METRIC_FFD_MARCH_CUH_
