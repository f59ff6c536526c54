// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/device/reduce.cuh"
#include "engine/transform/grid_penalty_kernels.h"

namespace intrawarp::cuda {
namespace {

constexpr int Blocks(int n, int size) { return (n + size - 1) / size; }

// The arguments of all kernels.
struct Common {
  const float* grid;
  Int3 n;
  const int* skip;
  float* gradient;
};

// The jacobian penalty's results for the last kernel: by block and plane of control points, whether it is reached,
// and then the partial sums.
struct JacobianSums {
  Int3 blocks;
  float scale;
  // Null without this penalty.
  float* sums;
  unsigned char* reached;
};

// The work of the last kernel. All blocks of all kernels before it have a place in `partial`.
struct Ending {
  JacobianSums jacobian;
  const double* partial;
  int count;
  double* value;
};

__device__ bool Skips(const int* skip) { return skip != nullptr && *skip != 0; }
__device__ size_t Offset(Int3 n, int x, int y, int z) { return (static_cast<size_t>(z) * n.y + y) * n.x + x; }
__device__ Vec3f LoadPoint(const float* grid, size_t i) { return {grid[3 * i], grid[3 * i + 1], grid[3 * i + 2]}; }

// In one block of kReduceThreads.
__device__ void SumPartials(const Ending& ending, double* scratch) {
  double sum = 0;
  for (int i = threadIdx.x; i < ending.count; i += kReduceThreads) sum += ending.partial[i];
  sum = BlockSum(sum, scratch);
  if (threadIdx.x == 0) *ending.value = sum;
}

// --- Jacobian penalty: a block takes kTilesX x kTilesY x kTilesZ tiles, a thread one column of their samples (two a
// tile and axis). Points are contracted along x into shared memory, along y as a thread comes to a plane of them, and
// along z in registers. The derivatives of the cost go the same way back: into four planes in registers, and, when a
// plane is left, along x and y within the four threads of a tile, and then over the block's tiles, in an order of their
// own, into one partial sum a control point. Planes that no sample below the threshold reaches are marked and left out.
// ---

constexpr int kTilesX = 8, kTilesY = 4, kTilesZ = 4;
constexpr int kSamplesX = 2 * kTilesX, kSampleThreads = 2 * kTilesY * kSamplesX;
static_assert(kSamplesX == 16 && kSampleThreads == 128, "the lanes of a tile are those that differ in bits 0 and 4");
constexpr int kNodesX = kTilesX + 3, kNodesY = kTilesY + 3, kNodesZ = kTilesZ + 3;
// Partial sums of one plane.
constexpr int kPlaneSums = 3 * kNodesY * kNodesX;
// Strides of the parts of a tile's sums, which keep the lanes that write together in different banks.
constexpr int kStageX = kTilesX * kTilesY + 4, kStageY = 4 * kStageX + 8, kStageSize = 3 * 4 * kStageY;

struct JacobianArgs {
  Common common;
  float scale;
  JacobianFrame frame;
  double* partial;
  JacobianSums sums;
};

// Derivatives by x, by y, and of the last by z; one vector each.
struct Planewise {
  Vec3f by[3];
};

struct JacobianShared {
  // Sums of value and slope: [kind][component].
  float along_x[2][3][kNodesZ][kNodesY][kSamplesX];
  float stage[kStageSize];
  // [axis][value, slope][sample][point]
  float weights[3][2][2][4];
  double scratch[kSampleThreads / 32];
};

// Contracts the points of the block's box along x.
__device__ void ContractX(const JacobianArgs& args, Int3 base, JacobianShared& shared) {
  const Int3 n = args.common.n;
  const JacobianFrame& f = args.frame;
  const int tile = threadIdx.x % kTilesX;
#pragma unroll 2
  for (int row = threadIdx.x / kTilesX; row < kNodesY * kNodesZ; row += kSampleThreads / kTilesX) {
    const int y = row % kNodesY, z = row / kNodesY;
    Vec3f p[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      p[i] = {0, 0, 0};
      if (base.x + tile + i >= n.x || base.y + y >= n.y || base.z + z >= n.z) continue;
      p[i] = LoadPoint(args.common.grid, Offset(n, base.x + tile + i, base.y + y, base.z + z));
    }
#pragma unroll
    for (int c = 0; c < 3; ++c) {
      float value[2], slope[2];
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        value[s] = slope[s] = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          value[s] += f.value[0][s][i] * p[i][c];
          slope[s] += f.slope[0][s][i] * p[i][c];
        }
      }
      reinterpret_cast<float2&>(shared.along_x[0][c][z][y][2 * tile]) = {value[0], value[1]};
      reinterpret_cast<float2&>(shared.along_x[1][c][z][y][2 * tile]) = {slope[0], slope[1]};
    }
  }
}

