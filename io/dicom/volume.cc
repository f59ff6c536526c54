// SPDX-License-Identifier: Apache-2.0
#include "io/dicom/volume.h"

#include <dcmtk/config/osconfig.h>
#include <dcmtk/dcmdata/dcdatset.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/checked.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "io/dicom/dataset.h"
#include "io/dicom/pixels.h"
#include "io/file/digest.h"

namespace intrawarp::io::dicom {
namespace {

constexpr double kAirHu = -1000;

// One file, open for its pixels.
struct OpenInstance {
  Dataset dataset;
  std::optional<PixelReader> pixels;
  int64_t decoded = -1;  // the stored frame that `values` holds
  std::vector<double> values;
};

absl::StatusOr<OpenInstance> Open(const Instance& instance, const DicomLimits& limits) {
  OpenInstance open;
  const absl::Status changed = FieldError(absl::StatusCode::kAborted, "file", "has changed while it was read");
  absl::StatusOr<Dataset> dataset = ReadDataset(instance.path, limits);
  if (absl::IsResourceExhausted(dataset.status())) return dataset.status();
  if (!dataset.ok() || !dataset->status.ok()) return changed;
  open.dataset = *std::move(dataset);
  const Instance now = DescribeInstance(*open.dataset.data, limits.max_frames);
  if (!now.status.ok() || !(now.layout == instance.layout) || now.frames.size() != instance.frames.size()) {
    return changed;
  }
  INTRAWARP_ASSIGN_OR_RETURN(open.pixels, PixelReader::Open(open.dataset.data.get(), instance.layout));
  return open;
}

absl::Status Decode(const Frame& frame, OpenInstance* open) {
  if (open->decoded == frame.stored) return absl::OkStatus();
  open->decoded = -1;
  INTRAWARP_RETURN_IF_ERROR(open->pixels->Read(frame.stored, &open->values));
  open->decoded = frame.stored;
  return absl::OkStatus();
}

// Calls visit(slice, frame, layout, stored values of the whole stored frame) for the frames of a stack, in the order of
// files and of frames in them, so that each file is read once.
template <typename Visit>
absl::Status ForEachFrame(const std::vector<Instance>& instances, const Stack& stack, const DicomLimits& limits,
                          const Visit& visit) {
  std::map<size_t, std::vector<std::pair<size_t, size_t>>> by_file;  // (frame, slice)
  for (size_t k = 0; k < stack.frames.size(); ++k) {
    by_file[stack.frames[k].instance].emplace_back(stack.frames[k].frame, k);
  }
  for (auto& [index, frames] : by_file) {
    const Instance& instance = instances[index];
    std::sort(frames.begin(), frames.end());
    INTRAWARP_ASSIGN_OR_RETURN(OpenInstance open, Open(instance, limits));
    for (const auto& [f, slice] : frames) {
      const Frame& frame = instance.frames[f];
      INTRAWARP_RETURN_IF_ERROR(Decode(frame, &open));
      visit(slice, frame, instance.layout, open.values);
    }
  }
  return absl::OkStatus();
}

// Calls visit(pixel of the frame, stored value) for the part of a stored frame that is the frame.
template <typename Visit>
void ForEachPixel(const Frame& frame, const PixelLayout& layout, const std::vector<double>& stored,
                  const Visit& visit) {
  for (int y = 0; y < frame.rows; ++y) {
    const size_t row = static_cast<size_t>(frame.top + y) * layout.columns + frame.left;
    for (int x = 0; x < frame.columns; ++x) visit(static_cast<size_t>(y) * frame.columns + x, stored[row + x]);
  }
}

bool IsPadding(const PixelLayout& layout, double value) {
  return layout.padding && value >= static_cast<double>(layout.padding->first) &&
         value <= static_cast<double>(layout.padding->second);
}

// ---- Types ----------------------------------------------------------------------------------------------------------

struct Range {
  double low = 0, high = 0;
};

Range StoredRange(const PixelLayout& layout) {
  if (layout.is_signed) {
    const double half = std::ldexp(1.0, layout.bits_stored - 1);
    return {-half, half - 1};
  }
  return {0, std::ldexp(1.0, layout.bits_stored) - 1};
}

Range RangeOf(PixelType type) {
  switch (type) {
    case PixelType::kUint8:
      return {0, 255};
    case PixelType::kInt8:
      return {-128, 127};
    case PixelType::kUint16:
      return {0, 65535};
    case PixelType::kInt16:
      return {-32768, 32767};
    case PixelType::kUint32:
      return {0, 4294967295.0};
    case PixelType::kInt32:
      return {-2147483648.0, 2147483647.0};
    case PixelType::kFloat32:
    case PixelType::kFloat64:
      break;
  }
  return {-HUGE_VAL, HUGE_VAL};
}

// The smallest integer type for all stored values where all frames share their rescaling; float32 otherwise.
PixelType ChooseType(const std::vector<Instance>& instances, const Stack& stack) {
  const Frame& first = instances[stack.frames[0].instance].frames[stack.frames[0].frame];
  Range all;
  for (const FrameIndex i : stack.frames) {
    const PixelLayout& layout = instances[i.instance].layout;
    const Frame& frame = instances[i.instance].frames[i.frame];
    if (layout.kind != SampleKind::kInteger) return PixelType::kFloat32;
    if (frame.slope != first.slope || frame.intercept != first.intercept) return PixelType::kFloat32;
    const Range range = StoredRange(layout);
    all = {std::min(all.low, range.low), std::max(all.high, range.high)};
  }
  for (const PixelType type : {PixelType::kUint8, PixelType::kInt8, PixelType::kUint16, PixelType::kInt16,
                               PixelType::kUint32, PixelType::kInt32}) {
    if (RangeOf(type).low <= all.low && RangeOf(type).high >= all.high) return type;
  }
  return PixelType::kFloat64;
}

template <typename T>
void StoreAs(double value, size_t i, uint8_t* out) {
  const T typed = static_cast<T>(value);
  std::memcpy(out + i * sizeof(T), &typed, sizeof(T));
}

// `value` lies in the range of the type.
void Store(PixelType type, double value, size_t i, uint8_t* out) {
  switch (type) {
    case PixelType::kUint8:
      return StoreAs<uint8_t>(value, i, out);
    case PixelType::kInt8:
      return StoreAs<int8_t>(value, i, out);
    case PixelType::kUint16:
      return StoreAs<uint16_t>(value, i, out);
    case PixelType::kInt16:
      return StoreAs<int16_t>(value, i, out);
    case PixelType::kUint32:
      return StoreAs<uint32_t>(value, i, out);
    case PixelType::kInt32:
      return StoreAs<int32_t>(value, i, out);
    case PixelType::kFloat32:
      return StoreAs<float>(value, i, out);
    case PixelType::kFloat64:
      return StoreAs<double>(value, i, out);
  }
}

// ---- Voxels ---------------------------------------------------------------------------------------------------------

// The frames of a stack, slice after slice, before any interpolation.
struct Planes {
  PixelType type = PixelType::kFloat32;
  double slope = 1, intercept = 0;
  std::vector<uint8_t> pixels;
  std::vector<bool> padding;  // empty without padding
  // The smallest pixel that is not padding.
  double smallest = HUGE_VAL;
};

bool IsCt(const std::vector<Instance>& instances, const Stack& stack) {
  return instances[stack.frames[0].instance].provenance.modality == "CT";
}

// The pixel of the planes that stands for air.
double AirOf(const Planes& planes, bool is_ct) {
  const Range range = RangeOf(planes.type);
  if (is_ct) return std::clamp(std::round((kAirHu - planes.intercept) / planes.slope), range.low, range.high);
  return std::isfinite(planes.smallest) ? planes.smallest : 0;
}

void FillPadding(bool is_ct, Planes* planes, std::vector<std::string>* notes) {
  const int64_t count = std::count(planes->padding.begin(), planes->padding.end(), true);
  if (count == 0) return;
  const double air = AirOf(*planes, is_ct);
  for (size_t i = 0; i < planes->padding.size(); ++i) {
    if (planes->padding[i]) Store(planes->type, air, i, planes->pixels.data());
  }
  notes->push_back(absl::StrCat("padding: ", count, " voxels became air"));
}

// With `grid.resample` the planes of the stack follow each other; otherwise each lies where the grid has it.
absl::StatusOr<Planes> ReadPlanes(const std::vector<Instance>& instances, const Stack& stack, const Grid& grid,
                                  PixelType type, const DicomOptions& options, std::vector<std::string>* notes) {
  const Frame& first = instances[stack.frames[0].instance].frames[stack.frames[0].frame];
  const size_t plane = static_cast<size_t>(first.columns) * first.rows;
  const bool rescale = type == PixelType::kFloat32;
  Planes planes;
  planes.type = type;
  if (!rescale) planes.slope = first.slope, planes.intercept = first.intercept;
  const size_t count = grid.resample ? stack.frames.size() : static_cast<size_t>(grid.geometry.size.z);
  planes.pixels.resize(plane * count * static_cast<size_t>(BytesPerPixel(type)));
  const bool has_padding = std::any_of(stack.frames.begin(), stack.frames.end(),
                                       [&](FrameIndex i) { return instances[i.instance].layout.padding.has_value(); });
  if (has_padding && !options.keep_padding) planes.padding.resize(plane * count);
  bool finite = true;
  const auto visit = [&](size_t slice, const Frame& frame, const PixelLayout& layout, const std::vector<double>& v) {
    ForEachPixel(frame, layout, v, [&](size_t i, double stored) {
      const size_t at = (grid.resample ? slice : static_cast<size_t>(grid.planes[slice])) * plane + i;
      const double value = rescale ? frame.slope * stored + frame.intercept : stored;
      Store(type, value, at, planes.pixels.data());
      finite = finite && std::isfinite(static_cast<float>(value));
      if (!planes.padding.empty() && IsPadding(layout, stored)) {
        planes.padding[at] = true;
      } else {
        planes.smallest = std::min(planes.smallest, value);
      }
    });
  };
  INTRAWARP_RETURN_IF_ERROR(ForEachFrame(instances, stack, options.limits, visit));
  if (!finite) return FieldError(absl::StatusCode::kInvalidArgument, "data", "a voxel is not finite");
  FillPadding(IsCt(instances, stack), &planes, notes);
  return planes;
}

// A plane with bilinear interpolation; false outside of it.
struct Plane {
  const float* pixels;
  int columns, rows;

