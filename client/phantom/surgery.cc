// SPDX-License-Identifier: Apache-2.0
#include "client/phantom/surgery.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/phantom/pair.h"
#include "client/phantom/voxels.h"
#include "engine/base/status_macros.h"

namespace intrawarp::phantom {
namespace {

constexpr std::pair<absl::string_view, SurgeryKind> kKinds[] = {
    {"plain", SurgeryKind::kPlain},           {"resection", SurgeryKind::kResection},
    {"ablation", SurgeryKind::kAblation},     {"sliding", SurgeryKind::kSliding},
    {"needle", SurgeryKind::kNeedle},         {"gas", SurgeryKind::kGas},
    {"truncation", SurgeryKind::kTruncation},
};
constexpr std::pair<absl::string_view, OutliersIn> kPlaces[] = {
    {"fixed", OutliersIn::kFixed}, {"moving", OutliersIn::kMoving}, {"both", OutliersIn::kBoth}};

template <typename Table>
auto Parse(const Table& table, absl::string_view name) -> absl::StatusOr<decltype(table[0].second)> {
  std::string names;
  for (const auto& [known, value] : table) {
    if (known == name) return value;
    absl::StrAppend(&names, names.empty() ? "" : ", ", known);
  }
  return absl::InvalidArgumentError(absl::StrCat("must be one of ", names));
}

// Metal of 20 times the largest intensity, as far as 16 bits go, over the parts of voxels that it fills.
template <typename Share>
void PaintMetal(io::HostVolume& volume, const Share& share) {
  constexpr double kBrightness = 20;
  int16_t largest = 1;
  for (int64_t i = 0; i < volume.geometry.voxels(); ++i) largest = std::max(largest, GetPixel(volume, i));
  ForEachVoxel(volume.geometry, [&](int64_t i, Vec3d p) {
    const double part = share(p), value = GetPixel(volume, i);
    if (part > 0) SetPixel(volume, i, ToInt16(value + part * (kBrightness * largest - value)));
  });
}

template <typename Ends>
void PaintPadding(io::HostVolume& volume, int16_t padding, const Ends& ends) {
  ForEachVoxel(volume.geometry, [&](int64_t i, Vec3d p) {
    if (ends(p)) SetPixel(volume, i, padding);
  });
}

template <typename Predicate>
io::HostVolume Mask(const Geometry& geometry, const Predicate& predicate) {
  io::HostVolume mask = EmptyVolume(geometry, PixelType::kUint8);
  ForEachVoxel(geometry, [&](int64_t i, Vec3d p) { mask.pixels[i] = predicate(p); });
  return mask;
}

}  // namespace

absl::StatusOr<SurgeryKind> ParseSurgeryKind(absl::string_view name) { return Parse(kKinds, name); }
absl::StatusOr<OutliersIn> ParseOutliersIn(absl::string_view name) { return Parse(kPlaces, name); }

absl::StatusOr<SurgeryPhantom> MakeSurgeryPhantom(const SurgeryOptions& options) {
  constexpr int kPadding = -1024;
  INTRAWARP_ASSIGN_OR_RETURN(const SurgeryModel model, SurgeryModel::Create(options));
  SurgeryPhantom made;
  INTRAWARP_ASSIGN_OR_RETURN(
      made.pair, SamplePair(options.pair, model.base(),
                            {.transform = [&](Vec3d x) { return model.Transform(x); },
                             .fixed_hounsfield = [&](Vec3d x, Vec3d y) { return model.FixedHounsfield(x, y); },
                             .moving_hounsfield = [&](Vec3d y) { return model.MovingHounsfield(y); },
                             .has_counterpart = [&](Vec3d x, Vec3d y) { return model.HasCounterpart(x, y); }}));
  PaintMetal(made.pair.fixed, [&](Vec3d x) { return model.FixedMetal(x); });
  PaintMetal(made.pair.moving, [&](Vec3d y) { return model.MovingMetal(y); });
  const int16_t padding = static_cast<int16_t>(options.padding.value_or(kPadding));
  PaintPadding(made.pair.fixed, padding, [&](Vec3d x) { return model.FixedEnds(x); });
  PaintPadding(made.pair.moving, padding, [&](Vec3d y) { return model.MovingEnds(y); });
  if (model.HasHoles()) {
    made.hole = Mask(made.pair.fixed.geometry, [&](Vec3d x) { return !model.HasCounterpart(x, model.Transform(x)); });
    made.hole_moving =
        Mask(made.pair.moving.geometry, [&](Vec3d y) { return !model.HasCounterpart(model.Inverse(y), y); });
  }
  if (options.kind == SurgeryKind::kSliding) {
    made.regions = Mask(made.pair.fixed.geometry, [&](Vec3d x) {
      return model.base().BodyDistance(model.Transform(x)) < 0 ? 1 + model.Slides(x) : 0;
    });
  }
  return made;
}

}  // namespace intrawarp::phantom