// The contribution of plane `z` of control points at the thread's column.
__device__ Planewise ContractY(const JacobianShared& shared, int z, int tile_y, int sample_x, const float (&value)[4],
                               const float (&slope)[4]) {
  Planewise u = {};
#pragma unroll
  for (int c = 0; c < 3; ++c) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float v = shared.along_x[0][c][z][tile_y + j][sample_x], s = shared.along_x[1][c][z][tile_y + j][sample_x];
      u.by[0][c] += value[j] * s;
      u.by[1][c] += slope[j] * v;
      u.by[2][c] += value[j] * v;
    }
  }
  return u;
}

__device__ Vec3f Exchange(Vec3f v, int lanes) {
  return {__shfl_xor_sync(0xffffffffu, v.x, lanes), __shfl_xor_sync(0xffffffffu, v.y, lanes),
          __shfl_xor_sync(0xffffffffu, v.z, lanes)};
}

// The weights of two of a tile's points at sample `s`.
__device__ float2 PairOfWeights(const JacobianShared& shared, int axis, int kind, int s, int pair) {
  return reinterpret_cast<const float2&>(shared.weights[axis][kind][s][2 * pair]);
}

// From the samples of a tile (four lanes) to its 4 x 4 points of one plane, 2 x 2 a lane.
__device__ void StageTile(const Planewise& mine, JacobianShared& shared) {
  const int lane = threadIdx.x % 32, sx = lane & 1, sy = lane >> 4;
  Planewise other;
#pragma unroll
  for (int a = 0; a < 3; ++a) other.by[a] = Exchange(mine.by[a], 1);
  const float2 v0 = PairOfWeights(shared, 0, 0, sx, sx), v1 = PairOfWeights(shared, 0, 0, 1 - sx, sx);
  const float2 d0 = PairOfWeights(shared, 0, 1, sx, sx), d1 = PairOfWeights(shared, 0, 1, 1 - sx, sx);
  // To be multiplied by y's values, and by its slopes.
  const Vec3f value[2] = {v0.x * mine.by[2] + v1.x * other.by[2] + d0.x * mine.by[0] + d1.x * other.by[0],
                          v0.y * mine.by[2] + v1.y * other.by[2] + d0.y * mine.by[0] + d1.y * other.by[0]};
  const Vec3f slope[2] = {v0.x * mine.by[1] + v1.x * other.by[1], v0.y * mine.by[1] + v1.y * other.by[1]};
  const float2 w0 = PairOfWeights(shared, 1, 0, sy, sy), w1 = PairOfWeights(shared, 1, 0, 1 - sy, sy);
  const float2 e0 = PairOfWeights(shared, 1, 1, sy, sy), e1 = PairOfWeights(shared, 1, 1, 1 - sy, sy);
  float* const to = shared.stage + 2 * sy * kStageY + 2 * sx * kStageX + threadIdx.x / 32 * kTilesX + (lane & 15) / 2;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const Vec3f other_value = Exchange(value[i], 16), other_slope = Exchange(slope[i], 16);
    const Vec3f g0 = w0.x * value[i] + w1.x * other_value + e0.x * slope[i] + e1.x * other_slope;
    const Vec3f g1 = w0.y * value[i] + w1.y * other_value + e0.y * slope[i] + e1.y * other_slope;
#pragma unroll
    for (int c = 0; c < 3; ++c) {
      to[4 * c * kStageY + i * kStageX] = g0[c];
      to[(4 * c + 1) * kStageY + i * kStageX] = g1[c];
    }
  }
}

