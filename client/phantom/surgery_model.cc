// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "client/phantom/surgery.h"
#include "client/phantom/voxels.h"
#include "engine/base/status_macros.h"

namespace intrawarp::phantom {
namespace {

constexpr double kHole = 40, kTumour = 30, kCollapse = 4;
constexpr double kFluid = 14, kNecrosis = 45, kCore = 85, kTumourHounsfield = 48, kAir = -1000;
constexpr double kRodRadius = 1.5, kRodLength = 80;
constexpr int kMaxRods = 64, kBubbles = 6;
constexpr double kKeptShare = 0.6;
// In mm of the anatomy.
constexpr double kWidestHole = 80, kFarthestSlip = 30, kFarthestPush = 20;
constexpr Vec3d kHolePlace{-60, -2, 10}, kNeedleTip{-55, 5, 5}, kBladePlace{15, -30, 15};
constexpr double kBladeReach = 45;
constexpr Vec3d kNeedleDirection{-0.5, -0.8, 0.3}, kPushDirection{-0.8, 0.6, 0};

absl::Status Invalid(absl::string_view what) { return absl::InvalidArgumentError(what); }

bool HasHole(SurgeryKind kind) { return kind == SurgeryKind::kResection || kind == SurgeryKind::kAblation; }

bool HasOutliers(const SurgeryOptions& o) {
  return o.rods > 0 || o.kind == SurgeryKind::kGas || o.kind == SurgeryKind::kTruncation;
}

OutliersIn WhereOf(const SurgeryOptions& o) {
  return o.outliers_in.value_or(o.kind == SurgeryKind::kGas ? OutliersIn::kBoth : OutliersIn::kFixed);
}

// The motion that the plain phantom has in this kind.
PhantomOptions BaseOptions(const SurgeryOptions& options) {
  PhantomOptions base = options.pair;
  if (options.kind == SurgeryKind::kSliding || options.kind == SurgeryKind::kNeedle) base.amplitude_mm = 0;
  return base;
}

// Options that the kind has no use for.
absl::Status ValidateUse(const SurgeryOptions& o) {
  if (!HasHole(o.kind)) {
    if (o.hole_mm) return Invalid("hole_mm: is of resection and ablation");
    if (o.tumour_mm) return Invalid("tumour_mm: is of resection and ablation");
  }
  if (o.collapse_mm && o.kind != SurgeryKind::kResection) return Invalid("collapse_mm: is of resection");
  if (o.padding && o.kind != SurgeryKind::kTruncation) return Invalid("padding: is of truncation");
  if (o.outliers_in && !HasOutliers(o)) return Invalid("outliers_in: is of rods, gas and truncation");
  if (o.intact && (o.rods > 0 || o.kind == SurgeryKind::kPlain || o.kind == SurgeryKind::kSliding)) {
    return Invalid("intact: is of pairs that something is missing from, without rods");
  }
  return absl::OkStatus();
}

absl::Status ValidateSizes(const SurgeryOptions& o, double scale) {
  const double hole = o.hole_mm.value_or(kHole), amplitude = o.pair.amplitude_mm;
  if (HasHole(o.kind)) {
    if (!(hole > 0 && hole <= kWidestHole * scale))
      return Invalid(
          absl::StrCat("hole_mm: must be above 0, and at most ", kWidestHole * scale, " for this field of view"));
    const double tumour = o.tumour_mm.value_or(0.75 * hole), collapse = o.collapse_mm.value_or(0);
    if (!(tumour > 0 && tumour <= 0.75 * hole))
      return Invalid("tumour_mm: must be above 0, and at most three quarters of hole_mm");
    if (!(collapse >= 0 && collapse <= 0.25 * hole)) return Invalid("collapse_mm: must be 0 to a quarter of hole_mm");
  }
  // The plain phantom judges its own motion.
  const double farthest = o.kind == SurgeryKind::kSliding  ? kFarthestSlip * scale
                          : o.kind == SurgeryKind::kNeedle ? kFarthestPush * scale
                                                           : amplitude;
  if (!(amplitude >= 0 && amplitude <= farthest))
    return Invalid(absl::StrCat("amplitude_mm: must be 0 to ", farthest, " for this kind and field of view"));
  if (o.rods < 0 || o.rods > kMaxRods) return Invalid(absl::StrCat("rods: must be 0 to ", kMaxRods));
  if (o.padding && (*o.padding < -32768 || *o.padding > 32767)) return Invalid("padding: must be -32768 to 32767");
  return absl::OkStatus();
}

// Newton's method with central differences.
template <typename Map>
Vec3d Invert(const Map& map, Vec3d target, Vec3d start) {
  constexpr int kSteps = 40;
  constexpr double kStep = 1e-3, kClose = 1e-9;
  Vec3d x = start;
  for (int i = 0; i < kSteps; ++i) {
    const Vec3d apart = map(x) - target;
    if (Length(apart) < kClose) break;
    AffineMap jacobian;
    for (int c = 0; c < 3; ++c) {
      Vec3d h{};
      h[c] = kStep;
      const Vec3d d = map(x + h) - map(x - h);
      for (int r = 0; r < 3; ++r) jacobian.m[r][c] = d[r] / (2 * kStep);
    }
    x = x - Inverse(jacobian)(apart);
  }
  return x;
}

AffineMap ToKeptCube(const Geometry& g) {
  AffineMap map = PhysicalToIndex(g);
  for (int r = 0; r < 3; ++r) {
    map.m[r][3] -= 0.5 * (g.size[r] - 1);
    for (double& m : map.m[r]) m /= 0.5 * kKeptShare * g.size[r];
  }
  return map;
}

double LongestSide(const Geometry& g) { return std::max({g.spacing.x, g.spacing.y, g.spacing.z}); }

}  // namespace

SurgeryOptions DefaultSurgeryOptions(SurgeryKind kind) {
  SurgeryOptions options;
  options.kind = kind;
  double& amplitude = options.pair.amplitude_mm;
  if (kind == SurgeryKind::kResection) amplitude = 10;
  if (kind == SurgeryKind::kAblation) amplitude = 0;
  if (kind == SurgeryKind::kSliding) amplitude = 15;
  if (kind == SurgeryKind::kNeedle) amplitude = 12;
  return options;
}

SurgeryModel::SurgeryModel(const SurgeryOptions& options, PhantomModel base)
    : options_(options),
      base_(std::move(base)),
      voxel_mm_(std::max(LongestSide(base_.fixed_geometry()), LongestSide(base_.moving_geometry()))) {}

absl::StatusOr<SurgeryModel> SurgeryModel::Create(const SurgeryOptions& options) {
  INTRAWARP_ASSIGN_OR_RETURN(PhantomModel base, PhantomModel::Create(BaseOptions(options)));
  if (base.fixed_geometry().is_2d() && (options.kind != SurgeryKind::kPlain || options.rods > 0)) {
    return Invalid("size: only the plain phantom without rods can be a slice");
  }
  INTRAWARP_RETURN_IF_ERROR(ValidateUse(options));
  INTRAWARP_RETURN_IF_ERROR(ValidateSizes(options, base.scale()));
  SurgeryModel model(options, std::move(base));
  if (HasHole(options.kind)) model.AddHole();
  if (options.kind == SurgeryKind::kNeedle) model.AddInstruments();
  if (!options.intact) INTRAWARP_RETURN_IF_ERROR(model.AddOutliers());
  return model;
}

void SurgeryModel::AddHole() {
  UniformRandom random(uint64_t{options_.pair.seed} + 0x686f6c65);
  const Vec3d aside{random(-6, 6), random(-6, 6), random(-6, 6)}, place = base_.scale() * (kHolePlace + aside);
  const double hole = 0.5 * options_.hole_mm.value_or(kHole);
  const double tumour = 0.5 * options_.tumour_mm.value_or(std::min(kTumour, 1.5 * hole));
  hole_center_ = Invert([&](Vec3d x) { return base_.Transform(x); }, place, place);
  tumours_.push_back({Ball(place, tumour), kTumourHounsfield});
  if (options_.intact) return;
  const Distance surface = LobedBall(hole_center_, hole, uint64_t{options_.pair.seed} + 0x6c6f6265);
  if (options_.kind == SurgeryKind::kResection) {
    fixed_.solids.push_back({surface, kFluid});
  } else {
    fixed_.solids.push_back({surface, kNecrosis});
    fixed_.solids.push_back({Ball(hole_center_, 0.45 * hole), kCore});
  }
}

void SurgeryModel::AddInstruments() {
  const auto map = [&](Vec3d x) { return base_.Transform(x); };
  blade_center_ = Invert(map, base_.scale() * kBladePlace, base_.scale() * kBladePlace);
  if (options_.intact) return;
  const Vec3d tip = Invert(map, base_.scale() * kNeedleTip, base_.scale() * kNeedleTip);
  fixed_.metal.push_back(Rod(tip, tip + 2 * kRodLength * Unit(kNeedleDirection), kRodRadius));
  fixed_.metal.push_back(Plate(blade_center_, Unit(kPushDirection), 2, 25));
}

absl::Status SurgeryModel::AddOutliers() {
  const OutliersIn where = WhereOf(options_);
  for (const bool fixed : {true, false}) {
    if (where == (fixed ? OutliersIn::kMoving : OutliersIn::kFixed)) continue;
    Scene& scene = fixed ? fixed_ : moving_;
    const uint64_t seed = 2 * uint64_t{options_.pair.seed} + fixed;
    if (options_.kind == SurgeryKind::kGas) INTRAWARP_RETURN_IF_ERROR(AddBubbles(seed, fixed));
    if (options_.kind == SurgeryKind::kTruncation)
      scene.end = ToKeptCube(fixed ? base_.fixed_geometry() : base_.moving_geometry());
    INTRAWARP_RETURN_IF_ERROR(AddRods(seed, fixed));
  }
  return absl::OkStatus();
}

absl::Status SurgeryModel::AddBubbles(uint64_t seed, bool fixed) {
  UniformRandom random(seed + 0x676173);
  for (int i = 0; i < kBubbles; ++i) {
    const double radius = random(6, 12);
    INTRAWARP_ASSIGN_OR_RETURN(const Vec3d center, PlaceInBody(random, fixed, 25 * base_.scale() + radius, radius));
    (fixed ? fixed_ : moving_).solids.push_back({Ball(center, radius), kAir});
  }
  return absl::OkStatus();
}

absl::Status SurgeryModel::AddRods(uint64_t seed, bool fixed) {
  UniformRandom random(seed + 0x726f6473);
  for (int i = 0; i < options_.rods; ++i) {
    INTRAWARP_ASSIGN_OR_RETURN(const Vec3d center, PlaceInBody(random, fixed, 20 * base_.scale(), -1e3));
    const Vec3d half = 0.5 * kRodLength * RandomDirection(random);
    (fixed ? fixed_ : moving_).metal.push_back(Rod(center - half, center + half, kRodRadius));
  }
  return absl::OkStatus();
}

// A point of the fixed or the moving image, `depth_mm` below the skin and `liver_mm` from the liver.
absl::StatusOr<Vec3d> SurgeryModel::PlaceInBody(UniformRandom& random, bool fixed, double depth_mm,
                                                double liver_mm) const {
  constexpr int kAttempts = 100000;
  const Geometry& g = fixed ? base_.fixed_geometry() : base_.moving_geometry();
  const AffineMap to_physical = IndexToPhysical(g);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    Vec3d index;
    for (int a = 0; a < 3; ++a) index[a] = random(0, 1) * (g.size[a] - 1);
    const Vec3d p = to_physical(index), y = fixed ? Transform(p) : p;
    if (base_.BodyDistance(y) < -depth_mm && base_.LiverDistance(y) > liver_mm) return p;
  }
  return Invalid("size: leaves too little of the body in the image");
}

