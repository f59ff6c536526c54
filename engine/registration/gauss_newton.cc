// SPDX-License-Identifier: Apache-2.0
#include "engine/registration/gauss_newton.h"

#include "engine/base/status_macros.h"

namespace intrawarp {
namespace cpu {

absl::Status RunGaussNewton(const ExecContext& ctx, const AffineObjective& objective, int evaluations,
                            GaussNewtonState* state) {
  for (int i = 0; i < evaluations && state->status == GaussNewtonStatus::kRunning; ++i) {
    NormalEquations sums;
    GaussNewtonScratch scratch;
    INTRAWARP_RETURN_IF_ERROR(cpu::EvaluateAffineObjective(ctx, objective, state->trial, &sums));
    AdvanceGaussNewton(*state, sums, scratch, SingleLane());
  }
  return absl::OkStatus();
}

}  // namespace cpu

absl::Status RunGaussNewton(const ExecContext& ctx, const AffineObjective& objective, int evaluations,
                            GaussNewtonState* state) {
  return INTRAWARP_DISPATCH(ctx, RunGaussNewton, objective, evaluations, state);
}

}  // namespace intrawarp
