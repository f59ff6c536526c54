// SPDX-License-Identifier: Apache-2.0
// Waiting for a condition that another thread or process brings about.
#ifndef INTRAWARP_TESTS_SUPPORT_EVENTUALLY_H_
#define INTRAWARP_TESTS_SUPPORT_EVENTUALLY_H_

#include <functional>

namespace intrawarp {

// Asks until the condition holds, and says whether it did within two minutes. The limit guards against a hang and is
// not a claim on time: under a sanitizer, on a busy machine, a job of the larger tests takes half a minute. The pause
// between two questions grows from a millisecond to 20 ms. Thread-safe if the condition is.
bool Eventually(const std::function<bool()>& condition);

}  // namespace intrawarp

#endif  // INTRAWARP_TESTS_SUPPORT_EVENTUALLY_H_