// The motion that comes before the motion of the plain phantom, in the fixed image.
Vec3d SurgeryModel::Before(Vec3d x) const {
  const auto bell = [](double distance, double reach) { return std::exp(-(distance / reach) * (distance / reach)); };
  if (options_.kind == SurgeryKind::kResection) {
    const double radius = 0.5 * options_.hole_mm.value_or(kHole), reach = 2 * radius;
    const double collapse = options_.collapse_mm.value_or(std::min(kCollapse, 0.5 * radius));
    const Vec3d q = x - hole_center_;
    return x + (collapse / (radius * bell(radius, reach)) * bell(Length(q), reach)) * q;
  }
  if (options_.kind == SurgeryKind::kNeedle) {
    const double pushed = bell(Length(x - blade_center_), kBladeReach * base_.scale());
    return x - (options_.pair.amplitude_mm * pushed) * Unit(kPushDirection);
  }
  return x;
}

Vec3d SurgeryModel::TransformOnSide(Vec3d x, bool sliding_side) const {
  const Vec3d y = base_.Transform(Before(x));
  return sliding_side ? base_.Slide(y, options_.pair.amplitude_mm) : y;
}

bool SurgeryModel::Slides(Vec3d x) const {
  return options_.kind == SurgeryKind::kSliding && base_.SlidingDistance(base_.Transform(x)) < 0;
}

