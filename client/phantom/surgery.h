// SPDX-License-Identifier: Apache-2.0
// Phantom pairs of an operation: the moving image is the pre-operative one, the fixed image the intra-operative one,
// and parts of one have no counterpart in the other, or slide along each other.
//
//   resection   the fixed image has a lobed cavity filled with fluid where the moving image has a tumour in the liver;
//               the tissue around has moved towards the cavity (collapse), the body as in the plain phantom
//   ablation    the fixed image has an ablation zone where the moving image has the tumour; nothing else moves
//   sliding     breathing: the organs move to the head inside a wall with ribs and a spine that stay, so that the true
//               map is discontinuous along the wall
//   needle      the fixed image has a needle and the blade of a retractor, which has pushed the tissue beside it
//   gas         bubbles of air lie at different places of both images, or in one
//   truncation  one image ends: the voxels outside the middle 60 % of each axis have one value
//
// Metal rods can be added to each. Sizes are in mm of the image; places scale with the anatomy, which follows the field
// of view (phantom.h). The true map is defined everywhere: inside a hole it is the motion around it, continued by the
// same smooth formula. Around the hole, images are sampled from functions of position as in phantom.h, and the edges of
// what is painted over them are one voxel wide. The generator is double precision throughout, and equal options give
// equal bytes.
#ifndef INTRAWARP_CLIENT_PHANTOM_SURGERY_H_
#define INTRAWARP_CLIENT_PHANTOM_SURGERY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/phantom/phantom.h"
#include "client/phantom/shapes.h"

namespace intrawarp::phantom {

enum class SurgeryKind { kPlain, kResection, kAblation, kSliding, kNeedle, kGas, kTruncation };
// Which image has rods, bubbles or an end.
enum class OutliersIn { kFixed, kMoving, kBoth };

// "plain", "resection", ... and "fixed", "moving", "both"; INVALID_ARGUMENT for other names.
absl::StatusOr<SurgeryKind> ParseSurgeryKind(absl::string_view name);
absl::StatusOr<OutliersIn> ParseOutliersIn(absl::string_view name);

struct SurgeryOptions {
  // `amplitude_mm` is how far insufflation moves the wall; for sliding it is how far the organs slide, at most 30 mm of
  // the 240 mm that the anatomy is drawn for, and for needle how far the blade pushes, at most 20.
  PhantomOptions pair;
  SurgeryKind kind = SurgeryKind::kPlain;
  // The same motion without holes, instruments, bubbles or an end, to compare with. A tumour is then in both images.
  bool intact = false;
  // Resection and ablation: the width of the hole, 40 where not given, and of the tumour in it, 30.
  std::optional<double> hole_mm, tumour_mm;
  // Resection: how far the wall of the cavity has moved inwards, 4 where not given.
  std::optional<double> collapse_mm;
  // Rods of 80 x 3 mm with 20 times the largest intensity of their image.
  int rods = 0;
  // Where rods, bubbles (both images where not given) and the end (the fixed image) are.
  std::optional<OutliersIn> outliers_in;
  // The value of the voxels beyond the end, -1024 where not given.
  std::optional<int> padding;
};

// The options of a kind where nothing else is asked for: the amplitude is 30 mm, resection 10, ablation 0, sliding 15,
// needle 12.
SurgeryOptions DefaultSurgeryOptions(SurgeryKind kind);

struct SurgeryPhantom {
  Phantom pair;
  // uint8: 1 where a voxel of the fixed, of the moving grid has no counterpart in the other image. Unset where the
  // options leave no such voxel.
  std::optional<io::HostVolume> hole, hole_moving;
  // Sliding: uint8 on the fixed grid; 0 air, 1 the wall that stays, 2 the organs that slide.
  std::optional<io::HostVolume> regions;
};

// The functions behind the images. Immutable, so thread-safe.
class SurgeryModel {
 public:
  // INVALID_ARGUMENT naming the option at fault.
  static absl::StatusOr<SurgeryModel> Create(const SurgeryOptions& options);

  const PhantomModel& base() const { return base_; }

  // T: fixed -> moving, and back.
  Vec3d Transform(Vec3d fixed_point) const;
  Vec3d Inverse(Vec3d moving_point) const;
  // HU without noise, inversion, metal or an end.
  double FixedHounsfield(Vec3d fixed_point, Vec3d moving_point) const;
  double MovingHounsfield(Vec3d moving_point) const;
  // The part of a voxel around the point, 0 to 1, that is metal.
  double FixedMetal(Vec3d fixed_point) const;
  double MovingMetal(Vec3d moving_point) const;
  // Beyond the end of the image.
  bool FixedEnds(Vec3d fixed_point) const;
  bool MovingEnds(Vec3d moving_point) const;
  // False where the point of one image has no counterpart in the other.
  bool HasCounterpart(Vec3d fixed_point, Vec3d moving_point) const;
  bool HasHoles() const;
  // The fixed point lies in the organs that slide.
  bool Slides(Vec3d fixed_point) const;

 private:
  // A solid with an intensity of its own.
  struct Solid {
    Distance distance;
    double hounsfield;
  };
  // The things that one image has and the other has not.
  struct Scene {
    std::vector<Solid> solids;
    std::vector<Distance> metal;
    std::optional<AffineMap> end;  // to the cube from -1 to 1 that the image is limited to
  };

  SurgeryModel(const SurgeryOptions& options, PhantomModel base);
  void AddHole();
  void AddInstruments();
  absl::Status AddBubbles(uint64_t seed, bool fixed);
  absl::Status AddRods(uint64_t seed, bool fixed);
  absl::Status AddOutliers();
  absl::StatusOr<Vec3d> PlaceInBody(UniformRandom& random, bool fixed, double depth_mm, double liver_mm) const;

  Vec3d Before(Vec3d fixed_point) const;
  Vec3d TransformOnSide(Vec3d fixed_point, bool sliding_side) const;
  double Painted(const std::vector<Solid>& solids, Vec3d p, double hounsfield) const;
  double Metal(const Scene& scene, Vec3d p) const;
  static bool Ends(const Scene& scene, Vec3d p);
  bool IsLost(const Scene& scene, Vec3d p) const;

  SurgeryOptions options_;
  PhantomModel base_;
  double voxel_mm_;  // the longest side
  Scene fixed_, moving_;
  std::vector<Solid> tumours_;            // in the moving image; they move with the tissue
  Vec3d hole_center_{}, blade_center_{};  // in the fixed image
};

// INVALID_ARGUMENT naming the option at fault.
absl::StatusOr<SurgeryPhantom> MakeSurgeryPhantom(const SurgeryOptions& options);

}  // namespace intrawarp::phantom

#endif  // INTRAWARP_CLIENT_PHANTOM_SURGERY_H_
