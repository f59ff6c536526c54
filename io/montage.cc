// SPDX-License-Identifier: Apache-2.0
#include "io/montage.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/status_macros.h"
#include "io/canvas.h"
#include "io/colormap.h"

namespace intrawarp::io {
namespace {

constexpr Color kPage{0.07f, 0.075f, 0.09f}, kEmpty{0.1f, 0.105f, 0.13f}, kTitleColor{0.93f, 0.94f, 0.96f},
    kCaptionColor{0.7f, 0.73f, 0.78f};
// The checkerboard's white in fixed and in warped squares, equally light.
constexpr Color kFixedTint{1.f, 0.86f, 0.66f}, kWarpedTint{0.7f, 0.9f, 1.f};
constexpr int kGap = 6, kMargin = 10, kHeadroom = 36, kLegend = 36, kColumns = 6;
constexpr Font kTitleFont{15, true}, kCaptionFont{11.5}, kLetterFont{13, true};

enum Column { kFixed, kWarped, kCheckerboard, kBefore, kAfter, kGrid };

constexpr float kNothing = std::numeric_limits<float>::quiet_NaN();

absl::Status CheckGeometry(const char* name, const Geometry& g, size_t values, int64_t wanted) {
  const absl::Status valid = ValidateGeometry(g);
  if (!valid.ok()) return absl::InvalidArgumentError(absl::StrCat(name, ": ", valid.message()));
  if (static_cast<int64_t>(values) == wanted) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, ": the number of values does not match the size"));
}

absl::Status Check(const HostImage& fixed, const HostImage& moving, const HostImage& warped, const HostField& field,
                   const MontageOptions& options) {
  INTRAWARP_RETURN_IF_ERROR(CheckGeometry("fixed", fixed.geometry, fixed.values.size(), fixed.geometry.voxels()));
  INTRAWARP_RETURN_IF_ERROR(CheckGeometry("moving", moving.geometry, moving.values.size(), moving.geometry.voxels()));
  INTRAWARP_RETURN_IF_ERROR(CheckGeometry("warped", warped.geometry, warped.values.size(), warped.geometry.voxels()));
  INTRAWARP_RETURN_IF_ERROR(
      CheckGeometry("field", field.geometry, field.displacement.size(), 3 * field.geometry.voxels()));
  if (!SameGrid(fixed.geometry, warped.geometry)) {
    return absl::InvalidArgumentError("warped: does not lie on the grid of the fixed image");
  }
  if (!SameGrid(fixed.geometry, field.geometry)) {
    return absl::InvalidArgumentError("field: does not lie on the grid of the fixed image");
  }
  if (options.panel_pixels < 64 || options.panel_pixels > 1024) {
    return absl::InvalidArgumentError("panel_pixels: must be 64 to 1024");
  }
  return absl::OkStatus();
}

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

// A slice of the fixed grid as it is shown.
struct Plane {
  const char* name;
  int across, down, normal;           // index axes
  bool across_flipped, down_flipped;  // against the index axes
  char left, right, top, bottom;      // sides of the patient
  int width, height;                  // pixels
  double mm;                          // a pixel's side
};

Plane MakePlane(const Geometry& g, const Orientation& o, int normal, double mm) {
  int index_axis[3];
  for (int c = 0; c < 3; ++c) index_axis[o.patient_axis[c]] = c;
  static constexpr const char* kNames[3] = {"sagittal", "coronal", "axial"};
  static constexpr int kAcross[3] = {1, 0, 0}, kDown[3] = {2, 2, 1};
  static constexpr char kTowards[4] = "LPS", kFrom[4] = "RAI";
  const int patient = o.patient_axis[normal], across = kAcross[patient], down = kDown[patient];
  const bool head_up = down == 2;
  Plane plane{};
  plane.name = kNames[patient];
  plane.across = index_axis[across];
  plane.down = index_axis[down];
  plane.normal = normal;
  plane.across_flipped = o.negative[plane.across];
  plane.down_flipped = o.negative[plane.down] != head_up;
  plane.left = kFrom[across];
  plane.right = kTowards[across];
  plane.top = head_up ? 'S' : kFrom[down];
  plane.bottom = head_up ? 'I' : kTowards[down];
  plane.mm = mm;
  plane.width = std::max<int>(1, std::lround(g.size[plane.across] * g.spacing[plane.across] / mm));
  plane.height = std::max<int>(1, std::lround(g.size[plane.down] * g.spacing[plane.down] / mm));
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
  const int middle = g.size[plane.normal] / 2;
  index[plane.normal] = middle;
  return index;
}

