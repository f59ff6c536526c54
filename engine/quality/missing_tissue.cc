// SPDX-License-Identifier: Apache-2.0
#include "engine/quality/missing_tissue.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/device/parallel.h"
#include "engine/quality/residual_probe_kernels.h"

namespace intrawarp {
namespace {

using Bytes = std::vector<uint8_t>;

// --- Intensities as levels ---

constexpr int kLevels = 128;
// The part of the samples below the first level and above the last.
constexpr double kTail = 1e-3;

struct Range {
  float low = 0, high = 0;
};

// The central 1 - 2 kTail of the valid samples.
Range CentralRange(absl::Span<const float> values, absl::Span<const uint8_t> valid) {
  constexpr int kBins = 4096;
  Range all{std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()};
  int64_t count = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (valid[i] == 0) continue;
    all = {std::min(all.low, values[i]), std::max(all.high, values[i])};
    ++count;
  }
  if (count == 0 || !(all.high > all.low)) return all;
  const double scale = kBins / (double{all.high} - all.low);
  std::vector<int64_t> bins(kBins);
  for (size_t i = 0; i < values.size(); ++i) {
    if (valid[i] != 0) ++bins[std::min(kBins - 1, static_cast<int>((double{values[i]} - all.low) * scale))];
  }
  const auto tail = static_cast<int64_t>(kTail * static_cast<double>(count));
  int first = 0, last = kBins - 1;
  for (int64_t below = bins[first]; below <= tail && first < last; below += bins[++first]) {
  }
  for (int64_t above = bins[last]; above <= tail && last > first; above += bins[--last]) {
  }
  return {static_cast<float>(all.low + first / scale), static_cast<float>(all.low + (last + 1) / scale)};
}

Bytes ToLevels(absl::Span<const float> values, const Range& range) {
  const double scale = kLevels / (double{range.high} - range.low);
  Bytes levels(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    levels[i] = static_cast<uint8_t>(std::clamp((double{values[i]} - range.low) * scale, 0.0, kLevels - 1.0));
  }
  return levels;
}

// --- What one image foretells of the other ---

// counts[a][b]: nodes with level a of one image and b of the other.
using JointCounts = std::array<std::array<int64_t, kLevels>, kLevels>;
// Levels that are foretold by each level of the other image.
struct Foretold {
  std::array<uint8_t, kLevels> low, high;
};

// Levels on either side whose samples count for a level, too.
constexpr int kLevelReach = 2;
// A level with fewer samples foretells everything.
constexpr int64_t kLeastSamples = 64;
// Most intensities lie within so many median distances (1.48 of them are a standard deviation).
constexpr double kMedianDistances = 2.5;
// Levels that lie closer to a median are always foretold: noise, interpolation.
constexpr int kLeastLevels = 8;

// The level at which half of the counts are passed.
int Median(const std::array<int64_t, kLevels>& counts, int64_t total) {
  int64_t passed = 0;
  for (int level = 0; level < kLevels; ++level) {
    passed += counts[level];
    if (2 * passed >= total) return level;
  }
  return kLevels - 1;
}

Foretold Foretell(const JointCounts& counts) {
  Foretold foretold;
  for (int a = 0; a < kLevels; ++a) {
    std::array<int64_t, kLevels> near = {}, distances = {};
    int64_t total = 0;
    for (int other = std::max(0, a - kLevelReach); other <= std::min(kLevels - 1, a + kLevelReach); ++other) {
      for (int b = 0; b < kLevels; ++b) near[b] += counts[other][b];
    }
    for (int64_t n : near) total += n;
    foretold.low[a] = 0;
    foretold.high[a] = kLevels - 1;
    if (total < kLeastSamples) continue;
    const int median = Median(near, total);
    for (int b = 0; b < kLevels; ++b) distances[std::abs(b - median)] += near[b];
    const double most = kMedianDistances * (0.5 + Median(distances, total));
    const int width = std::max(kLeastLevels, static_cast<int>(most));
    foretold.low[a] = static_cast<uint8_t>(std::max(0, median - width));
    foretold.high[a] = static_cast<uint8_t>(std::min(kLevels - 1, median + width));
  }
  return foretold;
}

JointCounts CountPairs(const Bytes& a, const Bytes& b, absl::Span<const uint8_t> valid) {
  JointCounts counts = {};
  for (size_t i = 0; i < a.size(); ++i) {
    if (valid[i] != 0) ++counts[a[i]][b[i]];
  }
  return counts;
}

// --- Filters over boxes of nodes ---

int Nodes(double mm, const Geometry& grid, int axis) {
  return grid.size[axis] == 1 ? 0 : static_cast<int>(std::lround(mm / grid.spacing[axis]));
}

Int3 Nodes(double mm, const Geometry& grid) { return {Nodes(mm, grid, 0), Nodes(mm, grid, 1), Nodes(mm, grid, 2)}; }

// to[i] = the combination of from[i - radius ... i + radius], within the row.
template <typename Combine>
void FilterRow(const uint8_t* from, int n, int radius, const Combine& combine, uint8_t* to) {
  std::copy(from, from + n, to);
  for (int d = 1; d <= std::min(radius, n - 1); ++d) {
    for (int x = 0; x < n - d; ++x) to[x] = combine(to[x], from[x + d]);
    for (int x = d; x < n; ++x) to[x] = combine(to[x], from[x - d]);
  }
}

// The same across rows of `length` bytes that lie `stride` apart; `row` of `rows`.
template <typename Combine>
void FilterAcross(const uint8_t* from, int row, int rows, int64_t stride, int length, int radius,
                  const Combine& combine, uint8_t* to) {
  std::copy(from + row * stride, from + row * stride + length, to);
  for (int other = std::max(0, row - radius); other <= std::min(rows - 1, row + radius); ++other) {
    const uint8_t* p = from + other * stride;
    for (int x = 0; x < length; ++x) to[x] = combine(to[x], p[x]);
  }
}

// Every node becomes the combination of the box around it, as far as it lies in the grid.
template <typename Combine>
Bytes FilterBox(const Bytes& in, Int3 n, Int3 radius, const Combine& combine) {
  const int64_t plane = int64_t{n.x} * n.y;
  Bytes in_planes(in.size()), out(in.size());
  ParallelFor(n.z, [&](int64_t z) {
    Bytes rows(plane);
    for (int y = 0; y < n.y; ++y) FilterRow(&in[z * plane + y * n.x], n.x, radius.x, combine, &rows[y * n.x]);
    for (int y = 0; y < n.y; ++y) {
      FilterAcross(rows.data(), y, n.y, n.x, n.x, radius.y, combine, &in_planes[z * plane + y * n.x]);
    }
  });
  ParallelFor(n.z, [&](int64_t z) {
    FilterAcross(in_planes.data(), static_cast<int>(z), n.z, plane, static_cast<int>(plane), radius.z, combine,
                 &out[z * plane]);
  });
  return out;
}

Bytes Lowest(const Bytes& in, Int3 n, Int3 radius) {
  return FilterBox(in, n, radius, [](uint8_t a, uint8_t b) { return std::min(a, b); });
}
Bytes Highest(const Bytes& in, Int3 n, Int3 radius) {
  return FilterBox(in, n, radius, [](uint8_t a, uint8_t b) { return std::max(a, b); });
}

// --- Suspicion ---

// Adds the nodes where `b` is none of the levels that `a` foretells within the reach. A node that does not count
// foretells everything.
void Suspect(const Geometry& grid, const Bytes& a, const Bytes& b, absl::Span<const uint8_t> valid, Bytes& suspects) {
  const Foretold foretold = Foretell(CountPairs(a, b, valid));
  Bytes low(a.size()), high(a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    low[i] = valid[i] != 0 ? foretold.low[a[i]] : 0;
    high[i] = valid[i] != 0 ? foretold.high[a[i]] : kLevels - 1;
  }
  const Int3 reach = Nodes(kReachMm, grid);
  low = Lowest(low, grid.size, reach);
  high = Highest(high, grid.size, reach);
  for (size_t i = 0; i < a.size(); ++i) suspects[i] |= valid[i] != 0 && (b[i] < low[i] || b[i] > high[i]);
}

// --- Shape ---

// Marks of pieces of 1s that are connected by faces and have at least `least` nodes.
void DropSmallPieces(Int3 n, int64_t least, Bytes& nodes) {
  const int64_t strides[3] = {1, n.x, int64_t{n.x} * n.y};
  constexpr uint8_t kKept = 2;
  std::vector<int64_t> piece;
  for (int64_t seed = 0; seed < static_cast<int64_t>(nodes.size()); ++seed) {
    if (nodes[seed] != 1) continue;
    piece.assign(1, seed);
    nodes[seed] = kKept;
    for (size_t next = 0; next < piece.size(); ++next) {
      const int64_t at = piece[next], row = at / n.x;
      const int place[3] = {static_cast<int>(at % n.x), static_cast<int>(row % n.y), static_cast<int>(row / n.y)};
      for (int axis = 0; axis < 3; ++axis) {
        for (int step : {-1, 1}) {
          const int moved = place[axis] + step;
          const int64_t neighbour = at + step * strides[axis];
          if (moved < 0 || moved >= n[axis] || nodes[neighbour] != 1) continue;
          nodes[neighbour] = kKept;
          piece.push_back(neighbour);
        }
      }
    }
    if (static_cast<int64_t>(piece.size()) >= least) continue;
    for (int64_t at : piece) nodes[at] = 0;
  }
  for (uint8_t& node : nodes) node = node != 0;
}

double NodeVolume(const Geometry& grid) {
  return grid.spacing.x * grid.spacing.y * (grid.is_2d() ? 1 : grid.spacing.z);
}

Bytes Shape(const Geometry& grid, const Bytes& suspects) {
  const Int3 n = grid.size, half_width = Nodes(kLeastWidthMm / 2, grid), gap = Nodes(kGapMm / 2, grid);
  Bytes nodes = Highest(Lowest(suspects, n, half_width), n, half_width);
  nodes = Lowest(Highest(nodes, n, gap), n, gap);
  const double least = grid.is_2d() ? std::pow(kLeastVolumeMm3, 2.0 / 3) : kLeastVolumeMm3;
  DropSmallPieces(n, static_cast<int64_t>(std::ceil(least / NodeVolume(grid))), nodes);
  return nodes;
}

// Fills in the figures.
MissingTissue Measured(const Geometry& grid, Bytes nodes, int64_t covered) {
  MissingTissue tissue;
  tissue.grid = grid;
  const auto count = static_cast<double>(std::count(nodes.begin(), nodes.end(), uint8_t{1}));
  if (count == 0) return tissue;
  tissue.nodes = std::move(nodes);
  tissue.volume_mm3 = count * NodeVolume(grid);
  tissue.fraction = covered > 0 ? count / static_cast<double>(covered) : 0;
  return tissue;
}

}  // namespace

