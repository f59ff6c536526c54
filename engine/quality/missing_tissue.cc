// SPDX-License-Identifier: Apache-2.0
#include "engine/quality/missing_tissue.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/device/parallel.h"
#include "engine/quality/residual_probe_kernels.h"

namespace intrawarp {
namespace {

using Bytes = std::vector<uint8_t>;
// Intensities in steps of the image's range.
using Levels = std::vector<uint16_t>;

constexpr int kLevels = 512;
// The part of the samples below the first level and above the last.
constexpr double kTail = 1e-3;

// --- Filters over boxes of nodes ---

int Nodes(double mm, const Geometry& grid, int axis) {
  return grid.size[axis] == 1 ? 0 : static_cast<int>(std::lround(mm / grid.spacing[axis]));
}

Int3 Nodes(double mm, const Geometry& grid) { return {Nodes(mm, grid, 0), Nodes(mm, grid, 1), Nodes(mm, grid, 2)}; }

// One node on each axis that the grid has.
Int3 Neighbours(const Geometry& grid) {
  return {std::min(1, grid.size.x - 1), std::min(1, grid.size.y - 1), std::min(1, grid.size.z - 1)};
}

// to[i] = the combination of from[i - radius ... i + radius], within the row.
template <typename T, typename Combine>
void FilterRow(const T* from, int n, int radius, const Combine& combine, T* to) {
  std::copy(from, from + n, to);
  for (int d = 1; d <= std::min(radius, n - 1); ++d) {
    for (int x = 0; x < n - d; ++x) to[x] = combine(to[x], from[x + d]);
    for (int x = d; x < n; ++x) to[x] = combine(to[x], from[x - d]);
  }
}

// The same across rows of `length` values that lie `stride` apart; `row` of `rows`.
template <typename T, typename Combine>
void FilterAcross(const T* from, int row, int rows, int64_t stride, int length, int radius, const Combine& combine,
                  T* to) {
  std::copy(from + row * stride, from + row * stride + length, to);
  for (int other = std::max(0, row - radius); other <= std::min(rows - 1, row + radius); ++other) {
    const T* p = from + other * stride;
    for (int x = 0; x < length; ++x) to[x] = combine(to[x], p[x]);
  }
}

// Every node becomes the combination of the box around it, as far as it lies in the grid.
template <typename T, typename Combine>
std::vector<T> FilterBox(const std::vector<T>& in, Int3 n, Int3 radius, const Combine& combine) {
  const int64_t plane = int64_t{n.x} * n.y;
  std::vector<T> in_planes(in.size()), out(in.size());
  ParallelFor(n.z, [&](int64_t z) {
    std::vector<T> rows(plane);
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

template <typename T>
std::vector<T> Lowest(const std::vector<T>& in, Int3 n, Int3 radius) {
  return FilterBox(in, n, radius, [](T a, T b) { return std::min(a, b); });
}
template <typename T>
std::vector<T> Highest(const std::vector<T>& in, Int3 n, Int3 radius) {
  return FilterBox(in, n, radius, [](T a, T b) { return std::max(a, b); });
}

// The median of a valid node and its two neighbours on an axis; in place of one that does not count, the node itself.
Levels MediansAlong(int axis, const Levels& in, Int3 n, absl::Span<const uint8_t> valid) {
  const int64_t plane = int64_t{n.x} * n.y, stride = axis == 0 ? 1 : axis == 1 ? n.x : plane;
  Levels out(in.size());
  ParallelFor(n.z, [&](int64_t z) {
    int64_t at = z * plane;
    for (int y = 0; y < n.y; ++y) {
      for (int x = 0; x < n.x; ++x, ++at) {
        if (valid[at] == 0) continue;
        const int64_t place = axis == 0 ? x : axis == 1 ? y : z;
        const bool has_before = place > 0 && valid[at - stride] != 0;
        const bool has_after = place + 1 < n[axis] && valid[at + stride] != 0;
        const uint16_t here = in[at], before = has_before ? in[at - stride] : here;
        const uint16_t after = has_after ? in[at + stride] : here;
        out[at] = std::max(std::min(before, after), std::min(std::max(before, after), here));
      }
    }
  });
  return out;
}

// How far the levels of a node and its neighbours lie apart, valid ones only.
Levels Spreads(const Levels& levels, const Geometry& grid, absl::Span<const uint8_t> valid) {
  Levels low(levels), high(levels);
  for (size_t i = 0; i < levels.size(); ++i) {
    if (valid[i] == 0) low[i] = kLevels - 1, high[i] = 0;
  }
  low = Lowest(low, grid.size, Neighbours(grid));
  high = Highest(high, grid.size, Neighbours(grid));
  for (size_t i = 0; i < levels.size(); ++i) high[i] = high[i] > low[i] ? high[i] - low[i] : 0;
  return high;
}

// --- Intensities as levels ---

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

// Without the noise that medians along the axes, one after the other, remove.
Levels ToLevels(const Geometry& grid, absl::Span<const float> values, absl::Span<const uint8_t> valid,
                const Range& range) {
  const double scale = kLevels / (double{range.high} - range.low);
  Levels levels(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if (valid[i] == 0) continue;
    levels[i] = static_cast<uint16_t>(std::clamp((double{values[i]} - range.low) * scale, 0.0, kLevels - 1.0));
  }
  for (int axis = 0; axis < 3; ++axis) levels = MediansAlong(axis, levels, grid.size, valid);
  return levels;
}

// --- What one image foretells of the other ---

// counts[a * kLevels + b]: nodes with level a of one image and b of another quantity.
using JointCounts = std::vector<int64_t>;
// Levels that are foretold by each level of the other image.
struct Foretold {
  std::array<uint16_t, kLevels> low, high;
};

// The part of a level's nodes that speak for it: where the image is flattest, and the tissue therefore one.
constexpr double kFlattest = 0.2;
// Levels on either side whose samples count for a level, too, and how far they go where that is not enough.
constexpr int kLevelReach = 4, kFarthestLevelReach = 32;
// A level with fewer samples foretells everything.
constexpr int64_t kLeastSamples = 64;
// Most intensities lie within so many median distances (1.48 of them are a standard deviation).
constexpr double kMedianDistances = 2.5;
// Levels that lie closer to a median are always foretold: noise, interpolation.
constexpr int kLeastLevels = 4;

// The level at which half of the counts are passed.
int Median(const std::array<int64_t, kLevels>& counts, int64_t total) {
  int64_t passed = 0;
  for (int level = 0; level < kLevels; ++level) {
    passed += counts[level];
    if (2 * passed >= total) return level;
  }
  return kLevels - 1;
}

JointCounts CountPairs(const Levels& a, const Levels& b, absl::Span<const uint8_t> valid) {
  JointCounts counts(kLevels * kLevels);
  for (size_t i = 0; i < a.size(); ++i) {
    if (valid[i] != 0) ++counts[a[i] * kLevels + b[i]];
  }
  return counts;
}

// The same at the flattest nodes of each level of `a`; nodes that are equally flat count together.
JointCounts CountFlatPairs(const Geometry& grid, const Levels& a, const Levels& b, absl::Span<const uint8_t> valid) {
  const Levels spreads = Spreads(a, grid, valid);
  const JointCounts by_spread = CountPairs(a, spreads, valid);
  std::array<uint16_t, kLevels> widest = {};
  for (int level = 0; level < kLevels; ++level) {
    const int64_t* row = &by_spread[level * kLevels];
    const double wanted = kFlattest * static_cast<double>(std::accumulate(row, row + kLevels, int64_t{0}));
    int64_t passed = row[0];
    while (static_cast<double>(passed) < wanted) passed += row[++widest[level]];
  }
  Bytes is_flat(a.size());
  for (size_t i = 0; i < a.size(); ++i) is_flat[i] = valid[i] != 0 && spreads[i] <= widest[a[i]];
  return CountPairs(a, b, is_flat);
}

// sums[a * kLevels + b]: the counts of b over all levels below a, for a up to kLevels.
JointCounts SumsBelow(const JointCounts& counts) {
  JointCounts sums(counts.size() + kLevels);
  for (size_t i = 0; i < counts.size(); ++i) sums[i + kLevels] = sums[i] + counts[i];
  return sums;
}

// The counts of the levels around `a`, of so many that they are enough; returns their number.
int64_t CountsNear(const JointCounts& sums_below, int a, std::array<int64_t, kLevels>& near) {
  int64_t total = 0;
  for (int reach = kLevelReach; total < kLeastSamples && reach <= kFarthestLevelReach; reach += kLevelReach) {
    const int64_t *below = &sums_below[std::max(0, a - reach) * kLevels],
                  *up_to = &sums_below[std::min(kLevels, a + reach + 1) * kLevels];
    for (int b = 0; b < kLevels; ++b) near[b] = up_to[b] - below[b];
    total = std::accumulate(near.begin(), near.end(), int64_t{0});
  }
  return total;
}

Foretold Foretell(const JointCounts& counts) {
  const JointCounts sums_below = SumsBelow(counts);
  Foretold foretold;
  for (int a = 0; a < kLevels; ++a) {
    foretold.low[a] = 0;
    foretold.high[a] = kLevels - 1;
    std::array<int64_t, kLevels> near = {}, distances = {};
    const int64_t total = CountsNear(sums_below, a, near);
    if (total < kLeastSamples) continue;
    const int median = Median(near, total);
    for (int b = 0; b < kLevels; ++b) distances[std::abs(b - median)] += near[b];
    const double most = kMedianDistances * (0.5 + Median(distances, total));
    const int width = std::max(kLeastLevels, static_cast<int>(most));
    foretold.low[a] = static_cast<uint16_t>(std::max(0, median - width));
    foretold.high[a] = static_cast<uint16_t>(std::min(kLevels - 1, median + width));
  }
  return foretold;
}

// --- Suspicion ---

// 1 where a node is suspect.
struct Suspects {
  // Not foretold at the node itself, and nowhere within the reach.
  Bytes here, within_reach;
};

// Adds the nodes where `b` is none of the levels that `a` foretells. A node that does not count foretells everything.
void Suspect(const Geometry& grid, const Levels& a, const Levels& b, absl::Span<const uint8_t> valid,
             Suspects& suspects) {
  const Foretold foretold = Foretell(CountFlatPairs(grid, a, b, valid));
  Levels low(a.size()), high(a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    low[i] = valid[i] != 0 ? foretold.low[a[i]] : 0;
    high[i] = valid[i] != 0 ? foretold.high[a[i]] : kLevels - 1;
  }
  const auto add = [&](Bytes& to) {
    for (size_t i = 0; i < a.size(); ++i) to[i] |= valid[i] != 0 && (b[i] < low[i] || b[i] > high[i]);
  };
  add(suspects.here);
  const Int3 reach = Nodes(kReachMm, grid);
  low = Lowest(low, grid.size, reach);
  high = Highest(high, grid.size, reach);
  add(suspects.within_reach);
}

// --- Shape ---

// Calls `visit` with each node that shares a face with the node `at`.
template <typename Visit>
void ForEachNeighbour(Int3 n, int64_t at, const Visit& visit) {
  const int64_t strides[3] = {1, n.x, int64_t{n.x} * n.y}, row = at / n.x;
  const int place[3] = {static_cast<int>(at % n.x), static_cast<int>(row % n.y), static_cast<int>(row / n.y)};
  for (int axis = 0; axis < 3; ++axis) {
    if (place[axis] > 0) visit(at - strides[axis]);
    if (place[axis] + 1 < n[axis]) visit(at + strides[axis]);
  }
}

// Calls `visit` with the nodes of each piece of 1s that faces connect; `visit` may change the values of nodes to 0
// or 2.
template <typename Visit>
void ForEachPiece(Int3 n, Bytes& nodes, const Visit& visit) {
  constexpr uint8_t kSeen = 2;
  std::vector<int64_t> piece;
  for (int64_t seed = 0; seed < static_cast<int64_t>(nodes.size()); ++seed) {
    if (nodes[seed] != 1) continue;
    piece.assign(1, seed);
    nodes[seed] = kSeen;
    for (size_t next = 0; next < piece.size(); ++next) {
      ForEachNeighbour(n, piece[next], [&](int64_t neighbour) {
        if (nodes[neighbour] != 1) return;
        nodes[neighbour] = kSeen;
        piece.push_back(neighbour);
      });
    }
    visit(piece);
  }
  for (uint8_t& node : nodes) node = node != 0;
}

void DropSmallPieces(Int3 n, int64_t least, Bytes& nodes) {
  ForEachPiece(n, nodes, [&](const std::vector<int64_t>& piece) {
    if (static_cast<int64_t>(piece.size()) >= least) return;
    for (int64_t at : piece) nodes[at] = 0;
  });
}

// The levels that most nodes of a piece have, widened by kLeastLevels on either side.
struct LevelRange {
  int low = 0, high = 0;

  int width() const { return high - low; }
  bool Contains(int level) const { return level >= low && level <= high; }
};

LevelRange RangeOf(const std::vector<int64_t>& piece, const Levels& levels) {
  std::array<int64_t, kLevels> counts = {};
  for (int64_t at : piece) ++counts[levels[at]];
  const auto tail = static_cast<int64_t>(piece.size() / 20);
  LevelRange range{0, kLevels - 1};
  for (int64_t below = counts[0]; below <= tail && range.low < kLevels - 1; below += counts[++range.low]) {
  }
  for (int64_t above = counts[kLevels - 1]; above <= tail && range.high > 0; above += counts[--range.high]) {
  }
  return {range.low - kLeastLevels, range.high + kLeastLevels};
}

// Adds to each piece of 1s the nodes of `within` that at most `steps` faces lead to and that look like it: in the image
// in which it is the more uniform, they have its levels.
void Grow(Int3 n, const Levels& fixed, const Levels& moving, const Bytes& within, int steps, Bytes& nodes) {
  Bytes grown = nodes;
  std::vector<int64_t> front, next;
  ForEachPiece(n, nodes, [&](const std::vector<int64_t>& piece) {
    const LevelRange in_fixed = RangeOf(piece, fixed), in_moving = RangeOf(piece, moving);
    const bool is_fixed = in_fixed.width() <= in_moving.width();
    const LevelRange& range = is_fixed ? in_fixed : in_moving;
    const Levels& levels = is_fixed ? fixed : moving;
    front = piece;
    for (int step = 0; step < steps && !front.empty(); ++step) {
      next.clear();
      for (int64_t at : front) {
        ForEachNeighbour(n, at, [&](int64_t neighbour) {
          if (grown[neighbour] != 0 || within[neighbour] == 0 || !range.Contains(levels[neighbour])) return;
          grown[neighbour] = 1;
          next.push_back(neighbour);
        });
      }
      front.swap(next);
    }
  });
  nodes = std::move(grown);
}

double NodeVolume(const Geometry& grid) {
  return grid.spacing.x * grid.spacing.y * (grid.is_2d() ? 1 : grid.spacing.z);
}

Bytes Opened(const Bytes& nodes, Int3 n, Int3 radius) { return Highest(Lowest(nodes, n, radius), n, radius); }
Bytes Closed(const Bytes& nodes, Int3 n, Int3 radius) { return Lowest(Highest(nodes, n, radius), n, radius); }

Bytes Shape(const Geometry& grid, const Levels& fixed, const Levels& moving, const Suspects& suspects) {
  const Int3 n = grid.size, half_width = Nodes(kLeastWidthMm / 2, grid);
  Bytes nodes = Opened(suspects.within_reach, n, half_width);
  Grow(n, fixed, moving, suspects.here, Nodes(kReachMm, grid, 0), nodes);
  nodes = Closed(Opened(nodes, n, half_width), n, Nodes(kGapMm / 2, grid));
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
  const Levels f = ToLevels(grid, samples.fixed, samples.valid, fixed),
               m = ToLevels(grid, samples.moving, samples.valid, moving);
  Suspects suspects{Bytes(f.size()), Bytes(f.size())};
  Suspect(grid, m, f, samples.valid, suspects);
  Suspect(grid, f, m, samples.valid, suspects);
  return Measured(grid, Shape(grid, f, m, suspects), covered);
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
