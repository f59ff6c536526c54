// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/image/reduce.cuh"
#include "engine/transform/grid_penalty_kernels.h"

namespace intrawarp::cuda {
namespace {

constexpr int Blocks(int n, int size) { return (n + size - 1) / size; }

// What all kernels need.
struct Common {
  const float* grid;
  Int3 n;
  const int* skip;
  float* gradient;
};

__device__ bool Skips(const int* skip) { return skip != nullptr && *skip != 0; }
__device__ size_t Offset(Int3 n, int x, int y, int z) { return (static_cast<size_t>(z) * n.y + y) * n.x + x; }
__device__ Vec3f LoadPoint(const float* grid, size_t i) { return {grid[3 * i], grid[3 * i + 1], grid[3 * i + 2]}; }

// --- Quadratic penalties: a block takes kTileX x kTileY columns of control points and marches along z. Of each plane
// it loads its points and three more on every side, contracts along x and y in shared memory, and adds the plane to the
// outputs along z that it belongs to. ---

constexpr int kTileX = 16, kTileY = 8, kThreads = kTileX * kTileY;
constexpr int kRimX = kTileX + 6, kRimY = kTileY + 6, kRimPoints = kRimX * kRimY;
// Two rows of 16 threads read different banks.
constexpr int kPlaneStride = 48;
constexpr int kLoads = (kRimPoints + kThreads - 1) / kThreads;
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

// Every thread's points of one plane, less the reference and in the frame of the form.
template <typename Form>
struct PlaneLoader {
  const QuadraticArgs& args;
  Vec3f reference;
  int x0, y0;

  __device__ void Load(int z, Vec3f (&points)[kLoads]) const {
    const Int3 n = args.common.n;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int at = threadIdx.x + i * kThreads, x = x0 - 3 + at % kRimX, y = y0 - 3 + at / kRimX;
      points[i] = {0, 0, 0};
      if (at >= kRimPoints || x < 0 || x >= n.x || y < 0 || y >= n.y || z >= n.z) continue;
      const Vec3f c = LoadPoint(args.common.grid, Offset(n, x, y, z)) - reference;
      const auto& d = args.direction;
      points[i] = Form::kRotated ? Vec3f{d[0][0] * c.x + d[1][0] * c.y + d[2][0] * c.z,
                                         d[0][1] * c.x + d[1][1] * c.y + d[2][1] * c.z,
                                         d[0][2] * c.x + d[1][2] * c.y + d[2][2] * c.z}
                                 : c;
    }
  }
  __device__ static void Store(const Vec3f (&points)[kLoads], float (&plane)[3][kRimY][kPlaneStride]) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int at = threadIdx.x + i * kThreads;
      if (at >= kRimPoints) return;
#pragma unroll
      for (int c = 0; c < 3; ++c) plane[c][at / kRimX][at % kRimX] = points[i][c];
    }
  }
};

