// SPDX-License-Identifier: Apache-2.0
#include "server/page/plane_picture.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>

#include "io/picture/png.h"

namespace intrawarp::server {
namespace {

constexpr absl::string_view kPlaneNames[] = {"axial", "coronal", "sagittal"};
constexpr absl::string_view kModeNames[] = {"fixed", "warped",   "checkerboard", "difference",
                                            "grid",  "jacobian", "error"};
constexpr double kCheckerMm = 20, kGridMm = 10;
constexpr double kMostJacobian = 2, kMostErrorMm = 8;
constexpr double kHatched = 0.12;

struct Rgb {
  double r = 0, g = 0, b = 0;
};
Rgb Grey(double v) { return {v, v, v}; }

// Nine steps of viridis and cividis, and of a difference: the page's colours.js.
constexpr uint32_t kViridis[] = {0x440154, 0x472d7b, 0x3b528b, 0x2c728e, 0x21918c,
                                 0x28ae80, 0x5ec962, 0xaddc30, 0xfde725};
constexpr uint32_t kCividis[] = {0x00224e, 0x1a3a6c, 0x434e6c, 0x61656f, 0x7d7c78,
                                 0x9b9476, 0xbcae6c, 0xdec958, 0xfee838};
constexpr uint32_t kDifference[] = {0x8cc8ff, 0x5a9fe0, 0x3c74ac, 0x234a70, 0x0b0e12,
                                    0x6b4320, 0xa8662c, 0xe08b3a, 0xffb868};

Rgb ColourAt(const uint32_t (&map)[9], double t) {
  const double at = std::clamp(t, 0.0, 1.0) * 8;
  const int low = std::min(static_cast<int>(at), 7);
  const double upper = at - low;
  const auto channel = [&](int shift) {
    const auto of = [&](int i) { return static_cast<double>(map[i] >> shift & 0xff) / 255; };
    return of(low) + upper * (of(low + 1) - of(low));
  };
  return {channel(16), channel(8), channel(0)};
}

Rgb Over(double grey, Rgb colour) {
  const double light = 0.25 + 0.75 * grey;
  return {colour.r * light, colour.g * light, colour.b * light};
}

using Point = std::array<double, 3>;
Vec3d Vec(const Point& p) { return {p[0], p[1], p[2]}; }

// Axes of space: to the right of the picture, down it, and the sign of the latter.
struct PlaneAxes {
  int right, down, sign, normal;
};
constexpr PlaneAxes kAxes[] = {{0, 1, 1, 2}, {0, 2, -1, 1}, {1, 2, -1, 0}};

struct Box {
  Point low, high;
  double extent(int axis) const { return std::max(high[axis] - low[axis], 1e-3); }
};

Box BoxOf(const Geometry& grid) {
  const AffineMap map = IndexToPhysical(grid);
  Box box;
  box.low.fill(std::numeric_limits<double>::infinity());
  box.high.fill(-std::numeric_limits<double>::infinity());
  for (int corner = 0; corner < 8; ++corner) {
    const Vec3d p = map(
        {corner & 1 ? grid.size.x - 1.0 : 0, corner & 2 ? grid.size.y - 1.0 : 0, corner & 4 ? grid.size.z - 1.0 : 0});
    const Point at = {p.x, p.y, p.z};
    for (int axis = 0; axis < 3; ++axis) {
      box.low[axis] = std::min(box.low[axis], at[axis]);
      box.high[axis] = std::max(box.high[axis], at[axis]);
    }
  }
  return box;
}

double Shade(const ShownImage& image, double value) {
  return std::clamp((value - image.range.black) / (image.range.white - image.range.black), 0.0, 1.0);
}

double NodeOf(const Geometry& grid) { return std::min({grid.spacing.x, grid.spacing.y, grid.spacing.z}); }

Vec3d Mapped(const PlaneScene& scene, Vec3d p) { return scene.field == nullptr ? p : scene.field->Map(p); }

double Jacobian(const PlaneScene& scene, const Point& p) {
  if (scene.field == nullptr) return 1;
  const double node = NodeOf(scene.field->grid);
  double j[3][3];
  for (int axis = 0; axis < 3; ++axis) {
    Point before = p, after = p;
    before[axis] -= node / 2;
    after[axis] += node / 2;
    const Vec3d a = scene.field->Map(Vec(before)), b = scene.field->Map(Vec(after));
    j[axis][0] = (b.x - a.x) / node;
    j[axis][1] = (b.y - a.y) / node;
    j[axis][2] = (b.z - a.z) / node;
  }
  return j[0][0] * (j[1][1] * j[2][2] - j[1][2] * j[2][1]) - j[0][1] * (j[1][0] * j[2][2] - j[1][2] * j[2][0]) +
         j[0][2] * (j[1][0] * j[2][1] - j[1][1] * j[2][0]);
}

double ErrorAt(const PlaneScene& scene, const Point& p) {
  if (scene.error == nullptr) return -1;
  const Geometry& grid = scene.error->blocks;
  const Vec3d at = PhysicalToIndex(grid)(Vec(p));
  const double i[3] = {std::floor(at.x + 0.5), std::floor(at.y + 0.5), std::floor(at.z + 0.5)};
  if (i[0] < 0 || i[1] < 0 || i[2] < 0 || i[0] >= grid.size.x || i[1] >= grid.size.y || i[2] >= grid.size.z) return -1;
  const auto block = static_cast<size_t>((i[2] * grid.size.y + i[1]) * grid.size.x + i[0]);
  const float error = scene.error->expected_mm[block];
  return std::isnan(error) ? -1 : error;
}

// How near a coordinate is to a line of the grid, 1 on it; `width` in cells.
double LineAt(double mm, double width) {
  const double cell = mm / kGridMm;
  const double from = std::abs(cell - std::round(cell));
  return std::clamp(1.6 - from / width, 0.0, 1.0);
}

// A pixel's colour is made of these.
struct Pixel {
  Point at;
  Point source;
  double fixed, moving;  // grey
  bool is_hatched;
  double pixel_mm;
  PlaneAxes axes;
};

Rgb ColourOf(const PlaneScene& scene, PlaneMode mode, const Pixel& pixel) {
  switch (mode) {
    case PlaneMode::kFixed:
      return Grey(pixel.fixed);
    case PlaneMode::kWarped:
      return Grey(pixel.moving);
    case PlaneMode::kCheckerboard: {
      const double cells =
          std::floor(pixel.at[pixel.axes.right] / kCheckerMm) + std::floor(pixel.at[pixel.axes.down] / kCheckerMm);
      const bool is_odd = std::fmod(std::abs(cells), 2) > 0.5;
      return is_odd ? Rgb{pixel.moving, 0.93 * pixel.moving, 0.8 * pixel.moving} : Grey(pixel.fixed);
    }
    case PlaneMode::kDifference:
      return ColourAt(kDifference, 0.5 + 0.5 * (pixel.fixed - pixel.moving));
    case PlaneMode::kGrid: {
      const double width = pixel.pixel_mm / kGridMm;
      const double line =
          std::max(LineAt(pixel.source[pixel.axes.right], width), LineAt(pixel.source[pixel.axes.down], width));
      const double grey = 0.55 * pixel.moving * (1 - line);
      return {grey + 0.55 * line, grey + 0.85 * line, grey + line};
    }
    case PlaneMode::kJacobian: {
      const double j = Jacobian(scene, pixel.at);
      return j <= 0 ? Grey(pixel.is_hatched) : Over(pixel.fixed, ColourAt(kViridis, j / kMostJacobian));
    }
    case PlaneMode::kError: {
      const double error = ErrorAt(scene, pixel.at);
      return error < 0 ? Grey(0.35 * pixel.fixed + kHatched * pixel.is_hatched)
                       : Over(pixel.fixed, ColourAt(kCividis, error / kMostErrorMm));
    }
  }
  return {};
}

template <typename Enum, size_t N>
std::optional<Enum> Parse(const absl::string_view (&names)[N], absl::string_view name) {
  const auto* const found = std::find(std::begin(names), std::end(names), name);
  if (found == std::end(names)) return std::nullopt;
  return static_cast<Enum>(found - std::begin(names));
}

}  // namespace

std::optional<Plane> ParsePlane(absl::string_view name) { return Parse<Plane>(kPlaneNames, name); }
std::optional<PlaneMode> ParsePlaneMode(absl::string_view name) { return Parse<PlaneMode>(kModeNames, name); }

absl::StatusOr<std::string> DrawPlane(const PlaneScene& scene, Plane plane, PlaneMode mode, Vec3d cross, int width) {
  const PlaneAxes axes = kAxes[static_cast<int>(plane)];
  const Box box = BoxOf(scene.fixed->grid);
  const double pixel_mm = box.extent(axes.right) / width;
  const int height =
      static_cast<int>(std::clamp(std::round(box.extent(axes.down) / pixel_mm), 1.0, 4.0 * kMostPlaneWidth));
  io::Picture picture{width, height, {}};
  picture.pixels.reserve(size_t{3} * width * height);
  for (int row = 0; row < height; ++row) {
    for (int column = 0; column < width; ++column) {
      Pixel pixel{{cross.x, cross.y, cross.z}, {}, 0, 0, (row + column) % 14 >= 7, pixel_mm, axes};
      pixel.at[axes.right] = box.low[axes.right] + (column + 0.5) * pixel_mm;
      const double down = (row + 0.5) / height * box.extent(axes.down);
      pixel.at[axes.down] = axes.sign > 0 ? box.low[axes.down] + down : box.high[axes.down] - down;
      const std::optional<double> fixed = scene.fixed->At(Vec(pixel.at));
      const Vec3d source = Mapped(scene, Vec(pixel.at));
      pixel.source = {source.x, source.y, source.z};
      const std::optional<double> moving = scene.moving->At(source);
      Rgb colour;
      if (fixed && !moving && mode != PlaneMode::kFixed) colour = Grey(0.10 * pixel.is_hatched);
      if (fixed && (moving || mode == PlaneMode::kFixed)) {
        pixel.fixed = Shade(*scene.fixed, *fixed);
        pixel.moving = moving ? Shade(*scene.moving, *moving) : 0;
        colour = ColourOf(scene, mode, pixel);
      }
      for (const double v : {colour.r, colour.g, colour.b}) {
        picture.pixels.push_back(static_cast<uint8_t>(std::lround(255 * std::clamp(v, 0.0, 1.0))));
      }
    }
  }
  return io::EncodePng(picture);
}

}  // namespace intrawarp::server
