// SPDX-License-Identifier: Apache-2.0
#include "client/cli/registration_montage.h"

#include "engine/base/status_macros.h"
#include "io/matrix_text.h"

namespace intrawarp {
namespace {

// A key of Temporaries that is no path.
constexpr char kIdentityKey[] = "\nidentity";

absl::StatusOr<std::string> StartTransform(const std::string& initial, Temporaries& temporaries) {
  if (IsTransformName(initial)) return initial;
  if (initial.empty()) return temporaries.Matrix(AffineMap::Identity(), kIdentityKey);
  const absl::StatusOr<AffineMap> matrix = ReadMatrix(initial);
  if (!matrix.ok()) return Annotate(matrix.status(), initial);
  return temporaries.Matrix(*matrix, initial);
}

}  // namespace

absl::Status FetchMontageInputs(const std::string& fixed, const std::string& moving, const std::string& initial,
                                Session& session, Temporaries& temporaries, MontageInputs* inputs) {
  v1::WarpVolumeRequest request;
  INTRAWARP_ASSIGN_OR_RETURN(*request.mutable_transform(), StartTransform(initial, temporaries));
  INTRAWARP_ASSIGN_OR_RETURN(*request.mutable_moving(), temporaries.Volume(moving));
  INTRAWARP_ASSIGN_OR_RETURN(*request.mutable_like_volume(), temporaries.Volume(fixed));
  INTRAWARP_RETURN_IF_ERROR(session.client().WarpVolume(request, SinkInto(&inputs->start), session.call()));
  return session.client().DownloadVolume(request.like_volume(), SinkInto(&inputs->fixed), session.call()).status();
}

absl::Status WriteMontageFile(const std::string&, const MontageInputs&, const GridData&, const GridData&) {
  return absl::UnimplementedError("the montage comes with a later version");
}

}  // namespace intrawarp
