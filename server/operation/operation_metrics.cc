// SPDX-License-Identifier: Apache-2.0
#include "server/operation/operation_metrics.h"

#include <string>

namespace intrawarp::server {

OperationMetrics::OperationMetrics(Registry& registry)
    : operations_(registry.Gauges("intrawarp_operations", "Operations that are remembered, by kind and state.",
                                  {"kind", "state"})) {
  Set({});
}

void OperationMetrics::Set(const OperationCounts& counts) const {
  for (size_t kind = 0; kind < kOperationKinds.size(); ++kind) {
    for (size_t state = 0; state < kOperationStates.size(); ++state) {
      operations_.With({std::string(NameOf(kOperationKinds[kind])), std::string(NameOf(kOperationStates[state]))})
          .Set(static_cast<double>(counts[kind][state]));
    }
  }
}

}  // namespace intrawarp::server
