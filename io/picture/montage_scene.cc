// SPDX-License-Identifier: Apache-2.0
#include "io/picture/montage_scene.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace intrawarp::io {
namespace {

// The voxel of an offset, x fastest.
Vec3d IndexOf(Int3 size, int64_t offset) {
  const int64_t row = offset / size.x;
  const int64_t x = offset % size.x, y = row % size.y, z = row / size.y;
  return {static_cast<double>(x), static_cast<double>(y), static_cast<double>(z)};
}

constexpr float kNothing = std::numeric_limits<float>::quiet_NaN();
// A slice is shown at least so many pixels high and wide, so that it can be seen and its letters have room.
constexpr int kLeastPixels = 84;

bool InDomain(const Geometry& g, Vec3d index) {
  for (int a = 0; a < 3; ++a)
    if (!(index[a] >= -0.5 && index[a] <= g.size[a] - 0.5)) return false;
  return true;
}

// The voxels around an index inside the domain, and their trilinear weights; the border voxel reaches half a voxel out.
struct Corner {
  Int3 voxel;
  double weight;
};
std::array<Corner, 8> CornersOf(const Geometry& g, Vec3d index) {
  std::array<Corner, 8> corners;
  for (int k = 0; k < 8; ++k) {
    corners[k].weight = 1;
    for (int a = 0; a < 3; ++a) {
      const double at = std::clamp(index[a], 0.0, g.size[a] - 1.0);
      const int low = static_cast<int>(at);
      const bool up = k >> a & 1;
      corners[k].weight *= up ? at - low : 1 - (at - low);
      corners[k].voxel[a] = std::min(low + up, g.size[a] - 1);
    }
  }
  return corners;
}

int64_t OffsetOf(const Geometry& g, Int3 voxel) { return (int64_t{voxel.z} * g.size.y + voxel.y) * g.size.x + voxel.x; }

// Trilinear, component c of `stride`; NaN outside.
float Sample(const float* values, const Geometry& g, Vec3d index, int stride = 1, int c = 0) {
  if (!InDomain(g, index)) return kNothing;
  double sum = 0;
  for (const Corner& corner : CornersOf(g, index)) {
    if (corner.weight > 0) sum += corner.weight * values[OffsetOf(g, corner.voxel) * stride + c];
  }
  return static_cast<float>(sum);
}

float Show(float value, IntensityWindow window) {
  if (!std::isfinite(value)) return kNothing;
  return std::clamp((value - window.low) / (window.high - window.low), 0.f, 1.f);
}

// Which axis of the patient (0 left, 1 back, 2 head) each index axis lies nearest to, all different, and its sign.
struct Orientation {
  int patient_axis[3];
  bool negative[3];
};

Orientation OrientationOf(const Geometry& g) {
  Orientation best{};
  double best_sum = -1;
  std::array<int, 3> p = {0, 1, 2};
  do {
    double sum = 0;
    for (int c = 0; c < 3; ++c) sum += std::abs(g.direction[p[c]][c]);
    if (sum <= best_sum + 1e-9) continue;
    best_sum = sum;
    for (int c = 0; c < 3; ++c) {
      best.patient_axis[c] = p[c];
      best.negative[c] = g.direction[p[c]][c] < 0;
    }
  } while (std::next_permutation(p.begin(), p.end()));
  return best;
}

Plane MakePlane(const HostImage& fixed, const Orientation& o, int normal, double mm, int least_pixels) {
  const Geometry& g = fixed.geometry;
  int index_axis[3];
  for (int c = 0; c < 3; ++c) index_axis[o.patient_axis[c]] = c;
  static constexpr const char* kNames[3] = {"sagittal", "coronal", "axial"};
  static constexpr int kAcross[3] = {1, 0, 0}, kDown[3] = {2, 2, 1};
  static constexpr char kTowards[4] = "LPS", kFrom[4] = "RAI", kAxes[4] = "xyz";
  const int patient = o.patient_axis[normal], across = kAcross[patient], down = kDown[patient];
  const bool head_up = down == 2;
  Plane plane;
  plane.across = index_axis[across];
  plane.down = index_axis[down];
  plane.normal = normal;
  plane.across_flipped = o.negative[plane.across];
  plane.down_flipped = o.negative[plane.down] != head_up;
  plane.mm = mm;
  plane.name = std::string{kAxes[plane.across], kAxes[plane.down]};
  if (fixed.has_orientation) {
    plane.name = kNames[patient];
    plane.left = kFrom[across];
    plane.right = kTowards[across];
    plane.top = head_up ? 'S' : kFrom[down];
    plane.bottom = head_up ? 'I' : kTowards[down];
  }
  const auto pixels = [&](int axis, double* stretch) {
    const int square = std::max<int>(1, std::lround(g.size[axis] * g.spacing[axis] / mm));
    *stretch = static_cast<double>(std::max(square, least_pixels)) / square;
    return std::max(square, least_pixels);
  };
  plane.width = pixels(plane.across, &plane.stretch_across);
  plane.height = pixels(plane.down, &plane.stretch_down);
  return plane;
}

Vec3d IndexAt(const Geometry& g, const Plane& plane, int x, int y) {
  const auto along = [&](int axis, int pixel, int pixels, bool flipped) {
    const double t = (pixel + 0.5) / pixels;
    return (flipped ? 1 - t : t) * g.size[axis] - 0.5;
  };
  Vec3d index;
  index[plane.across] = along(plane.across, x, plane.width, plane.across_flipped);
  index[plane.down] = along(plane.down, y, plane.height, plane.down_flipped);
  index[plane.normal] = plane.index;
  return index;
}

struct Images {
  const HostImage& fixed;
  const HostImage& moving;
  const HostImage& warped;
  const HostField& field;
  const std::optional<ErrorBlocks>& error;
  const std::optional<MissingNodes>& missing;
  AffineMap to_physical, to_moving, to_block, to_missing;
  Vec3d center;
};

// Whether every warped voxel that counts here came from inside the moving image.
bool HasSource(const Images& s, Vec3d index) {
  for (const Corner& corner : CornersOf(s.field.geometry, index)) {
    if (corner.weight == 0) continue;
    const float* u = s.field.displacement.data() + 3 * OffsetOf(s.field.geometry, corner.voxel);
    const Vec3d x = s.to_physical({double(corner.voxel.x), double(corner.voxel.y), double(corner.voxel.z)});
    if (!InDomain(s.moving.geometry, s.to_moving(x + Vec3d{u[0], u[1], u[2]}))) return false;
  }
  return true;
}

// The place in memory of the voxel that holds an index of the domain.
size_t NearestPlace(const Geometry& g, Vec3d index) {
  Int3 nearest;
  for (int a = 0; a < 3; ++a) nearest[a] = std::clamp(static_cast<int>(std::lround(index[a])), 0, g.size[a] - 1);
  return static_cast<size_t>(OffsetOf(g, nearest));
}

float ErrorAt(const Images& s, Vec3d x) {
  if (!s.error) return kNothing;
  const Vec3d block = s.to_block(x);
  if (!InDomain(s.error->geometry, block)) return kNothing;
  return s.error->expected_mm[NearestPlace(s.error->geometry, block)];
}

bool IsMissingAt(const Images& s, Vec3d x) {
  if (!s.missing) return false;
  const Vec3d node = s.to_missing(x);
  return InDomain(s.missing->geometry, node) && s.missing->nodes[NearestPlace(s.missing->geometry, node)] != 0;
}

ScenePixel Look(const Images& s, const MontageScene& scene, const Plane& plane, Vec3d index) {
  const Geometry& g = s.fixed.geometry;
  const Vec3d x = s.to_physical(index);
  Vec3d u;
  for (int c = 0; c < 3; ++c) u[c] = Sample(s.field.displacement.data(), g, index, 3, c);
  const Vec3d y = x + u;
  ScenePixel pixel;
  pixel.fixed = Show(Sample(s.fixed.values.data(), g, index), scene.fixed_window);
  pixel.warped = HasSource(s, index) ? Show(Sample(s.warped.values.data(), g, index), scene.moving_window) : kNothing;
  pixel.before = Show(Sample(s.moving.values.data(), s.moving.geometry, s.to_moving(x)), scene.moving_window);
  pixel.error = ErrorAt(s, x);
  pixel.is_missing = IsMissingAt(s, x);
  pixel.length = static_cast<float>(std::sqrt(Dot(u, u)));
  const auto along = [&](int axis) {
    return static_cast<float>(Dot(y - s.center, {g.direction[0][axis], g.direction[1][axis], g.direction[2][axis]}));
  };
  pixel.across = along(plane.across);
  pixel.down = along(plane.down);
  return pixel;
}

// The values 0 to 1 of a slice, smoothed by a binomial kernel of 5 along one axis; nothing counts as black.
std::vector<float> Smoothed(const std::vector<float>& values, int width, int height, int dx, int dy) {
  static constexpr float kWeights[5] = {1 / 16.f, 4 / 16.f, 6 / 16.f, 4 / 16.f, 1 / 16.f};
  std::vector<float> smooth(values.size());
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      float sum = 0;
      for (int k = -2; k <= 2; ++k) {
        const int u = std::clamp(x + k * dx, 0, width - 1), v = std::clamp(y + k * dy, 0, height - 1);
        sum += kWeights[k + 2] * values[size_t(v) * width + u];
      }
      smooth[size_t(y) * width + x] = sum;
    }
  }
  return smooth;
}

