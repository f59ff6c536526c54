// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/device/cpu_device.h"
#include "engine/device/device.h"
#if INTRAWARP_WITH_CUDA
#include "engine/device/cuda_device.h"
#endif

namespace intrawarp {
namespace {

#if !INTRAWARP_WITH_CUDA
absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(int) {
  return absl::UnimplementedError("this build has no CUDA device");
}
int CudaDeviceCount() { return 0; }
#endif

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> OpenDevice(absl::string_view spec) {
  if (spec == "cpu") return OpenCpuDevice();
  if (spec == "cuda") return OpenCudaDevice(0);
  if (spec == "auto") {
    for (int i = 0; i < CudaDeviceCount(); ++i) {
      if (auto device = OpenCudaDevice(i); device.ok()) return device;
    }
    return OpenCpuDevice();
  }
  int ordinal = 0;
  absl::string_view number = spec;
  if (absl::ConsumePrefix(&number, "cuda:") && absl::SimpleAtoi(number, &ordinal)) return OpenCudaDevice(ordinal);
  return absl::InvalidArgumentError(absl::StrCat("device \"", spec, "\" is not auto, cpu, cuda or cuda:N"));
}

std::vector<std::unique_ptr<Device>> AllDevices() {
  std::vector<std::unique_ptr<Device>> devices;
  devices.push_back(OpenCpuDevice());
  for (int i = 0; i < CudaDeviceCount(); ++i) {
    if (auto device = OpenCudaDevice(i); device.ok()) devices.push_back(*std::move(device));
  }
  return devices;
}

}  // namespace intrawarp
