// SPDX-License-Identifier: Apache-2.0
// The scenarios of interference_bench. Each prints rows into the site's report and returns when it is over.
#ifndef INTRAWARP_TESTS_BENCH_INTERFERENCE_SCENARIOS_H_
#define INTRAWARP_TESTS_BENCH_INTERFERENCE_SCENARIOS_H_

#include "absl/status/status.h"
#include "tests/bench/interference/site.h"

namespace intrawarp::bench {

// Frames alone and under each flood, and the floods with and without frames.
absl::Status RunFramesScenario(Site& site);
// Sessions at a rate, one more each time, until more than one frame of a hundred is late.
absl::Status RunCapacityScenario(Site& site);
// Registrations that arrive at random, at parts and multiples of what the server can do.
absl::Status RunOverloadScenario(Site& site);
// What a client waits for beyond the device's time, by the form of the field, beside plain copies of the frame's bytes.
absl::Status RunOverheadScenario(Site& site);
// Random clients of all kinds, and whether memory, descriptors or threads grow.
absl::Status RunSoakScenario(Site& site);

}  // namespace intrawarp::bench

#endif  // INTRAWARP_TESTS_BENCH_INTERFERENCE_SCENARIOS_H_
