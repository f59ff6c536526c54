// SPDX-License-Identifier: Apache-2.0
#include "client/phantom/phantom.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/phantom/pair.h"
#include "client/phantom/shapes.h"
#include "client/phantom/voxels.h"
#include "engine/base/status_macros.h"

namespace intrawarp::phantom {
namespace {

constexpr double kFieldOfView[3] = {320, 320, 240};
constexpr double kMaxAmplitude = 60;
constexpr double kEdgeVoxels = 1.5, kTextureVoxels = 5;
constexpr int kLandmarksPerRegion = 24;
constexpr double kLandmarkMargin = 6;  // mm of the anatomy
constexpr double kInvertOffset = 400, kInvertSlope = -0.4;

absl::Status Invalid(absl::string_view what) { return absl::InvalidArgumentError(what); }

double Bell(double v, double width) { return std::exp(-(v / width) * (v / width)); }

// 1 at the front of the body, 0 at its back; `slope` is the derivative.
double Lift(double y, double* slope) {
  const double t = std::tanh((y + 35) / 42);
  *slope = -0.5 * (1 - t * t) / 42;
  return 0.5 * (1 - t);
}

Geometry CenteredGeometry(Int3 size, Vec3d spacing) {
  Geometry g;
  g.size = size;
  g.spacing = spacing;
  for (int a = 0; a < 3; ++a) g.origin[a] = -0.5 * (size[a] - 1) * spacing[a];
  return g;
}

double ScaleFor(const Geometry& g) {
  double scale = std::numeric_limits<double>::infinity();
  for (int a = 0; a < (g.is_2d() ? 2 : 3); ++a) scale = std::min(scale, g.size[a] * g.spacing[a] / kFieldOfView[a]);
  return scale;
}

double LargestSpacing(const Geometry& g) {
  const double in_plane = std::max(g.spacing.x, g.spacing.y);
  return g.is_2d() ? in_plane : std::max(in_plane, g.spacing.z);
}

bool MovesInPlaneOnly(const AffineMap& a) {
  const double fixed[] = {a.m[0][2], a.m[1][2], a.m[2][0], a.m[2][1], a.m[2][2] - 1, a.m[2][3]};
  return std::all_of(std::begin(fixed), std::end(fixed), [](double v) { return std::abs(v) < 1e-12; });
}

absl::Status ValidateAffine(const AffineMap& affine, bool planar) {
  for (const auto& row : affine.m)
    for (double v : row)
      if (!std::isfinite(v)) return Invalid("affine: is not finite");
  if (!(Determinant(affine) > 0)) return Invalid("affine: its determinant must be above 0");
  if (planar && !MovesInPlaneOnly(affine)) return Invalid("affine: must stay in the plane of a 2-D phantom");
  return absl::OkStatus();
}

absl::Status PlaceLandmarks(const PhantomModel& model, const PairFunctions& functions, uint32_t seed,
                            Phantom& phantom) {
  constexpr int kAttempts = 200000;
  UniformRandom random(uint64_t{seed} + 0x6c616e64);
  const Geometry& g = model.fixed_geometry();
  const AffineMap to_physical = IndexToPhysical(g);
  int missing[2] = {kLandmarksPerRegion, kLandmarksPerRegion};
  for (int attempt = 0; attempt < kAttempts && missing[0] + missing[1] > 0; ++attempt) {
    Vec3d index;
    for (int a = 0; a < 3; ++a) index[a] = random(0, 1) * (g.size[a] - 1);
    const Vec3d x = to_physical(index), y = functions.transform(x);
    if (model.BodyDistance(y) > -kLandmarkMargin || !Contains(model.moving_geometry(), y)) continue;
    if (functions.has_counterpart && !functions.has_counterpart(x, y)) continue;
    int& left = missing[model.LiverDistance(y) < 0 ? 0 : 1];
    if (left == 0) continue;
    --left;
    phantom.fixed_landmarks.push_back(x);
    phantom.moving_landmarks.push_back(y);
  }
  if (missing[0] + missing[1] == 0) return absl::OkStatus();
  return Invalid("affine: leaves too little of the body in the image");
}

AffineMap Linear(double xx, double xy, double xz, double yx, double yy, double yz, double zx, double zy, double zz) {
  AffineMap a;
  const double m[3][3] = {{xx, xy, xz}, {yx, yy, yz}, {zx, zy, zz}};
  for (int r = 0; r < 3; ++r) std::copy(m[r], m[r] + 3, a.m[r]);
  return a;
}

// Rodrigues' rotation formula.
AffineMap Rotation(Vec3d axis, double angle) {
  const double c = std::cos(angle), s = std::sin(angle), t = 1 - c;
  const auto [x, y, z] = axis;
  return Linear(t * x * x + c, t * x * y - s * z, t * x * z + s * y, t * x * y + s * z, t * y * y + c,
                t * y * z - s * x, t * x * z - s * y, t * y * z + s * x, t * z * z + c);
}

}  // namespace

PhantomModel::PhantomModel(const PhantomOptions& options, const Geometry& fixed, double scale)
    : fixed_geometry_(fixed),
      moving_geometry_(options.moving_geometry.value_or(fixed)),
      scale_(scale),
      planar_(fixed.is_2d()),
      amplitude_(options.amplitude_mm / scale),
      affine_(options.affine.value_or(AffineMap::Identity())),
      anatomy_(options.seed, kEdgeVoxels * LargestSpacing(fixed) / scale,
               kTextureVoxels * LargestSpacing(fixed) / scale) {}

absl::StatusOr<PhantomModel> PhantomModel::Create(const PhantomOptions& options) {
  const Geometry fixed = CenteredGeometry(options.size, options.spacing);
  INTRAWARP_RETURN_IF_ERROR(ValidateGeometry(fixed));
  for (int a = 0; a < (fixed.is_2d() ? 2 : 3); ++a) {
    if (fixed.size[a] < 16) return Invalid("size: must be at least 16 voxels along each axis");
  }
  if (options.moving_geometry) {
    const absl::Status valid = ValidateGeometry(*options.moving_geometry);
    if (!valid.ok()) return Invalid(absl::StrCat("moving_geometry: ", valid.message()));
    if (options.moving_geometry->is_2d() != fixed.is_2d())
      return Invalid("moving_geometry: must be 2-D with the fixed");
  }
  const double scale = ScaleFor(fixed);
  if (!(options.amplitude_mm >= 0 && options.amplitude_mm <= kMaxAmplitude * scale)) {
    return Invalid(absl::StrCat("amplitude_mm: must be 0 to ", kMaxAmplitude * scale, " for this field of view"));
  }
  if (!(options.noise_sd >= 0 && options.noise_sd <= 1000)) return Invalid("noise_sd: must be 0 to 1000");
  if (options.affine) INTRAWARP_RETURN_IF_ERROR(ValidateAffine(*options.affine, fixed.is_2d()));
  return PhantomModel(options, fixed, scale);
}

// In mm of the anatomy. With amplitudes up to kMaxAmplitude the factors of the determinant stay above 0.28, 0.8, 0.8.
Vec3d PhantomModel::Deform(Vec3d p, double* determinant) const {
  double slope;
  const double along_z = planar_ ? 1 : Bell(p.z + 10, 115);
  const double wall = amplitude_ * Bell(p.x, 105) * along_z;
  const double lifted = Lift(p.y, &slope);
  *determinant = 1 + wall * slope;
  p.y += wall * lifted;

  // The belly widens.
  const double depth = Lift(p.y, &slope);
  const double narrow = -0.002 * amplitude_ * depth * along_z * Bell(p.x, 80);
  *determinant *= 1 + narrow * (1 - 2 * p.x * p.x / (80.0 * 80.0));
  p.x += narrow * p.x;

  // Gas under the diaphragm pushes the liver down.
  if (planar_) return p;
  const double push = 0.3 * amplitude_ * depth * Bell(p.x + 35, 90) * Bell(p.z - 15, 100);
  *determinant *= 1 - push * 2 * (p.z - 15) / (100.0 * 100.0);
  p.z += push;
  return p;
}

Vec3d PhantomModel::Transform(Vec3d x) const {
  if (amplitude_ == 0) return affine_(x);
  double determinant;
  return affine_(scale_ * Deform((1 / scale_) * x, &determinant));
}

double PhantomModel::JacobianDeterminant(Vec3d x) const {
  double determinant;
  Deform((1 / scale_) * x, &determinant);
  return determinant * Determinant(affine_);
}

double PhantomModel::Hounsfield(Vec3d y) const { return anatomy_.Hounsfield((1 / scale_) * y); }
double PhantomModel::BodyDistance(Vec3d y) const { return scale_ * anatomy_.BodyDistance((1 / scale_) * y); }
double PhantomModel::LiverDistance(Vec3d y) const { return scale_ * anatomy_.LiverDistance((1 / scale_) * y); }
double PhantomModel::SlidingDistance(Vec3d y) const { return scale_ * anatomy_.SlidingDistance((1 / scale_) * y); }

Vec3d PhantomModel::Slide(Vec3d y, double slip_mm) const {
  return scale_ * anatomy_.Slide((1 / scale_) * y, slip_mm / scale_);
}

double PhantomModel::SlidingHounsfield(Vec3d y, double slip_mm) const {
  return anatomy_.SlidingHounsfield((1 / scale_) * y, slip_mm / scale_);
}

double InvertedIntensity(double hounsfield) { return kInvertOffset + kInvertSlope * hounsfield; }

absl::StatusOr<Phantom> SamplePair(const PhantomOptions& options, const PhantomModel& model,
                                   const PairFunctions& functions) {
  const Geometry& fixed = model.fixed_geometry();
  Phantom phantom;
  phantom.fixed = EmptyVolume(fixed, PixelType::kInt16);
  phantom.moving = EmptyVolume(model.moving_geometry(), PixelType::kInt16);
  phantom.body_mask = EmptyVolume(fixed, PixelType::kUint8);
  phantom.field.geometry = fixed;
  phantom.field.displacement.resize(3 * fixed.voxels());
  INTRAWARP_RETURN_IF_ERROR(PlaceLandmarks(model, functions, options.seed, phantom));

  const auto noise = [&](int image, int64_t index) {
    return options.noise_sd == 0 ? 0.0 : options.noise_sd * NormalAt(2 * uint64_t{options.seed} + image, index);
  };
  ForEachVoxel(fixed, [&](int64_t i, Vec3d x) {
    const Vec3d y = functions.transform(x), u = y - x;
    for (int a = 0; a < 3; ++a) phantom.field.displacement[3 * i + a] = static_cast<float>(u[a]);
    phantom.body_mask.pixels[i] = model.BodyDistance(y) < 0;
    SetPixel(phantom.fixed, i, ToInt16(functions.fixed_hounsfield(x, y) + noise(0, i)));
  });
  ForEachVoxel(phantom.moving.geometry, [&](int64_t i, Vec3d y) {
    const double hu = functions.moving_hounsfield(y);
    const double value = options.invert_intensities ? InvertedIntensity(hu) : hu;
    SetPixel(phantom.moving, i, ToInt16(value + noise(1, i)));
  });
  return phantom;
}

absl::StatusOr<Phantom> MakePhantom(const PhantomOptions& options) {
  INTRAWARP_ASSIGN_OR_RETURN(const PhantomModel model, PhantomModel::Create(options));
  return SamplePair(options, model,
                    {.transform = [&](Vec3d x) { return model.Transform(x); },
                     .fixed_hounsfield = [&](Vec3d, Vec3d y) { return model.Hounsfield(y); },
                     .moving_hounsfield = [&](Vec3d y) { return model.Hounsfield(y); },
                     .has_counterpart = nullptr});
}

io::HostVolume SampleFixed(const PhantomModel& model, double noise_sd, uint64_t noise_seed) {
  io::HostVolume volume = EmptyVolume(model.fixed_geometry(), PixelType::kInt16);
  ForEachVoxel(volume.geometry, [&](int64_t i, Vec3d x) {
    const double noise = noise_sd == 0 ? 0 : noise_sd * NormalAt(noise_seed, i);
    SetPixel(volume, i, ToInt16(model.Hounsfield(model.Transform(x)) + noise));
  });
  return volume;
}

AffineMap RandomAffine(uint32_t seed, double max_rotation_deg, double max_scale, double max_shear,
                       double max_translation_mm, Vec3d center, bool in_plane) {
  UniformRandom random(uint64_t{seed} + 0x616666);
  const double radians = random(-max_rotation_deg, max_rotation_deg) * std::numbers::pi / 180;
  const Vec3d axis = RandomDirection(random), towards = RandomDirection(random);
  double shear[3], scale[3];
  for (double& s : shear) s = random(-max_shear, max_shear);
  for (double& s : scale) s = 1 + random(-max_scale, max_scale);
  Vec3d t = random(0, max_translation_mm) * towards;
  if (in_plane) {
    shear[1] = shear[2] = 0;
    scale[2] = 1;
    t.z = 0;
  }
  const AffineMap stretch = Compose(Linear(1, shear[0], shear[1], 0, 1, shear[2], 0, 0, 1),
                                    Linear(scale[0], 0, 0, 0, scale[1], 0, 0, 0, scale[2]));
  AffineMap map = Compose(Rotation(in_plane ? Vec3d{0, 0, 1} : axis, radians), stretch);
  const Vec3d shift = center + t - map(center);
  for (int r = 0; r < 3; ++r) map.m[r][3] = shift[r];
  if (in_plane) map.m[2][3] = 0;
  return map;
}

}  // namespace intrawarp::phantom
