// SPDX-License-Identifier: Apache-2.0
// VT and VV of Zachariadis (2020), section 2.5.5. A thread makes a row of tiles at a time, so that neighbours share
// control points through the cache. Both use vectors of up to 8 floats, as the thesis does.
#include <algorithm>

#include "engine/device/parallel.h"
#include "tests/bench/baselines/bspline_variants.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/bench/baselines/bspline_vector.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace intrawarp::baselines::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D8 = hn::CappedTag<float, 8>;
using V8 = hn::Vec<D8>;

template <typename V>
HWY_INLINE V Lerp(V a, V b, V w) {
  return hn::MulAdd(w, hn::Sub(b, a), a);
}

// The 4 x 4 x 4 control points of a tile, and its voxels.
struct TileView {
  const Float4* control;  // the first of them
  int64_t row, plane;     // strides
  Int3 begin, end;
};

HWY_INLINE TileView ViewTile(const TiledVolume& v, const Float4* control, Int3 tile) {
  const Int3 nodes = v.nodes();
  const int64_t row = nodes.x, plane = row * nodes.y;
  TileView t{control + tile.z * plane + tile.y * row + tile.x, row, plane, v.tile * tile, {}};
  for (int a = 0; a < 3; ++a) t.end[a] = std::min(t.begin[a] + v.tile, v.size[a]);
  return t;
}

// One component (`p` points to it in the first control point) of as many voxels of a row as there are lanes; wx differ
// by lane.
HWY_INLINE V8 LerpRow(const float* p, const TileView& t, V8 low, V8 high, V8 mix, const LerpTable& table, int y,
                      int z) {
  const D8 d;
  V8 planes[2];
  for (int cz = 0; cz < 2; ++cz) {
    const V8 wz = hn::Set(d, cz ? table.high[z] : table.low[z]);
    V8 rows[2];
    for (int cy = 0; cy < 2; ++cy) {
      const V8 wy = hn::Set(d, cy ? table.high[y] : table.low[y]);
      V8 cubes[2];
      for (int cx = 0; cx < 2; ++cx) {
        const float* corner = p + 4 * (2 * cz * t.plane + 2 * cy * t.row + 2 * cx);
        const auto edge = [&](int64_t shift) HWY_ATTR {
          return Lerp(hn::Set(d, corner[4 * shift]), hn::Set(d, corner[4 * shift + 4]), cx ? high : low);
        };
        cubes[cx] = Lerp(Lerp(edge(0), edge(t.row), wy), Lerp(edge(t.plane), edge(t.plane + t.row), wy), wz);
      }
      rows[cy] = Lerp(cubes[0], cubes[1], mix);
    }
    planes[cz] = Lerp(rows[0], rows[1], hn::Set(d, table.mix[y]));
  }
  return Lerp(planes[0], planes[1], hn::Set(d, table.mix[z]));
}

// Slots beyond the tile's row hold junk, which the next tile overwrites; the last tile of a row stores only its voxels.
HWY_INLINE void StoreSlots(V8 v, int count, int room, float* out) {
  const D8 d;
  if (room >= static_cast<int>(hn::Lanes(d))) {
    hn::StoreU(v, d, out);
  } else {
    hn::BlendedStore(v, hn::FirstN(d, count), d, out);
  }
}

void VectorPerTileRow(const TiledVolume& v, const Float4* control, const LerpTable& table, int tile_y, int tile_z,
                      float* out) {
  const D8 d;
  const int lanes = static_cast<int>(hn::Lanes(d)), tiles = v.tiles().x;
  const int64_t voxels = v.voxels();
  for (int i = 0; i < tiles; ++i) {
    const TileView t = ViewTile(v, control, {i, tile_y, tile_z});
    for (int x = t.begin.x; x < t.end.x; x += lanes) {
      const int slot = x - t.begin.x;
      const V8 low = hn::LoadU(d, table.low + slot), high = hn::LoadU(d, table.high + slot);
      const V8 mix = hn::LoadU(d, table.mix + slot);
      for (int z = t.begin.z; z < t.end.z; ++z) {
        for (int y = t.begin.y; y < t.end.y; ++y) {
          float* to = out + (int64_t{z} * v.size.y + y) * v.size.x + x;
          for (int c = 0; c < 3; ++c) {
            const V8 value = LerpRow(&t.control->x + c, t, low, high, mix, table, y - t.begin.y, z - t.begin.z);
            StoreSlots(value, t.end.x - x, v.size.x - x, to + c * voxels);
          }
        }
      }
    }
  }
}

#if HWY_TARGET == HWY_SCALAR
// Without vectors a voxel is made in the same way.
void VectorPerVoxelRow(const TiledVolume& v, const Float4* control, const LerpTable& table, int tile_y, int tile_z,
                       float* out) {
  VectorPerTileRow(v, control, table, tile_y, tile_z, out);
}
#else
using D4 = hn::FixedTag<float, 4>;
using V4 = hn::Vec<D4>;

// VV. Lane 4 cz + 2 cy + cx is the sub-cube (cx, cy, cz). corners[c][k]: component c of the sub-cubes' corner k, of
// which bit 0, 1, 2 is its x, y, z.
struct Corners {
  alignas(32) float corners[3][8][8];
};

HWY_INLINE void GatherCorners(const TileView& t, Corners& g) {
  for (int k = 0; k < 8; ++k)
    for (int cube = 0; cube < 8; ++cube) {
      const int x = cube % 2 * 2 + k % 2, y = cube / 2 % 2 * 2 + k / 2 % 2, z = cube / 4 * 2 + k / 4;
      const Float4& p = t.control[z * t.plane + y * t.row + x];
      g.corners[0][k][cube] = p.x;
      g.corners[1][k][cube] = p.y;
      g.corners[2][k][cube] = p.z;
    }
}

