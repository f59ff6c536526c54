// SPDX-License-Identifier: Apache-2.0
// The two versions of an iteration. Internal.
#ifndef INTRAWARP_ENGINE_REGISTRATION_METHODS_DEMONS_ITERATION_KERNELS_H_
#define INTRAWARP_ENGINE_REGISTRATION_METHODS_DEMONS_ITERATION_KERNELS_H_

#include "engine/image/warp_kernels.h"
#include "engine/registration/methods/demons_iteration.h"

namespace intrawarp {

WarpTask MakeWarpTask(const DemonsSource& source, const float* displacement, Int3 size, float* out);

namespace cpu {
absl::Status BeginDemonsIterations(const ExecContext& ctx, Int3 size, DemonsFields* fields);
absl::Status EndDemonsIterations(const ExecContext& ctx, Int3 size, DemonsFields* fields);
absl::Status IterateDemons(const ExecContext& ctx, const DemonsIteration& iteration, int max_squarings,
                           const DemonsFields& fields);
}  // namespace cpu
namespace cuda {
absl::Status BeginDemonsIterations(const ExecContext& ctx, Int3 size, DemonsFields* fields);
absl::Status EndDemonsIterations(const ExecContext& ctx, Int3 size, DemonsFields* fields);
absl::Status IterateDemons(const ExecContext& ctx, const DemonsIteration& iteration, int max_squarings,
                           const DemonsFields& fields);
}  // namespace cuda

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_REGISTRATION_METHODS_DEMONS_ITERATION_KERNELS_H_
