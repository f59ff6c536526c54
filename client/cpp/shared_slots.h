// SPDX-License-Identifier: Apache-2.0
// SharedSlots: the client's end of a segment that a server on the same host shares with it (wire/shared_segment.h).
// Internal to the client library.
//
// Frame slots are used in turn, so that the next one is always the one that the server has had for the longest time.
//
// Thread safety: one thread fills frames (the members about frames) while another reads fields.
#ifndef INTRAWARP_CLIENT_CPP_SHARED_SLOTS_H_
#define INTRAWARP_CLIENT_CPP_SHARED_SLOTS_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "intrawarp/v1/registration.pb.h"
#include "wire/shared_segment.h"

namespace intrawarp::client {

class SharedSlots {
 public:
  // Fetches and maps the segment. Errors of wire::FetchSegment; INTERNAL when the server contradicts its offer.
  static absl::StatusOr<std::unique_ptr<SharedSlots>> Attach(const v1::SharedMemoryOffer& offer);
  // Lets go of fields that were not read.
  ~SharedSlots();
  SharedSlots(const SharedSlots&) = delete;
  SharedSlots& operator=(const SharedSlots&) = delete;

  const std::string& nonce() const { return nonce_; }

  // Whether a frame of so many bytes has room in a slot.
  bool Fits(int64_t bytes) const { return layout_.frame_slots > 0 && bytes <= layout_.frame_slot_bytes; }
  // Whether the next frame slot is ours. If not, waits for it, for 50 ms at most.
  bool IsFrameFree() const;
  void WaitForFrame() const;
  // The next frame slot, which is ours.
  char* frame() const { return mapping_.data() + layout_.frame_offset(next_frame_); }
  // The frame's place for its header. From now on it is the server's, and the one after it is the next.
  v1::SharedSlot SendFrame();

  // The bytes of a field; INTERNAL when they are not within a slot.
  absl::StatusOr<absl::Span<const char>> Field(const v1::FrameField& field) const;
  // The field was read: the slot is the server's again. DATA_LOSS when the server has taken the memory back meanwhile;
  // what was read is void then.
  absl::Status EndField(const v1::SharedSlot& slot);

 private:
  SharedSlots() = default;
  wire::SegmentHeader& header() const { return *reinterpret_cast<wire::SegmentHeader*>(mapping_.data()); }

  wire::SegmentLayout layout_;
  wire::Mapping mapping_;
  std::string nonce_;
  int next_frame_ = 0;
  std::array<uint64_t, wire::kMaxSharedSlots> sent_{};  // the generation that a frame slot was sent with
};

}  // namespace intrawarp::client

#endif  // INTRAWARP_CLIENT_CPP_SHARED_SLOTS_H_
