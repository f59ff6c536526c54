// SPDX-License-Identifier: Apache-2.0
#include "engine/image/pyramid.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "engine/image/convert.h"
#include "engine/image/gradient_kernels.h"
#include "engine/image/pyramid_kernels.h"
#include "engine/image/statistics_kernels.h"
#include "engine/image/window_kernels.h"

namespace intrawarp {
namespace {

constexpr int kMinAxis = 8;
constexpr double kMaxAnisotropy = 1.5;
// The largest distance, in out voxels, of the corners of two grids that share their domain.
constexpr double kDomainTolerance = 1e-2;

bool Halvable(const Geometry& g, int axis) { return g.size[axis] / 2 >= kMinAxis; }

// The next grid of the pyramid, or the same when no axis can be halved.
Geometry Coarser(const Geometry& fine) {
  double finest = std::numeric_limits<double>::infinity();
  for (int a = 0; a < 3; ++a)
    if (Halvable(fine, a)) finest = std::min(finest, fine.spacing[a]);
  Geometry coarse = fine;
  // The index, on the fine grid, of the coarse grid's first voxel.
  Vec3d first;
  for (int a = 0; a < 3; ++a) {
    if (!Halvable(fine, a) || fine.spacing[a] >= kMaxAnisotropy * finest) continue;
    coarse.size[a] = fine.size[a] / 2;
    const double ratio = static_cast<double>(fine.size[a]) / coarse.size[a];
    coarse.spacing[a] = fine.spacing[a] * ratio;
    first[a] = 0.5 * ratio - 0.5;
  }
  coarse.origin = IndexToPhysical(fine)(first);
  return coarse;
}

absl::Status CheckSharedDomain(const Geometry& in, const Geometry& out) {
  const AffineMap in_to_out = Compose(PhysicalToIndex(out), IndexToPhysical(in));
  for (int corner = 0; corner < 8; ++corner) {
    Vec3d from, to;
    for (int a = 0; a < 3; ++a) {
      const bool upper = corner >> a & 1;
      from[a] = upper ? in.size[a] - 0.5 : -0.5;
      to[a] = upper ? out.size[a] - 0.5 : -0.5;
    }
    const Vec3d d = in_to_out(from) - to;
    if (!(std::max({std::abs(d.x), std::abs(d.y), std::abs(d.z)}) <= kDomainTolerance)) {
      return FieldError(absl::StatusCode::kInvalidArgument, "out", "does not share the domain of the volume");
    }
  }
  return absl::OkStatus();
}

size_t LevelBytes(const Geometry& g) { return Arena::Rounded(g.voxels() * sizeof(float)); }

// The results that Prepare computes on the device and reads back in one piece.
struct PreparedScalars {
  RawStatistics statistics;
  double mean_gradient[kMaxPyramidLevels];
  RawSamples samples;
};

// Pixels as wide as a float32 are converted where they are to stay.
bool ConvertsInPlace(PixelType type) { return BytesPerPixel(type) == sizeof(float); }

// Converts host pixels to `out`, by way of the workspace where they need one.
absl::Status UploadAndConvert(const ExecContext& ctx, const void* pixels, PixelType type, double slope,
                              double intercept, VolumeView out) {
  // The CPU device reads host memory as it is.
  if (!ctx.is_cuda()) return ConvertPixels(ctx, pixels, type, slope, intercept, out);
  const size_t bytes = out.geometry.voxels() * BytesPerPixel(type);
  ArenaScope scope(ctx.arena());
  void* staged = out.data;
  if (!ConvertsInPlace(type)) {
    INTRAWARP_ASSIGN_OR_RETURN(staged, ctx.arena().AllocateBytes(bytes));
  }
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(staged, pixels, bytes, ctx.stream()));
  if (type == PixelType::kFloat32 && slope == 1 && intercept == 0) return absl::OkStatus();
  return ConvertPixels(ctx, staged, type, slope, intercept, out);
}

// Averages the coarser levels from the finest, and reads back what was computed of all.
absl::StatusOr<PreparedScalars> FillCoarserLevels(const ExecContext& ctx, const std::vector<VolumeView>& levels) {
  for (size_t i = 1; i < levels.size(); ++i) INTRAWARP_RETURN_IF_ERROR(Downsample(ctx, levels[i - 1], levels[i]));
  const std::vector<ConstVolumeView> views(levels.begin(), levels.end());
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(PreparedScalars * on_device, ctx.arena().Allocate<PreparedScalars>(1));
  // A small pyramid and a small image leave parts of it unwritten, which are read back all the same.
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Fill(on_device, 0, sizeof(PreparedScalars), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(EnqueueStatistics(ctx, views.front(), &on_device->statistics));
  INTRAWARP_RETURN_IF_ERROR(EnqueueMeanGradients(ctx, views, on_device->mean_gradient));
  INTRAWARP_RETURN_IF_ERROR(EnqueueSamples(ctx, views.front(), &on_device->samples));
  PreparedScalars scalars;
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(&scalars, on_device, sizeof(scalars), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
  return scalars;
}

absl::Status CheckFinite(const Geometry& geometry, const RawStatistics& raw) {
  if (raw.intensity.nonfinite == 0) return absl::OkStatus();
  return FieldError(absl::StatusCode::kInvalidArgument, "voxels",
                    absl::StrCat(raw.intensity.nonfinite, " of ", geometry.voxels(), " are NaN or infinite"));
}

}  // namespace

std::vector<Geometry> PyramidGeometries(const Geometry& finest) {
  std::vector<Geometry> levels = {finest};
  for (Geometry next = Coarser(finest); !(next.size == levels.back().size); next = Coarser(next)) {
    levels.push_back(next);
  }
  return levels;
}

absl::Status Downsample(const ExecContext& ctx, ConstVolumeView in, VolumeView out) {
  INTRAWARP_RETURN_IF_ERROR(CheckSharedDomain(in.geometry, out.geometry));
  return INTRAWARP_DISPATCH(ctx, Downsample, in, out);
}

absl::Status DownsampleMask(const ExecContext& ctx, ConstMaskView in, MaskView out) {
  INTRAWARP_RETURN_IF_ERROR(CheckSharedDomain(in.geometry, out.geometry));
  if (in.weight_per_unit != out.weight_per_unit) {
    return FieldError(absl::StatusCode::kInvalidArgument, "out", "its weights have another unit");
  }
  if (in.data == nullptr) return ctx.device().Fill(out.data, 1, out.geometry.voxels(), ctx.stream());
  return INTRAWARP_DISPATCH(ctx, DownsampleMask, in, out);
}

int64_t PreparedImage::Bytes(const Geometry& geometry) {
  int64_t bytes = 0;
  for (const Geometry& g : PyramidGeometries(geometry)) bytes += LevelBytes(g);
  return bytes;
}

int64_t PreparedImage::WorkspaceBytes(const Geometry& geometry, PixelType type) {
  size_t gradients = 0;
  for (const Geometry& g : PyramidGeometries(geometry)) gradients += MeanGradientWorkspaceBytes(g);
  const size_t staged = ConvertsInPlace(type) ? 0 : Arena::Rounded(geometry.voxels() * BytesPerPixel(type));
  const size_t window = ApplyWindowWorkspaceBytes(geometry);
  return Arena::Rounded(sizeof(PreparedScalars)) +
         std::max({staged, StatisticsWorkspaceBytes(geometry), gradients, window});
}

PreparedImage PreparedImage::In(Buffer memory) const {
  PreparedImage image;
  image.levels_ = levels_;
  image.statistics_ = statistics_;
  image.minimum_ = minimum_;
  image.maximum_ = maximum_;
  image.window_ = window_;
  const bool is_empty = memory.bytes() == 0;
  for (PyramidLevel& level : image.levels_) {
    level.volume.data = is_empty ? nullptr : memory.as<float>() + (level.volume.data - volume().data);
  }
  image.memory_ = std::move(memory);
  return image;
}

absl::StatusOr<PreparedImage> PreparedImage::Prepare(const ExecContext& ctx, const void* pixels, PixelType type,
                                                     double slope, double intercept, const Geometry& geometry,
                                                     FinestLevel finest) {
  INTRAWARP_RETURN_IF_ERROR(ValidateGeometry(geometry));
  PreparedImage image;
  INTRAWARP_ASSIGN_OR_RETURN(image.memory_, ctx.device().Allocate(Bytes(geometry), ctx.stream()));
  std::vector<VolumeView> levels;
  size_t offset = 0;
  for (const Geometry& g : PyramidGeometries(geometry)) {
    levels.push_back({reinterpret_cast<float*>(image.memory_.as<char>() + offset), g});
    offset += LevelBytes(g);
  }
  const auto fill = [&]() -> absl::StatusOr<PreparedScalars> {
    const auto convert = [&] { return UploadAndConvert(ctx, pixels, type, slope, intercept, levels.front()); };
    INTRAWARP_RETURN_IF_ERROR(convert());
    INTRAWARP_ASSIGN_OR_RETURN(PreparedScalars scalars, FillCoarserLevels(ctx, levels));
    INTRAWARP_RETURN_IF_ERROR(CheckFinite(geometry, scalars.statistics));
    image.minimum_ = scalars.statistics.intensity.minimum;
    image.maximum_ = scalars.statistics.intensity.maximum;
    image.window_ = FindWindow(SamplesOf(geometry, scalars.samples), image.minimum_, image.maximum_);
    if (!image.window_) return scalars;
    INTRAWARP_RETURN_IF_ERROR(ApplyWindow(ctx, *image.window_, levels.front(), levels.front()));
    INTRAWARP_ASSIGN_OR_RETURN(scalars, FillCoarserLevels(ctx, levels));
    if (finest == FinestLevel::kAsItCame) {
      INTRAWARP_RETURN_IF_ERROR(convert());
    } else {
      image.window_.reset();
    }
    return scalars;
  };
  absl::StatusOr<PreparedScalars> scalars = fill();
  // Waits whatever happened: the upload may still be reading the caller's pixels.
  const absl::Status waited = ctx.device().Synchronize(ctx.stream());
  if (!scalars.ok()) return scalars.status();
  INTRAWARP_RETURN_IF_ERROR(waited);

  image.statistics_ = FinishStatistics(geometry, scalars->statistics);
  for (size_t i = 0; i < levels.size(); ++i) image.levels_.push_back({levels[i], scalars->mean_gradient[i]});
  return image;
}

absl::StatusOr<PreparedImage> PreparedImage::ThroughWindow(const ExecContext& ctx, const PreparedImage& image) {
  PreparedImage seen;
  seen.levels_ = image.levels_;
  seen.statistics_ = image.statistics_;
  seen.minimum_ = image.minimum_;
  seen.maximum_ = image.maximum_;
  if (!image.window_) return seen;
  VolumeView finest{nullptr, image.geometry()};
  INTRAWARP_ASSIGN_OR_RETURN(finest.data, ctx.arena().Allocate<float>(finest.geometry.voxels()));
  INTRAWARP_RETURN_IF_ERROR(ApplyWindow(ctx, *image.window_, image.volume(), finest));
  seen.levels_.front().volume = finest;
  return seen;
}

int64_t PreparedImage::WindowWorkspaceBytes() const {
  if (!window_) return 0;
  return static_cast<int64_t>(LevelBytes(geometry()) + ApplyWindowWorkspaceBytes(*window_, geometry()));
}

}  // namespace intrawarp