bool MissingTissue::Contains(Vec3d point) const {
  if (nodes.empty()) return false;
  const Vec3d index = PhysicalToIndex(grid)(point);
  int64_t offset = 0;
  for (int axis = 2; axis >= 0; --axis) {
    const double nearest = grid.size[axis] == 1 ? 0 : std::floor(index[axis] + 0.5);
    if (!(nearest >= 0 && nearest < grid.size[axis])) return false;
    offset = offset * grid.size[axis] + static_cast<int64_t>(nearest);
  }
  return nodes[offset] != 0;
}

MissingTissue FindMissingTissue(const Geometry& grid, const NodeSamples& samples) {
  const Range fixed = CentralRange(samples.fixed, samples.valid), moving = CentralRange(samples.moving, samples.valid);
  const int64_t covered =
      static_cast<int64_t>(samples.valid.size()) - std::count(samples.valid.begin(), samples.valid.end(), uint8_t{0});
  // Written so that a constant image, and one without samples, shows nothing.
  if (!(fixed.high > fixed.low && moving.high > moving.low)) return Measured(grid, {}, covered);
  const Bytes f = ToLevels(samples.fixed, fixed), m = ToLevels(samples.moving, moving);
  Bytes suspects(f.size());
  Suspect(grid, m, f, samples.valid, suspects);
  Suspect(grid, f, m, samples.valid, suspects);
  return Measured(grid, Shape(grid, suspects), covered);
}