template <typename Form, int kRun>
__global__ void __launch_bounds__(kThreads) QuadraticKernel(const __grid_constant__ QuadraticArgs args) {
  constexpr int kOps = Form::kOps;
  __shared__ float plane[3][kRimY][kPlaneStride];
  __shared__ float along_x[kOps][3][kRimY][kTileX];
  __shared__ double warp_sums[kThreads / 32];
  if (Skips(args.common.skip)) return;
  const Int3 n = args.common.n;
  const float* grid = args.common.grid;
  const int tx = threadIdx.x % kTileX, ty = threadIdx.x / kTileX;
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

  float sums[kRun][3] = {};
  const PlaneLoader<Form> loader{args, reference, x0, y0};
  const int first = max(z0 - 3, 0), end = min(z0 + kRun + 3, n.z);
  Vec3f points[kLoads];
  loader.Load(first, points);
  for (int z = first; z < end; ++z) {
    loader.Store(points, plane);
    __syncthreads();
    loader.Load(z + 1, points);
#pragma unroll
    for (int row = ty; row < kRimY; row += kTileY) {
#pragma unroll
      for (int c = 0; c < 3; ++c) {
        float a[kOps] = {};
#pragma unroll
        for (int k = 0; k < kGramBand; ++k) {
          const float v = plane[c][row][tx + k];
#pragma unroll
          for (int op = 0; op < kOps; ++op) a[op] += gx[op][k] * v;
        }
#pragma unroll
        for (int op = 0; op < kOps; ++op) along_x[op][c][row][tx] = a[op];
      }
    }
    __syncthreads();
    float out[kOps][3] = {};
#pragma unroll
    for (int k = 0; k < kGramBand; ++k) {
      float a[kOps][3];
#pragma unroll
      for (int op = 0; op < kOps; ++op) {
#pragma unroll
        for (int c = 0; c < 3; ++c) a[op][c] = along_x[op][c][ty + k][tx];
      }
      Form::AddTap([](float g, float v, float& sum) { sum += g * v; }, gy[k], a, out);
    }
#pragma unroll
    for (int o = 0; o < kRun; ++o) {
      const int k = z - (z0 + o) + 3;
      if (k < 0 || k >= kGramBand || z0 + o >= n.z) continue;
      const int z_type = GramRowType(z0 + o, n.z);
#pragma unroll
      for (int op = 0; op < kOps; ++op) {
        const float g = args.gram[2].row[Form::Op(op)][z_type][k];
#pragma unroll
        for (int c = 0; c < 3; ++c) sums[o][c] += g * out[op][c];
      }
    }
  }

  // What the penalty is taken of, so that the same sums give its value: points less one for the whole grid.
  const Vec3f middle = LoadPoint(grid, Offset(n, n.x / 2, n.y / 2, n.z / 2));
  double value = 0;
  if (x < n.x && y < n.y) {
#pragma unroll
    for (int o = 0; o < kRun; ++o) {
      if (z0 + o >= n.z) continue;
      const auto& d = args.direction;
      const float(&s)[3] = sums[o];
      const Vec3f g = Form::kRotated ? Vec3f{d[0][0] * s[0] + d[0][1] * s[1] + d[0][2] * s[2],
                                             d[1][0] * s[0] + d[1][1] * s[1] + d[1][2] * s[2],
                                             d[2][0] * s[0] + d[2][1] * s[1] + d[2][2] * s[2]}
                                     : Vec3f{s[0], s[1], s[2]};
      const size_t i = Offset(n, x, y, z0 + o);
      const Vec3f c = LoadPoint(grid, i) - middle;
      value += 0.5 * args.scale *
               (static_cast<double>(c.x) * g.x + static_cast<double>(c.y) * g.y + static_cast<double>(c.z) * g.z);
      float* to = args.common.gradient + 3 * i;
      to[0] += args.scale * g.x;
      to[1] += args.scale * g.y;
      to[2] += args.scale * g.z;
    }
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

// --- Jacobian penalty: a block owns kOwnX x kOwnY x kOwnZ control points, one a thread, and looks at all tiles that
// reach one of them. Where the bounds of differences prove that nothing is to do, for all of its tiles or for 32 of
// them, that is all. Tiles with a sample below the threshold are noted; then, group by group in order, a thread works
// out each of their samples, and the owners add what reaches their point. ---

constexpr int kOwnX = 8, kOwnY = 8, kOwnZ = 4, kOwners = kOwnX * kOwnY * kOwnZ;
static_assert(kOwners == kReduceThreads);
constexpr int kBoxX = kOwnX + 6, kBoxY = kOwnY + 6, kBoxZ = kOwnZ + 6;
constexpr int kGroupX = 4, kGroupY = 4, kGroupZ = 2;
static_assert(kGroupX * kGroupY * kGroupZ == 32 && kOwners == 32 * 8);
constexpr int kGroupsX = (kOwnX + 3 + kGroupX - 1) / kGroupX, kGroupsY = (kOwnY + 3 + kGroupY - 1) / kGroupY,
              kGroupsZ = (kOwnZ + 3 + kGroupZ - 1) / kGroupZ, kGroups = kGroupsX * kGroupsY * kGroupsZ;

struct JacobianArgs {
  Common common;
  float scale;
  JacobianFrame frame;
  double* partial;
};

struct Box {
  float points[3][kBoxZ][kBoxY][kBoxX];
};

__device__ void Widen(float difference, float& low, float& high) {
  // Lets a NaN through, which fminf alone would drop.
  low = fminf(low, difference == difference ? difference : -INFINITY);
  high = fmaxf(high, difference);
}

// Over the differences between the points of the box from `low` to `high` (inclusive) that thread `rank` of `count`
// takes.
__device__ void BoundDifferences(const Box& box, Int3 low, Int3 high, int rank, int count, DifferenceBounds& b) {
#pragma unroll
  for (int a = 0; a < 3; ++a) {
#pragma unroll
    for (int c = 0; c < 3; ++c) {
      b.low[a][c] = INFINITY;
      b.high[a][c] = -INFINITY;
    }
  }
  const Int3 size = high - low + Int3{1, 1, 1};
  for (int i = rank; i < size.x * size.y * size.z; i += count) {
    const int x = low.x + i % size.x, y = low.y + i / size.x % size.y, z = low.z + i / size.x / size.y;
#pragma unroll
    for (int c = 0; c < 3; ++c) {
      const float v = box.points[c][z][y][x];
      if (x < high.x) Widen(box.points[c][z][y][x + 1] - v, b.low[0][c], b.high[0][c]);
      if (y < high.y) Widen(box.points[c][z][y + 1][x] - v, b.low[1][c], b.high[1][c]);
      if (z < high.z) Widen(box.points[c][z + 1][y][x] - v, b.low[2][c], b.high[2][c]);
    }
  }
}

// All lanes get the bounds of all.
__device__ void CombineLanes(DifferenceBounds& b) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
#pragma unroll
    for (int a = 0; a < 3; ++a) {
#pragma unroll
      for (int c = 0; c < 3; ++c) {
        b.low[a][c] = fminf(b.low[a][c], __shfl_xor_sync(0xffffffffu, b.low[a][c], offset));
        b.high[a][c] = fmaxf(b.high[a][c], __shfl_xor_sync(0xffffffffu, b.high[a][c], offset));
      }
    }
  }
}

