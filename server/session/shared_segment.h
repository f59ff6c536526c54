// SPDX-License-Identifier: Apache-2.0
// SharedSegment: the server's end of a segment (wire/shared_segment.h): one stream's frame and field slots.
//
// A memfd and not shm_open, since it has no name that a crash could leave or a third process could open, and since
// seals keep its size: a client that holds a descriptor cannot truncate the memory under the server (SIGBUS), nor add a
// seal that would keep the server from taking the memory back. The server maps the frames read-only.
//
// A client can write to any byte at any time. So the server keeps its own generations and states, reads one
// word of the client's (field_released) once where it needs it, copies a frame once, and reads nothing back that it has
// written to a field. The worst that a client reaches is its own wrong frames and fields.
//
// The memory is the ledger's pinned memory of the session's share. It is taken at once (no page is missing later), and
// given back by punching it out of the memfd when the last user here is gone: a client that keeps its mapping keeps
// empty pages, and those that it touches then are its own.
//
// Thread safety: safe for concurrent use, but for CopyFrame, which one thread at a time calls.
#ifndef INTRAWARP_SERVER_SESSION_SHARED_SEGMENT_H_
#define INTRAWARP_SERVER_SESSION_SHARED_SEGMENT_H_

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "intrawarp/v1/registration.pb.h"
#include "server/base/tcp_listener.h"
#include "server/ledger/ledger.h"
#include "wire/shared_segment.h"

namespace intrawarp::server {

class SessionMetrics;

class SharedSegment : public std::enable_shared_from_this<SharedSegment> {
 public:
  // A slot that the server writes a field into. Given back when it goes, unless it was published.
  struct Field {
    std::shared_ptr<char> memory;
    int slot = 0;
    uint64_t generation = 0;
  };

  // `layout` is RoundLayout's, and `grant` holds its total_bytes pinned. `nonce`: kSharedNonceBytes. `metrics` outlive
  // the segment. FAILED_PRECONDITION (SHARED_MEMORY_UNAVAILABLE) when the system has no such memory, or not as much.
  static absl::StatusOr<std::shared_ptr<SharedSegment>> Create(const wire::SegmentLayout& layout, std::string nonce,
                                                               Grant grant, const SessionMetrics& metrics);
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  const wire::SegmentLayout& layout() const { return layout_; }
  const std::string& nonce() const { return nonce_; }
  // Stays the segment's.
  int fd() const { return fd_.get(); }

  // OK for a frame slot that exists, with the generation that it has now. INVALID_ARGUMENT names "frame.slot.slot" or
  // "frame.slot.generation".
  absl::Status CheckFrame(const v1::SharedSlot& slot) const;
  // Copies `bytes` bytes of a slot that CheckFrame has passed, on all cores, and answers the checksum of the copy.
  // INVALID_ARGUMENT "frame.slot.slot" when the slot is too small, DATA_LOSS (CHUNK_CHECKSUM) "frame.slot.crc32c" when
  // the client named another checksum.
  absl::StatusOr<uint32_t> CopyFrame(const v1::SharedSlot& slot, int64_t bytes, void* to) const;
  // The slot is the client's again.
  void FrameTaken(int slot);

  // A slot for a field of so many bytes that neither end uses; null, which is counted, when there is none.
  std::shared_ptr<Field> TakeField(int64_t bytes);
  // The field is whole, and the client's until it lets go of the slot.
  v1::SharedSlot Publish(const Field& field, int64_t bytes);

  struct Use {
    int64_t bytes = 0;
    int64_t field_slots = 0;
    int64_t field_slots_in_use = 0;
  };
  Use use() const;

 private:
  enum class Holder { kNobody, kServer, kClient };
  struct FieldSlot {
    Holder holder = Holder::kNobody;
    uint64_t generation = 0;
  };

  SharedSegment(const wire::SegmentLayout& layout, std::string nonce, Grant grant, const SessionMetrics& metrics)
      : layout_(layout), nonce_(std::move(nonce)), grant_(std::move(grant)), metrics_(metrics) {}
  absl::Status Make();
  wire::SegmentHeader& header() const { return *reinterpret_cast<wire::SegmentHeader*>(header_.data()); }
  bool IsFree(int slot) const;
  void GiveBack(int slot, uint64_t generation);

  const wire::SegmentLayout layout_;
  const std::string nonce_;
  // Member order matters: memory goes before it is given back.
  const Grant grant_;
  const SessionMetrics& metrics_;
  Fd fd_;
  wire::Mapping header_, frames_, fields_;

  mutable std::mutex mutex_;
  std::array<uint64_t, wire::kMaxSharedSlots> frame_generation_{};
  std::array<FieldSlot, wire::kMaxSharedSlots> field_slots_{};
};

// Whether this system can make segments; FAILED_PRECONDITION says why not.
absl::Status CheckSharedMemory();

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_SESSION_SHARED_SEGMENT_H_