absl::StatusOr<MissingTissue> FindMissingTissue(const ExecContext& ctx, const PreparedImage& fixed,
                                                const PreparedImage& moving, ConstMaskView fixed_mask,
                                                ConstMaskView moving_mask, const Transform& transform, int64_t nodes) {
  const Geometry grid = ProbeGrid(fixed.geometry(), nodes);
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(const ProbeSamples on_device,
                             SampleImages(ctx, fixed, moving, fixed_mask, moving_mask, transform, grid));
  std::vector<float> f(grid.voxels()), m(grid.voxels());
  Bytes valid(grid.voxels());
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(f.data(), on_device.fixed, f.size() * sizeof(float), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(m.data(), on_device.moving, m.size() * sizeof(float), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(valid.data(), on_device.valid, valid.size(), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
  return FindMissingTissue(grid, {f, m, valid});
}

size_t MissingTissueWorkspaceBytes(const Geometry& fixed) {
  const size_t nodes = ProbeGrid(fixed).voxels();
  return 2 * Arena::Rounded(nodes * sizeof(float)) + Arena::Rounded(nodes);
}

MissingTissue Widened(MissingTissue tissue, double margin_mm) {
  if (!tissue.nodes.empty()) {
    tissue.nodes = Highest(tissue.nodes, tissue.grid.size, Nodes(margin_mm, tissue.grid));
  }
  return tissue;
}

}  // namespace intrawarp