// Adds up what the block's tiles have staged for each control point of a plane.
__device__ void SumTiles(const JacobianShared& shared, float* to) {
  for (int item = threadIdx.x; item < kPlaneSums; item += kSampleThreads) {
    const int x = item % kNodesX, y = item / kNodesX % kNodesY, c = item / (kNodesX * kNodesY);
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int tx = x - i, ty = y - j;
        if (tx < 0 || tx >= kTilesX || ty < 0 || ty >= kTilesY) continue;
        sum += shared.stage[(4 * c + j) * kStageY + i * kStageX + ty * kTilesX + tx];
      }
    }
    to[item] = sum;
  }
}

__global__ void __launch_bounds__(kSampleThreads, 4) JacobianKernel(const __grid_constant__ JacobianArgs args) {
  __shared__ JacobianShared shared;
  if (Skips(args.common.skip)) return;
  const JacobianFrame& f = args.frame;
  const int t = threadIdx.x, lane = t % 32;
  const int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const Int3 base{static_cast<int>(blockIdx.x) * kTilesX, static_cast<int>(blockIdx.y) * kTilesY,
                  static_cast<int>(blockIdx.z) * kTilesZ};
  if (t < 48) {
    const int axis = t / 16, kind = t / 8 % 2;
    (&shared.weights[0][0][0][0])[t] = (kind == 0 ? &f.value[axis][0][0] : &f.slope[axis][0][0])[t % 8];
  }
  ContractX(args, base, shared);
  __syncthreads();

  const Int3 tiles{AxisTiles(args.common.n.x), AxisTiles(args.common.n.y), AxisTiles(args.common.n.z)};
  const int tile_y = t / 32, sample_x = lane % kSamplesX, sy = lane / kSamplesX;
  const bool inside = base.x + sample_x / 2 < tiles.x && base.y + tile_y < tiles.y;
  float value_y[4], slope_y[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    value_y[j] = shared.weights[1][0][sy][j];
    slope_y[j] = shared.weights[1][1][sy][j];
  }
  Planewise plane[4], force[4] = {};
#pragma unroll
  for (int k = 0; k < 3; ++k) plane[k] = ContractY(shared, k, tile_y, sample_x, value_y, slope_y);
  double value = 0;
  // Bit k: force[k] is not 0.
  unsigned reached = 0;
#pragma unroll 1
  for (int z = 0; z < kNodesZ; ++z) {
    if (z < kTilesZ && base.z + z < tiles.z) {
      plane[3] = ContractY(shared, z + 3, tile_y, sample_x, value_y, slope_y);
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        Vec3f u[3] = {}, cofactors[3];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          u[0] = u[0] + f.value[2][s][k] * plane[k].by[0];
          u[1] = u[1] + f.value[2][s][k] * plane[k].by[1];
          u[2] = u[2] + f.slope[2][s][k] * plane[k].by[2];
        }
        const float determinant = TileDeterminant(f, u, cofactors);
        if (!inside || determinant >= kJacobianThreshold) continue;
        float slope;
        value += JacobianCost(determinant, &slope);
        reached |= 15;
#pragma unroll
        for (int a = 0; a < 3; ++a) {
          const Vec3f d = slope * cofactors[a];
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            force[k].by[a] = force[k].by[a] + (a == 2 ? f.slope : f.value)[2][s][k] * d;
          }
        }
      }
    }
    const bool any = __syncthreads_or(reached & 1);
    const int at = block * kNodesZ + z;
    if (t == 0) args.sums.reached[at] = any;
    if (any) {
      StageTile(force[0], shared);
      __syncthreads();
      SumTiles(shared, args.sums.sums + static_cast<size_t>(at) * kPlaneSums);
    }
    reached >>= 1;
