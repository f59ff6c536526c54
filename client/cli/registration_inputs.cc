// SPDX-License-Identifier: Apache-2.0
#include "client/cli/registration_inputs.h"

#include "client/cli/dicom_files.h"
#include "client/cli/files.h"
#include "engine/base/status_macros.h"
#include "io/itk_transform.h"
#include "io/matrix_text.h"
#include "proto/convert.h"

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

}  // namespace

absl::StatusOr<v1::RegistrationOptions> WithInputs(const RegistrationFlags& flags, Temporaries& temporaries) {
  v1::RegistrationOptions options = flags.options;
  INTRAWARP_RETURN_IF_ERROR(SetInitial(flags.initial, temporaries, &options));
  if (!flags.fixed_mask.empty()) {
    INTRAWARP_ASSIGN_OR_RETURN(*options.mutable_fixed_mask(), temporaries.Volume(flags.fixed_mask));
  }
  if (!flags.moving_mask.empty()) {
    INTRAWARP_ASSIGN_OR_RETURN(*options.mutable_moving_mask(), temporaries.Volume(flags.moving_mask));
  }
  return options;
}

}  // namespace intrawarp::cli
