// SPDX-License-Identifier: Apache-2.0
#include "server/page/shown_image.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

namespace intrawarp::server {
namespace {

constexpr int64_t kSamples = 60000;
constexpr int64_t kMostNodes = 350000;
constexpr double kNodeVoxels = 4;
constexpr int kWordLow = -32768, kWordHigh = 32767;

template <typename Function>
auto WithType(PixelType type, Function function) {
  switch (type) {
    case PixelType::kUint8:
      return function(uint8_t{});
    case PixelType::kInt8:
      return function(int8_t{});
    case PixelType::kUint16:
      return function(uint16_t{});
    case PixelType::kInt16:
      return function(int16_t{});
    case PixelType::kUint32:
      return function(uint32_t{});
    case PixelType::kInt32:
      return function(int32_t{});
    case PixelType::kFloat32:
      return function(float{});
    case PixelType::kFloat64:
      break;
  }
  return function(double{});
}

template <typename T>
std::vector<double> Sample(const T* pixels, const Rescale& rescale, int64_t voxels) {
  // Odd, so that no column of an even grid is taken again and again.
  const int64_t step = std::max<int64_t>(voxels / kSamples, 1) | 1;
  std::vector<double> values;
  for (int64_t i = 0; i < voxels; i += step) {
    const double value = rescale.slope * static_cast<double>(pixels[i]) + rescale.intercept;
    if (std::isfinite(value)) values.push_back(value);
  }
  return values;
}

double Percentile(std::vector<double>& values, double part) {
  const auto at = values.begin() + static_cast<int64_t>(part * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

Geometry EveryNth(const Geometry& grid, int n) {
  Geometry coarse = grid;
  coarse.size = {(grid.size.x + n - 1) / n, (grid.size.y + n - 1) / n, (grid.size.z + n - 1) / n};
  coarse.spacing = {grid.spacing.x * n, grid.spacing.y * n, grid.spacing.z * n};
  return coarse;
}

int StepFor(const Geometry& grid, int64_t voxels) {
  int step = 1;
  while (EveryNth(grid, step).voxels() > voxels) ++step;
  return step;
}

// to(value of a stored number) for each voxel of the coarser grid.
template <typename From, typename To, typename Convert>
std::shared_ptr<const std::string> Gather(const From* pixels, Int3 size, Int3 coarse, int step, Convert convert) {
  auto bytes = std::make_shared<std::string>();
  bytes->resize(sizeof(To) * static_cast<size_t>(coarse.x) * coarse.y * coarse.z);
  auto* out = reinterpret_cast<To*>(bytes->data());
  for (int z = 0; z < coarse.z; ++z) {
    for (int y = 0; y < coarse.y; ++y) {
      const From* row = pixels + (int64_t{z} * step * size.y + int64_t{y} * step) * size.x;
      if (step == 1) {  // a loop that compilers make vectors of
        for (int x = 0; x < coarse.x; ++x) out[x] = convert(row[x]);
      } else {
        for (int x = 0; x < coarse.x; ++x) out[x] = convert(row[int64_t{x} * step]);
      }
      out += coarse.x;
    }
  }
  return bytes;
}

struct Scaling {
  double slope = 1, intercept = 0;
};

// Voxels of an integer type that are kept as they are: stored numbers less `offset`.
template <typename T>
std::optional<int> ExactOffset() {
  if constexpr (std::is_same_v<T, uint16_t>) return 32768;
  if constexpr (sizeof(T) <= 2 && std::is_integral_v<T>) return 0;
  return std::nullopt;
}

template <typename T>
void FillVoxels(const T* pixels, const Rescale& rescale, Int3 size, int step, ShownImage& image) {
  const Int3 coarse = image.grid.size;
  const std::optional<int> exact = ExactOffset<T>();
  if (!image.is_byte && exact) {
    image.slope = rescale.slope;
    image.intercept = rescale.intercept + rescale.slope * *exact;
    image.voxels = Gather<T, int16_t>(pixels, size, coarse, step, [offset = *exact](T v) {
      return static_cast<int16_t>(static_cast<int>(v) - offset);
    });
    return;
  }
  const int low = image.is_byte ? 0 : kWordLow;
  const int high = image.is_byte ? 255 : kWordHigh;
  const double from = image.is_byte ? image.range.black : image.range.low;
  const double to = image.is_byte ? image.range.white : image.range.high;
  image.slope = std::max((to - from) / (high - low), 1e-30);
  image.intercept = from - image.slope * low;
  // In float32, which compilers make vectors of.
  const auto scale = static_cast<float>(rescale.slope / image.slope);
  const auto shift = static_cast<float>((rescale.intercept - image.intercept) / image.slope + 0.5);
  const auto least = static_cast<float>(low), most = static_cast<float>(high);
  // A value that is not a number becomes the least; the cast rounds towards 0, from above it.
  const auto convert = [scale, shift, least, most, low](T v) {
    const float at = std::min(most, std::max(least, scale * static_cast<float>(v) + shift));
    return static_cast<int>(at - least) + low;
  };
  if (image.is_byte) {
    image.voxels =
        Gather<T, uint8_t>(pixels, size, coarse, step, [&](T v) { return static_cast<uint8_t>(convert(v)); });
  } else {
    image.voxels =
        Gather<T, int16_t>(pixels, size, coarse, step, [&](T v) { return static_cast<int16_t>(convert(v)); });
  }
}

// The eight nodes around an index that is cut to the grid, and how much of the upper ones.
struct Cell {
  Cell(Vec3d index, Int3 size) {
    const double at[3] = {index.x, index.y, index.z};
    const int n[3] = {size.x, size.y, size.z};
    for (int axis = 0; axis < 3; ++axis) {
      const double cut = std::clamp(at[axis], 0.0, static_cast<double>(n[axis] - 1));
      low[axis] = std::min(static_cast<int>(cut), std::max(n[axis] - 2, 0));
      high[axis] = std::min(low[axis] + 1, n[axis] - 1);
      upper[axis] = cut - low[axis];
    }
  }
  template <typename Value>
  double Mix(Int3 size, Value value) const {
    double sum = 0;
    for (int corner = 0; corner < 8; ++corner) {
      const int x = corner & 1 ? high[0] : low[0];
      const int y = corner & 2 ? high[1] : low[1];
      const int z = corner & 4 ? high[2] : low[2];
      const double weight = (corner & 1 ? upper[0] : 1 - upper[0]) * (corner & 2 ? upper[1] : 1 - upper[1]) *
                            (corner & 4 ? upper[2] : 1 - upper[2]);
      if (weight > 0) sum += weight * value((int64_t{z} * size.y + y) * size.x + x);
    }
    return sum;
  }
  int low[3], high[3];
  double upper[3];
};

bool IsInside(Vec3d i, Int3 n) {
  return i.x > -0.5 && i.y > -0.5 && i.z > -0.5 && i.x < n.x - 0.5 && i.y < n.y - 0.5 && i.z < n.z - 0.5;
}

int Nodes(int voxels, double step) { return voxels <= 1 ? 1 : static_cast<int>(std::ceil((voxels - 1) / step)) + 1; }

double NodeSpacing(double spacing, int voxels, int nodes) {
  return nodes <= 1 ? spacing : spacing * (voxels - 1) / (nodes - 1);
}

}  // namespace

ShownRange RangeOf(const void* pixels, PixelType type, const Rescale& rescale, const Geometry& grid) {
  std::vector<double> values =
      WithType(type, [&](auto t) { return Sample(static_cast<const decltype(t)*>(pixels), rescale, grid.voxels()); });
  if (values.empty()) return {};
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  ShownRange range;
  const double width = *high - *low;
  range.low = *low - width / 4;
  range.high = *high + width / 4;
  // The air around a body would take most of the greys.
  const double dark = *low + width / 10;
  values.erase(std::remove_if(values.begin(), values.end(), [dark](double v) { return v < dark; }), values.end());
  if (values.empty() || width <= 0) return {range.low, range.low + 1, range.low, range.low + 1};
  range.black = Percentile(values, 0.01);
  range.white = Percentile(values, 0.99);
  if (range.white <= range.black) range.white = range.black + std::max(width / 100, 1e-6);
  return range;
}

ShownImage ShowImage(const void* pixels, PixelType type, const Rescale& rescale, const Geometry& grid,
                     const ShownRange& range, const ShownLimits& limits) {
  ShownImage image;
  const int step = StepFor(grid, limits.voxels);
  image.grid = EveryNth(grid, step);
  image.range = range;
  image.is_byte = 2 * image.grid.voxels() > limits.word_bytes;
  WithType(type, [&](auto t) {
    FillVoxels(static_cast<const decltype(t)*>(pixels), rescale, grid.size, step, image);
    return 0;
  });
  return image;
}

std::optional<double> ShownImage::At(Vec3d point) const {
  const Vec3d index = PhysicalToIndex(grid)(point);
  if (!IsInside(index, grid.size)) return std::nullopt;
  const Cell cell(index, grid.size);
  const auto* words = reinterpret_cast<const int16_t*>(voxels->data());
  const auto* octets = reinterpret_cast<const uint8_t*>(voxels->data());
  return slope * cell.Mix(grid.size, [&](int64_t i) { return is_byte ? double(octets[i]) : double(words[i]); }) +
         intercept;
}

Json ShownImage::ToJson(const char* role) const {
  return {{"role", role},   {"grid", GridJson(grid)}, {"type", is_byte ? "u8" : "i16"},
          {"slope", slope}, {"intercept", intercept}, {"window", {range.black, range.white}}};
}

Geometry CoarseGrid(const Geometry& domain) {
  Geometry grid = domain;
  for (double step = kNodeVoxels;; step *= 1.25) {
    grid.size = {Nodes(domain.size.x, step), Nodes(domain.size.y, step), Nodes(domain.size.z, step)};
    if (grid.voxels() <= kMostNodes) break;
  }
  grid.spacing = {NodeSpacing(domain.spacing.x, domain.size.x, grid.size.x),
                  NodeSpacing(domain.spacing.y, domain.size.y, grid.size.y),
                  NodeSpacing(domain.spacing.z, domain.size.z, grid.size.z)};
  return grid;
}

ShownField ShowField(const float* displacements, const Geometry& grid) {
  const int64_t count = 3 * grid.voxels();
  float most = 0;
  for (int64_t i = 0; i < count; ++i) most = std::max(most, std::abs(displacements[i]));
  ShownField field;
  field.grid = grid;
  field.scale = std::max(static_cast<double>(most) / kWordHigh, 1e-9);
  auto nodes = std::make_shared<std::string>();
  nodes->resize(sizeof(int16_t) * count);
  auto* out = reinterpret_cast<int16_t*>(nodes->data());
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<int16_t>(std::lround(displacements[i] / field.scale));
  field.nodes = std::move(nodes);
  return field;
}

Vec3d ShownField::Map(Vec3d point) const {
  const Cell cell(PhysicalToIndex(grid)(point), grid.size);
  const auto* words = reinterpret_cast<const int16_t*>(nodes->data());
  const auto component = [&](int c) {
    return scale * cell.Mix(grid.size, [&](int64_t i) { return double(words[3 * i + c]); });
  };
  return {point.x + component(0), point.y + component(1), point.z + component(2)};
}

}  // namespace intrawarp::server