// The data of one pixel of a slice. Intensities are in 0..1, NaN where there are none.
struct Pixel {
  float fixed, warped, before;
  float length;        // the displacement's, mm
  float across, down;  // T(x) along the slice's axes, mm from the middle of the fixed image
};

struct Slice {
  Plane plane;
  std::vector<Pixel> pixels;
  const Pixel& at(int x, int y) const { return pixels[size_t(y) * plane.width + x]; }
};

struct Scene {
  const HostImage& fixed;
  const HostImage& moving;
  const HostImage& warped;
  const HostField& field;
  IntensityWindow fixed_window, moving_window;
  AffineMap to_physical, to_moving;
  Vec3d center;
};

// Whether every warped voxel that counts here came from inside the moving image.
bool HasSource(const Scene& s, Vec3d index) {
  for (const Corner& corner : CornersOf(s.field.geometry, index)) {
    if (corner.weight == 0) continue;
    const float* u = s.field.displacement.data() + 3 * OffsetOf(s.field.geometry, corner.voxel);
    const Vec3d x = s.to_physical({double(corner.voxel.x), double(corner.voxel.y), double(corner.voxel.z)});
    if (!InDomain(s.moving.geometry, s.to_moving(x + Vec3d{u[0], u[1], u[2]}))) return false;
  }
  return true;
}

Pixel Look(const Scene& s, const Plane& plane, Vec3d index) {
  const Geometry& g = s.fixed.geometry;
  const Vec3d x = s.to_physical(index);
  Vec3d u;
  for (int c = 0; c < 3; ++c) u[c] = Sample(s.field.displacement.data(), g, index, 3, c);
  const Vec3d y = x + u;
  Pixel pixel;
  pixel.fixed = Show(Sample(s.fixed.values.data(), g, index), s.fixed_window);
  pixel.warped = HasSource(s, index) ? Show(Sample(s.warped.values.data(), g, index), s.moving_window) : kNothing;
  pixel.before = Show(Sample(s.moving.values.data(), s.moving.geometry, s.to_moving(x)), s.moving_window);
  pixel.length = static_cast<float>(std::sqrt(Dot(u, u)));
  const auto along = [&](int axis) {
    return static_cast<float>(Dot(y - s.center, {g.direction[0][axis], g.direction[1][axis], g.direction[2][axis]}));
  };
  pixel.across = along(plane.across);
  pixel.down = along(plane.down);
  return pixel;
}

Slice Cut(const Scene& scene, const Plane& plane) {
  Slice slice{plane, {}};
  slice.pixels.reserve(size_t(plane.width) * plane.height);
  for (int y = 0; y < plane.height; ++y)
    for (int x = 0; x < plane.width; ++x)
      slice.pixels.push_back(Look(scene, plane, IndexAt(scene.fixed.geometry, plane, x, y)));
  return slice;
}

Color Tinted(float v, Color white) { return std::isnan(v) ? kEmpty : Mix(Color{}, white, v); }
Color Grey(float v) { return Tinted(v, {1, 1, 1}); }

// Small differences are lifted, since a person looks for them.
float Lifted(float difference) { return std::copysign(std::pow(std::abs(difference), 0.65f), difference); }

Color Difference(float fixed, float other) {
  const float d = fixed - other;
  return std::isnan(d) ? kEmpty : Diverging(Lifted(d));
}

