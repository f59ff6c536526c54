// SPDX-License-Identifier: Apache-2.0
// The memory that a server shares with a client on its host (v1::SharedMemoryOffer): its layout, which both ends keep
// to, and the way of its descriptor from one to the other.
//
// The segment is a memfd that the server has made, sized and sealed: nobody can shrink it, grow it or change its seals,
// so that no access within it can fault for a peer's doing. It has no name in any file system, and goes with the last
// process that maps it, also after kill -9. Both ends map it whole. What either end writes there the other end
// distrusts: a word is read once, a frame is copied once and checked in the copy, and no size or place is ever taken
// from the segment.
//
// A page with the SegmentHeader comes first, then the frame slots, then the field slots, each a multiple of 4096 bytes.
//
// A frame slot. The client fills it, and sends a header with frame_generation of the slot. The server copies the bytes,
// then writes the next generation there (and wakes a FUTEX_WAIT on its lower half): the slot is the client's again.
//
// A field slot. The server fills it, writes a new generation to field_generation, then sends the header that names it.
// The client reads the bytes, then looks at field_generation: another number says that the server took the memory back
// meanwhile, and the bytes are void. It then writes the generation to field_released. A client that does so too early
// spoils its own fields, and one that never does gets its fields in chunks. When its stream ends well, fields that the
// client has not released stay for a few seconds.
//
// Functions are thread-safe; values are thread-compatible.
#ifndef INTRAWARP_WIRE_SHARED_SEGMENT_H_
#define INTRAWARP_WIRE_SHARED_SEGMENT_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace intrawarp::wire {

inline constexpr int kMaxSharedSlots = 16;
inline constexpr int64_t kSharedPage = 4096;
inline constexpr size_t kSharedTokenBytes = 16;
inline constexpr size_t kSharedNonceBytes = 16;
inline constexpr uint64_t kSharedMagic = 0x31676573'70726177;  // "warpseg1"

// Words of the two ends lie on cache lines of their own.
struct SegmentHeader {
  using Generations = std::array<std::atomic<uint64_t>, kMaxSharedSlots>;

  uint64_t magic;
  char nonce[kSharedNonceBytes];
  alignas(128) Generations frame_generation;  // the server's
  alignas(128) Generations field_generation;  // the server's; 0: no field
  alignas(128) Generations field_released;    // the client's
};
static_assert(sizeof(SegmentHeader) <= kSharedPage);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// How a segment is divided.
struct SegmentLayout {
  int frame_slots = 0;
  int field_slots = 0;
  // Multiples of kSharedPage.
  int64_t frame_slot_bytes = 0;
  int64_t field_slot_bytes = 0;

  int64_t frame_offset(int slot) const { return kSharedPage + slot * frame_slot_bytes; }
  int64_t fields_offset() const { return frame_offset(frame_slots); }
  int64_t field_offset(int slot) const { return fields_offset() + slot * field_slot_bytes; }
  int64_t total_bytes() const { return field_offset(field_slots); }
};

// `layout` with its slots rounded up to pages. INVALID_ARGUMENT for numbers of slots beyond 0 to kMaxSharedSlots, bytes
// below 1 where there are slots, and more than 2^46 bytes in all.
absl::StatusOr<SegmentLayout> RoundLayout(SegmentLayout layout);

// A mapped part of a descriptor's memory, faulted in at once.
class Mapping {
 public:
  Mapping() = default;
  // RESOURCE_EXHAUSTED when the system refuses.
  static absl::StatusOr<Mapping> Map(int fd, int64_t offset, int64_t bytes, bool writable);
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping();
  char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  char* data_ = nullptr;
  int64_t bytes_ = 0;
};

// Fetching a segment: over a SOCK_SEQPACKET connection the client sends a token, and gets one message: a byte, and with
// kGiven the descriptor.
enum class FetchAnswer : uint8_t { kGiven = 0, kUnknownToken = 1, kUserRefused = 2 };

// The server's side of it: does not wait. False when the client did not take it.
bool AnswerFetch(int connection, FetchAnswer answer, int fd);

// The client's side: the descriptor, which the caller closes. Waits at most some seconds. NOT_FOUND when there is no
// such socket here (another host, or another mount namespace), PERMISSION_DENIED when the user may not have it,
// FAILED_PRECONDITION for a token that the server does not know, UNAVAILABLE for everything else.
absl::StatusOr<int> FetchSegment(const std::string& socket_path, absl::string_view token);

// OK for a descriptor with the size of `layout` that is sealed against shrinking; otherwise INTERNAL.
absl::Status CheckSegment(int fd, const SegmentLayout& layout);

// Waits until the lower half of `word` differs from that of `seen`, for 50 ms at most.
void WaitForChange(const std::atomic<uint64_t>& word, uint64_t seen);
// Stores, and wakes who waits.
void StoreAndWake(std::atomic<uint64_t>& word, uint64_t value);

}  // namespace intrawarp::wire

#endif  // INTRAWARP_WIRE_SHARED_SEGMENT_H_
