// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/shared_slots.h"

#include <unistd.h>

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "engine/base/status_macros.h"

namespace intrawarp::client {
namespace {

absl::Status Contradiction() { return absl::InternalError("shared memory: the server contradicts its offer"); }

}  // namespace

absl::StatusOr<std::unique_ptr<SharedSlots>> SharedSlots::Attach(const v1::SharedMemoryOffer& offer) {
  std::unique_ptr<SharedSlots> slots(new SharedSlots());
  const v1::SharedMemoryRequest& of = offer.slots();
  const wire::SegmentLayout announced{of.frame_slots(), of.field_slots(), of.frame_slot_bytes(), of.field_slot_bytes()};
  const absl::StatusOr<wire::SegmentLayout> layout = wire::RoundLayout(announced);
  if (!layout.ok() || layout->total_bytes() != announced.total_bytes()) return Contradiction();
  slots->layout_ = *layout;
  INTRAWARP_ASSIGN_OR_RETURN(const int fd, wire::FetchSegment(offer.socket(), offer.token()));
  const auto closes = absl::MakeCleanup([fd] { close(fd); });
  INTRAWARP_RETURN_IF_ERROR(wire::CheckSegment(fd, *layout));
  INTRAWARP_ASSIGN_OR_RETURN(slots->mapping_, wire::Mapping::Map(fd, 0, layout->total_bytes(), /*writable=*/true));
  if (slots->header().magic != wire::kSharedMagic) return Contradiction();
  slots->nonce_.assign(slots->header().nonce, wire::kSharedNonceBytes);
  return slots;
}

SharedSlots::~SharedSlots() {
  if (mapping_.data() == nullptr) return;
  for (int slot = 0; slot < layout_.field_slots; ++slot) {
    header().field_released[slot] = header().field_generation[slot].load();
  }
}

bool SharedSlots::IsFrameFree() const {
  return header().frame_generation[next_frame_].load(std::memory_order_acquire) != sent_[next_frame_];
}

void SharedSlots::WaitForFrame() const {
  if (!IsFrameFree()) wire::WaitForChange(header().frame_generation[next_frame_], sent_[next_frame_]);
}

v1::SharedSlot SharedSlots::SendFrame() {
  const int slot = next_frame_;
  next_frame_ = (slot + 1) % layout_.frame_slots;
  sent_[slot] = header().frame_generation[slot].load(std::memory_order_acquire);
  v1::SharedSlot to;
  to.set_slot(slot);
  to.set_generation(sent_[slot]);
  return to;
}

absl::StatusOr<absl::Span<const char>> SharedSlots::Field(const v1::FrameField& field) const {
  const int slot = field.slot().slot();
  const int64_t bytes = field.field().total_bytes();
  const bool is_slot = slot >= 0 && slot < layout_.field_slots;
  if (!is_slot || bytes < 0 || bytes > layout_.field_slot_bytes) return Contradiction();
  return absl::MakeConstSpan(mapping_.data() + layout_.field_offset(slot), static_cast<size_t>(bytes));
}

absl::Status SharedSlots::EndField(const v1::SharedSlot& slot) {
  // The reads before this end before the server's word is read.
  std::atomic_thread_fence(std::memory_order_acquire);
  const uint64_t generation = header().field_generation[slot.slot()].load(std::memory_order_relaxed);
  if (generation != slot.generation()) {
    return absl::DataLossError("shared memory: the server took the memory back while a field was read");
  }
  header().field_released[slot.slot()].store(slot.generation(), std::memory_order_release);
  return absl::OkStatus();
}

}  // namespace intrawarp::client