struct Slope {
  float dx = 0, dy = 0, length = 0;
};

// Edges as ridges of the gradient's length (Canny 1986, without hysteresis), where it is among the strongest.
std::vector<float> ContoursOf(const Slice& slice) {
  constexpr double kStrongest = 0.9;
  constexpr float kLeastSlope = 0.015f;
  const int width = slice.plane.width, height = slice.plane.height;
  std::vector<float> values;
  for (const ScenePixel& p : slice.pixels) values.push_back(std::isnan(p.fixed) ? 0 : p.fixed);
  values = Smoothed(Smoothed(values, width, height, 1, 0), width, height, 0, 1);
  std::vector<Slope> slopes(values.size());
  std::vector<float> lengths;
  const auto value = [&](int x, int y) { return values[size_t(y) * width + x]; };
  for (int y = 1; y + 1 < height; ++y) {
    for (int x = 1; x + 1 < width; ++x) {
      Slope& slope = slopes[size_t(y) * width + x];
      slope.dx = (value(x + 1, y) - value(x - 1, y)) / 2;
      slope.dy = (value(x, y + 1) - value(x, y - 1)) / 2;
      slope.length = std::hypot(slope.dx, slope.dy);
      lengths.push_back(slope.length);
    }
  }
  std::vector<float> contours(values.size(), 0.f);
  if (lengths.empty()) return contours;
  const auto strongest = lengths.begin() + static_cast<std::ptrdiff_t>(kStrongest * (lengths.size() - 1));
  std::nth_element(lengths.begin(), strongest, lengths.end());
  const float least = std::max(kLeastSlope, 0.6f * *strongest);
  for (int y = 1; y + 1 < height; ++y) {
    for (int x = 1; x + 1 < width; ++x) {
      const Slope& slope = slopes[size_t(y) * width + x];
      if (slope.length < least) continue;
      const int sx = static_cast<int>(std::lround(slope.dx / slope.length));
      const int sy = static_cast<int>(std::lround(slope.dy / slope.length));
      const float ahead = slopes[size_t(y + sy) * width + x + sx].length;
      const float behind = slopes[size_t(y - sy) * width + x - sx].length;
      if (slope.length >= ahead && slope.length > behind) contours[size_t(y) * width + x] = 1;
    }
  }
  return contours;
}

