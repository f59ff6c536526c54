// SPDX-License-Identifier: Apache-2.0
#include "client/cli/registration_cost.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"

namespace intrawarp::cli {
namespace {

// The search of the start and the coarse levels, and what each voxel adds.
constexpr double kBaseSeconds = 1, kLeastVoxelSeconds = 6e-6, kMostVoxelSeconds = 16e-6;

// Two digits are one too many already.
double Rounded(double seconds) {
  const double unit = seconds < 10 ? 1 : seconds < 100 ? 5 : 50;
  return std::max(1.0, std::round(seconds / unit) * unit);
}

}  // namespace

CpuSeconds AutoCpuSeconds(const Geometry& fixed) {
  const auto voxels = static_cast<double>(fixed.voxels());
  return {kBaseSeconds + kLeastVoxelSeconds * voxels, kBaseSeconds + kMostVoxelSeconds * voxels};
}

std::string CostLine(const v1::ServerInfo& server, const Geometry& fixed) {
  if (server.devices_size() == 0 || server.devices(0).name() != "cpu") return "";
  const CpuSeconds seconds = AutoCpuSeconds(fixed);
  return absl::StrFormat(
      "cost: auto on the server's CPU, %dx%dx%d: some %g to %g s of CPU time, which its cores share; "
      "--method=affine or --budget_ms=N --best_effort take less",
      fixed.size.x, fixed.size.y, fixed.size.z, Rounded(seconds.least), Rounded(seconds.most));
}

}  // namespace intrawarp::cli
