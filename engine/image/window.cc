// SPDX-License-Identifier: Apache-2.0
#include "engine/image/window.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/base/status_macros.h"
#include "engine/image/inpaint.h"
#include "engine/image/window_kernels.h"

namespace intrawarp {
namespace {

// Fewer samples than these say nothing of a distribution, fewer steps nothing of what surrounds a fill.
constexpr size_t kLeastSamples = 64;
constexpr size_t kLeastSteps = 8;
// The part of the samples beyond the central range at each of its ends.
constexpr double kTail = 0.02;
// A fill by its magnitude, and one by its step and its neighbours, in ranges of the other values (window.h).
constexpr double kAbsurd = 1000;
constexpr double kLeastGap = 0.25;
constexpr double kNearEnd = 0.1;
constexpr double kLeastBackground = 0.2;
// Extremes lie further out than the first, and are clamped to the second.
constexpr double kExtreme = 6;
constexpr double kClampedTo = 0.5;
// Neighbours in tissue are correlated by more than the first, in noise by less; voxels kDistantVoxels away in tissue by
// more than the second, in smooth noise by less.
constexpr double kLeastCorrelation = 0.5;
constexpr double kLeastDistantCorrelation = 0.25;
// Values this far out, in ranges, are painted over where they are at most this part of the samples.
constexpr double kPaintedFrom = 1;
constexpr double kFew = 0.005;

struct Range {
  double low = 0;
  double high = 0;