// The part of the pixel that the nearest line covers. Lines are the level sets of `coordinate` at multiples of `step`;
// the distance to a line, in pixels, is the difference of levels over the gradient.
template <typename Coordinate>
float LineCoverage(const Slice& slice, int x, int y, double step, const Coordinate& coordinate) {
  const int left = std::max(x - 1, 0), right = std::min(x + 1, slice.plane.width - 1);
  const int above = std::max(y - 1, 0), below = std::min(y + 1, slice.plane.height - 1);
  const double dx = (coordinate(slice.at(right, y)) - coordinate(slice.at(left, y))) / std::max(1, right - left);
  const double dy = (coordinate(slice.at(x, below)) - coordinate(slice.at(x, above))) / std::max(1, below - above);
  const double slope = std::hypot(dx, dy);
  const double level = coordinate(slice.at(x, y)) / step - 0.5;
  const double off = std::abs(level - std::round(level)) * step;
  if (!(slope > 1e-6)) return 0;
  return static_cast<float>(std::clamp(1.15 - off / slope, 0.0, 1.0));
}

Color GridColor(const Slice& slice, int x, int y, double step, float longest) {
  const Pixel& pixel = slice.at(x, y);
  const float across = LineCoverage(slice, x, y, step, [](const Pixel& p) { return p.across; });
  const float down = LineCoverage(slice, x, y, step, [](const Pixel& p) { return p.down; });
  const float line = std::max(across, down);
  const Color under = Mix(kPage, Grey(pixel.fixed), 0.4f);
  const float length = longest > 0 && pixel.length > 0 ? pixel.length / longest : 0;
  return Mix(under, Sequential(length), std::isnan(line) ? 0 : line);
}

// 1, 2 or 5 times a power of ten, at least `mm`.
double NiceStep(double mm) {
  const double power = std::pow(10, std::floor(std::log10(mm)));
  for (double factor : {1.0, 2.0, 5.0})
    if (factor * power >= mm * (1 - 1e-9)) return factor * power;
  return 10 * power;
}

struct Measures {
  double step = 10;              // between the grid's lines, mm
  double board = 32;             // side of a checkerboard square, pixels
  float longest = 0;             // displacement in the slices, mm
  double before = 0, after = 0;  // mean absolute difference in the slices, where both are
};

Color ColorOf(const Slice& slice, int column, int x, int y, const Measures& m) {
  const Pixel& p = slice.at(x, y);
  switch (column) {
    case kFixed:
      return Grey(p.fixed);
    case kWarped:
      return Grey(p.warped);
    case kCheckerboard: {
      const bool fixed = (static_cast<int>(x / m.board) + static_cast<int>(y / m.board)) % 2 == 0;
      return fixed ? Tinted(p.fixed, kFixedTint) : Tinted(p.warped, kWarpedTint);
    }
    case kBefore:
      return Difference(p.fixed, p.before);
    case kAfter:
      return Difference(p.fixed, p.warped);
    default:
      return GridColor(slice, x, y, m.step, m.longest);
  }
}

double MeanDifference(const std::vector<Slice>& slices, float Pixel::*other) {
  double sum = 0;
  int64_t count = 0;
  for (const Slice& slice : slices) {
    for (const Pixel& p : slice.pixels) {
      const float d = std::abs(p.fixed - p.*other);
      if (std::isnan(d)) continue;
      sum += d;
      ++count;
    }
  }
  return count == 0 ? 0 : sum / count;
}

Measures Measure(const std::vector<Slice>& slices, double extent_mm) {
  Measures m;
  m.step = NiceStep(extent_mm / 22);
  m.board = std::max(slices[0].plane.width, slices[0].plane.height) / 8.0;
  for (const Slice& slice : slices)
    for (const Pixel& p : slice.pixels)
      if (p.length > m.longest) m.longest = p.length;
  m.before = MeanDifference(slices, &Pixel::before);
  m.after = MeanDifference(slices, &Pixel::warped);
  return m;
}

// The font, made small enough for a text of this width.
Font Fitted(Font font, absl::string_view text, double width) {
  font.size *= std::min(1.0, width / std::max(1.0, Canvas::TextWidth(text, font)));
  return font;
}

int ColumnLeft(int column, int column_width) { return kMargin + column * (column_width + kGap); }

