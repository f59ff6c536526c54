// SPDX-License-Identifier: Apache-2.0
// The two versions of an iteration. Internal.
#ifndef INTRAWARP_ENGINE_REGISTRATION_METHODS_DEMONS_ITERATION_KERNELS_H_
#define INTRAWARP_ENGINE_REGISTRATION_METHODS_DEMONS_ITERATION_KERNELS_H_

#include <cstdint>

#include "engine/image/warp_kernels.h"
#include "engine/registration/methods/demons_iteration.h"

namespace intrawarp {

WarpTask MakeWarpTask(const DemonsSource& source, const float* displacement, Int3 size, float* out);

// The tasks of the two forces of an iteration, but for their accumulation: of the moving image warped, and (symmetric)
// of the fixed one; and the latter's source.
DemonsForceTask ForwardForce(const DemonsIteration& it);
DemonsForceTask BackwardForce(const DemonsIteration& it);
DemonsSource FixedSource(const DemonsIteration& it);

namespace cpu {
absl::Status WarpWeights(const ExecContext& ctx, const WarpTask& task, const uint8_t* bytes, uint8_t* out);
absl::Status BeginDemonsIterations(const ExecContext& ctx, Int3 size, DemonsFields* fields);
absl::Status EndDemonsIterations(const ExecContext& ctx, Int3 size, DemonsFields* fields);
absl::Status IterateDemons(const ExecContext& ctx, const DemonsIteration& iteration, int max_squarings,
                           const DemonsFields& fields);
}  // namespace cpu
namespace cuda {
// In demons_step_cuda.cu. task.moving and task.out are not used.
absl::Status WarpWeights(const ExecContext& ctx, const WarpTask& task, const uint8_t* bytes, uint8_t* out);
absl::Status BeginDemonsIterations(const ExecContext& ctx, Int3 size, DemonsFields* fields);
absl::Status EndDemonsIterations(const ExecContext& ctx, Int3 size, DemonsFields* fields);
absl::Status IterateDemons(const ExecContext& ctx, const DemonsIteration& iteration, int max_squarings,
                           const DemonsFields& fields);
}  // namespace cuda

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_REGISTRATION_METHODS_DEMONS_ITERATION_KERNELS_H_
