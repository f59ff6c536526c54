// SPDX-License-Identifier: Apache-2.0
// SlabSource: where the bytes of a DeviceBulk come from, slab by slab. Slabs begin at multiples of slab_bytes(), and
// each is made as a whole, so that the bytes do not depend on where a stream begins.
#ifndef INTRAWARP_SERVER_BULK_SLAB_SOURCE_H_
#define INTRAWARP_SERVER_BULK_SLAB_SOURCE_H_

#include <cstdint>
#include <memory>
#include <mutex>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/schedule/latency.h"
#include "engine/transform/transform.h"
#include "server/bulk/device_bytes.h"
#include "server/bulk/field_request.h"
#include "server/ledger/ledger.h"

namespace intrawarp::server {

// Thread-compatible: one slab is read at a time.
class SlabSource {
 public:
  virtual ~SlabSource() = default;
  int64_t total_bytes() const { return total_bytes_; }
  int64_t slab_bytes() const { return slab_bytes_; }
  // Brings the slab [begin, begin + bytes) to host memory. Enqueues in the stream of `ctx`, whose arena is not used.
  virtual absl::Status Read(const ExecContext& ctx, int64_t begin, int64_t bytes, void* to) = 0;

 protected:
  SlabSource(int64_t total_bytes, int64_t slab_bytes) : total_bytes_(total_bytes), slab_bytes_(slab_bytes) {}

 private:
  const int64_t total_bytes_;
  const int64_t slab_bytes_;
};

// Where the bytes lie, and who keeps them there.
struct ResidentBytes {
  std::shared_ptr<const void> owner;
  DeviceBytes bytes;
};

// Bytes that lie on the device.
class ResidentSource final : public SlabSource {
 public:
  // A slab takes a GPU some tenths of a millisecond, and 10 Gbit/s three.
  static constexpr int64_t kSlabBytes = int64_t{4} << 20;

  explicit ResidentSource(ResidentBytes from);
  absl::Status Read(const ExecContext& ctx, int64_t begin, int64_t bytes, void* to) override;

 private:
  const ResidentBytes from_;
};

// A field or velocity that is evaluated on its way. Its memory on the device is that of the transform and of scratch
// for one slab.
class FieldSource final : public SlabSource {
 public:
  static int64_t SlabBytes(const FieldRequest& request);
  // Device memory that the source takes beside the transform.
  static int64_t ScratchBytes(const Device& device, const FieldRequest& request, const Geometry& grid);

  // `answer` is MakeFieldAnswer's for `request`, and no control points. `owner` keeps the transform's memory accounted;
  // `grant` holds ScratchBytes resident, which the source takes. Allocates in the stream of `ctx`, which must outlive
  // the source, and synchronises it, so that the transform is complete for every other stream.
  static absl::StatusOr<std::unique_ptr<FieldSource>> Create(const ExecContext& ctx, const FieldRequest& request,
                                                             Transform transform, std::shared_ptr<const void> owner,
                                                             FieldAnswer answer, Grant& grant);
  // Waits for the stream.
  absl::Status Read(const ExecContext& ctx, int64_t begin, int64_t bytes, void* to) override;
  // The time that Read took so far, as encode (evaluation) and download.
  LatencyBreakdown latency() const;

 private:
  // Member order matters: memory is freed before it is given back.
  struct Scratch {
    Grant grant;
    Buffer memory;
  };
  FieldSource(const FieldRequest& request, Transform transform, std::shared_ptr<const void> owner, FieldAnswer answer,
              Scratch scratch);
  absl::Status Evaluate(const ExecContext& ctx, int64_t first, int64_t count, float* values) const;

  // Member order matters: the transform's memory is freed before its owner lets go.
  const std::shared_ptr<const void> owner_;
  const Transform transform_;
  const FieldAnswer answer_;
  const int64_t voxel_bytes_;
  const Scratch scratch_;
  mutable std::mutex mutex_;
  LatencyBreakdown latency_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_BULK_SLAB_SOURCE_H_