void DrawTitles(Canvas& canvas, int column_width, const Geometry& g, const Measures& m) {
  const std::string size = absl::StrFormat("%d \u00d7 %d \u00d7 %d, %.3g \u00d7 %.3g \u00d7 %.3g mm", g.size.x,
                                           g.size.y, g.size.z, g.spacing.x, g.spacing.y, g.spacing.z);
  const std::string text[kColumns][2] = {
      {"Fixed", size},
      {"Warped", "moving image through T"},
      {"Checkerboard", "fixed and warped"},
      {"Difference before", absl::StrFormat("mean %.1f %% of the window", 100 * m.before)},
      {"Difference after", absl::StrFormat("mean %.1f %% of the window", 100 * m.after)},
      {"Deformed grid", absl::StrFormat("a line every %g mm", m.step)}};
  Font title = kTitleFont;
  for (const auto& lines : text) title.size = std::min(title.size, Fitted(kTitleFont, lines[0], column_width).size);
  for (int c = 0; c < kColumns; ++c) {
    const int x = ColumnLeft(c, column_width);
    canvas.Text(x, kMargin - 2, text[c][0], title, kTitleColor);
    const Font caption = Fitted(kCaptionFont, text[c][1], column_width);
    canvas.Text(x, kMargin + 18, text[c][1], caption, kCaptionColor);
  }
}

// A bar of the colours of 0 to 1, with a word below each end.
template <typename ColorAt>
void DrawBar(Canvas& canvas, int x, int y, int width, const ColorAt& color_at, absl::string_view left,
             absl::string_view right) {
  constexpr int kBar = 10;
  for (int i = 0; i < width; ++i) canvas.Fill(x + i, y, 1, kBar, color_at((i + 0.5f) / width));
  const Font font = Fitted(kCaptionFont, absl::StrCat(left, "    ", right), width);
  canvas.Text(x, y + kBar + 4, left, font, kCaptionColor);
  canvas.Text(x + width - Canvas::TextWidth(right, font), y + kBar + 4, right, font, kCaptionColor);
}

void DrawLegend(Canvas& canvas, int column_width, int y, const Measures& m) {
  const auto bar = [&](int column, const auto& color_at, absl::string_view left, absl::string_view right) {
    DrawBar(canvas, ColumnLeft(column, column_width), y, column_width, color_at, left, right);
  };
  const auto squares = [](float t) { return t < 0.5f ? kFixedTint : kWarpedTint; };
  const auto difference = [](float t) { return Diverging(Lifted(2 * t - 1)); };
  bar(kCheckerboard, squares, "fixed", "warped");
  bar(kBefore, difference, "moving brighter", "fixed brighter");
  bar(kAfter, difference, "warped brighter", "fixed brighter");
  bar(kGrid, Sequential, "0 mm moved", absl::StrFormat("%.1f mm", m.longest));
}

// The sides of the patient and the name of the slice.
void DrawLetters(Canvas& canvas, const Plane& p, int left, int top) {
  const double line = Canvas::LineHeight(kLetterFont), middle = top + 0.5 * (p.height - line);
  const double low = top + p.height - line - 2;
  const auto letter = [&](double x, double y, char c, double share) {
    const absl::string_view text(&c, 1);
    canvas.TextOnImage(x - share * Canvas::TextWidth(text, kLetterFont), y, text, kLetterFont, kTitleColor);
  };
  letter(left + 4, middle, p.left, 0);
  letter(left + p.width - 4, middle, p.right, 1);
  letter(left + 0.5 * p.width, top + 2, p.top, 0.5);
  letter(left + 0.5 * p.width, low, p.bottom, 0.5);
  const Font name = Fitted(kCaptionFont, p.name, 0.4 * p.width);
  canvas.TextOnImage(left + 4, top + p.height - Canvas::LineHeight(name) - 2, p.name, name, kTitleColor);
}

uint8_t ToByte(float v) { return static_cast<uint8_t>(std::lround(255 * std::clamp(v, 0.f, 1.f))); }

Picture DrawPanel(const Slice& slice, int column, const Measures& measures) {
  Picture panel{slice.plane.width, slice.plane.height, {}};
  panel.pixels.reserve(3 * slice.pixels.size());
  for (int y = 0; y < panel.height; ++y) {
    for (int x = 0; x < panel.width; ++x) {
      const Color color = ColorOf(slice, column, x, y, measures);
      for (float channel : {color.r, color.g, color.b}) panel.pixels.push_back(ToByte(channel));
    }
  }
  return panel;
}

