// SPDX-License-Identifier: Apache-2.0
#include "io/dicom/stack.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"

namespace intrawarp::io::dicom {
namespace {

constexpr double kOrientationTolerance = 1e-4;
constexpr double kSpacingTolerance = 1e-4;
constexpr size_t kGapsTold = 3;
constexpr double kMaxResampledSlices = 4.0;
// Empty planes cost the file nothing.
constexpr int kMaxSegmentPlanes = 4096;

using Indices = std::vector<FrameIndex>;

const Frame& At(const std::vector<Instance>& instances, FrameIndex i) { return instances[i.instance].frames[i.frame]; }

bool Near(Vec3d a, Vec3d b, double tolerance) {
  return std::abs(a.x - b.x) <= tolerance && std::abs(a.y - b.y) <= tolerance && std::abs(a.z - b.z) <= tolerance;
}
bool NearValue(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return std::abs(a - b) <= 1e-3 * std::max({1.0, std::abs(a), std::abs(b)});
}
bool NearRatio(double a, double b) { return std::abs(a - b) <= kSpacingTolerance * std::max(a, b); }

bool SameSeries(const Instance& a, const Instance& b) {
  return a.provenance.series == b.provenance.series && a.provenance.subject == b.provenance.subject &&
         a.provenance.frame_of_reference == b.provenance.frame_of_reference &&
         a.provenance.modality == b.provenance.modality && !a.is_mosaic && !b.is_mosaic;
}

bool SameKind(const Frame& a, const Frame& b) {
  return a.has_plane == b.has_plane && a.columns == b.columns && a.rows == b.rows && a.kind == b.kind &&
         a.segment == b.segment && Near(a.row_axis, b.row_axis, kOrientationTolerance) &&
         Near(a.column_axis, b.column_axis, kOrientationTolerance) && NearRatio(a.spacing_x, b.spacing_x) &&
         NearRatio(a.spacing_y, b.spacing_y) && NearValue(a.echo_time, b.echo_time) && NearValue(a.b_value, b.b_value);
}

// The normal of a group; that of its first frame, since they agree.
Vec3d NormalOf(const std::vector<Instance>& instances, const Indices& group) {
  const Frame& first = At(instances, group[0]);
  return Cross(first.row_axis, first.column_axis);
}

void SortByPosition(const std::vector<Instance>& instances, Indices* group) {
  const Vec3d normal = NormalOf(instances, *group);
  const auto key = [&](FrameIndex i) {
    const Frame& f = At(instances, i);
    return std::tuple(Dot(f.position, normal), f.position.x, f.position.y, f.position.z);
  };
  std::stable_sort(group->begin(), group->end(), [&](FrameIndex a, FrameIndex b) { return key(a) < key(b); });
}

// Groups that agree in everything that frames of one volume must agree in.
absl::StatusOr<std::vector<Indices>> GroupFrames(const std::vector<Instance>& instances, int max_volumes) {
  std::vector<Indices> groups;
  for (size_t i = 0; i < instances.size(); ++i) {
    if (!instances[i].has_image || !instances[i].status.ok()) continue;
    for (size_t f = 0; f < instances[i].frames.size(); ++f) {
      const FrameIndex index{i, f};
      // From the newest group on: files of a series usually follow each other.
      const auto found = std::find_if(groups.rbegin(), groups.rend(), [&](const Indices& group) {
        return (group[0].instance == i || SameSeries(instances[group[0].instance], instances[i])) &&
               SameKind(At(instances, group[0]), At(instances, index));
      });
      if (found != groups.rend()) {
        found->push_back(index);
        continue;
      }
      if (static_cast<int>(groups.size()) == max_volumes) {
        return FieldError(absl::StatusCode::kResourceExhausted, "series",
                          absl::StrCat("there are more than ", max_volumes, " volumes"));
      }
      groups.push_back({index});
    }
  }
  return groups;
}

// The parts of a group by the value of an attribute, each in the group's order.
std::vector<Indices> PartsBy(const std::vector<Instance>& instances, Indices group, double Frame::*attribute) {
  const auto value = [&](FrameIndex i) {
    const double v = At(instances, i).*attribute;
    return std::isnan(v) ? -std::numeric_limits<double>::infinity() : v;
  };
  std::stable_sort(group.begin(), group.end(), [&](FrameIndex a, FrameIndex b) { return value(a) < value(b); });
  std::vector<Indices> parts;
  for (const FrameIndex i : group) {
    if (parts.empty() || value(parts.back()[0]) != value(i)) parts.emplace_back();
    parts.back().push_back(i);
  }
  return parts;
}

// Whether two parts cover a common position. Blocks of one acquisition that follow each other do not.
bool Overlap(const std::vector<Instance>& instances, const std::vector<Indices>& parts) {
  const Vec3d normal = NormalOf(instances, parts[0]);
  std::vector<std::pair<double, double>> ranges;
  for (const Indices& part : parts) {
    std::pair<double, double> range(HUGE_VAL, -HUGE_VAL);
    for (const FrameIndex i : part) {
      const double along = Dot(At(instances, i).position, normal);
      range = {std::min(range.first, along), std::max(range.second, along)};
    }
    ranges.push_back(range);
  }
  std::sort(ranges.begin(), ranges.end());
  double end = -HUGE_VAL;
  for (const auto& [first, last] : ranges) {
    if (first <= end + kSamePositionMm) return true;
    end = std::max(end, last);
  }
  return false;
}

bool EqualSizes(const std::vector<Indices>& parts) {
  return std::all_of(parts.begin(), parts.end(), [&](const Indices& p) { return p.size() == parts[0].size(); });
}

// Splits every group in which parts of different values cover the same positions.
std::vector<Indices> SplitBy(const std::vector<Instance>& instances, std::vector<Indices> groups,
                             double Frame::*attribute, bool equal_sizes) {
  std::vector<Indices> result;
  for (Indices& group : groups) {
    if (!At(instances, group[0]).has_plane || group.size() == 1) {
      result.push_back(std::move(group));
      continue;
    }
    std::vector<Indices> parts = PartsBy(instances, group, attribute);
    const bool split = parts.size() > 1 && (!equal_sizes || EqualSizes(parts)) && Overlap(instances, parts);
    if (!split) {
      result.push_back(std::move(group));
      continue;
    }
    for (Indices& part : parts) result.push_back(std::move(part));
  }
  return result;
}

// ---- The grid of a stack --------------------------------------------------------------------------------------------

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

Geometry PlaneGeometry(const Frame& frame) {
  Geometry g;
  g.size = {frame.columns, frame.rows, 1};
  g.spacing = {frame.spacing_x, frame.spacing_y, 1};
  if (!frame.has_plane) return g;
  g.origin = frame.position;
  const Vec3d normal = Cross(frame.row_axis, frame.column_axis);
  for (int r = 0; r < 3; ++r) {
    g.direction[r][0] = frame.row_axis[r] + 0.0;
    g.direction[r][1] = frame.column_axis[r] + 0.0;
    g.direction[r][2] = normal[r] + 0.0;
  }
  return g;
}

std::vector<Grid::Slice> SlicesOf(const std::vector<Instance>& instances, const Stack& stack) {
  const Frame& first = At(instances, stack.frames[0]);
  const Vec3d normal = Cross(first.row_axis, first.column_axis);
  std::vector<Grid::Slice> slices;
  for (const FrameIndex i : stack.frames) {
    const Vec3d d = At(instances, i).position - first.position;
    slices.push_back(
        {Dot(d, normal), Dot(d, first.row_axis) / first.spacing_x, Dot(d, first.column_axis) / first.spacing_y});
  }
  return slices;
}

// The fault of a stack that has a slice too far off its even place; empty when there is none.
std::string Unevenness(const std::vector<Grid::Slice>& slices, double step) {
  const size_t last = slices.size() - 1;
  const double mean = slices[last].along / static_cast<double>(last);
  const double tolerance = std::max(kUnevenMm, kUnevenFraction * mean);
  size_t uneven = 0;
  double off = 0;
  std::vector<std::string> told;
  for (size_t i = 1; i <= last; ++i) {
    const double distance = slices[i].along - slices[i - 1].along;
    off = std::max(off, std::abs(slices[i].along - static_cast<double>(i) * mean));
    if (std::abs(distance - step) <= tolerance) continue;
    if (++uneven > kGapsTold) continue;
    const double missing = std::round(distance / step) - 1;
    std::string gap = absl::StrFormat("%.4g mm between slices %d and %d", distance, i, i + 1);
    if (missing >= 1) absl::StrAppendFormat(&gap, " (%.0f missing)", missing);
    told.push_back(std::move(gap));
  }
  // Rounded positions scatter about an even stack.
  if (off <= tolerance) return "";
  if (uneven == 0) {
    return absl::StrFormat("their distances drift, and a slice lies %.4g mm off an even stack", off);
  }
  return absl::StrFormat("%d of %d distances differ from %.4g mm: %s%s", uneven, last, step, absl::StrJoin(told, ", "),
                         uneven > kGapsTold ? ", ..." : "");
}

// The fault of a stack that is sheared; empty when there is none.
std::string Tilt(const std::vector<Grid::Slice>& slices, const Frame& first) {
  double drift = 0, angle = 0;
  for (const Grid::Slice& s : slices) {
    drift = std::max({drift, std::abs(s.shift_x), std::abs(s.shift_y)});
    const double aside = std::hypot(s.shift_x * first.spacing_x, s.shift_y * first.spacing_y);
    if (s.along > 0) angle = std::max(angle, std::atan2(aside, s.along));
  }
  if (drift <= kTiltPixels) return "";
  return absl::StrFormat("the stack is sheared by %.3g degrees (gantry tilt)", angle * 180 / M_PI);
}

absl::StatusOr<Grid> SingleFrame(const Instance& instance, const Frame& frame) {
  Grid grid;
  grid.geometry = PlaneGeometry(frame);
  grid.slices.emplace_back();
  grid.planes = {0};
  if (instance.thickness >= 1e-6 && instance.thickness <= 1e6) grid.geometry.spacing.z = instance.thickness;
  if (!frame.has_plane) grid.notes.emplace_back("has no position in the patient: its corner lies at 0");
  INTRAWARP_RETURN_IF_ERROR(ValidateGeometry(grid.geometry));
  return grid;
}

// The planes of a segment: whole multiples of the distance that the file states, or of the smallest one.
absl::StatusOr<Grid> SegmentGrid(const Frame& first, Grid grid, const std::vector<double>& distances) {
  const double step =
      first.plane_step > kSamePositionMm ? first.plane_step : *std::min_element(distances.begin(), distances.end());
  const double tolerance = std::max(kUnevenMm, kUnevenFraction * step);
  if (const std::string tilt = Tilt(grid.slices, first); !tilt.empty()) {
    return FieldError(absl::StatusCode::kInvalidArgument, "slices", tilt);
  }
  if (grid.slices.back().along / step >= kMaxSegmentPlanes) {
    return FieldError(absl::StatusCode::kInvalidArgument, "slices",
                      absl::StrCat("the segment spans more than ", kMaxSegmentPlanes, " planes"));
  }
  for (const Grid::Slice& slice : grid.slices) {
    const double plane = std::round(slice.along / step);
    const bool is_new = grid.planes.empty() || plane > grid.planes.back();
    if (!is_new || std::abs(slice.along - plane * step) > tolerance) {
      return FieldError(absl::StatusCode::kInvalidArgument, "slices",
                        absl::StrFormat("a plane of the segment does not lie on a multiple of %.4g mm", step));
    }
    grid.planes.push_back(static_cast<int>(plane));
  }
  grid.geometry = PlaneGeometry(first);
  grid.geometry.size.z = grid.planes.back() + 1;
  grid.geometry.spacing.z = step;
  INTRAWARP_RETURN_IF_ERROR(ValidateGeometry(grid.geometry));
  return grid;
}

// Enlarges the plane so that every slice, shifted to its place, lies in it.
void Widen(Grid* grid) {
  double low_x = 0, low_y = 0, high_x = 0, high_y = 0;
  for (const Grid::Slice& s : grid->slices) {
    low_x = std::min(low_x, s.shift_x), high_x = std::max(high_x, s.shift_x);
    low_y = std::min(low_y, s.shift_y), high_y = std::max(high_y, s.shift_y);
  }
  low_x = std::floor(low_x), low_y = std::floor(low_y);
  Geometry& g = grid->geometry;
  const double wide_x = g.size.x + std::ceil(high_x) - low_x, wide_y = g.size.y + std::ceil(high_y) - low_y;
  g.size.x = static_cast<int>(std::min(wide_x, 2.0 * kMaxAxis));
  g.size.y = static_cast<int>(std::min(wide_y, 2.0 * kMaxAxis));
  for (int r = 0; r < 3; ++r) {
    g.origin[r] += low_x * g.spacing.x * g.direction[r][0] + low_y * g.spacing.y * g.direction[r][1];
  }
  for (Grid::Slice& s : grid->slices) s.shift_x -= low_x, s.shift_y -= low_y;
}

}  // namespace

absl::StatusOr<std::vector<Stack>> MakeStacks(const std::vector<Instance>& instances, int max_volumes) {
  INTRAWARP_ASSIGN_OR_RETURN(std::vector<Indices> groups, GroupFrames(instances, max_volumes));
  groups = SplitBy(instances, std::move(groups), &Frame::temporal, /*equal_sizes=*/false);
  groups = SplitBy(instances, std::move(groups), &Frame::acquisition, /*equal_sizes=*/false);
  groups = SplitBy(instances, std::move(groups), &Frame::trigger_time, /*equal_sizes=*/true);
  if (groups.size() > static_cast<size_t>(max_volumes)) {
    return FieldError(absl::StatusCode::kResourceExhausted, "series",
                      absl::StrCat("there are more than ", max_volumes, " volumes"));
  }
  std::vector<Stack> stacks;
  for (Indices& group : groups) {
    const bool has_plane = At(instances, group[0]).has_plane;
    if (has_plane) SortByPosition(instances, &group);
    stacks.push_back({std::move(group), has_plane});
  }
  const auto key = [&](const Stack& s) {
    const Instance& instance = instances[s.frames[0].instance];
    const Frame& frame = At(instances, s.frames[0]);
    const auto value = [](double v) { return std::isnan(v) ? -1e300 : v; };
    return std::tuple(-static_cast<int64_t>(s.frames.size()), instance.provenance.series, instance.provenance.subject,
                      instance.provenance.frame_of_reference, frame.kind, frame.segment, value(frame.echo_time),
                      value(frame.b_value), value(frame.temporal), value(frame.acquisition), value(frame.trigger_time),
                      frame.position.x, frame.position.y, frame.position.z);
  };
  std::stable_sort(stacks.begin(), stacks.end(), [&](const Stack& a, const Stack& b) { return key(a) < key(b); });
  return stacks;
}

std::vector<std::pair<size_t, size_t>> RepeatedPositions(const std::vector<Instance>& instances, const Stack& stack) {
  std::vector<std::pair<size_t, size_t>> repeated;
  if (!stack.has_plane) return repeated;
  const Vec3d normal = NormalOf(instances, stack.frames);
  const auto along = [&](size_t i) { return Dot(At(instances, stack.frames[i]).position, normal); };
  for (size_t begin = 0, end = 0; begin < stack.frames.size(); begin = end) {
    for (end = begin + 1; end < stack.frames.size() && along(end) - along(begin) <= kSamePositionMm;) ++end;
    if (end - begin > 1) repeated.emplace_back(begin, end);
  }
  return repeated;
}

absl::StatusOr<Grid> GridOf(const std::vector<Instance>& instances, const Stack& stack, bool resample) {
  const size_t count = stack.frames.size();
  const Frame& first = At(instances, stack.frames[0]);
  if (count == 1) return SingleFrame(instances[stack.frames[0].instance], first);
  if (!stack.has_plane) {
    return FieldError(absl::StatusCode::kInvalidArgument, "position", "ImagePositionPatient is missing");
  }
  Grid grid;
  grid.slices = SlicesOf(instances, stack);
  std::vector<double> distances;
  for (size_t i = 1; i < count; ++i) distances.push_back(grid.slices[i].along - grid.slices[i - 1].along);
  if (first.segment > 0) return SegmentGrid(first, std::move(grid), distances);
  const double step = Median(distances);
  const std::string uneven = Unevenness(grid.slices, step);
  const std::string tilt = Tilt(grid.slices, first);
  for (const std::string& fault : {uneven, tilt}) {
    if (fault.empty()) continue;
    if (!resample) {
      return FieldError(absl::StatusCode::kInvalidArgument, "slices",
                        absl::StrCat(fault, "; resampling was not asked for"));
    }
    grid.notes.push_back(absl::StrCat("slices: ", fault, "; interpolated"));
    grid.resample = true;
  }
  grid.geometry = PlaneGeometry(first);
  const double length = grid.slices.back().along;
  double planes = static_cast<double>(count);
  double spacing = length / (planes - 1);
  if (!uneven.empty()) {
    spacing = step;
    planes = std::floor(length / step + kUnevenFraction) + 1;
    if (planes > kMaxResampledSlices * static_cast<double>(count)) {
      return FieldError(absl::StatusCode::kInvalidArgument, "slices", "most of the stack is missing");
    }
  }
  grid.geometry.size.z = static_cast<int>(std::min(planes, 2.0 * kMaxAxis));
  grid.geometry.spacing.z = spacing;
  if (grid.resample) Widen(&grid);
  for (size_t i = 0; i < count; ++i) grid.planes.push_back(static_cast<int>(i));
  INTRAWARP_RETURN_IF_ERROR(ValidateGeometry(grid.geometry));
  return grid;
}

}  // namespace intrawarp::io::dicom
