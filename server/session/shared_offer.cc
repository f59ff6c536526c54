// SPDX-License-Identifier: Apache-2.0
#include "server/session/shared_offer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "server/context/limits.h"
#include "server/session/session_store.h"
#include "server/session/shared_memory.h"
#include "server/status/errors.h"

namespace intrawarp::server {
namespace {

absl::StatusOr<int> Slots(bool is_given, int given, int otherwise, absl::string_view path) {
  if (!is_given) return std::min(otherwise, wire::kMaxSharedSlots);
  if (given >= 0 && given <= wire::kMaxSharedSlots) return given;
  return InvalidField(path, absl::StrCat("is ", given, ", must be 0 to ", wire::kMaxSharedSlots));
}

absl::StatusOr<int64_t> SlotBytes(bool is_given, int64_t given, int64_t otherwise, int64_t most,
                                  absl::string_view path) {
  const int64_t bytes = is_given ? given : otherwise;
  if (bytes >= 1 && bytes <= most) return bytes;
  return InvalidField(path, absl::StrCat("is ", bytes, ", must be 1 to ", most));
}

absl::StatusOr<wire::SegmentLayout> LayoutFor(const ServerContext& context, const SessionSetup& setup,
                                              const v1::SharedMemoryRequest& request) {
  // A frame that the client fills while the others wait or run; a field that the server fills while the client reads
  // one.
  const int unanswered = setup.max_pending + 1;
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t field_bytes, ExpectedFieldBytes(setup));
  const int fields = field_bytes == 0 ? 0 : unanswered * (setup.coarse_field ? 2 : 1) + 1;
  const int64_t most = context.limits.max_volume_bytes;
  wire::SegmentLayout layout;
  INTRAWARP_ASSIGN_OR_RETURN(layout.frame_slots,
                             Slots(request.has_frame_slots(), request.frame_slots(), unanswered + 1, "frame_slots"));
  INTRAWARP_ASSIGN_OR_RETURN(layout.field_slots,
                             Slots(request.has_field_slots(), request.field_slots(), fields, "field_slots"));
  if (layout.frame_slots + layout.field_slots == 0) return InvalidField("frame_slots", "no slot is asked for");
  if (layout.frame_slots > 0) {
    INTRAWARP_ASSIGN_OR_RETURN(layout.frame_slot_bytes,
                               SlotBytes(request.has_frame_slot_bytes(), request.frame_slot_bytes(),
                                         setup.expected.bytes, most, "frame_slot_bytes"));
  }
  if (layout.field_slots > 0) {
    if (!setup.field) return InvalidField("field_slots", "the session has no fields");
    INTRAWARP_ASSIGN_OR_RETURN(layout.field_slot_bytes,
                               SlotBytes(request.has_field_slot_bytes(), request.field_slot_bytes(), field_bytes,
                                         3 * most, "field_slot_bytes"));
  }
  return wire::RoundLayout(layout);
}

}  // namespace

absl::StatusOr<SharedOffer> MakeSharedOffer(ServerContext& context, const NavigateSession& session,
                                            const v1::SharedMemoryRequest& request) {
  SharedMemory* const memory = context.sessions.shared_memory();
  if (memory == nullptr) {
    return WithReason(absl::FailedPreconditionError("the server shares no memory (intrawarpd --shared_memory)"),
                      v1::SHARED_MEMORY_UNAVAILABLE);
  }
  INTRAWARP_ASSIGN_OR_RETURN(const wire::SegmentLayout layout, LayoutFor(context, session.setup(), request));
  SharedOffer made;
  INTRAWARP_ASSIGN_OR_RETURN(made.segment, memory->NewSegment(context, layout, session.owner()));
  v1::SharedMemoryOffer& offer = made.offer;
  offer.mutable_status();
  offer.set_socket(memory->socket());
  offer.set_token(memory->Offer(context.seams, made.segment));
  v1::SharedMemoryRequest& slots = *offer.mutable_slots();
  slots.set_frame_slots(layout.frame_slots);
  slots.set_field_slots(layout.field_slots);
  slots.set_frame_slot_bytes(layout.frame_slot_bytes);
  slots.set_field_slot_bytes(layout.field_slot_bytes);
  offer.set_segment_bytes(layout.total_bytes());
  return made;
}

}  // namespace intrawarp::server