  bool At(double x, double y, double* value) const {
    if (!(x >= -0.5 && y >= -0.5 && x <= columns - 0.5 && y <= rows - 0.5)) return false;
    x = std::clamp(x, 0.0, columns - 1.0);
    y = std::clamp(y, 0.0, rows - 1.0);
    const int x0 = std::min(static_cast<int>(x), std::max(0, columns - 2));
    const int y0 = std::min(static_cast<int>(y), std::max(0, rows - 2));
    const int x1 = std::min(x0 + 1, columns - 1), y1 = std::min(y0 + 1, rows - 1);
    const auto p = [&](int i, int j) { return static_cast<double>(pixels[static_cast<size_t>(j) * columns + i]); };
    const double fx = x - x0, fy = y - y0;
    *value = (1 - fy) * ((1 - fx) * p(x0, y0) + fx * p(x1, y0)) + fy * ((1 - fx) * p(x0, y1) + fx * p(x1, y1));
    return true;
  }
};

// Linear between the two slices around each plane of the grid, each slice at its own place.
void Interpolate(const std::vector<float>& planes, int columns, int rows, const Grid& grid, float air,
                 std::vector<float>* out) {
  const Int3 size = grid.geometry.size;
  const size_t plane = static_cast<size_t>(columns) * rows;
  const size_t last = grid.slices.size() - 1;
  size_t below = 0, at = 0;
  for (int k = 0; k < size.z; ++k) {
    const double along = k * grid.geometry.spacing.z;
    while (below + 1 < last && grid.slices[below + 1].along <= along) ++below;
    const Grid::Slice& a = grid.slices[below];
    const Grid::Slice& b = grid.slices[below + 1];
    const double weight = std::clamp((along - a.along) / (b.along - a.along), 0.0, 1.0);
    const Plane lower{planes.data() + below * plane, columns, rows};
    const Plane upper{planes.data() + (below + 1) * plane, columns, rows};
    for (int y = 0; y < size.y; ++y) {
      for (int x = 0; x < size.x; ++x, ++at) {
        double from_a = air, from_b = air;
        (void)lower.At(x - a.shift_x, y - a.shift_y, &from_a);
        (void)upper.At(x - b.shift_x, y - b.shift_y, &from_b);
        (*out)[at] = static_cast<float>((1 - weight) * from_a + weight * from_b);
      }
    }
  }
}

HostVolume ResampleOnto(const Grid& grid, const Frame& first, bool is_ct, const Planes& planes) {
  HostVolume given;
  given.pixel_type = planes.type;
  given.rescale_slope = planes.slope;
  given.rescale_intercept = planes.intercept;
  given.pixels = planes.pixels;
  const double air = planes.slope * AirOf(planes, is_ct) + planes.intercept;
  std::vector<float> out(static_cast<size_t>(grid.geometry.voxels()));
  Interpolate(ToFloat(given), first.columns, first.rows, grid, static_cast<float>(air), &out);
  HostVolume volume;
  volume.geometry = grid.geometry;
  volume.pixel_type = PixelType::kFloat32;
  volume.pixels.resize(out.size() * sizeof(float));
  std::memcpy(volume.pixels.data(), out.data(), volume.pixels.size());
  return volume;
}

// Equal for frames of equal intensities.
std::string DigestOf(const Frame& frame, const PixelLayout& layout, const std::vector<double>& stored) {
  std::vector<double> intensities;
  intensities.reserve(static_cast<size_t>(frame.rows) * frame.columns);
  ForEachPixel(frame, layout, stored, [&](size_t, double v) {
    intensities.push_back(frame.slope * v + frame.intercept + 0.0);  // -0 becomes 0
  });
  return Sha256Of(intensities.data(), intensities.size() * sizeof(double));
}

// The digests of the frames at `positions`, in their order. Each file is read once, however its frames are spread.
absl::StatusOr<std::vector<std::string>> Digests(const std::vector<Instance>& instances, const Stack& stack,
                                                 const std::vector<std::pair<size_t, size_t>>& positions,
                                                 const DicomLimits& limits) {
  Stack repeats;
  for (const auto& [begin, end] : positions) {
    repeats.frames.insert(repeats.frames.end(), stack.frames.begin() + static_cast<std::ptrdiff_t>(begin),
                          stack.frames.begin() + static_cast<std::ptrdiff_t>(end));
  }
  std::vector<std::string> digests(repeats.frames.size());
  INTRAWARP_RETURN_IF_ERROR(
      ForEachFrame(instances, repeats, limits,
                   [&](size_t i, const Frame& frame, const PixelLayout& layout, const std::vector<double>& stored) {
                     digests[i] = DigestOf(frame, layout, stored);
                   }));
  return digests;
}

}  // namespace

absl::Status DropRepeats(const std::vector<Instance>& instances, const DicomOptions& options, Stack* stack,
                         std::vector<std::string>* notes) {
  const std::vector<std::pair<size_t, size_t>> repeated = RepeatedPositions(instances, *stack);
  if (repeated.empty()) return absl::OkStatus();
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<std::string> digests,
                             Digests(instances, *stack, repeated, options.limits));
  std::vector<bool> drop(stack->frames.size());
  auto digest = digests.begin();
  for (const auto& [begin, end] : repeated) {
    const auto next = digest + static_cast<std::ptrdiff_t>(end - begin);
    if (std::adjacent_find(digest, next, std::not_equal_to<>()) != next) {
      return FieldError(absl::StatusCode::kInvalidArgument, "slices",
                        absl::StrCat("at ", repeated.size(), " of the positions there are several, which differ"));
    }
    std::fill(drop.begin() + static_cast<std::ptrdiff_t>(begin + 1), drop.begin() + static_cast<std::ptrdiff_t>(end),
              true);
    digest = next;
  }
  std::vector<FrameIndex> kept;
  for (size_t i = 0; i < stack->frames.size(); ++i) {
    if (!drop[i]) kept.push_back(stack->frames[i]);
  }
  notes->push_back(absl::StrCat("slices: dropped ", stack->frames.size() - kept.size(), " equal duplicates"));
  stack->frames = std::move(kept);
  return absl::OkStatus();
}

