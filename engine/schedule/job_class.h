// SPDX-License-Identifier: Apache-2.0
// JobClass: whose work goes first on a device.
#ifndef INTRAWARP_ENGINE_SCHEDULE_JOB_CLASS_H_
#define INTRAWARP_ENGINE_SCHEDULE_JOB_CLASS_H_

#include <array>

namespace intrawarp {

// In the order of precedence.
enum class JobClass { kFrame, kInteractive, kBatch };
inline constexpr int kJobClasses = 3;
inline constexpr std::array<const char*, kJobClasses> kJobClassNames = {"frame", "interactive", "batch"};

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_SCHEDULE_JOB_CLASS_H_