Slice Cut(const Images& images, const MontageScene& scene, const Plane& plane) {
  Slice slice{plane, {}, {}};
  slice.pixels.reserve(size_t(plane.width) * plane.height);
  for (int y = 0; y < plane.height; ++y)
    for (int x = 0; x < plane.width; ++x)
      slice.pixels.push_back(Look(images, scene, plane, IndexAt(images.fixed.geometry, plane, x, y)));
  if (scene.relation == IntensityRelation::kOther) slice.contours = ContoursOf(slice);
  return slice;
}

// Sorted, finite, at most some hundred thousand of them.
std::vector<float> SortedSample(const std::vector<float>& values) {
  constexpr size_t kSamples = 1 << 18;
  std::vector<float> sorted;
  const size_t step = std::max<size_t>(1, values.size() / kSamples);
  for (size_t i = 0; i < values.size(); i += step)
    if (std::isfinite(values[i])) sorted.push_back(values[i]);
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

// The part of sorted values that is not background: an end of the range that holds a fifth or more of the voxels.
struct Foreground {
  std::vector<float>::const_iterator first, last;
  float quantile(double q) const { return first[static_cast<ptrdiff_t>(q * (last - first - 1))]; }
};
Foreground ForegroundOf(const std::vector<float>& sorted) {
  const float low = sorted.front(), high = sorted.back();
  const float band = 0.06f * (high - low);
  const auto above = std::upper_bound(sorted.begin(), sorted.end(), low + band);
  const auto below = std::lower_bound(sorted.begin(), sorted.end(), high - band);
  const size_t enough = sorted.size() / 5;
  Foreground range{sorted.begin(), sorted.end()};
  if (size_t(above - sorted.begin()) > enough) range.first = above;
  if (size_t(sorted.end() - below) > enough) range.last = below;
  return range;
}

IntensityWindow WindowOf(const std::vector<float>& sorted) {
  if (sorted.empty()) return {};
  const float low = sorted.front(), high = sorted.back();
  if (!(high > low)) return {low, std::nextafter(low + 1, std::numeric_limits<float>::infinity())};
  const Foreground range = ForegroundOf(sorted);
  if (range.last - range.first < 16) return {low, high};
  const float median = range.quantile(0.5);
  constexpr float kReach = 2.2f;
  IntensityWindow window{std::max(low, median - kReach * (median - range.quantile(0.16))),
                         std::min(high, median + kReach * (range.quantile(0.84) - median))};
  if (!(window.high > window.low)) return {low, high};
  return window;
}

// y = gain x + offset for moving values y of fixed ones x.
struct Relation {
  IntensityRelation kind = IntensityRelation::kOther;
  double gain = 1, offset = 0;
};

struct Moments {
  double n = 0, x = 0, y = 0, xx = 0, xy = 0, yy = 0;
  void Add(double a, double b) {
    n += 1;
    x += a;
    y += b;
    xx += a * a;
    xy += a * b;
    yy += b * b;
  }
};

// Where the registered images both are, values that lie in the foreground of one of them.
Moments MomentsOf(const Images& s, const std::vector<float>& fixed, const std::vector<float>& moving) {
  constexpr int64_t kPairs = 1 << 17;
  const Foreground a = ForegroundOf(fixed), b = ForegroundOf(moving);
  if (a.first >= a.last || b.first >= b.last) return {};
  const auto in = [](const Foreground& range, float v) { return v >= *range.first && v <= *(range.last - 1); };
  const Geometry& g = s.fixed.geometry;
  const int64_t step = std::max<int64_t>(1, g.voxels() / kPairs);
  Moments moments;
  for (int64_t i = 0; i < g.voxels(); i += step) {
    const float x = s.fixed.values[static_cast<size_t>(i)], y = s.warped.values[static_cast<size_t>(i)];
    if (!std::isfinite(x) || !std::isfinite(y) || !(in(a, x) || in(b, y))) continue;
    if (HasSource(s, IndexOf(g.size, i))) moments.Add(x, y);
  }
  return moments;
}

// For images that are not registered well: their foregrounds have the same values.
bool HaveLikeQuantiles(const std::vector<float>& fixed, const std::vector<float>& moving) {
  const Foreground a = ForegroundOf(fixed), b = ForegroundOf(moving);
  if (a.last - a.first < 16 || b.last - b.first < 16) return false;
  const double tolerance = 0.08 * (a.quantile(0.95) - a.quantile(0.05));
  for (const double q : {0.05, 0.25, 0.5, 0.75, 0.95}) {
    if (!(std::abs(double{a.quantile(q)} - b.quantile(q)) <= tolerance)) return false;
  }
  return true;
}

Relation FindRelation(const Images& s, const std::vector<float>& fixed, const std::vector<float>& moving) {
  constexpr double kCorrelated = 0.8, kLeastPairs = 64;
  if (fixed.empty() || moving.empty()) return {};
  const Moments m = MomentsOf(s, fixed, moving);
  const double xx = m.xx - m.x * m.x / std::max(1.0, m.n), yy = m.yy - m.y * m.y / std::max(1.0, m.n);
  const double xy = m.xy - m.x * m.y / std::max(1.0, m.n);
  const bool is_linear = m.n >= kLeastPairs && xx > 0 && yy > 0 && xy >= kCorrelated * std::sqrt(xx * yy);
  if (!is_linear) {
    return {HaveLikeQuantiles(fixed, moving) ? IntensityRelation::kSame : IntensityRelation::kOther};
  }
  Relation relation{IntensityRelation::kScaled, std::sqrt(yy / xx)};
  relation.offset = m.y / m.n - relation.gain * m.x / m.n;
  const IntensityWindow window = WindowOf(fixed);
  double most = 0;
  for (const double v : {window.low, window.high})
    most = std::max(most, std::abs(relation.gain * v + relation.offset - v));
  if (most <= 0.15 * (double{window.high} - window.low)) return {IntensityRelation::kSame};
  return relation;
}

void SetWindows(const Images& s, const MontageOptions& options, MontageScene* scene) {
  const std::vector<float> fixed = SortedSample(s.fixed.values), moving = SortedSample(s.moving.values);
  Relation relation = FindRelation(s, fixed, moving);
  if (options.relation &&
      (*options.relation != IntensityRelation::kScaled || relation.kind == IntensityRelation::kOther)) {
    relation = {*options.relation};
  }
  scene->relation = relation.kind;
  scene->fixed_window = WindowOf(fixed);
  scene->moving_window = WindowOf(moving);
  if (relation.kind == IntensityRelation::kSame) {
    // Both have a say, however small the field of view of one of them is.
    scene->fixed_window.low = std::min(scene->fixed_window.low, scene->moving_window.low);
    scene->fixed_window.high = std::max(scene->fixed_window.high, scene->moving_window.high);
    scene->moving_window = scene->fixed_window;
  } else if (relation.kind == IntensityRelation::kScaled) {
    const auto map = [&](float v) { return static_cast<float>(relation.gain * v + relation.offset); };
    scene->moving_window = {map(scene->fixed_window.low), map(scene->fixed_window.high)};
    if (!(scene->moving_window.high > scene->moving_window.low)) scene->moving_window = WindowOf(moving);
  }
}

// The middle of the blocks with the largest errors, or rather the one of these blocks that is nearest to it; nothing
// where none is above the limit.
std::optional<Vec3d> LargestError(const Geometry& fixed, const ErrorBlocks& error) {
  const AffineMap to_physical = IndexToPhysical(error.geometry), to_fixed = PhysicalToIndex(fixed);
  float most = 0;
  std::vector<std::pair<float, Vec3d>> blocks;
  for (int64_t i = 0; i < error.geometry.voxels(); ++i) {
    const float mm = error.expected_mm[static_cast<size_t>(i)];
    const Vec3d x = to_physical(IndexOf(error.geometry.size, i));
    if (!(mm > error.limit_mm) || !InDomain(fixed, to_fixed(x))) continue;
    blocks.emplace_back(mm, x);
    most = std::max(most, mm);
  }
  if (blocks.empty()) return std::nullopt;
  const auto is_smaller = [&](const auto& block) { return block.first < 0.95f * most; };
  blocks.erase(std::remove_if(blocks.begin(), blocks.end(), is_smaller), blocks.end());
  Vec3d middle;
  for (const auto& block : blocks) middle = middle + (1.0 / static_cast<double>(blocks.size())) * block.second;
  const auto squared = [&](const auto& block) { return Dot(block.second - middle, block.second - middle); };
  return std::min_element(blocks.begin(), blocks.end(),
                          [&](const auto& a, const auto& b) { return squared(a) < squared(b); })
      ->second;
}

}  // namespace