Vec3d SurgeryModel::Transform(Vec3d x) const { return TransformOnSide(x, Slides(x)); }

// Slide maps its side to itself.
Vec3d SurgeryModel::Inverse(Vec3d y) const {
  const bool side = options_.kind == SurgeryKind::kSliding && base_.SlidingDistance(y) < 0;
  const Vec3d start = options_.pair.affine ? intrawarp::Inverse(*options_.pair.affine)(y) : y;
  return Invert([&](Vec3d x) { return TransformOnSide(x, side); }, y, start);
}

double SurgeryModel::Painted(const std::vector<Solid>& solids, Vec3d p, double hu) const {
  for (const Solid& solid : solids) {
    const double share = std::clamp(0.5 - solid.distance(p) / voxel_mm_, 0.0, 1.0);
    hu += share * (solid.hounsfield - hu);
  }
  return hu;
}

double SurgeryModel::FixedHounsfield(Vec3d x, Vec3d y) const {
  if (options_.kind == SurgeryKind::kSliding) {
    return Painted(fixed_.solids, x, base_.SlidingHounsfield(base_.Transform(x), options_.pair.amplitude_mm));
  }
  return Painted(fixed_.solids, x, Painted(tumours_, y, base_.Hounsfield(y)));
}

double SurgeryModel::MovingHounsfield(Vec3d y) const {
  const bool slides = options_.kind == SurgeryKind::kSliding;
  const double tissue = slides ? base_.SlidingHounsfield(y, 0) : base_.Hounsfield(y);
  return Painted(moving_.solids, y, Painted(tumours_, y, tissue));
}