#pragma unroll
    for (int k = 0; k < 3; ++k) {
      plane[k] = plane[k + 1];
      force[k] = force[k + 1];
    }
    force[3] = {};
  }
  value = WarpSum(value);
  if (lane == 0) shared.scratch[t / 32] = value;
  __syncthreads();
  if (t != 0) return;
  for (int w = 1; w < kSampleThreads / 32; ++w) value += shared.scratch[w];
  args.partial[block] = args.scale * value;
}

dim3 JacobianGrid(Int3 n) {
  return dim3(Blocks(AxisTiles(n.x), kTilesX), Blocks(AxisTiles(n.y), kTilesY), Blocks(AxisTiles(n.z), kTilesZ));
}

// The blocks whose partial sums control point `i` has part in.
__device__ int FirstHolder(int i, int tiles) { return max(i - 3, 0) / tiles; }
__device__ int LastHolder(int i, int tiles, int count) { return min(i / tiles, count - 1); }

// Component c of the derivative by a control point, without the scale.
__device__ float SumJacobian(const JacobianSums& s, int c, int x, int y, int z) {
  float sum = 0;
  for (int bz = FirstHolder(z, kTilesZ); bz <= LastHolder(z, kTilesZ, s.blocks.z); ++bz) {
    for (int by = FirstHolder(y, kTilesY); by <= LastHolder(y, kTilesY, s.blocks.y); ++by) {
      for (int bx = FirstHolder(x, kTilesX); bx <= LastHolder(x, kTilesX, s.blocks.x); ++bx) {
        const int plane = ((bz * s.blocks.y + by) * s.blocks.x + bx) * kNodesZ + z - bz * kTilesZ;
        if (!s.reached[plane]) continue;
        sum += s.sums[static_cast<size_t>(plane) * kPlaneSums + (c * kNodesY + y - by * kTilesY) * kNodesX + x -
                      bx * kTilesX];
      }
    }
  }
  return sum;
}

__global__ void __launch_bounds__(kReduceThreads) GatherKernel(Common common, Ending ending) {
  __shared__ double scratch[kReduceWarps];
  if (Skips(common.skip)) return;
  const Int3 n = common.n;
  const int i = blockIdx.x * kReduceThreads + threadIdx.x, node = i / 3;
  if (node < n.x * n.y * n.z) {
    common.gradient[i] +=
        ending.jacobian.scale * SumJacobian(ending.jacobian, i % 3, node % n.x, node / n.x % n.y, node / n.x / n.y);
  }
  if (blockIdx.x == 0) SumPartials(ending, scratch);
}

// --- Quadratic penalties: a block takes kTileX x kTileY columns of control points and marches along z. Of each plane
// it loads its points and three more on every side, contracts along x and y in shared memory, and adds the plane to the
// outputs along z that it belongs to. ---

constexpr int kTileX = 16, kTileY = 8, kColumns = kTileX * kTileY;
// One a column and component.
constexpr int kThreads = 3 * kColumns;
constexpr int kRimX = kTileX + 6, kRimY = kTileY + 6, kRimPoints = kRimX * kRimY;
// Two rows of 16 threads read different banks.
constexpr int kPlaneStride = 48;
static_assert(kRimPoints <= kThreads);
constexpr int kShortRun = 4, kLongRun = 12;
// A grid with more control points has enough columns for long runs to fill a GPU.
constexpr int64_t kShortRunPoints = 160000;

struct QuadraticArgs {
  Common common;
  float scale;
  // Columns are the axes of the grid.
  float direction[3][3];
  GramAxis<float> gram[3];
  double* partial;
};

