// SPDX-License-Identifier: Apache-2.0
// A liver-like CT pair with a known deformation: the moving image is the pre-operative one, the fixed image the
// intra-operative one after insufflation (pneumoperitoneum), which lifts the abdominal wall by tens of millimetres and
// fades with depth.
//
// moving(y) = anatomy(y) and fixed(x) = anatomy(T(x)), both sampled from the same function of position, so the
// transform T (fixed -> moving, LPS mm) is the exact truth. T(x) = affine(D(x)). D moves one coordinate after the
// other, y, then x, then z, each by less than it takes to fold, so its Jacobian determinant, the product of three
// positive derivatives, is positive everywhere. The anatomy is scaled to the field of view of `size` and `spacing`
// (drawn for 320 x 320 x 240 mm); size.z = 1 gives an axial slice through the liver, moved in its plane alone.
// Equal options give equal bytes.
#ifndef INTRAWARP_CLIENT_PHANTOM_PHANTOM_H_
#define INTRAWARP_CLIENT_PHANTOM_PHANTOM_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/phantom/anatomy.h"
#include "engine/geometry/geometry.h"
#include "io/format/nifti.h"

namespace intrawarp::phantom {

struct PhantomOptions {
  // The fixed grid, along the axes of LPS with its middle at 0.
  Int3 size{160, 160, 120};
  Vec3d spacing{2, 2, 2};
  // The moving grid, when it is to differ from the fixed one.
  std::optional<Geometry> moving_geometry;
  // The seed of texture, vessels and noise.
  uint32_t seed = 1;
  // How far insufflation moves the wall, 0 for not at all; at most 60 mm of the 320 mm that the anatomy is drawn for.
  double amplitude_mm = 30;
  // Fixed -> moving, after the deformation; in the plane for size.z = 1.
  std::optional<AffineMap> affine;
  // The moving image becomes 400 - 0.4 * HU: another modality, as far as intensities go.
  bool invert_intensities = false;
  // Gaussian, in HU, independent in both images.
  double noise_sd = 8;
};

struct Phantom {
  io::HostVolume fixed, moving;  // int16, HU
  io::HostVolume body_mask;      // uint8 on the fixed grid: 1 inside the skin
  io::HostField field;           // T(p) - p on the fixed grid
  // 24 points in the liver and 24 elsewhere in the body; moving_landmarks[i] = T(fixed_landmarks[i]).
  std::vector<Vec3d> fixed_landmarks, moving_landmarks;
};

// The functions behind the images, for tests of both. Immutable, so thread-safe.
class PhantomModel {
 public:
  // INVALID_ARGUMENT naming the option at fault.
  static absl::StatusOr<PhantomModel> Create(const PhantomOptions& options);

  const Geometry& fixed_geometry() const { return fixed_geometry_; }
  const Geometry& moving_geometry() const { return moving_geometry_; }

  // T: fixed -> moving, and the determinant of its Jacobian.
  Vec3d Transform(Vec3d fixed_point) const;
  double JacobianDeterminant(Vec3d fixed_point) const;
  // At a point of moving space: HU without noise or inversion, and distances in mm, negative inside.
  double Hounsfield(Vec3d moving_point) const;
  double BodyDistance(Vec3d moving_point) const;
  double LiverDistance(Vec3d moving_point) const;
  // The organs that slide along the wall of the trunk (anatomy.h), in mm of the image.
  double SlidingDistance(Vec3d moving_point) const;
  Vec3d Slide(Vec3d moving_point, double slip_mm) const;
  double SlidingHounsfield(Vec3d moving_point, double slip_mm) const;
  // mm of the image for a mm of the anatomy.
  double scale() const { return scale_; }

 private:
  PhantomModel(const PhantomOptions& options, const Geometry& fixed, double scale);
  Vec3d Deform(Vec3d p, double* determinant) const;

  Geometry fixed_geometry_, moving_geometry_;
  double scale_;  // mm of the image per mm of the anatomy
  bool planar_;
  double amplitude_;  // in mm of the anatomy
  AffineMap affine_;
  Anatomy anatomy_;
};

// INVALID_ARGUMENT naming the option at fault.
absl::StatusOr<Phantom> MakePhantom(const PhantomOptions& options);

// The fixed image of a model alone, int16, in HU, without inversion. Noise of other images is independent of it where
// `noise_seed` differs. Uses all cores.
io::HostVolume SampleFixed(const PhantomModel& model, double noise_sd, uint64_t noise_seed);

// A map p -> center + R S Z (p - center) + t for tests with a known answer: rotation R about a random axis by up to
// `max_rotation_deg`, shears S up to `max_shear`, scales Z within 1 +- max_scale, |t| up to `max_translation_mm`; with
// `in_plane`, z is left as it is. Equal seeds give equal maps.
AffineMap RandomAffine(uint32_t seed, double max_rotation_deg = 20, double max_scale = 0.15, double max_shear = 0.10,
                       double max_translation_mm = 30, Vec3d center = {0, 0, 0}, bool in_plane = false);

}  // namespace intrawarp::phantom

#endif  // INTRAWARP_CLIENT_PHANTOM_PHANTOM_H_
