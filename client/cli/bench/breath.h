// SPDX-License-Identifier: Apache-2.0
// The images of one client of a load: the phantom at rest, which becomes resident, and the frames of a breath.
// Equal arguments give equal bytes. Immutable, so thread-safe.
#ifndef INTRAWARP_CLIENT_CLI_BENCH_BREATH_H_
#define INTRAWARP_CLIENT_CLI_BENCH_BREATH_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "io/format/nifti.h"

namespace intrawarp::cli::bench {

class Breath {
 public:
  // `size` voxels along each axis, over 320 mm. The abdominal wall moves by up to 15 mm in a breath of 12 frames.
  // INVALID_ARGUMENT for a size below 16.
  static absl::StatusOr<Breath> Make(int size, uint32_t seed);
  // The bytes that Make takes for a size.
  static int64_t Bytes(int size);

  // At rest: the moving image.
  const io::HostVolume& rest() const { return rest_; }
  // The fixed image of a frame, counted from 0; breathing out shows the images of breathing in again.
  const io::HostVolume& Frame(int64_t number) const;
  // The deepest breath.
  const io::HostVolume& deepest() const { return phases_.back(); }

 private:
  io::HostVolume rest_;
  std::vector<io::HostVolume> phases_;
};

absl::string_view BytesOf(const io::HostVolume& volume);

}  // namespace intrawarp::cli::bench

#endif  // INTRAWARP_CLIENT_CLI_BENCH_BREATH_H_