// An axis with one control point has no differences and no derivative.
__device__ bool Proves(const JacobianFrame& frame, DifferenceBounds b) {
#pragma unroll
  for (int a = 0; a < 3; ++a) {
#pragma unroll
    for (int c = 0; c < 3; ++c) {
      if (b.low[a][c] == INFINITY && b.high[a][c] == -INFINITY) b.low[a][c] = b.high[a][c] = 0;
    }
  }
  return DeterminantLowerBound(frame, b) >= kJacobianThreshold;
}

// Whether a sample of the tile whose first point is `at` lies below the threshold, or is not a number.
__device__ bool IsActive(const JacobianFrame& f, const Box& box, Int3 at) {
  bool active = false;
#pragma unroll 1
  for (int sy = 0; sy < 2; ++sy) {
    Vec3f u[2][2][3] = {};  // [sample x][sample z][axis]
#pragma unroll 1
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int sx = 0; sx < 2; ++sx) {
        Vec3f vv = {0, 0, 0}, sv = vv, vs = vv;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
          for (int c = 0; c < 3; ++c) {
            float v = 0, s = 0;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const float p = box.points[c][at.z + k][at.y + j][at.x + i];
              v += f.value[0][sx][i] * p;
              s += f.slope[0][sx][i] * p;
            }
            vv[c] += f.value[1][sy][j] * v;
            sv[c] += f.value[1][sy][j] * s;
            vs[c] += f.slope[1][sy][j] * v;
          }
        }
#pragma unroll
        for (int sz = 0; sz < 2; ++sz) {
          u[sx][sz][0] = u[sx][sz][0] + f.value[2][sz][k] * sv;
          u[sx][sz][1] = u[sx][sz][1] + f.value[2][sz][k] * vs;
          u[sx][sz][2] = u[sx][sz][2] + f.slope[2][sz][k] * vv;
        }
      }
    }
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      Vec3f cofactors[3];
      if (!(TileDeterminant(f, u[s % 2][s / 2], cofactors) >= kJacobianThreshold)) active = true;
    }
  }
  return active;
}

// The derivatives of u per node distance at sample `s` of the tile whose first point is `at`.
__device__ void SampleDerivatives(const JacobianFrame& f, const Box& box, Int3 at, int s, Vec3f (&u)[3]) {
  const int sx = s % 2, sy = s / 2 % 2, sz = s / 4;
  u[0] = u[1] = u[2] = {0, 0, 0};
#pragma unroll 1
  for (int k = 0; k < 4; ++k) {
    for (int j = 0; j < 4; ++j) {
      Vec3f v = {0, 0, 0}, d = v;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int c = 0; c < 3; ++c) {
          const float p = box.points[c][at.z + k][at.y + j][at.x + i];
          v[c] += f.value[0][sx][i] * p;
          d[c] += f.slope[0][sx][i] * p;
        }
      }
      u[0] = u[0] + f.value[2][sz][k] * f.value[1][sy][j] * d;
      u[1] = u[1] + f.value[2][sz][k] * f.slope[1][sy][j] * v;
      u[2] = u[2] + f.slope[2][sz][k] * f.value[1][sy][j] * v;
    }
  }
}