absl::StatusOr<PixelType> VoxelTypeOf(const std::vector<Instance>& instances, const Stack& stack, const Grid& grid,
                                      int64_t max_bytes) {
  const PixelType type = grid.resample ? PixelType::kFloat32 : ChooseType(instances, stack);
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t bytes, CheckedMultiply(grid.geometry.voxels(), BytesPerPixel(type)));
  if (bytes <= max_bytes) return type;
  return FieldError(absl::StatusCode::kResourceExhausted, "size", absl::StrCat(bytes, " bytes, at most ", max_bytes));
}

absl::StatusOr<HostVolume> MakeVolume(const std::vector<Instance>& instances, const Stack& stack, const Grid& grid,
                                      const DicomOptions& options, std::vector<std::string>* notes) {
  INTRAWARP_ASSIGN_OR_RETURN(const PixelType type,
                             VoxelTypeOf(instances, stack, grid, options.limits.max_volume_bytes));
  INTRAWARP_ASSIGN_OR_RETURN(Planes planes, ReadPlanes(instances, stack, grid, type, options, notes));
  if (grid.resample) {
    const Frame& first = instances[stack.frames[0].instance].frames[stack.frames[0].frame];
    return ResampleOnto(grid, first, IsCt(instances, stack), planes);
  }
  HostVolume volume;
  volume.geometry = grid.geometry;
  volume.pixel_type = type;
  volume.rescale_slope = planes.slope;
  volume.rescale_intercept = planes.intercept;
  volume.pixels = std::move(planes.pixels);
  return volume;
}

}  // namespace intrawarp::io::dicom
