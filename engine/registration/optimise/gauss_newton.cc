// SPDX-License-Identifier: Apache-2.0
#include "engine/registration/optimise/gauss_newton.h"

#include "engine/base/status_macros.h"

namespace intrawarp {
namespace cpu {

absl::Status RunGaussNewton(const ExecContext& ctx, const AffineObjective& objective, int evaluations,
                            absl::Span<GaussNewtonState> states) {
  for (GaussNewtonState& state : states) {
    for (int i = 0; i < evaluations && state.status == GaussNewtonStatus::kRunning; ++i) {
      NormalEquations sums;
      GaussNewtonScratch scratch;
      INTRAWARP_RETURN_IF_ERROR(EvaluateAffineObjective(ctx, objective, state.trial, &sums));
      AdvanceGaussNewton(state, sums, scratch, SingleLane());
    }
  }
  return absl::OkStatus();
}

}  // namespace cpu

absl::Status RunGaussNewton(const ExecContext& ctx, const AffineObjective& objective, int evaluations,
                            absl::Span<GaussNewtonState> states) {
  return INTRAWARP_DISPATCH(ctx, RunGaussNewton, objective, evaluations, states);
}

}  // namespace intrawarp