// A thread's point of each plane, less the reference and in the frame of the form.
template <typename Form>
struct PlaneLoader {
  const QuadraticArgs& args;
  Vec3f reference;
  int x, y;
  bool exists;

  __device__ PlaneLoader(const QuadraticArgs& a, Vec3f r, int x0, int y0)
      : args(a),
        reference(r),
        x(x0 - 3 + static_cast<int>(threadIdx.x) % kRimX),
        y(y0 - 3 + static_cast<int>(threadIdx.x) / kRimX),
        exists(threadIdx.x < kRimPoints && x >= 0 && x < a.common.n.x && y >= 0 && y < a.common.n.y) {}

  __device__ Vec3f Load(int z) const {
    if (!exists || z >= args.common.n.z) return {0, 0, 0};
    const Vec3f c = LoadPoint(args.common.grid, Offset(args.common.n, x, y, z)) - reference;
    const auto& d = args.direction;
    return Form::kRotated
               ? Vec3f{d[0][0] * c.x + d[1][0] * c.y + d[2][0] * c.z, d[0][1] * c.x + d[1][1] * c.y + d[2][1] * c.z,
                       d[0][2] * c.x + d[1][2] * c.y + d[2][2] * c.z}
               : c;
  }
  __device__ static void Store(Vec3f point, float (&plane)[3][kRimY][kPlaneStride]) {
    if (threadIdx.x >= kRimPoints) return;
#pragma unroll
    for (int c = 0; c < 3; ++c) plane[c][threadIdx.x / kRimX][threadIdx.x % kRimX] = point[c];
  }
};

template <int kOps>
using AlongX = float[kOps][3][kRimY][kTileX];

// A component of what a plane gives along y.
template <typename Form, int kComponent>
__device__ void ContractTaps(const AlongX<Form::kOps>& along_x, const float (&gy)[kGramBand][Form::kOps], int tx,
                             int ty, float (&out)[Form::kOps]) {
  float all[Form::kOps][3] = {};
#pragma unroll
  for (int k = 0; k < kGramBand; ++k) {
    float a[Form::kOps][3];
#pragma unroll
    for (int op = 0; op < Form::kOps; ++op) {
#pragma unroll
      for (int c = 0; c < 3; ++c) a[op][c] = along_x[op][c][ty + k][tx];
    }
    Form::AddTap([](float g, float v, float& sum) { sum += g * v; }, gy[k], a, all);
  }
#pragma unroll
  for (int op = 0; op < Form::kOps; ++op) out[op] = all[op][kComponent];
}

