// SPDX-License-Identifier: Apache-2.0
// What a registration without a method is about to cost on a CPU, which a user should know before the minutes pass. A
// rough model, fitted to a few pairs on one machine: docs/use/report.md has its figures. Thread-safe functions.
#ifndef INTRAWARP_CLIENT_CLI_REGISTRATION_COST_H_
#define INTRAWARP_CLIENT_CLI_REGISTRATION_COST_H_

#include <string>

#include "engine/geometry/geometry.h"
#include "intrawarp/v1/server.pb.h"

namespace intrawarp::cli {

// Seconds of CPU time of auto on images of this size: for a pair whose first deformation is the answer, and for a pair
// for which a search and further deformations are tried.
struct CpuSeconds {
  double least = 0, most = 0;
};
CpuSeconds AutoCpuSeconds(const Geometry& fixed);

// "cost: auto on the server's CPU ...", without a line end; empty where the server has another device than a CPU.
std::string CostLine(const v1::ServerInfo& server, const Geometry& fixed);

}  // namespace intrawarp::cli

#endif  // INTRAWARP_CLIENT_CLI_REGISTRATION_COST_H_