  double length() const { return high - low; }
};

double Quantile(std::vector<float>& values, double q) {
  const auto at = values.begin() + static_cast<int64_t>(q * static_cast<double>(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

// The central range; where most values are equal, that of the others.
Range CentralRange(std::vector<float> values) {
  const Range range{Quantile(values, kTail), Quantile(values, 1 - kTail)};
  if (range.length() > 0 || values.size() < kLeastSamples) return range;
  std::erase(values, static_cast<float>(range.low));
  if (values.size() < kLeastSamples) return range;
  Range others{Quantile(values, kTail), Quantile(values, 1 - kTail)};
  others.low = std::min(others.low, range.low);
  others.high = std::max(others.high, range.high);
  return others;
}

std::vector<float> Without(const std::vector<float>& values, float value) {
  std::vector<float> rest;
  rest.reserve(values.size());
  std::copy_if(values.begin(), values.end(), std::back_inserter(rest), [value](float v) { return v != value; });
  return rest;
}

// The values on the other side of steps from or to `value`.
std::vector<float> Beside(const IntensitySamples& samples, float value) {
  std::vector<float> beside;
  for (size_t i = 0; i < samples.values.size(); ++i) {
    const bool is_value = samples.values[i] == value, is_next = samples.neighbours[i] == value;
    if (is_value != is_next) beside.push_back(is_value ? samples.neighbours[i] : samples.values[i]);
  }
  return beside;
}

bool HoldsCorners(const std::vector<float>& corners, float value) {
  return 2 * std::count(corners.begin(), corners.end(), value) >= static_cast<int64_t>(corners.size());
}

bool IsAbsurd(float value, const Range& rest) {
  return std::abs(static_cast<double>(value)) >= kAbsurd * std::max(std::abs(rest.low), std::abs(rest.high));
}

// `value` lies beyond `end` of the other values.
bool IsStepFromBackground(float value, double end, const Range& range, const std::vector<float>& rest,
                          double neighbour) {
  const double length = range.length();
  if (!(std::abs(value - end) >= kLeastGap * length) || !(std::abs(neighbour - end) <= kNearEnd * length)) return false;
  const auto near =
      std::count_if(rest.begin(), rest.end(), [&](float v) { return std::abs(v - end) <= kNearEnd * length; });
  return static_cast<double>(near) >= kLeastBackground * static_cast<double>(rest.size());
}

// Pearson's correlation of the samples in `range` with others of the same places in it; 0 where there are too few.
double Correlation(const std::vector<float>& samples, const std::vector<float>& others, const Range& range) {
  double n = 0, a = 0, b = 0, aa = 0, bb = 0, ab = 0;
  const auto is_inside = [&](float v) { return v >= range.low && v <= range.high; };
  for (size_t i = 0; i < samples.size(); ++i) {
    if (!is_inside(samples[i]) || !is_inside(others[i])) continue;
    const double u = (samples[i] - range.low) / range.length();
    const double v = (others[i] - range.low) / range.length();
    ++n, a += u, b += v, aa += u * u, bb += v * v, ab += u * v;
  }
  if (n < kLeastSamples) return 0;
  const double variances = (aa - a * a / n) * (bb - b * b / n);
  return variances > 0 ? (ab - a * b / n) / std::sqrt(variances) : 0;
}

// Whether few of the samples lie beyond `limit` in that direction.
bool AreFewBeyond(const std::vector<float>& samples, double limit, double direction) {
  const auto beyond =
      std::count_if(samples.begin(), samples.end(), [&](float v) { return direction * (v - limit) > 0; });
  return static_cast<double>(beyond) <= kFew * static_cast<double>(samples.size());
}

// What takes the place of `value`, the minimum or the maximum of the image; absent where it is not a fill.
std::optional<float> Replacement(const IntensitySamples& samples, float value, bool is_minimum) {
  if (!HoldsCorners(samples.corners, value)) return std::nullopt;
  const std::vector<float> rest = Without(samples.values, value);
  if (rest.size() < kLeastSamples || rest.size() == samples.values.size()) return std::nullopt;
  const Range range = CentralRange(rest);
  if (!(range.length() > 0)) return std::nullopt;
  const double end = is_minimum ? range.low : range.high;
  std::vector<float> beside = Beside(samples, value);
  const bool is_surrounded = beside.size() >= kLeastSteps;
  const double neighbour = is_surrounded ? Quantile(beside, 0.5) : end;
  if (IsAbsurd(value, range)) return static_cast<float>(std::clamp(neighbour, range.low, range.high));
  if (is_surrounded && IsStepFromBackground(value, end, range, rest, neighbour)) return static_cast<float>(neighbour);
  return std::nullopt;
}

}  // namespace

std::optional<IntensityWindow> FindWindow(const IntensitySamples& samples, float minimum, float maximum) {
  if (samples.values.size() < kLeastSamples || !(minimum < maximum)) return std::nullopt;
  IntensityWindow window{minimum, maximum, std::numeric_limits<float>::quiet_NaN(), 0};
  std::vector<float> values = samples.values;
  bool is_needed = false;
  for (const bool is_minimum : {true, false}) {
    const float end = is_minimum ? minimum : maximum;
    const std::optional<float> replacement = is_needed ? std::nullopt : Replacement(samples, end, is_minimum);
    if (!replacement) continue;
    is_needed = true;
    window.fill = end;
    window.fill_becomes = *replacement;
    values = Without(samples.values, end);
  }
  const Range range = CentralRange(values);
  if (!(range.length() > 0)) return is_needed ? std::optional(window) : std::nullopt;
  const bool has_structure = is_needed || Correlation(samples.values, samples.neighbours, range) >= kLeastCorrelation;
  const auto clamp = [&](float& limit, float& painted_from, double end, double direction) {
    const bool is_extreme = direction * (limit - end) > kExtreme * range.length();
    if (!is_extreme || !has_structure) return;
    // Beyond a fill there are only blends of it with the others.
    const bool is_fill = limit == window.fill;
    const double far_end = end + direction * kPaintedFrom * range.length();
    if (!is_fill && AreFewBeyond(values, far_end, direction) &&
        Correlation(samples.values, samples.distant, range) >= kLeastDistantCorrelation) {
      painted_from = static_cast<float>(far_end);
    }
    limit = static_cast<float>(end + direction * (is_fill ? kExtreme : kClampedTo) * range.length());
    is_needed = true;
  };
  clamp(window.low, window.paint_below, range.low, -1);
  clamp(window.high, window.paint_above, range.high, 1);
  return is_needed ? std::optional(window) : std::nullopt;
}

absl::Status ApplyWindow(const ExecContext& ctx, const IntensityWindow& window, ConstVolumeView in, VolumeView out) {
  if (!window.paints()) return INTRAWARP_DISPATCH(ctx, MapThroughWindow, window, in, out);
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(uint8_t * marks, ctx.arena().Allocate<uint8_t>(in.geometry.voxels()));
  INTRAWARP_RETURN_IF_ERROR(MarkExtremes(ctx, {window.paint_below, window.paint_above}, in, marks));
  INTRAWARP_RETURN_IF_ERROR(INTRAWARP_DISPATCH(ctx, MapThroughWindow, window, in, out));
  return InpaintThin(ctx, marks, out);
}

size_t ApplyWindowWorkspaceBytes(const Geometry& geometry) {
  return Arena::Rounded(geometry.voxels()) + InpaintWorkspaceBytes(geometry);
}

size_t ApplyWindowWorkspaceBytes(const IntensityWindow& window, const Geometry& geometry) {
  return window.paints() ? ApplyWindowWorkspaceBytes(geometry) : 0;
}

absl::Status EnqueueSamples(const ExecContext& ctx, ConstVolumeView volume, RawSamples* out) {
  return INTRAWARP_DISPATCH(ctx, EnqueueSamples, volume, out);
}

IntensitySamples SamplesOf(const Geometry& geometry, const RawSamples& raw) {
  const int count = SampleCount(geometry.voxels());
  const int corners = geometry.is_2d() ? 4 : 8;
  return {{raw.values, raw.values + count},
          {raw.neighbours, raw.neighbours + count},
          {raw.distant, raw.distant + count},
          {raw.corners, raw.corners + corners}};
}

}  // namespace intrawarp
