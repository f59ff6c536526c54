// SPDX-License-Identifier: Apache-2.0
// Shifts a row of three voxels by one on the CPU device and prints it.
#include <cstdio>

#include "engine/device/device.h"
#include "engine/image/warp.h"

int main() {
  auto device = intrawarp::OpenDevice("cpu");
  auto context = device.ok() ? intrawarp::OwnedContext::Create(**device, 1 << 20) : device.status();
  const intrawarp::Geometry row{.size = {3, 1, 1}};
  auto shift = intrawarp::AffineMap::Identity();
  shift.m[0][3] = 1;
  const float in[3] = {1, 2, 3};
  float out[3] = {};
  const absl::Status status = !context.ok() ? context.status()
                                            : intrawarp::WarpAffine(context->context(), {in, row}, shift,
                                                                    intrawarp::Interpolation::kLinear, 0, {out, row});
  std::printf("%s %g %g %g\n", status.ToString().c_str(), out[0], out[1], out[2]);
  return status.ok() && out[0] == 2 && out[1] == 3 && out[2] == 0 ? 0 : 1;
}