__global__ void __launch_bounds__(kOwners, 3) JacobianKernel(const __grid_constant__ JacobianArgs args) {
  __shared__ Box box;
  __shared__ float derivatives[32][8][9];  // of the cost by u, at the samples of a group's tiles
  __shared__ float warp_bounds[kReduceWarps][18];
  __shared__ unsigned active[kGroups];
  __shared__ double scratch[kReduceWarps];
  if (Skips(args.common.skip)) return;
  const Int3 n = args.common.n;
  const Int3 own{static_cast<int>(blockIdx.x) * kOwnX, static_cast<int>(blockIdx.y) * kOwnY,
                 static_cast<int>(blockIdx.z) * kOwnZ};
  const Int3 base = own - Int3{3, 3, 3};
  const int t = threadIdx.x, lane = t % 32, warp = t / 32;
  double* partial = args.partial + (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;

  for (int i = t; i < kBoxX * kBoxY * kBoxZ; i += kOwners) {
    const int x = i % kBoxX, y = i / kBoxX % kBoxY, z = i / kBoxX / kBoxY;
    const int gx = base.x + x, gy = base.y + y, gz = base.z + z;
    Vec3f c = {0, 0, 0};
    if (gx >= 0 && gx < n.x && gy >= 0 && gy < n.y && gz >= 0 && gz < n.z) {
      c = LoadPoint(args.common.grid, Offset(n, gx, gy, gz));
    }
    for (int k = 0; k < 3; ++k) box.points[k][z][y][x] = c[k];
  }
  if (t < kGroups) active[t] = 0;
  __syncthreads();

  // The points of the box that exist.
  const Int3 low{max(0, -base.x), max(0, -base.y), max(0, -base.z)};
  const Int3 high{min(kBoxX, n.x - base.x) - 1, min(kBoxY, n.y - base.y) - 1, min(kBoxZ, n.z - base.z) - 1};
  DifferenceBounds b;
  BoundDifferences(box, low, high, t, kOwners, b);
  CombineLanes(b);
  if (lane == 0) {
    for (int i = 0; i < 9; ++i) {
      warp_bounds[warp][i] = b.low[i / 3][i % 3];
      warp_bounds[warp][9 + i] = b.high[i / 3][i % 3];
    }
  }
  __syncthreads();
  for (int w = 0; w < kReduceWarps; ++w) {
#pragma unroll
    for (int i = 0; i < 9; ++i) {
      b.low[i / 3][i % 3] = fminf(b.low[i / 3][i % 3], warp_bounds[w][i]);
      b.high[i / 3][i % 3] = fmaxf(b.high[i / 3][i % 3], warp_bounds[w][9 + i]);
    }
  }
  if (Proves(args.frame, b)) {
    if (t == 0) *partial = 0;
    return;
  }

  const Int3 tiles{AxisTiles(n.x), AxisTiles(n.y), AxisTiles(n.z)};
  for (int g = warp; g < kGroups; g += kReduceWarps) {
    const Int3 from{g % kGroupsX * kGroupX, g / kGroupsX % kGroupsY * kGroupY, g / kGroupsX / kGroupsY * kGroupZ};
    const Int3 l{max(low.x, from.x), max(low.y, from.y), max(low.z, from.z)};
    const Int3 h{min(high.x, from.x + kGroupX + 2), min(high.y, from.y + kGroupY + 2),
                 min(high.z, from.z + kGroupZ + 2)};
    if (l.x > h.x || l.y > h.y || l.z > h.z) continue;
    BoundDifferences(box, l, h, lane, 32, b);
    CombineLanes(b);
    if (Proves(args.frame, b)) continue;
    const Int3 at = from + Int3{lane % kGroupX, lane / kGroupX % kGroupY, lane / kGroupX / kGroupY};
    const Int3 tile = base + at;
    // Tiles that start past the owned points reach none of them.
    const bool exists = tile.x >= 0 && tile.x < tiles.x && at.x < kOwnX + 3 && tile.y >= 0 && tile.y < tiles.y &&
                        at.y < kOwnY + 3 && tile.z >= 0 && tile.z < tiles.z && at.z < kOwnZ + 3;
    const unsigned word = __ballot_sync(0xffffffffu, exists && IsActive(args.frame, box, at));
    if (lane == 0) active[g] = word;
  }
  __syncthreads();

  const Int3 mine{3 + t % kOwnX, 3 + t / kOwnX % kOwnY, 3 + t / kOwnX / kOwnY};
  Vec3f gradient = {0, 0, 0};
  double value = 0;
  for (int g = 0; g < kGroups; ++g) {
    unsigned word = active[g];
    if (word == 0) continue;
    const Int3 from{g % kGroupsX * kGroupX, g / kGroupsX % kGroupsY * kGroupY, g / kGroupsX / kGroupsY * kGroupZ};
    const auto start = [&](int i) { return from + Int3{i % kGroupX, i / kGroupX % kGroupY, i / kGroupX / kGroupY}; };
    if (word >> (t / 8) & 1) {
      const Int3 at = start(t / 8);
      Vec3f u[3], cofactors[3];
      SampleDerivatives(args.frame, box, at, t % 8, u);
      float slope;
      const float cost = JacobianCost(TileDeterminant(args.frame, u, cofactors), &slope);
      for (int i = 0; i < 9; ++i) derivatives[t / 8][t % 8][i] = slope * cofactors[i / 3][i % 3];
      // A tile belongs to the owner of its first point.
      if (at.x >= 3 && at.y >= 3 && at.z >= 3) value += cost;
    }
    __syncthreads();
    for (; word != 0; word &= word - 1) {
      const int i = __ffs(word) - 1;
      const Int3 o = mine - start(i);
      if (o.x < 0 || o.x > 3 || o.y < 0 || o.y > 3 || o.z < 0 || o.z > 3) continue;
      for (int s = 0; s < 8; ++s) {
        const int sx = s % 2, sy = s / 2 % 2, sz = s / 4;
        const auto& f = args.frame;
        const float vx = f.value[0][sx][o.x], vy = f.value[1][sy][o.y], vz = f.value[2][sz][o.z];
        const float wx = f.slope[0][sx][o.x] * vy * vz, wy = vx * f.slope[1][sy][o.y] * vz,
                    wz = vx * vy * f.slope[2][sz][o.z];
        const float(&d)[9] = derivatives[i][s];
        gradient = gradient + Vec3f{wx * d[0] + wy * d[3] + wz * d[6], wx * d[1] + wy * d[4] + wz * d[7],
                                    wx * d[2] + wy * d[5] + wz * d[8]};
      }
    }
    __syncthreads();
  }
  const Int3 node = base + mine;
  if (node.x < n.x && node.y < n.y && node.z < n.z) {
    float* to = args.common.gradient + 3 * Offset(n, node.x, node.y, node.z);
    for (int c = 0; c < 3; ++c) to[c] += args.scale * gradient[c];
  }
  value = BlockSum(value, scratch);
  if (t == 0) *partial = args.scale * value;
}

dim3 JacobianGrid(Int3 n) { return dim3(Blocks(n.x, kOwnX), Blocks(n.y, kOwnY), Blocks(n.z, kOwnZ)); }

absl::Status LaunchJacobian(const ExecContext& ctx, const PenaltyTask& task, const Common& common, double* partial) {
  const JacobianArgs args{common, static_cast<float>(task.jacobian_scale), task.frame, partial};
  JacobianKernel<<<JacobianGrid(task.size), kOwners, 0, CudaStream(ctx)>>>(args);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

__global__ void __launch_bounds__(kReduceThreads)
    SumKernel(const double* partial, int64_t count, const int* skip, double* value) {
  __shared__ double scratch[kReduceWarps];
  if (Skips(skip)) return;
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kReduceThreads) sum += partial[i];
  sum = BlockSum(sum, scratch);
  if (threadIdx.x == 0) *value = sum;
}

int64_t Count(dim3 grid) { return int64_t{grid.x} * grid.y * grid.z; }

}  // namespace