int CutAt(const Geometry& fixed, const Plane& plane, const Plane& other) {
  const bool is_column = other.normal == plane.across;
  const int pixels = is_column ? plane.width : plane.height;
  const bool flipped = is_column ? plane.across_flipped : plane.down_flipped;
  const double t = (other.index + 0.5) / fixed.size[other.normal];
  return std::clamp(static_cast<int>((flipped ? 1 - t : t) * pixels), 0, pixels - 1);
}

MontageScene MakeScene(const HostImage& fixed, const HostImage& moving, const HostImage& warped, const HostField& field,
                       const MontageOptions& options) {
  const Geometry& g = fixed.geometry;
  Images images{fixed,
                moving,
                warped,
                field,
                options.error,
                options.missing,
                IndexToPhysical(g),
                PhysicalToIndex(moving.geometry),
                {},
                {},
                Center(g)};
  if (options.missing) images.to_missing = PhysicalToIndex(options.missing->geometry);
  if (options.error) images.to_block = PhysicalToIndex(options.error->geometry);
  MontageScene scene;
  SetWindows(images, options, &scene);
  const int directions = g.is_2d() ? 2 : 3;
  for (int a = 0; a < directions; ++a) scene.extent_mm = std::max(scene.extent_mm, g.size[a] * g.spacing[a]);
  std::optional<Vec3d> at = options.at;
  if (!at && options.error) at = LargestError(g, *options.error);
  scene.goes_through_error = at.has_value() && !options.at;
  const Orientation orientation = OrientationOf(g);
  for (const int patient : {2, 1, 0}) {
    const int* axes = orientation.patient_axis;
    const int normal = g.is_2d() ? 2 : static_cast<int>(std::find(axes, axes + 3, patient) - axes);
    Plane plane = MakePlane(fixed, orientation, normal, scene.extent_mm / options.panel_pixels,
                            std::min(kLeastPixels, options.panel_pixels));
    const int middle = g.size[normal] / 2;
    const double index = at ? PhysicalToIndex(g)(*at)[normal] : middle;
    plane.index = static_cast<int>(std::lround(std::clamp(index, 0.0, g.size[normal] - 1.0)));
    scene.slices.push_back(Cut(images, scene, plane));
    if (g.is_2d()) break;
  }
  return scene;
}

IntensityWindow FindWindow(const std::vector<float>& values) { return WindowOf(SortedSample(values)); }

}  // namespace intrawarp::io
