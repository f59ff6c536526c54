// SPDX-License-Identifier: Apache-2.0
// A request's wishes for a registration, validated and with its resources looked up. No gRPC here.
#ifndef INTRAWARP_SERVER_REGISTRATION_REGISTRATION_OPTIONS_H_
#define INTRAWARP_SERVER_REGISTRATION_REGISTRATION_OPTIONS_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/quality/verdict.h"
#include "engine/registration/registration.h"
#include "engine/registration/stage/stage.h"
#include "intrawarp/v1/common.pb.h"
#include "intrawarp/v1/registration.pb.h"
#include "server/bulk/field_request.h"
#include "server/identity/identity.h"
#include "server/registration/registration_job.h"
#include "server/store/request_table.h"
#include "server/store/transform_store.h"
#include "server/store/volume_store.h"

namespace intrawarp::server {

class CallAudit;

struct RegistrationPlan {
  // The options as the request has them.
  v1::RegistrationOptions asked;
  std::vector<StageOptions> stages;
  // The request names no stages: `stages` are AutomaticStages(), whose metrics and weights the engine chooses.
  bool automatic = false;
  // Null: no mask.
  std::shared_ptr<const StoredVolume> fixed_mask;
  std::shared_ptr<const StoredVolume> moving_mask;
  // Null: every weight is 1.
  std::shared_ptr<const StoredVolume> fixed_weight;
  std::shared_ptr<const StoredVolume> moving_weight;
  // Fixed to moving; unset: the engine chooses.
  std::optional<AffineMap> initial;
  // Instead, the result of an FFD or of log-demons; null: none.
  std::shared_ptr<const StoredTransform> initial_transform;
  // The print of the transform that the request names as its start, an affine one included.
  InputPrint initial_print = InputPrint::None();
  std::optional<std::chrono::nanoseconds> budget;
  bool best_effort = false;
  // A deformation that the gate rejects is the answer all the same.
  bool keep_deformation = false;
  bool find_missing_tissue = false;
  std::vector<Landmark> landmarks;
  double error_limit_mm = kDefaultErrorLimitMm;
  ErrorOutput error;
};

// INVALID_ARGUMENT names the element within "landmarks".
absl::StatusOr<std::vector<Landmark>> LandmarksFromProto(
    const google::protobuf::RepeatedPtrField<v1::Landmark>& landmarks);
// Puts them into `options`, in the place of those that are there, with every sigma.
void SetLandmarks(const std::vector<Landmark>& landmarks, v1::RegistrationOptions& options);

// INVALID_ARGUMENT and UNIMPLEMENTED name the field, relative to the options ("stages[0].ffd.metric"); NOT_FOUND names
// the resource. Whether masks and weights fit their images, and numbers their limits, ValidateRegistration says.
absl::StatusOr<RegistrationPlan> ResolveOptions(const v1::RegistrationOptions& options, const VolumeStore& volumes,
                                                const TransformStore& transforms, const Identity& caller);

// The cost of a registration depends on this word besides the size of its images (CostModel): the kind of work
// ("frame", "register"), the stages as asked for, whether there are a budget, masks and weights, and the form of the
// field, if any.
std::string CostKind(absl::string_view work, const RegistrationPlan& plan, const std::optional<FieldRequest>& field);
// The voxels of both images.
int64_t CostSize(const Geometry& fixed, const Geometry& moving);

// The field that a request wants of each result. Errors name it within "field"; control points come from an ffd stage
// alone, a velocity from a log-demons stage.
absl::StatusOr<FieldRequest> ResolveField(const v1::FieldRequest& field, const RegistrationPlan& plan);

// The stages of a plan for images on these grids: AutomaticSliceStages(), which are not automatic, where the plan names
// no stages and the images are a slice and a volume.
struct PlannedStages {
  std::vector<StageOptions> stages;
  bool automatic = false;
};
PlannedStages StagesFor(const RegistrationPlan& plan, const Geometry& fixed, const Geometry& moving);

// The engine's view of a plan, with StagesFor the images. `plan`, `fixed` and `moving` must outlive it.
RegistrationInput MakeRegistrationInput(const RegistrationPlan& plan, const PreparedImage& fixed,
                                        const PreparedImage& moving);

// An error of ResolveOptions or of the engine about a registration with its field's path in the request.
absl::Status InRequest(const v1::RegistrationOptions& options, const absl::Status& status);

// The masks, weights and the start of a plan, which `options` asked for.
void AuditPlan(const RegistrationPlan& plan, const v1::RegistrationOptions& options, CallAudit& audit);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_REGISTRATION_REGISTRATION_OPTIONS_H_
