// SPDX-License-Identifier: Apache-2.0
#include "io/picture/montage.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "io/picture/canvas.h"
#include "io/picture/colormap.h"
#include "io/picture/montage_scene.h"

namespace intrawarp::io {
namespace {

constexpr Color kPage{0.07f, 0.075f, 0.09f}, kEmpty{0.1f, 0.105f, 0.13f}, kTitleColor{0.93f, 0.94f, 0.96f},
    kCaptionColor{0.76f, 0.79f, 0.84f}, kGoodColor{0.55f, 0.85f, 1.f}, kBadColor{1.f, 0.68f, 0.28f},
    kContourColor{1.f, 0.62f, 0.1f}, kCutColor{0.35f, 0.75f, 0.95f};
// The checkerboard's white in fixed and in warped squares, equally light; little of it, so that contrast stays.
constexpr Color kFixedTint{1.f, 0.95f, 0.85f}, kWarpedTint{0.87f, 0.96f, 1.f};
// The share of the error's colour over the image.
constexpr float kErrorShare = 0.65f;
constexpr int kGap = 8, kMargin = 12, kColumns = 8, kBar = 10;
// Where captions of this size have room; nothing is written smaller than 13 pixels.
constexpr int kLeastColumn = 216, kGutter = 124;
constexpr Font kHeadingFont{19, true}, kTitleFont{15, true}, kCaptionFont{13}, kLetterFont{13, true};

struct Measures {
  double step = 10;              // between the grid's lines, mm
  double board = 32;             // side of a checkerboard square, pixels
  float longest = 0;             // displacement in the slices, mm
  bool moves = false;            // by more than rounding
  double before = 0, after = 0;  // mean absolute difference in the slices, where both are
  double error_scale = 1;        // the error that has the last colour, mm
};

absl::Status CheckGeometry(const char* name, const Geometry& g, size_t values, int64_t wanted) {
  const absl::Status valid = ValidateGeometry(g);
  if (!valid.ok()) return FieldError(absl::StatusCode::kInvalidArgument, name, valid.message());
  if (static_cast<int64_t>(values) == wanted) return absl::OkStatus();
  return FieldError(absl::StatusCode::kInvalidArgument, name, "the number of values does not match the size");
}

absl::Status Check(const HostImage& fixed, const HostImage& moving, const HostImage& warped, const HostField& field,
                   const MontageOptions& options) {
  INTRAWARP_RETURN_IF_ERROR(CheckGeometry("fixed", fixed.geometry, fixed.values.size(), fixed.geometry.voxels()));
  INTRAWARP_RETURN_IF_ERROR(CheckGeometry("moving", moving.geometry, moving.values.size(), moving.geometry.voxels()));
  INTRAWARP_RETURN_IF_ERROR(CheckGeometry("warped", warped.geometry, warped.values.size(), warped.geometry.voxels()));
  INTRAWARP_RETURN_IF_ERROR(
      CheckGeometry("field", field.geometry, field.displacement.size(), 3 * field.geometry.voxels()));
  if (!SameGrid(fixed.geometry, warped.geometry)) {
    return FieldError(absl::StatusCode::kInvalidArgument, "warped", "does not lie on the grid of the fixed image");
  }
  if (!SameGrid(fixed.geometry, field.geometry)) {
    return FieldError(absl::StatusCode::kInvalidArgument, "field", "does not lie on the grid of the fixed image");
  }
  if (options.error) {
    INTRAWARP_RETURN_IF_ERROR(CheckGeometry("error", options.error->geometry, options.error->expected_mm.size(),
                                            options.error->geometry.voxels()));
  }
  if (options.missing) {
    INTRAWARP_RETURN_IF_ERROR(CheckGeometry("missing", options.missing->geometry, options.missing->nodes.size(),
                                            options.missing->geometry.voxels()));
  }
  for (int a = 0; options.at && a < 3; ++a) {
    if (!std::isfinite((*options.at)[a])) return FieldError(absl::StatusCode::kInvalidArgument, "at", "is not finite");
  }
  if (options.panel_pixels < 64 || options.panel_pixels > 1024) {
    return FieldError(absl::StatusCode::kInvalidArgument, "panel_pixels", "must be 64 to 1024");
  }
  return absl::OkStatus();
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
  const ScenePixel& pixel = slice.at(x, y);
  const float across = LineCoverage(slice, x, y, step, [](const ScenePixel& p) { return p.across; });
  const float down = LineCoverage(slice, x, y, step, [](const ScenePixel& p) { return p.down; });
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

// Lines that cross the stripes of an error that was not judged.
Color Hatched(Color under, int x, int y) {
  const bool is_line = (x - y + 8192) % 8 < 2;
  return is_line ? Mix(under, kCutColor, 0.7f) : under;
}

// Errors over a dim image, in blocks; stripes where the error was not judged.
Color ErrorColor(const ScenePixel& pixel, int x, int y, double scale) {
  const Color under = Mix(kPage, Grey(pixel.fixed), 0.55f);
  if (std::isnan(pixel.error))
    return (x + y) % 8 < 2 ? Mix(under, {0.5f, 0.5f, 0.55f}, 0.35f) : Mix(kPage, under, 0.6f);
  return Mix(under, Sequential(static_cast<float>(pixel.error / scale)), kErrorShare);
}

Color ContourColor(const Slice& slice, int x, int y, float other) {
  const float line = slice.contours[size_t(y) * slice.plane.width + x];
  return Mix(Grey(other), kContourColor, line);
}

Color ColorOf(const Slice& slice, MontageColumn column, int x, int y, const Measures& m) {
  const ScenePixel& p = slice.at(x, y);
  const bool has_contours = !slice.contours.empty();
  switch (column) {
    case MontageColumn::kFixed:
      return p.is_missing ? Hatched(Grey(p.fixed), x, y) : Grey(p.fixed);
    case MontageColumn::kMoving:
      return Grey(p.before);
    case MontageColumn::kWarped:
      return Grey(p.warped);
    case MontageColumn::kCheckerboard: {
      const bool fixed = (static_cast<int>(x / m.board) + static_cast<int>(y / m.board)) % 2 == 0;
      return fixed ? Tinted(p.fixed, kFixedTint) : Tinted(p.warped, kWarpedTint);
    }
    case MontageColumn::kBefore:
      return has_contours ? ContourColor(slice, x, y, p.before) : Difference(p.fixed, p.before);
    case MontageColumn::kAfter:
      return has_contours ? ContourColor(slice, x, y, p.warped) : Difference(p.fixed, p.warped);
    case MontageColumn::kError:
      return p.is_missing ? Hatched(Mix(kPage, Grey(p.fixed), 0.55f), x, y) : ErrorColor(p, x, y, m.error_scale);
    case MontageColumn::kGrid:
      break;
  }
  return GridColor(slice, x, y, m.step, m.moves ? m.longest : 0);
}

double MeanDifference(const std::vector<Slice>& slices, float ScenePixel::*other) {
  double sum = 0;
  int64_t count = 0;
  for (const Slice& slice : slices) {
    for (const ScenePixel& p : slice.pixels) {
      const float d = std::abs(p.fixed - p.*other);
      if (std::isnan(d)) continue;
      sum += d;
      ++count;
    }
  }
  return count == 0 ? 0 : sum / count;
}

Measures Measure(const MontageScene& scene, const Geometry& g, const std::optional<ErrorBlocks>& error) {
  Measures m;
  m.step = NiceStep(scene.extent_mm / 22);
  m.board = std::max(scene.slices[0].plane.width, scene.slices[0].plane.height) / 8.0;
  float largest_error = 0;
  for (const Slice& slice : scene.slices) {
    for (const ScenePixel& p : slice.pixels) {
      if (p.length > m.longest) m.longest = p.length;
      if (p.error > largest_error) largest_error = p.error;
    }
  }
  m.before = MeanDifference(scene.slices, &ScenePixel::before);
  m.after = MeanDifference(scene.slices, &ScenePixel::warped);
  // A hundredth of a voxel is rounding, and no movement that has colours.
  const double finest = std::min({g.spacing.x, g.spacing.y, g.is_2d() ? g.spacing.x : g.spacing.z});
  m.moves = m.longest > 0.01 * finest;
  if (error) m.error_scale = NiceStep(std::max<double>(error->limit_mm, largest_error));
  return m;
}

// The words as they fit a line of this width, on at most so many lines, the last of which ends in dots if it must.
std::vector<std::string> Wrapped(absl::string_view text, Font font, double width, size_t most_lines) {
  std::vector<std::string> lines;
  for (const absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    const std::string longer = lines.empty() ? std::string(word) : absl::StrCat(lines.back(), " ", word);
    if (!lines.empty() && Canvas::TextWidth(longer, font) <= width) {
      lines.back() = longer;
    } else if (lines.size() < most_lines) {
      lines.emplace_back(word);
    } else {
      lines.back() = longer;
      break;
    }
  }
  for (std::string& line : lines) {
    if (Canvas::TextWidth(line, font) <= width) continue;
    // Whole characters of UTF-8 go.
    while (!line.empty() && Canvas::TextWidth(absl::StrCat(line, "\u2026"), font) > width) {
      while (line.size() > 1 && (static_cast<unsigned char>(line.back()) & 0xc0) == 0x80) line.pop_back();
      line.pop_back();
    }
    absl::StrAppend(&line, "\u2026");
  }
  return lines;
}

constexpr size_t kCaptionLines = 3, kRemarkLines = 2;

struct Layout {
  int column_width = 0, width = 0;
  int titles_top = 0, rows_top = 0, legend_top = 0, height = 0;
  int line = 17;  // of captions
};

int ColumnLeft(int column, const Layout& layout) { return kMargin + kGutter + column * (layout.column_width + kGap); }

// The heading and its remarks, as lines.
std::vector<std::string> HeadLines(const MontageOptions& options, double width) {
  std::vector<std::string> lines;
  for (const std::string& remark : options.remarks) {
    for (std::string& line : Wrapped(remark, kCaptionFont, width, kRemarkLines)) lines.push_back(std::move(line));
  }
  return lines;
}

Layout Arrange(const MontageScene& scene, const MontageOptions& options) {
  Layout layout;
  layout.column_width = kLeastColumn;
  int rows = 0;
  for (const Slice& slice : scene.slices) {
    layout.column_width = std::max(layout.column_width, slice.plane.width);
    rows += slice.plane.height + kGap;
  }
  layout.width = ColumnLeft(kColumns, layout) - kGap + kMargin;
  layout.line = static_cast<int>(std::ceil(Canvas::LineHeight(kCaptionFont)));
  const int heading = options.heading.empty() ? 0 : static_cast<int>(std::ceil(Canvas::LineHeight(kHeadingFont))) + 2;
  const size_t remarks = HeadLines(options, layout.width - 2 * kMargin).size();
  layout.titles_top = kMargin + heading + static_cast<int>(remarks) * layout.line + (heading > 0 ? kGap : 0);
  layout.rows_top = layout.titles_top + static_cast<int>(std::ceil(Canvas::LineHeight(kTitleFont))) +
                    static_cast<int>(kCaptionLines) * layout.line + 4;
  layout.legend_top = layout.rows_top + rows;
  layout.height = layout.legend_top + kBar + 4 + 3 * layout.line + kMargin;
  return layout;
}

void DrawHead(Canvas& canvas, const MontageOptions& options, const Layout& layout) {
  if (options.heading.empty()) return;
  const Color color = options.is_good ? kGoodColor : kBadColor;
  const double width = layout.width - 2 * kMargin;
  canvas.Text(kMargin, kMargin - 2, Wrapped(options.heading, kHeadingFont, width, 1)[0], kHeadingFont, color);
  double y = kMargin + std::ceil(Canvas::LineHeight(kHeadingFont));
  for (const std::string& line : HeadLines(options, width)) {
    canvas.Text(kMargin, y, line, kCaptionFont, kTitleColor);
    y += layout.line;
  }
}

std::string WindowText(IntensityWindow window) {
  return absl::StrFormat("window %.4g to %.4g", window.low, window.high);
}

struct Title {
  std::string name, caption;
};

std::vector<Title> TitlesOf(const MontageScene& scene, const Geometry& g, const MontageOptions& options,
                            const Measures& m) {
  const std::string size = absl::StrFormat("%d \u00d7 %d \u00d7 %d, %.3g \u00d7 %.3g \u00d7 %.3g mm", g.size.x,
                                           g.size.y, g.size.z, g.spacing.x, g.spacing.y, g.spacing.z);
  const bool has_difference = scene.relation != IntensityRelation::kOther;
  const std::string moving_window = scene.relation == IntensityRelation::kSame ? "window as fixed"
                                    : scene.relation == IntensityRelation::kScaled
                                        ? WindowText(scene.moving_window) + ", matched to fixed"
                                        : WindowText(scene.moving_window);
  const auto mean = [](double d) { return absl::StrFormat("fixed \u2212 other, mean %.1f %% of the window", 100 * d); };
  const std::string contours = "edges of fixed (orange) on ";
  return {
      {"Fixed", absl::StrCat(size, "; ", WindowText(scene.fixed_window))},
      {"Moving, before", absl::StrCat("where its header puts it; ", moving_window)},
      {"Warped", "moving image through T"},
      {"Checkerboard", "fixed and warped"},
      {has_difference ? "Difference before" : "Contours before", has_difference ? mean(m.before) : contours + "moving"},
      {has_difference ? "Difference after" : "Contours after", has_difference ? mean(m.after) : contours + "warped"},
      {"Predicted error", options.error ? "expected error, by blocks" : "was not predicted"},
      {"Deformed grid", absl::StrFormat("a line every %g mm", m.step)}};
}

void DrawTitles(Canvas& canvas, const std::vector<Title>& titles, const Layout& layout) {
  for (int c = 0; c < kColumns; ++c) {
    const int x = ColumnLeft(c, layout);
    canvas.Text(x, layout.titles_top, titles[c].name, kTitleFont, kTitleColor);
    double y = layout.titles_top + std::ceil(Canvas::LineHeight(kTitleFont));
    for (const std::string& line : Wrapped(titles[c].caption, kCaptionFont, layout.column_width, kCaptionLines)) {
      canvas.Text(x, y, line, kCaptionFont, kCaptionColor);
      y += layout.line;
    }
  }
}

// A bar of the colours of 0 to 1, with a word below each end.
template <typename ColorAt>
void DrawBar(Canvas& canvas, int x, const Layout& layout, const ColorAt& color_at, absl::string_view left,
             absl::string_view right) {
  const int width = layout.column_width, y = layout.legend_top;
  for (int i = 0; i < width; ++i) canvas.Fill(x + i, y, 1, kBar, color_at((i + 0.5f) / width));
  canvas.Text(x, y + kBar + 2, left, kCaptionFont, kCaptionColor);
  canvas.Text(x + width - Canvas::TextWidth(right, kCaptionFont), y + kBar + 2, right, kCaptionFont, kCaptionColor);
}

void DrawLegend(Canvas& canvas, const MontageScene& scene, const std::optional<ErrorBlocks>& error, const Measures& m,
                const Layout& layout) {
  const auto bar = [&](MontageColumn column, const auto& color_at, absl::string_view left, absl::string_view right) {
    DrawBar(canvas, ColumnLeft(static_cast<int>(column), layout), layout, color_at, left, right);
  };
  bar(
      MontageColumn::kCheckerboard, [](float t) { return t < 0.5f ? kFixedTint : kWarpedTint; }, "fixed", "warped");
  if (scene.relation != IntensityRelation::kOther) {
    const auto difference = [](float t) { return Diverging(Lifted(2 * t - 1)); };
    bar(MontageColumn::kBefore, difference, "moving brighter", "fixed brighter");
    bar(MontageColumn::kAfter, difference, "warped brighter", "fixed brighter");
  }
  if (error) {
    // The bar is as bright as the error's colour over a middle grey.
    const auto over_grey = [](float t) { return Mix(Color{0.3f, 0.3f, 0.31f}, Sequential(t), kErrorShare); };
    bar(MontageColumn::kError, over_grey, absl::StrFormat("0 mm; limit %g mm", error->limit_mm),
        absl::StrFormat("%g mm", m.error_scale));
  }
  const int grid = ColumnLeft(static_cast<int>(MontageColumn::kGrid), layout);
  if (m.moves) {
    bar(MontageColumn::kGrid, Sequential, "0 mm moved", absl::StrFormat("%.1f mm", m.longest));
  } else {
    canvas.Text(grid, layout.legend_top + kBar + 2, "nothing moves", kCaptionFont, kCaptionColor);
  }
}

// The meaning of a patch of the picture, and the last line.
void DrawFoot(Canvas& canvas, const MontageOptions& options, const Layout& layout) {
  const int y = layout.height - kMargin - 2 * layout.line + 2;
  double x = kMargin + kGutter;
  const auto swatch = [&](const std::string& text, const auto& color_at) {
    for (int j = 0; j < 14; ++j)
      for (int i = 0; i < 22; ++i) canvas.Fill(static_cast<int>(x) + i, y + j, 1, 1, color_at(i, j));
    canvas.Text(x + 28, y - 1, text, kCaptionFont, kCaptionColor);
    x += 28 + Canvas::TextWidth(text, kCaptionFont) + 24;
  };
  swatch("no source: the moving image does not reach there", [](int i, int j) {
    return i == 0 || j == 0 || i == 21 || j == 13 ? Color{0.45f, 0.46f, 0.5f} : kEmpty;
  });
  ScenePixel unknown;
  unknown.fixed = 0.4f;
  unknown.error = std::numeric_limits<float>::quiet_NaN();
  swatch("error not judged: too little structure", [&](int i, int j) { return ErrorColor(unknown, i, j, 1); });
  if (options.missing) {
    swatch("no counterpart: only one image shows it", [](int i, int j) { return Hatched({0.3f, 0.3f, 0.31f}, i, j); });
  }
  swatch("dotted: the other slices", [](int i, int j) { return j == 7 && i % 4 < 2 ? kCutColor : kPage; });
  if (options.footer.empty()) return;
  const double width = layout.width - 2 * kMargin;
  canvas.Text(kMargin + kGutter, y + layout.line, Wrapped(options.footer, kCaptionFont, width - kGutter, 1)[0],
              kCaptionFont, kCaptionColor);
}

// The sides of the patient.
void DrawLetters(Canvas& canvas, const Plane& p, int left, int top) {
  if (p.left == 0) return;
  const double line = Canvas::LineHeight(kLetterFont), middle = top + 0.5 * (p.height - line);
  const auto letter = [&](double x, double y, char c, double share) {
    const absl::string_view text(&c, 1);
    canvas.TextOnImage(x - share * Canvas::TextWidth(text, kLetterFont), y, text, kLetterFont, kTitleColor);
  };
  letter(left + 4, middle, p.left, 0);
  letter(left + p.width - 4, middle, p.right, 1);
  letter(left + 0.5 * p.width, top + 2, p.top, 0.5);
  letter(left + 0.5 * p.width, top + p.height - line - 2, p.bottom, 0.5);
}

// Which slice a row shows, beside it.
void DrawPlace(Canvas& canvas, const Geometry& g, const MontageScene& scene, const Plane& p, int top,
               const Layout& layout) {
  std::vector<std::string> lines = {absl::StrFormat("slice %d of %d", p.index + 1, g.size[p.normal])};
  Vec3d index{(g.size.x - 1) / 2.0, (g.size.y - 1) / 2.0, (g.size.z - 1) / 2.0};
  index[p.normal] = p.index;
  const Vec3d at = IndexToPhysical(g)(index);
  // The axis of the world that the slices are stacked along, nearest.
  int axis = 0;
  for (int a = 1; a < 3; ++a)
    if (std::abs(g.direction[a][p.normal]) > std::abs(g.direction[axis][p.normal])) axis = a;
  if (p.left != 0) lines.push_back(absl::StrFormat("%c = %.1f mm", "LPS"[axis], at[axis]));
  if (scene.goes_through_error) lines.emplace_back("at the largest error");
  if (p.left == 0) lines.emplace_back("no orientation");
  const double stretch = std::max(p.stretch_across, p.stretch_down);
  if (stretch > 1.01) {
    lines.push_back(absl::StrFormat("%s \u00d7%.1f", p.stretch_down >= p.stretch_across ? "height" : "width", stretch));
  }
  canvas.Text(kMargin, top, p.name, kTitleFont, kTitleColor);
  double y = top + std::ceil(Canvas::LineHeight(kTitleFont));
  for (const std::string& line : lines) {
    for (const std::string& part : Wrapped(line, kCaptionFont, kGutter - 8, 2)) {
      canvas.Text(kMargin, y, part, kCaptionFont, kCaptionColor);
      y += layout.line;
    }
  }
}

void DrawScaleBar(Canvas& canvas, const Plane& p, int left, int top) {
  const double mm_per_pixel = p.mm / p.stretch_across;
  double mm = NiceStep(p.width * mm_per_pixel / 5);
  const int pixels = static_cast<int>(std::lround(mm / mm_per_pixel));
  if (pixels < 4 || pixels > p.width - 12) return;
  const std::string text = absl::StrFormat("%g mm", mm);
  const int y = top + p.height - 8;
  canvas.Fill(left + 5, y - 1, pixels + 2, 5, Color{});
  canvas.Fill(left + 6, y, pixels, 3, kTitleColor);
  canvas.TextOnImage(left + 6, y - Canvas::LineHeight(kCaptionFont) - 1, text, kCaptionFont, kTitleColor);
}

void DrawCuts(Canvas& canvas, const Geometry& g, const MontageScene& scene, const Plane& p, int left, int top) {
  for (const Slice& other : scene.slices) {
    if (other.plane.normal == p.normal) continue;
    const int at = CutAt(g, p, other.plane);
    const bool is_column = other.plane.normal == p.across;
    const int length = is_column ? p.height : p.width;
    for (int i = 0; i < length; i += 4) {
      canvas.Fill(left + (is_column ? at : i), top + (is_column ? i : at), is_column ? 1 : 2, is_column ? 2 : 1,
                  kCutColor);
    }
  }
}

uint8_t ToByte(float v) { return static_cast<uint8_t>(std::lround(255 * std::clamp(v, 0.f, 1.f))); }

Picture DrawPanel(const Slice& slice, MontageColumn column, const Measures& measures) {
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

// The panels of one row, from left to right.
std::vector<MontagePanel> DrawRow(Canvas& canvas, const Geometry& g, const MontageScene& scene, int row, int top,
                                  const Measures& measures, const Layout& layout) {
  const Slice& slice = scene.slices[static_cast<size_t>(row)];
  const Plane& plane = slice.plane;
  const int inset = (layout.column_width - plane.width) / 2;
  std::vector<MontagePanel> panels;
  for (int c = 0; c < kColumns; ++c) {
    const auto column = static_cast<MontageColumn>(c);
    const int left = ColumnLeft(c, layout) + inset;
    canvas.Paint(left, top, DrawPanel(slice, column, measures));
    if (column == MontageColumn::kFixed) DrawCuts(canvas, g, scene, plane, left, top);
    if (column == MontageColumn::kFixed) DrawScaleBar(canvas, plane, left, top);
    DrawLetters(canvas, plane, left, top);
    panels.push_back({column, row, left, top, plane.width, plane.height});
  }
  DrawPlace(canvas, g, scene, plane, top, layout);
  return panels;
}

}  // namespace

absl::StatusOr<Picture> RenderMontage(const HostImage& fixed, const HostImage& moving, const HostImage& warped,
                                      const HostField& field, const MontageOptions& options,
                                      std::vector<MontagePanel>* panels) {
  INTRAWARP_RETURN_IF_ERROR(Check(fixed, moving, warped, field, options));
  const Geometry& g = fixed.geometry;
  const MontageScene scene = MakeScene(fixed, moving, warped, field, options);
  const Measures measures = Measure(scene, g, options.error);
  const Layout layout = Arrange(scene, options);
  Canvas canvas(layout.width, layout.height, kPage);
  DrawHead(canvas, options, layout);
  DrawTitles(canvas, TitlesOf(scene, g, options, measures), layout);
  int top = layout.rows_top;
  for (int row = 0; row < static_cast<int>(scene.slices.size()); ++row) {
    const std::vector<MontagePanel> drawn = DrawRow(canvas, g, scene, row, top, measures, layout);
    if (panels != nullptr) panels->insert(panels->end(), drawn.begin(), drawn.end());
    top += scene.slices[static_cast<size_t>(row)].plane.height + kGap;
  }
  DrawLegend(canvas, scene, options.error, measures, layout);
  DrawFoot(canvas, options, layout);
  return canvas.Finish();
}

}  // namespace intrawarp::io
