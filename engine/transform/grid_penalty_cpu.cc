// SPDX-License-Identifier: Apache-2.0
// Plain loops over x, which the compiler turns into vectors: compiled once for each instruction set (Highway), the best
// of which is chosen when it runs.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/device/parallel.h"
#include "engine/transform/grid_penalty_kernels.h"

// foreach_target includes this file again for every instruction set.
#ifndef INTRAWARP_ENGINE_TRANSFORM_GRID_PENALTY_CPU_ONCE_
#define INTRAWARP_ENGINE_TRANSFORM_GRID_PENALTY_CPU_ONCE_
namespace intrawarp::cpu {
namespace {

inline int Clamp(int i, int n) { return i < 0 ? 0 : i < n ? i : n - 1; }

// Between the pass along x and y and that along z: a plane of floats for each matrix of z and component, over the
// whole grid.
struct QuadraticPass {
  const PenaltyTask& task;
  double scale;
  float* planes;

  float* Row(int op, int c, int y, int z) const {
    const Int3 n = task.size;
    return planes + (((int64_t{op} * 3 + c) * n.z + z) * n.y + y) * n.x;
  }
};

// Tiles that are looked at together, and the control points in their support.
constexpr int kTilesX = 16, kTilesY = 4, kTilesZ = 4;
constexpr int kPointsX = kTilesX + 3, kPointsY = kTilesY + 3, kPointsZ = kTilesZ + 3;

// Rows are read in vectors of at most this many.
constexpr int kLanePadding = 8;
constexpr int PaddedRow(int n) { return (n + kLanePadding - 1) / kLanePadding * kLanePadding; }

struct TileChunk {
  float points[3][kPointsZ][kPointsY][kPointsX];
};

}  // namespace
}  // namespace intrawarp::cpu
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/transform/grid_penalty_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace intrawarp::cpu {
namespace {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// --- Quadratic penalties: first x and y in each plane of control points, then z ---

template <typename Form>
void LoadGram(const GramAxis<double>& axis, int type, double (&g)[kGramBand][Form::kOps]) {
  for (int k = 0; k < kGramBand; ++k)
    for (int op = 0; op < Form::kOps; ++op) g[k][op] = axis.row[Form::Op(op)][type][k];
}

// One row of control points, less that in the middle of the grid, in the frame of the form: v[c][3 + x], zeros around.
template <typename Form>
void LoadRow(const PenaltyTask& t, int y, int z, double* const (&v)[3]) {
  const Int3 n = t.size;
  const float* middle = t.grid + 3 * ((int64_t{n.z / 2} * n.y + n.y / 2) * n.x + n.x / 2);
  const float* row = t.grid + 3 * (int64_t{z} * n.y + y) * n.x;
  const auto& d = t.direction;
  for (int x = 0; x < n.x; ++x) {
    const double c[3] = {double{row[3 * x]} - middle[0], double{row[3 * x + 1]} - middle[1],
                         double{row[3 * x + 2]} - middle[2]};
    for (int a = 0; a < 3; ++a) {
      v[a][3 + x] = Form::kRotated ? d[0][a] * c[0] + d[1][a] * c[1] + d[2][a] * c[2] : c[a];
    }
  }
}

// out[op][x] = the matrices of x applied to v[3 + x].
template <typename Form>
void ContractX(const GramAxis<double>& axis, int n, const double* __restrict v, int stride, double* __restrict out) {
  for (int op = 0; op < Form::kOps; ++op) {
    const auto& rows = axis.row[Form::Op(op)];
    double g[kGramBand];
    std::copy(rows[GramRowType(3, n)], rows[GramRowType(3, n)] + kGramBand, g);
    double* to = out + int64_t{3} * op * stride;
    for (int x = 0; x < n; ++x) {
      to[x] = g[0] * v[x] + g[1] * v[x + 1] + g[2] * v[x + 2] + g[3] * v[x + 3] + g[4] * v[x + 4] + g[5] * v[x + 5] +
              g[6] * v[x + 6];
    }
    for (int x = n; x < stride; ++x) to[x] = 0;
    for (int x = 0; x < n; ++x) {
      if (x == 3 && n > 6) x = n - 3;
      to[x] = 0;
      for (int k = 0; k < kGramBand; ++k) to[x] += rows[GramRowType(x, n)][k] * v[x + k];
    }
  }
}

// rows[k] holds [op][component][x] of the neighbour k - 3, at least a vector of them.
template <typename Form>
HWY_FLATTEN void ContractY(const double (&g)[kGramBand][Form::kOps], const double* const (&rows)[kGramBand], int n,
                           int stride, float* const (&to)[Form::kOps][3]) {
  const hn::CappedTag<double, kLanePadding> d;
  const hn::Rebind<float, decltype(d)> df;
  using V = hn::Vec<decltype(d)>;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const auto add = [d](double weight, const V& v, V& sum) HWY_ATTR { sum = hn::MulAdd(hn::Set(d, weight), v, sum); };
  for (int x = 0; x < n; x += lanes) {
    V out[Form::kOps][3];
    for (auto& o : out)
      for (V& v : o) v = hn::Zero(d);
    for (int k = 0; k < kGramBand; ++k) {
      V a[Form::kOps][3];
      for (int op = 0; op < Form::kOps; ++op)
        for (int c = 0; c < 3; ++c) a[op][c] = hn::LoadU(d, rows[k] + (op * 3 + c) * stride + x);
      Form::AddTap(add, g[k], a, out);
    }
    for (int op = 0; op < Form::kOps; ++op) {
      for (int c = 0; c < 3; ++c) {
        if (x + lanes <= n) {
          hn::StoreU(hn::DemoteTo(df, out[op][c]), df, to[op][c] + x);
          continue;
        }
        float last[kLanePadding];
        hn::StoreU(hn::DemoteTo(df, out[op][c]), df, last);
        std::copy(last, last + n - x, to[op][c] + x);
      }
    }
  }
}

template <typename Form>
size_t PlaneDoubles(int n) {
  return 3 * (n + 6) + size_t{kGramBand} * Form::kOps * 3 * PaddedRow(n);
}

template <typename Form>
void ContractPlane(const QuadraticPass& pass, int z, double* scratch) {
  const PenaltyTask& t = pass.task;
  const Int3 n = t.size;
  std::fill(scratch, scratch + 3 * (n.x + 6), 0.0);
  double* const v[3] = {scratch, scratch + n.x + 6, scratch + 2 * (n.x + 6)};
  double* const ring = scratch + 3 * (n.x + 6);
  const int stride = PaddedRow(n.x);
  const int64_t row_doubles = int64_t{Form::kOps} * 3 * stride;
  const auto make_row = [&](int y) {
    LoadRow<Form>(t, y, z, v);
    for (int c = 0; c < 3; ++c) {
      ContractX<Form>(t.gram[0], n.x, v[c], stride, ring + y % kGramBand * row_doubles + c * stride);
    }
  };
  for (int y = 0; y < std::min(3, n.y); ++y) make_row(y);
  for (int y = 0; y < n.y; ++y) {
    if (y + 3 < n.y) make_row(y + 3);
    double g[kGramBand][Form::kOps];
    LoadGram<Form>(t.gram[1], GramRowType(y, n.y), g);
    // Entries beyond the ends are 0.
    const double* rows[kGramBand];
    for (int k = 0; k < kGramBand; ++k) rows[k] = ring + Clamp(y + k - 3, n.y) % kGramBand * row_doubles;
    float* to[Form::kOps][3];
    for (int op = 0; op < Form::kOps; ++op)
      for (int c = 0; c < 3; ++c) to[op][c] = pass.Row(op, c, y, z);
    ContractY<Form>(g, rows, n.x, stride, to);
  }
}

// Along z, for one plane of outputs: adds to the gradient and returns the plane's part of the value.
template <typename Form>
double FinishPlane(const QuadraticPass& pass, int z, double* scratch) {
  const PenaltyTask& t = pass.task;
  const Int3 n = t.size;
  const float* middle = t.grid + 3 * ((int64_t{n.z / 2} * n.y + n.y / 2) * n.x + n.x / 2);
  double g[kGramBand][Form::kOps];
  LoadGram<Form>(t.gram[2], GramRowType(z, n.z), g);
  double value = 0;
  for (int y = 0; y < n.y; ++y) {
    for (int c = 0; c < 3; ++c) {
      double* __restrict out = scratch + c * n.x;
      std::fill(out, out + n.x, 0.0);
      for (int op = 0; op < Form::kOps; ++op) {
        const float* r[kGramBand];
        for (int k = 0; k < kGramBand; ++k) r[k] = pass.Row(op, c, y, Clamp(z + k - 3, n.z));
        for (int x = 0; x < n.x; ++x) {
          out[x] += g[0][op] * r[0][x] + g[1][op] * r[1][x] + g[2][op] * r[2][x] + g[3][op] * r[3][x] +
                    g[4][op] * r[4][x] + g[5][op] * r[5][x] + g[6][op] * r[6][x];
        }
      }
    }
    const int64_t row = (int64_t{z} * n.y + y) * n.x;
    for (int x = 0; x < n.x; ++x) {
      const double s[3] = {scratch[x], scratch[n.x + x], scratch[2 * n.x + x]};
      for (int r = 0; r < 3; ++r) {
        const auto& d = t.direction[r];
        const double derivative = Form::kRotated ? d[0] * s[0] + d[1] * s[1] + d[2] * s[2] : s[r];
        const int64_t i = 3 * (row + x) + r;
        t.gradient[i] += static_cast<float>(pass.scale * derivative);
        value += (double{t.grid[i]} - middle[r]) * derivative;
      }
    }
  }
  return 0.5 * pass.scale * value;
}

size_t BendingDoubles(int n) { return PlaneDoubles<BendingForm>(n); }
void BendingPlane(const QuadraticPass& pass, int z, double* scratch) { ContractPlane<BendingForm>(pass, z, scratch); }
double FinishBending(const QuadraticPass& pass, int z, double* scratch) {
  return FinishPlane<BendingForm>(pass, z, scratch);
}
size_t ElasticityDoubles(int n) { return PlaneDoubles<ElasticityForm>(n); }
void ElasticityPlane(const QuadraticPass& pass, int z, double* scratch) {
  ContractPlane<ElasticityForm>(pass, z, scratch);
}
double FinishElasticity(const QuadraticPass& pass, int z, double* scratch) {
  return FinishPlane<ElasticityForm>(pass, z, scratch);
}

// --- Jacobian penalty ---

// Bounds of the differences along x, element by element, and NaN in `bad` where one is not finite.
struct RowBounds {
  float low[kPointsX], high[kPointsX], bad[kPointsX];

  void Add(const float* __restrict from, const float* __restrict to, int count) {
    for (int x = 0; x < count; ++x) {
      const float d = to[x] - from[x];
      low[x] = d < low[x] ? d : low[x];
      high[x] = d > high[x] ? d : high[x];
      bad[x] += d - d;
    }
  }
};

// Loads the first `size` points an axis. False where one is not finite.
bool BoundDifferences(const TileChunk& chunk, Int3 size, DifferenceBounds* bounds) {
  bool finite = true;
  for (int c = 0; c < 3; ++c) {
    RowBounds rows[3];
    for (RowBounds& r : rows) {
      std::fill(r.low, r.low + kPointsX, std::numeric_limits<float>::infinity());
      std::fill(r.high, r.high + kPointsX, -std::numeric_limits<float>::infinity());
      std::fill(r.bad, r.bad + kPointsX, 0.0f);
    }
    for (int z = 0; z < size.z; ++z) {
      for (int y = 0; y < size.y; ++y) {
        const float* row = chunk.points[c][z][y];
        rows[0].Add(row, row + 1, size.x - 1);
        if (y + 1 < size.y) rows[1].Add(row, chunk.points[c][z][y + 1], size.x);
        if (z + 1 < size.z) rows[2].Add(row, chunk.points[c][z + 1][y], size.x);
      }
    }
    for (int a = 0; a < 3; ++a) {
      // An axis with one control point has no derivative.
      const int count = a == 0 ? size.x - 1 : size[a] > 1 ? size.x : 0;
      bounds->low[a][c] = count > 0 ? *std::min_element(rows[a].low, rows[a].low + count) : 0;
      bounds->high[a][c] = count > 0 ? *std::max_element(rows[a].high, rows[a].high + count) : 0;
      for (int x = 0; x < count; ++x) finite = finite && rows[a].bad[x] == 0;
    }
  }
  return finite;
}

// Adds weight * (derivative by u, one vector an axis) to the control points of the tile that begins at `first`.
void ScatterSample(const PenaltyTask& t, Int3 first, const int (&s)[3], const Vec3f (&derivative)[3]) {
  const JacobianFrame& f = t.frame;
  const Int3 n = t.size;
  for (int k = 0; k < std::min(4, n.z); ++k) {
    for (int j = 0; j < std::min(4, n.y); ++j) {
      const float v = f.value[1][s[1]][j] * f.value[2][s[2]][k];
      const float y = f.slope[1][s[1]][j] * f.value[2][s[2]][k], z = f.value[1][s[1]][j] * f.slope[2][s[2]][k];
      float* row = t.gradient + 3 * ((int64_t{first.z + k} * n.y + first.y + j) * n.x + first.x);
      for (int i = 0; i < std::min(4, n.x); ++i) {
        const float wx = f.slope[0][s[0]][i] * v, wy = f.value[0][s[0]][i] * y, wz = f.value[0][s[0]][i] * z;
        for (int c = 0; c < 3; ++c) {
          row[3 * i + c] += wx * derivative[0][c] + wy * derivative[1][c] + wz * derivative[2][c];
        }
      }
    }
  }
}

// The four samples, of both along x, at the samples sy and sz of one row of tiles (j, k in the chunk).
double SampleRow(const PenaltyTask& t, const TileChunk& chunk, Int3 first, int count, int j, int k, int sy, int sz) {
  const JacobianFrame& f = t.frame;
  // Contracted along y and z, with the derivative along neither, y or z.
  float flat[3][kPointsX] = {}, along_y[3][kPointsX] = {}, along_z[3][kPointsX] = {};
  for (int b = 0; b < 4; ++b) {
    for (int a = 0; a < 4; ++a) {
      const float v = f.value[1][sy][a] * f.value[2][sz][b];
      const float y = f.slope[1][sy][a] * f.value[2][sz][b], z = f.value[1][sy][a] * f.slope[2][sz][b];
      for (int c = 0; c < 3; ++c) {
        const float* p = chunk.points[c][k + b][j + a];
        for (int x = 0; x < kPointsX; ++x) {
          flat[c][x] += v * p[x];
          along_y[c][x] += y * p[x];
          along_z[c][x] += z * p[x];
        }
      }
    }
  }
  double value = 0;
  for (int sx = 0; sx < 2; ++sx) {
    float u[3][3][kTilesX];  // [axis][component][tile]
    const auto& w = f.value[0][sx];
    const auto& s = f.slope[0][sx];
    for (int c = 0; c < 3; ++c) {
      for (int x = 0; x < kTilesX; ++x) {
        u[0][c][x] = s[0] * flat[c][x] + s[1] * flat[c][x + 1] + s[2] * flat[c][x + 2] + s[3] * flat[c][x + 3];
        u[1][c][x] =
            w[0] * along_y[c][x] + w[1] * along_y[c][x + 1] + w[2] * along_y[c][x + 2] + w[3] * along_y[c][x + 3];
        u[2][c][x] =
            w[0] * along_z[c][x] + w[1] * along_z[c][x + 1] + w[2] * along_z[c][x + 2] + w[3] * along_z[c][x + 3];
      }
    }
    float determinant[kTilesX];
    const auto& e = f.edge;
    for (int x = 0; x < kTilesX; ++x) {
      const float xx = e[0].x + u[0][0][x], xy = e[0].y + u[0][1][x], xz = e[0].z + u[0][2][x];
      const float yx = e[1].x + u[1][0][x], yy = e[1].y + u[1][1][x], yz = e[1].z + u[1][2][x];
      const float zx = e[2].x + u[2][0][x], zy = e[2].y + u[2][1][x], zz = e[2].z + u[2][2][x];
      determinant[x] =
          f.inverse_volume * (xx * (yy * zz - yz * zy) + xy * (yz * zx - yx * zz) + xz * (yx * zy - yy * zx));
    }
    for (int x = 0; x < count; ++x) {
      if (determinant[x] >= kJacobianThreshold) continue;
      const Vec3f at[3] = {{u[0][0][x], u[0][1][x], u[0][2][x]},
                           {u[1][0][x], u[1][1][x], u[1][2][x]},
                           {u[2][0][x], u[2][1][x], u[2][2][x]}};
      Vec3f derivative[3];
      float slope;
      value += JacobianCost(TileDeterminant(f, at, derivative), &slope);
      for (Vec3f& d : derivative) d = static_cast<float>(t.jacobian_scale) * slope * d;
      ScatterSample(t, first + Int3{x, j, k}, {sx, sy, sz}, derivative);
    }
  }
  return value;
}

// All tiles of a row of chunks: sum of the costs of their samples; adds to the gradient.
double JacobianChunks(const PenaltyTask& t, int first_y, int first_z) {
  const Int3 n = t.size;
  const Int3 tiles{AxisTiles(n.x), AxisTiles(n.y), AxisTiles(n.z)};
  double value = 0;
  TileChunk chunk;
  for (int first_x = 0; first_x < tiles.x; first_x += kTilesX) {
    for (int z = 0; z < kPointsZ; ++z) {
      for (int y = 0; y < kPointsY; ++y) {
        const float* row = t.grid + 3 * (int64_t{Clamp(first_z + z, n.z)} * n.y + Clamp(first_y + y, n.y)) * n.x;
        for (int x = 0; x < kPointsX; ++x) {
          for (int c = 0; c < 3; ++c) chunk.points[c][z][y][x] = row[3 * Clamp(first_x + x, n.x) + c];
        }
      }
    }
    const Int3 first{first_x, first_y, first_z};
    const Int3 points{std::min(kPointsX, n.x - first_x), std::min(kPointsY, n.y - first_y),
                      std::min(kPointsZ, n.z - first_z)};
    DifferenceBounds bounds;
    if (BoundDifferences(chunk, points, &bounds) && DeterminantLowerBound(t.frame, bounds) >= kJacobianThreshold) {
      continue;
    }
    for (int k = 0; k < std::min(kTilesZ, tiles.z - first_z); ++k) {
      for (int j = 0; j < std::min(kTilesY, tiles.y - first_y); ++j) {
        for (int s = 0; s < 4; ++s) {
          value += SampleRow(t, chunk, first, std::min(kTilesX, tiles.x - first_x), j, k, s % 2, s / 2);
        }
      }
    }
  }
  return value;
}

}  // namespace HWY_NAMESPACE
}  // namespace
}  // namespace intrawarp::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace intrawarp::cpu {
namespace {

HWY_EXPORT(BendingDoubles);
HWY_EXPORT(BendingPlane);
HWY_EXPORT(FinishBending);
HWY_EXPORT(ElasticityDoubles);
HWY_EXPORT(ElasticityPlane);
HWY_EXPORT(FinishElasticity);
HWY_EXPORT(JacobianChunks);

double SumInOrder(const double* partial, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += partial[i];
  return sum;
}

double AddBending(const QuadraticPass& pass, double* partial) {
  const Int3 n = pass.task.size;
  const size_t doubles = HWY_DYNAMIC_DISPATCH(BendingDoubles)(n.x);
  ParallelFor(n.z, [&](int64_t z) { HWY_DYNAMIC_DISPATCH(BendingPlane)(pass, z, ThreadScratch<double>(doubles)); });
  ParallelFor(n.z, [&](int64_t z) {
    partial[z] = HWY_DYNAMIC_DISPATCH(FinishBending)(pass, z, ThreadScratch<double>(doubles));
  });
  return SumInOrder(partial, n.z);
}

double AddElasticity(const QuadraticPass& pass, double* partial) {
  const Int3 n = pass.task.size;
  const size_t doubles = HWY_DYNAMIC_DISPATCH(ElasticityDoubles)(n.x);
  ParallelFor(n.z, [&](int64_t z) { HWY_DYNAMIC_DISPATCH(ElasticityPlane)(pass, z, ThreadScratch<double>(doubles)); });
  ParallelFor(n.z, [&](int64_t z) {
    partial[z] = HWY_DYNAMIC_DISPATCH(FinishElasticity)(pass, z, ThreadScratch<double>(doubles));
  });
  return SumInOrder(partial, n.z);
}

int64_t ChunkRows(int tiles, int tiles_per_chunk) { return (tiles + tiles_per_chunk - 1) / tiles_per_chunk; }

// Rows of chunks two apart share no control point: those with even and odd numbers along y and z run in turn, each
// kind in parallel.
double AddJacobian(const PenaltyTask& t, double* partial) {
  static_assert(kTilesY >= 3 && kTilesZ >= 3);
  const int64_t rows_y = ChunkRows(AxisTiles(t.size.y), kTilesY), rows_z = ChunkRows(AxisTiles(t.size.z), kTilesZ);
  for (int kind = 0; kind < 4; ++kind) {
    const int64_t odd_y = kind % 2, odd_z = kind / 2, count_y = (rows_y + 1 - odd_y) / 2,
                  count_z = (rows_z + 1 - odd_z) / 2;
    ParallelFor(count_y * count_z, [&](int64_t i) {
      const int64_t y = 2 * (i % count_y) + odd_y, z = 2 * (i / count_y) + odd_z;
      partial[z * rows_y + y] = HWY_DYNAMIC_DISPATCH(JacobianChunks)(t, y * kTilesY, z * kTilesZ);
    });
  }
  return t.jacobian_scale * SumInOrder(partial, rows_y * rows_z);
}

int64_t PlaneFloats(Int3 n) { return int64_t{3} * ElasticityForm::kOps * n.x * n.y * n.z; }
int64_t PartialDoubles(Int3 n) {
  return std::max<int64_t>(n.z, ChunkRows(AxisTiles(n.y), kTilesY) * ChunkRows(AxisTiles(n.z), kTilesZ));
}

}  // namespace

absl::Status AddGridPenalties(const ExecContext& ctx, const PenaltyTask& task) {
  if (task.skip != nullptr && *task.skip != 0) return absl::OkStatus();
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(double* partial, ctx.arena().Allocate<double>(PartialDoubles(task.size)));
  INTRAWARP_ASSIGN_OR_RETURN(float* planes, ctx.arena().Allocate<float>(PlaneFloats(task.size)));
  double value = 0;
  if (task.bending_scale != 0) value += AddBending({task, task.bending_scale, planes}, partial);
  if (task.elasticity_scale != 0) value += AddElasticity({task, task.elasticity_scale, planes}, partial);
  if (task.jacobian_scale != 0) value += AddJacobian(task, partial);
  *task.value = value;
  return absl::OkStatus();
}

int64_t GridPenaltyWorkspaceBytes(Int3 size) {
  return Arena::Rounded(PartialDoubles(size) * sizeof(double)) + Arena::Rounded(PlaneFloats(size) * sizeof(float));
}

}  // namespace intrawarp::cpu
#endif