absl::Status AddGridPenalties(const ExecContext& ctx, const PenaltyTask& task) {
  ArenaScope scope(ctx.arena());
  const int64_t quadratic = Count(QuadraticGrid(task.size)), jacobian = Count(JacobianGrid(task.size));
  INTRAWARP_ASSIGN_OR_RETURN(double* partial, ctx.arena().Allocate<double>(2 * quadratic + jacobian));
  const Common common{task.grid, task.size, task.skip, task.gradient};
  double* end = partial;
  if (task.bending_scale != 0) {
    INTRAWARP_RETURN_IF_ERROR(LaunchQuadratic<BendingForm>(ctx, task, task.bending_scale, common, end));
    end += quadratic;
  }
  if (task.elasticity_scale != 0) {
    INTRAWARP_RETURN_IF_ERROR(LaunchQuadratic<ElasticityForm>(ctx, task, task.elasticity_scale, common, end));
    end += quadratic;
  }
  if (task.jacobian_scale != 0) {
    INTRAWARP_RETURN_IF_ERROR(LaunchJacobian(ctx, task, common, end));
    end += jacobian;
  }
  SumKernel<<<1, kReduceThreads, 0, CudaStream(ctx)>>>(partial, end - partial, task.skip, task.value);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

int64_t GridPenaltyWorkspaceBytes(Int3 size) {
  return Arena::Rounded((2 * Count(QuadraticGrid(size)) + Count(JacobianGrid(size))) * sizeof(double));
}

}  // namespace intrawarp::cuda
