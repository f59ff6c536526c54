// SPDX-License-Identifier: Apache-2.0
#include "engine/metric/ffd_bricks.h"

namespace intrawarp::cpu {

FfdRows::FfdRows(const FfdObjective& objective_in, const FfdPlan& plan_in)
    : objective(objective_in),
      plan(plan_in),
      weighted(MaskingOf(objective.fixed_mask, objective.moving_mask) == Masking::kWeighted),
      size(objective.fixed.geometry.size),
      nodes(objective.grid.size),
      stride(RowStride(size.x)),
      bricks(objective.fixed.geometry, objective.grid) {
  const AxisWeights& x = plan.axis[0];
  const int rounded = RoundedRow(size.x);
  x_base.assign(rounded, x.base.back());
  std::copy(x.base.begin(), x.base.end(), x_base.begin());
  for (int k = 0; k < 4; ++k) {
    x_weights[k].assign(rounded, 0.0f);
    for (int i = 0; i < size.x; ++i) x_weights[k][i] = x.weights[4 * i + k];
  }

  x_begin.assign(nodes.x, size.x);
  std::vector<int> end(nodes.x, 0);
  for (int i = 0; i < size.x; ++i) {
    for (int k = 0; k < x.taps; ++k) {
      const int node = x.base[i] + k;
      x_begin[node] = std::min(x_begin[node], i);
      end[node] = i + 1;
    }
  }
  x_count.assign(nodes.x, 0);
  for (int node = 0; node < nodes.x; ++node) {
    x_count[node] = RoundedRow(std::max(0, end[node] - x_begin[node]));
    x_span = std::max(x_span, x_count[node]);
  }
  x_support.assign(int64_t{x_span} * nodes.x, 0.0f);
  for (int i = 0; i < size.x; ++i) {
    for (int k = 0; k < x.taps; ++k) {
      const int node = x.base[i] + k;
      x_support[int64_t{x_span} * node + i - x_begin[node]] = x.weights[4 * i + k];
    }
  }
}

}  // namespace intrawarp::cpu
