// SPDX-License-Identifier: Apache-2.0
// What the machine sets for moving a frame: the same bytes through a plain loopback TCP connection, through the
// checksum of a chunk, and through memcpy.
#ifndef INTRAWARP_TESTS_BENCH_INTERFERENCE_LOOPBACK_H_
#define INTRAWARP_TESTS_BENCH_INTERFERENCE_LOOPBACK_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace intrawarp::bench {

// ms, medians of some repetitions.
struct MovingFloors {
  double tcp = 0;     // from the first write to the receiver's last byte, in 1 MiB writes
  double crc32c = 0;  // one pass
  double copy = 0;    // one pass between warm buffers
};

absl::StatusOr<MovingFloors> MeasureFloors(absl::string_view bytes);

}  // namespace intrawarp::bench

#endif  // INTRAWARP_TESTS_BENCH_INTERFERENCE_LOOPBACK_H_