double SurgeryModel::Metal(const Scene& scene, Vec3d p) const {
  double share = 0;
  for (const Distance& distance : scene.metal) share = std::max(share, 0.5 - distance(p) / voxel_mm_);
  return std::min(share, 1.0);
}

double SurgeryModel::FixedMetal(Vec3d x) const { return Metal(fixed_, x); }
double SurgeryModel::MovingMetal(Vec3d y) const { return Metal(moving_, y); }

bool SurgeryModel::Ends(const Scene& scene, Vec3d p) {
  if (!scene.end) return false;
  const Vec3d q = (*scene.end)(p);
  return std::max({std::abs(q.x), std::abs(q.y), std::abs(q.z)}) > 1;
}

bool SurgeryModel::FixedEnds(Vec3d x) const { return Ends(fixed_, x); }
bool SurgeryModel::MovingEnds(Vec3d y) const { return Ends(moving_, y); }

bool SurgeryModel::IsLost(const Scene& scene, Vec3d p) const {
  if (Ends(scene, p) || Metal(scene, p) > 0) return true;
  return std::any_of(scene.solids.begin(), scene.solids.end(), [&](const Solid& s) { return s.distance(p) < 0; });
}

bool SurgeryModel::HasCounterpart(Vec3d x, Vec3d y) const { return !IsLost(fixed_, x) && !IsLost(moving_, y); }

bool SurgeryModel::HasHoles() const {
  const auto any = [](const Scene& s) { return !s.solids.empty() || !s.metal.empty() || s.end; };
  return any(fixed_) || any(moving_);
}

}  // namespace intrawarp::phantom