template <typename Form, int kRun>
__global__ void __launch_bounds__(kThreads) QuadraticKernel(const __grid_constant__ QuadraticArgs args) {
  constexpr int kOps = Form::kOps;
  __shared__ float plane[3][kRimY][kPlaneStride];
  __shared__ AlongX<kOps> along_x;
  __shared__ float turned[2][3][kColumns];
  __shared__ double warp_sums[kThreads / 32];
  if (Skips(args.common.skip)) return;
  const Int3 n = args.common.n;
  const float* grid = args.common.grid;
  const int column = threadIdx.x % kColumns, component = threadIdx.x / kColumns;
  const int tx = column % kTileX, ty = column / kTileX;
  const int x0 = blockIdx.x * kTileX, y0 = blockIdx.y * kTileY, z0 = blockIdx.z * kRun;
  const int x = x0 + tx, y = y0 + ty;
  const Vec3f reference = LoadPoint(
      grid, Offset(n, min(x0 + kTileX / 2, n.x - 1), min(y0 + kTileY / 2, n.y - 1), min(z0 + kRun / 2, n.z - 1)));

  const int x_type = GramRowType(min(x, n.x - 1), n.x), y_type = GramRowType(min(y, n.y - 1), n.y);
  float gx[kOps][kGramBand], gy[kGramBand][kOps];
#pragma unroll
  for (int op = 0; op < kOps; ++op) {
#pragma unroll
    for (int k = 0; k < kGramBand; ++k) {
      gx[op][k] = args.gram[0].row[Form::Op(op)][x_type][k];
      gy[k][op] = args.gram[1].row[Form::Op(op)][y_type][k];
    }
  }

  float sums[kRun] = {};
  const PlaneLoader<Form> loader(args, reference, x0, y0);
  const int first = max(z0 - 3, 0), end = min(z0 + kRun + 3, n.z);
  Vec3f point = loader.Load(first);
  for (int z = first; z < end; ++z) {
    loader.Store(point, plane);
    __syncthreads();
    point = loader.Load(z + 1);
#pragma unroll
    for (int row = ty; row < kRimY; row += kTileY) {
      float a[kOps] = {};
#pragma unroll
      for (int k = 0; k < kGramBand; ++k) {
        const float v = plane[component][row][tx + k];
#pragma unroll
        for (int op = 0; op < kOps; ++op) a[op] += gx[op][k] * v;
      }
#pragma unroll
      for (int op = 0; op < kOps; ++op) along_x[op][component][row][tx] = a[op];
    }
    __syncthreads();
    float out[kOps];
    if (component == 0) {
      ContractTaps<Form, 0>(along_x, gy, tx, ty, out);
    } else if (component == 1) {
      ContractTaps<Form, 1>(along_x, gy, tx, ty, out);
    } else {
      ContractTaps<Form, 2>(along_x, gy, tx, ty, out);
    }
#pragma unroll
    for (int o = 0; o < kRun; ++o) {
      const int k = z - (z0 + o) + 3;
      if (k < 0 || k >= kGramBand || z0 + o >= n.z) continue;
      const int z_type = GramRowType(z0 + o, n.z);
#pragma unroll
      for (int op = 0; op < kOps; ++op) sums[o] += args.gram[2].row[Form::Op(op)][z_type][k] * out[op];
    }
  }

  // The argument of the penalty, so that the same sums give its value: points less one for the whole grid.
  const float middle = grid[3 * Offset(n, n.x / 2, n.y / 2, n.z / 2) + component];
  double value = 0;
#pragma unroll
  for (int o = 0; o < kRun; ++o) {
    float g = sums[o];
    if (Form::kRotated) {
      float(&s)[3][kColumns] = turned[o % 2];
      s[component][column] = g;
      __syncthreads();
      const float* const d = args.direction[component];
      g = d[0] * s[0][column] + d[1] * s[1][column] + d[2] * s[2][column];
    }
    if (x >= n.x || y >= n.y || z0 + o >= n.z) continue;
    const size_t i = 3 * Offset(n, x, y, z0 + o) + component;
    value += 0.5 * args.scale * (static_cast<double>(grid[i] - middle) * g);
    args.common.gradient[i] += args.scale * g;
  }
  value = WarpSum(value);
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kThreads / 32; ++w) value += warp_sums[w];
  args.partial[(blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x] = value;
}

int QuadraticRun(Int3 n) { return int64_t{n.x} * n.y * n.z <= kShortRunPoints ? kShortRun : kLongRun; }
dim3 QuadraticGrid(Int3 n) { return dim3(Blocks(n.x, kTileX), Blocks(n.y, kTileY), Blocks(n.z, QuadraticRun(n))); }