// Each sub-cube's weights along an axis at one voxel of a tile, for the axis that bit `axis` of a lane stands for.
struct LaneWeights {
  alignas(32) float w[3][kMaxTile][8];
};

void FillLaneWeights(const LerpTable& table, int tile, LaneWeights& lanes) {
  for (int axis = 0; axis < 3; ++axis)
    for (int i = 0; i < tile; ++i)
      for (int cube = 0; cube < 8; ++cube) {
        lanes.w[axis][i][cube] = cube >> axis & 1 ? table.high[i] : table.low[i];
      }
}

// Seven interpolations in every sub-cube from `lane` on.
HWY_INLINE V8 SubCubes(const float (&p)[8][8], int lane, V8 u, V8 v, V8 w) {
  const D8 d;
  const auto edge = [&](int k) HWY_ATTR { return Lerp(hn::Load(d, p[k] + lane), hn::Load(d, p[k + 1] + lane), u); };
  return Lerp(Lerp(edge(0), edge(2), v), Lerp(edge(4), edge(6), v), w);
}

// For one component: interpolates along z between the four sub-cubes with cz = 0 and the four with cz = 1.
template <class D>
HWY_INLINE V4 AcrossZ(D d, const float (&p)[8][8], const LaneWeights& lanes, Int3 at, V4 mix) {
  const float *wx = lanes.w[0][at.x], *wy = lanes.w[1][at.y], *wz = lanes.w[2][at.z];
  const auto low = SubCubes(p, 0, hn::Load(d, wx), hn::Load(d, wy), hn::Load(d, wz));
  if constexpr (hn::MaxLanes(D()) == 8) {
    return Lerp(hn::LowerHalf(D4(), low), hn::UpperHalf(D4(), low), mix);
  } else {
    return Lerp(low, SubCubes(p, 4, hn::Load(d, wx + 4), hn::Load(d, wy + 4), hn::Load(d, wz + 4)), mix);
  }
}

void VectorPerVoxelRow(const TiledVolume& v, const Float4* control, const LerpTable& table, int tile_y, int tile_z,
                       float* out) {
  const D4 d;
  const int64_t voxels = v.voxels();
  LaneWeights lanes;
  FillLaneWeights(table, v.tile, lanes);
  Corners g;
  for (int i = 0; i < v.tiles().x; ++i) {
    const TileView t = ViewTile(v, control, {i, tile_y, tile_z});
    GatherCorners(t, g);
    for (int z = t.begin.z; z < t.end.z; ++z)
      for (int y = t.begin.y; y < t.end.y; ++y)
        for (int x = t.begin.x; x < t.end.x; ++x) {
          const Int3 at = Int3{x, y, z} - t.begin;
          const V4 mz = hn::Set(d, table.mix[at.z]);
          // The last cube for all components at once: transposed, a vector holds the components of one (cx, cy).
          const V4 cx = AcrossZ(D8(), g.corners[0], lanes, at, mz), cy = AcrossZ(D8(), g.corners[1], lanes, at, mz);
          const V4 cz = AcrossZ(D8(), g.corners[2], lanes, at, mz), zero = hn::Zero(d);
          const V4 xy01 = hn::InterleaveLower(d, cx, cy), xy23 = hn::InterleaveUpper(d, cx, cy);
          const V4 zw01 = hn::InterleaveLower(d, cz, zero), zw23 = hn::InterleaveUpper(d, cz, zero);
          const V4 low = Lerp(hn::ConcatLowerLower(d, zw01, xy01), hn::ConcatUpperUpper(d, zw01, xy01),
                              hn::Set(d, table.mix[at.x]));
          const V4 high = Lerp(hn::ConcatLowerLower(d, zw23, xy23), hn::ConcatUpperUpper(d, zw23, xy23),
                               hn::Set(d, table.mix[at.x]));
          HWY_ALIGN float value[4];
          hn::Store(Lerp(low, high, hn::Set(d, table.mix[at.y])), d, value);
          const int64_t voxel = (int64_t{z} * v.size.y + y) * v.size.x + x;
          for (int c = 0; c < 3; ++c) out[voxel + c * voxels] = value[c];
        }
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace intrawarp::baselines::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace intrawarp::baselines::cpu {
namespace {

HWY_EXPORT(VectorPerTileRow);
HWY_EXPORT(VectorPerVoxelRow);

// row(tile_y, tile_z) for every row of tiles.
template <typename Row>
void ForTileRows(Int3 tiles, const Row& row) {
  ParallelFor(int64_t{tiles.y} * tiles.z,
              [&](int64_t i) { row(static_cast<int>(i % tiles.y), static_cast<int>(i / tiles.y)); });
}

}  // namespace

absl::StatusOr<Work> MakeVectorPerTile(const ExecContext&, const TiledVolume& volume, const Float4* control,
                                       float* out) {
  return Work([=, table = MakeLerpTable(volume.tile)] {
    const auto run = HWY_DYNAMIC_DISPATCH(VectorPerTileRow);
    ForTileRows(volume.tiles(), [&](int y, int z) { run(volume, control, table, y, z, out); });
    return absl::OkStatus();
  });
}

absl::StatusOr<Work> MakeVectorPerVoxel(const ExecContext&, const TiledVolume& volume, const Float4* control,
                                        float* out) {
  return Work([=, table = MakeLerpTable(volume.tile)] {
    const auto run = HWY_DYNAMIC_DISPATCH(VectorPerVoxelRow);
    ForTileRows(volume.tiles(), [&](int y, int z) { run(volume, control, table, y, z, out); });
    return absl::OkStatus();
  });
}

}  // namespace intrawarp::baselines::cpu
#endif
