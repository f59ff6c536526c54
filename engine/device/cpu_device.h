// SPDX-License-Identifier: Apache-2.0
#ifndef INTRAWARP_ENGINE_DEVICE_CPU_DEVICE_H_
#define INTRAWARP_ENGINE_DEVICE_CPU_DEVICE_H_

#include <memory>

#include "engine/device/device.h"

namespace intrawarp {

std::unique_ptr<Device> OpenCpuDevice();

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_DEVICE_CPU_DEVICE_H_
