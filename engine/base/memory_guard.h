// SPDX-License-Identifier: Apache-2.0
// Memory that a library or a container could not get, as a status.
#ifndef INTRAWARP_ENGINE_BASE_MEMORY_GUARD_H_
#define INTRAWARP_ENGINE_BASE_MEMORY_GUARD_H_

#include <new>
#include <stdexcept>

#include "absl/status/status.h"

namespace intrawarp {

inline absl::Status OutOfMemory() { return absl::ResourceExhaustedError("memory: there is not enough of it"); }

// The result of `run`, which returns a Status or a StatusOr; OutOfMemory() where an allocation in it fails.
template <typename Run>
auto GuardMemory(const Run& run) -> decltype(run()) {
  try {
    return run();
  } catch (const std::bad_alloc&) {
    return OutOfMemory();
  } catch (const std::length_error&) {
    return OutOfMemory();
  }
}

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_BASE_MEMORY_GUARD_H_