void DrawRow(Canvas& canvas, const Slice& slice, int column_width, int top, const Measures& measures) {
  const int inset = (column_width - slice.plane.width) / 2;
  for (int column = 0; column < kColumns; ++column) {
    canvas.Paint(ColumnLeft(column, column_width) + inset, top, DrawPanel(slice, column, measures));
  }
  DrawLetters(canvas, slice.plane, ColumnLeft(kFixed, column_width) + inset, top);
}

std::vector<Slice> MiddleSlices(const Scene& scene, const Geometry& g, double mm) {
  const Orientation orientation = OrientationOf(g);
  if (g.is_2d()) return {Cut(scene, MakePlane(g, orientation, 2, mm))};
  std::vector<Slice> slices;
  for (int patient : {2, 1, 0}) {
    const int* axes = orientation.patient_axis;
    const int normal = static_cast<int>(std::find(axes, axes + 3, patient) - axes);
    slices.push_back(Cut(scene, MakePlane(g, orientation, normal, mm)));
  }
  return slices;
}

}  // namespace

IntensityWindow FindWindow(const std::vector<float>& values) {
  constexpr size_t kSamples = 1 << 18;
  std::vector<float> sorted;
  const size_t step = std::max<size_t>(1, values.size() / kSamples);
  for (size_t i = 0; i < values.size(); i += step)
    if (std::isfinite(values[i])) sorted.push_back(values[i]);
  if (sorted.empty()) return {};
  std::sort(sorted.begin(), sorted.end());
  const float low = sorted.front(), high = sorted.back();
  if (!(high > low)) return {low, std::nextafter(low + 1, std::numeric_limits<float>::infinity())};

  // Background is an end of the range that holds a fifth or more of the voxels.
  const float band = 0.06f * (high - low);
  const auto above = std::upper_bound(sorted.begin(), sorted.end(), low + band);
  const auto below = std::lower_bound(sorted.begin(), sorted.end(), high - band);
  const size_t enough = sorted.size() / 5;
  auto first = sorted.begin(), last = sorted.end();
  if (size_t(above - sorted.begin()) > enough) first = above;
  if (size_t(sorted.end() - below) > enough) last = below;
  if (last - first < 16) return {low, high};

  const auto quantile = [&](double q) { return first[static_cast<ptrdiff_t>(q * (last - first - 1))]; };
  const float median = quantile(0.5);
  constexpr float kReach = 2.2f;
  IntensityWindow window{std::max(low, median - kReach * (median - quantile(0.16))),
                         std::min(high, median + kReach * (quantile(0.84) - median))};
  if (!(window.high > window.low)) return {low, high};
  return window;
}

absl::StatusOr<Picture> RenderMontage(const HostImage& fixed, const HostImage& moving, const HostImage& warped,
                                      const HostField& field, const MontageOptions& options) {
  INTRAWARP_RETURN_IF_ERROR(Check(fixed, moving, warped, field, options));
  const Geometry& g = fixed.geometry;
  const Scene scene{fixed,
                    moving,
                    warped,
                    field,
                    FindWindow(fixed.values),
                    FindWindow(moving.values),
                    IndexToPhysical(g),
                    PhysicalToIndex(moving.geometry),
                    Center(g)};
  double extent = 0;
  for (int a = 0; a < (g.is_2d() ? 2 : 3); ++a) extent = std::max(extent, g.size[a] * g.spacing[a]);
  const std::vector<Slice> slices = MiddleSlices(scene, g, extent / options.panel_pixels);
  const Measures measures = Measure(slices, extent);
  int column_width = 0, rows = 0;
  for (const Slice& slice : slices) {
    column_width = std::max(column_width, slice.plane.width);
    rows += slice.plane.height + kGap;
  }
  int top = kMargin + kHeadroom;
  Canvas canvas(ColumnLeft(kColumns, column_width) - kGap + kMargin, top + rows + kLegend, kPage);
  DrawTitles(canvas, column_width, g, measures);
  for (const Slice& slice : slices) {
    DrawRow(canvas, slice, column_width, top, measures);
    top += slice.plane.height + kGap;
  }
  DrawLegend(canvas, column_width, top, measures);
  return canvas.Finish();
}

}  // namespace intrawarp::io
