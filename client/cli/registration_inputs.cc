// SPDX-License-Identifier: Apache-2.0
#include "client/cli/registration_inputs.h"

#include "client/cli/dicom_files.h"
#include "client/cli/files.h"
#include "engine/base/status_macros.h"
#include "io/format/itk_transform.h"
#include "io/format/matrix_text.h"
#include "io/format/points.h"
#include "wire/convert.h"

namespace intrawarp::cli {
namespace {

absl::Status SetInitial(const std::string& initial, Temporaries& temporaries, v1::RegistrationOptions* options) {
  if (initial.empty()) return absl::OkStatus();
  if (IsTransformName(initial) || HasItkSuffix(initial) || HasVolumeSuffix(initial) || io::HoldsItkText(initial) ||
      IsDicomTransform(initial)) {
    INTRAWARP_ASSIGN_OR_RETURN(*options->mutable_initial_transform(), temporaries.Transform(initial));
    return absl::OkStatus();
  }
  const absl::StatusOr<AffineMap> matrix = io::ReadMatrix(initial);
  if (!matrix.ok()) return Annotate(matrix.status(), initial);
  *options->mutable_initial_affine() = AffineMapToProto(*matrix);
  return absl::OkStatus();
}

// How sure it is that a point does not move.
constexpr double kUnmovedSigmaMm = 0.5;

void AddLandmark(const io::LandmarkPair& pair, v1::RegistrationOptions* options) {
  v1::Landmark& landmark = *options->add_landmarks();
  for (int a = 0; a < 3; ++a) landmark.add_fixed(pair.fixed[a]);
  for (int a = 0; a < 3; ++a) landmark.add_moving(pair.moving[a]);
  if (pair.sigma_mm) landmark.set_sigma_mm(*pair.sigma_mm);
}

absl::Status AddLandmarks(const RegistrationFlags& flags, v1::RegistrationOptions* options) {
  if (!flags.landmarks.empty()) {
    const absl::StatusOr<std::vector<io::LandmarkPair>> pairs = io::ReadLandmarks(flags.landmarks);
    if (!pairs.ok()) return Annotate(pairs.status(), flags.landmarks);
    for (const io::LandmarkPair& pair : *pairs) AddLandmark(pair, options);
  }
  if (flags.unmoved_points.empty()) return absl::OkStatus();
  const absl::StatusOr<std::vector<Vec3d>> points = io::ReadPoints(flags.unmoved_points);
  if (!points.ok()) return Annotate(points.status(), flags.unmoved_points);
  for (const Vec3d& point : *points) AddLandmark({point, point, kUnmovedSigmaMm}, options);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::RegistrationOptions> WithInputs(const RegistrationFlags& flags, Temporaries& temporaries) {
  v1::RegistrationOptions options = flags.options;
  INTRAWARP_RETURN_IF_ERROR(SetInitial(flags.initial, temporaries, &options));
  INTRAWARP_RETURN_IF_ERROR(AddLandmarks(flags, &options));
  if (!flags.fixed_mask.empty()) {
    INTRAWARP_ASSIGN_OR_RETURN(*options.mutable_fixed_mask(), temporaries.Volume(flags.fixed_mask));
  }
  if (!flags.moving_mask.empty()) {
    INTRAWARP_ASSIGN_OR_RETURN(*options.mutable_moving_mask(), temporaries.Volume(flags.moving_mask));
  }
  if (!flags.fixed_weight.empty()) {
    INTRAWARP_ASSIGN_OR_RETURN(*options.mutable_fixed_weight(), temporaries.Volume(flags.fixed_weight));
  }
  if (!flags.moving_weight.empty()) {
    INTRAWARP_ASSIGN_OR_RETURN(*options.mutable_moving_weight(), temporaries.Volume(flags.moving_weight));
  }
  return options;
}

}  // namespace intrawarp::cli