template <typename Form>
absl::Status LaunchQuadratic(const ExecContext& ctx, const PenaltyTask& task, double scale, const Common& common,
                             double* partial) {
  QuadraticArgs args;
  args.common = common;
  args.scale = static_cast<float>(scale);
  args.partial = partial;
  for (int r = 0; r < 3; ++r)
    for (int c = 0; c < 3; ++c) args.direction[r][c] = static_cast<float>(task.direction[r][c]);
  for (int axis = 0; axis < 3; ++axis) {
    const double* from = &task.gram[axis].row[0][0][0];
    std::copy(from, from + kGramOps * kGramRowTypes * kGramBand, &args.gram[axis].row[0][0][0]);
  }
  if (QuadraticRun(task.size) == kShortRun) {
    QuadraticKernel<Form, kShortRun><<<QuadraticGrid(task.size), kThreads, 0, CudaStream(ctx)>>>(args);
  } else {
    QuadraticKernel<Form, kLongRun><<<QuadraticGrid(task.size), kThreads, 0, CudaStream(ctx)>>>(args);
  }
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

int64_t Count(dim3 grid) { return int64_t{grid.x} * grid.y * grid.z; }

__global__ void __launch_bounds__(kReduceThreads) SumKernel(const int* skip, Ending ending) {
  __shared__ double scratch[kReduceWarps];
  if (!Skips(skip)) SumPartials(ending, scratch);
}

// One order for the estimate and for the allocation.
struct Sizes {
  int64_t quadratic, jacobian, partials, reached, sums;

  explicit Sizes(Int3 n) : quadratic(Count(QuadraticGrid(n))), jacobian(Count(JacobianGrid(n))) {
    partials = 2 * quadratic + jacobian;
    reached = jacobian * kNodesZ;
    sums = reached * kPlaneSums;
  }
};

}  // namespace

absl::Status AddGridPenalties(const ExecContext& ctx, const PenaltyTask& task) {
  ArenaScope scope(ctx.arena());
  const cudaStream_t stream = CudaStream(ctx);
  const Sizes sizes(task.size);
  const Common common{task.grid, task.size, task.skip, task.gradient};
  INTRAWARP_ASSIGN_OR_RETURN(double* partial, ctx.arena().Allocate<double>(sizes.partials));
  double* end = partial;
  JacobianSums jacobian = {};
  if (task.jacobian_scale != 0) {
    const dim3 blocks = JacobianGrid(task.size);
    jacobian.blocks = {static_cast<int>(blocks.x), static_cast<int>(blocks.y), static_cast<int>(blocks.z)};
    jacobian.scale = static_cast<float>(task.jacobian_scale);
    INTRAWARP_ASSIGN_OR_RETURN(jacobian.reached, ctx.arena().Allocate<unsigned char>(sizes.reached));
    INTRAWARP_ASSIGN_OR_RETURN(jacobian.sums, ctx.arena().Allocate<float>(sizes.sums));
    JacobianKernel<<<blocks, kSampleThreads, 0, stream>>>({common, jacobian.scale, task.frame, end, jacobian});
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
    end += sizes.jacobian;
  }
  if (task.bending_scale != 0) {
    INTRAWARP_RETURN_IF_ERROR(LaunchQuadratic<BendingForm>(ctx, task, task.bending_scale, common, end));
    end += sizes.quadratic;
  }
  if (task.elasticity_scale != 0) {
    INTRAWARP_RETURN_IF_ERROR(LaunchQuadratic<ElasticityForm>(ctx, task, task.elasticity_scale, common, end));
    end += sizes.quadratic;
  }
  const Ending ending{jacobian, partial, static_cast<int>(end - partial), task.value};
  if (jacobian.sums != nullptr) {
    const int64_t components = 3 * int64_t{task.size.x} * task.size.y * task.size.z;
    GatherKernel<<<static_cast<unsigned>((components + kReduceThreads - 1) / kReduceThreads), kReduceThreads, 0,
                   stream>>>(common, ending);
  } else {
    SumKernel<<<1, kReduceThreads, 0, stream>>>(task.skip, ending);
  }
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

int64_t GridPenaltyWorkspaceBytes(Int3 size) {
  const Sizes sizes(size);
  return Arena::Rounded(sizes.partials * sizeof(double)) + Arena::Rounded(sizes.reached) +
         Arena::Rounded(sizes.sums * sizeof(float));
}

}  // namespace intrawarp::cuda
