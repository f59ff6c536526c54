// SPDX-License-Identifier: Apache-2.0
#include "client/cli/registration_cost.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"

namespace intrawarp::cli {
namespace {

// The seconds of an image of no size, and the seconds of each voxel. The least is the start, the affine trials and one
// deformation; the most has further deformations besides, and the discrete search, whose nodes are as many in a volume
// of any size.
constexpr CpuSeconds kBase = {1, 7}, kVoxel = {5e-6, 21e-6};

// Two digits are one too many already.
double Rounded(double seconds) {
  const double unit = seconds < 10 ? 1 : seconds < 100 ? 5 : 50;
  return std::max(1.0, std::round(seconds / unit) * unit);
}

}  // namespace

CpuSeconds AutoCpuSeconds(const Geometry& fixed) {
  const auto voxels = static_cast<double>(fixed.voxels());
  const double most = fixed.is_2d() ? kBase.least : kBase.most;
  return {kBase.least + kVoxel.least * voxels, most + kVoxel.most * voxels};
}

std::string CostLine(const v1::ServerInfo& server, const Geometry& fixed) {
  if (server.devices_size() == 0 || server.devices(0).name() != "cpu") return "";
  const CpuSeconds seconds = AutoCpuSeconds(fixed);
  const double least = Rounded(seconds.least), most = Rounded(seconds.most);
  const std::string range = least < most ? absl::StrFormat("%g to %g", least, most) : absl::StrFormat("%g", most);
  return absl::StrFormat(
      "cost: auto on the server's CPU, %dx%dx%d: some %s s of CPU time, which its cores share; "
      "--method=affine or --budget_ms=N --best_effort take less",
      fixed.size.x, fixed.size.y, fixed.size.z, range);
}

}  // namespace intrawarp::cli
