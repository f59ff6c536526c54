// SPDX-License-Identifier: Apache-2.0
#include "server/dimse/service_user.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/status_macros.h"

namespace intrawarp::dimse {
namespace {

constexpr std::chrono::milliseconds kLookPeriod{100};
// For the other side to end a request that was cancelled.
constexpr std::chrono::seconds kCancelGrace{3};

bool IsPending(uint16_t status) { return status == kPending || status == kPendingWithWarning; }

void Update(const Command& response, SubOperations& counts) {
  const auto update = [&](Tag tag, int64_t& to) { to = response.elements.Get16(tag).value_or(to); };
  update(kRemaining, counts.remaining);
  update(kCompleted, counts.completed);
  update(kFailed, counts.failed);
  update(kWarning, counts.warning);
  counts.status = response.status();
  if (!IsPending(counts.status) && !response.elements.Has(kRemaining)) counts.remaining = 0;
}

}  // namespace

std::string DescribeStatus(uint16_t status) {
  const char* words = "";
  switch (status) {
    case kSopClassNotSupported:
      words = " (the service is not supported)";
      break;
    case kNotAuthorized:
      words = " (not authorised)";
      break;
    case 0x0211:
      words = " (the operation is not known)";
      break;
    case kOutOfResources:
    case 0xa701:
    case 0xa702:
      words = " (out of resources)";
      break;
    case 0xa801:
      words = " (the destination is unknown)";
      break;
    case 0xa900:
      words = " (the identifier does not fit)";
      break;
    case 0xb000:
      words = " (sub-operations failed)";
      break;
    case kCancelled:
      words = " (cancelled)";
      break;
    default:
      if (status >> 12 == 0xc) words = " (unable to process)";
  }
  return absl::StrFormat("status 0x%04X%s", status, words);
}

// A request under way.
struct ServiceUser::Running {
  const Command& request;
  uint8_t context;
  const MatchFn& match;
  const StoreFn& store;
  const ProgressFn& progress;
  const RequestBounds& bounds;
  SubOperations& counts;
  Clock::time_point moved = Clock::now();  // the last sign of progress
  int64_t activity = 0;
  // The furthest that the counts have come.
  int64_t least_remaining = std::numeric_limits<int64_t>::max();
  int64_t most_completed = 0;
  // After C-CANCEL: why, and when patience ends.
  absl::Status ended = {};
  Clock::time_point grace = Clock::time_point::max();

  bool is_cancelled() const { return bounds.cancelled && bounds.cancelled(); }
  void NoteCounts() {
    if (counts.remaining < least_remaining || counts.completed > most_completed) moved = Clock::now();
    least_remaining = std::min(least_remaining, counts.remaining);
    most_completed = std::max(most_completed, counts.completed);
  }
};

absl::StatusOr<uint8_t> ServiceUser::ContextFor(const char* sop_class) const {
  const uint8_t context = association_.ContextOf(sop_class);
  if (context != 0) return context;
  return absl::FailedPreconditionError("association: the other side does not accept the service");
}

Command ServiceUser::RequestFor(uint16_t field, const char* sop_class, uint16_t id) const {
  Command request;
  request.field = field;
  request.message_id = id;
  request.elements.SetUid(kAffectedSopClass, sop_class);
  return request;
}

absl::Status ServiceUser::Echo(const RequestBounds& bounds) {
  const Command request = RequestFor(kEchoRequest, kVerificationClass, next_id_++);
  SubOperations counts;
  INTRAWARP_RETURN_IF_ERROR(Run(request, nullptr, nullptr, nullptr, nullptr, bounds, counts));
  if (counts.status == kSuccess) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("C-ECHO: ", DescribeStatus(counts.status)));
}

absl::Status ServiceUser::Find(const Elements& identifier, int64_t max_matches, const MatchFn& match,
                               const RequestBounds& bounds) {
  Command request = RequestFor(kFindRequest, kStudyRootFind, next_id_++);
  request.elements.Set16(kPriority, 0);
  SubOperations counts;
  int64_t matches = 0;
  const MatchFn bounded = [&](const Elements& found) -> absl::Status {
    if (++matches > max_matches) return absl::OutOfRangeError("there are more matches");
    return match(found);
  };
  INTRAWARP_RETURN_IF_ERROR(Run(request, &identifier, bounded, nullptr, nullptr, bounds, counts));
  if (counts.status == kSuccess) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("C-FIND: ", DescribeStatus(counts.status)));
}

absl::StatusOr<SubOperations> ServiceUser::Get(const Elements& identifier, const StoreFn& store,
                                               const ProgressFn& progress, const RequestBounds& bounds) {
  Command request = RequestFor(kGetRequest, kStudyRootGet, next_id_++);
  request.elements.Set16(kPriority, 0);
  SubOperations counts;
  INTRAWARP_RETURN_IF_ERROR(Run(request, &identifier, nullptr, store, progress, bounds, counts));
  return counts;
}

absl::StatusOr<SubOperations> ServiceUser::Move(const Elements& identifier, const std::string& destination, uint16_t id,
                                                const ProgressFn& progress, const RequestBounds& bounds) {
  Command request = RequestFor(kMoveRequest, kStudyRootMove, id);
  request.elements.Set16(kPriority, 0);
  request.elements.SetText(kMoveDestination, destination);
  SubOperations counts;
  INTRAWARP_RETURN_IF_ERROR(Run(request, &identifier, nullptr, nullptr, progress, bounds, counts));
  return counts;
}

absl::Status ServiceUser::Run(const Command& request, const Elements* identifier, const MatchFn& match,
                              const StoreFn& store, const ProgressFn& progress, const RequestBounds& bounds,
                              SubOperations& counts) {
  INTRAWARP_ASSIGN_OR_RETURN(const uint8_t context, ContextFor(request.elements.Text(kAffectedSopClass).c_str()));
  Running running{request, context, match, store, progress, bounds, counts};
  if (bounds.activity) running.activity = bounds.activity();
  Command sent = request;
  sent.has_data = identifier != nullptr;
  INTRAWARP_RETURN_IF_ERROR(association_.Send(context, sent, identifier == nullptr ? "" : identifier->Encode()));
  for (bool is_last = false; !is_last;) {
    ReceivedCommand received;
    INTRAWARP_RETURN_IF_ERROR(Next(running, received));
    INTRAWARP_RETURN_IF_ERROR(Take(running, received, &is_last));
  }
  return running.ended;
}

// Waits in slices, and looks between them.
absl::Status ServiceUser::Next(Running& running, ReceivedCommand& received) {
  const RequestBounds& bounds = running.bounds;
  Clock::time_point idle_since = Clock::now();
  for (;;) {
    const Clock::time_point now = Clock::now();
    const int64_t activity = bounds.activity ? bounds.activity() : 0;
    if (std::exchange(running.activity, activity) != activity) running.moved = idle_since = now;
    if (running.ended.ok() && running.is_cancelled()) {
      running.ended = absl::CancelledError("the request was cancelled");
      INTRAWARP_RETURN_IF_ERROR(SendCancel(running));
    }
    if (now >= running.grace) {
      association_.Abort(/*by_provider=*/false);
      return running.ended;
    }
    if (now >= bounds.end || now >= idle_since + bounds.idle || now >= running.moved + bounds.stalled) {
      association_.Abort(/*by_provider=*/false);
      return absl::DeadlineExceededError("the other side took too long");
    }
    const absl::Status ready = association_.WaitMessage(std::min(now + kLookPeriod, bounds.end));
    if (ready.ok()) break;
    if (!absl::IsDeadlineExceeded(ready)) return ready;
  }
  INTRAWARP_ASSIGN_OR_RETURN(received, association_.ReceiveCommand());
  return absl::OkStatus();
}

absl::Status ServiceUser::SendCancel(Running& running) {
  running.grace = Clock::now() + kCancelGrace;
  if (running.request.field == kEchoRequest) return absl::OkStatus();
  Command cancel;
  cancel.field = kCancelRequest;
  cancel.message_id = running.request.message_id;
  return association_.Send(running.context, cancel);
}

absl::Status ServiceUser::Broken(absl::string_view why) {
  association_.Abort(/*by_provider=*/true);
  return absl::InvalidArgumentError(absl::StrCat("command: ", why));
}

absl::Status ServiceUser::Take(Running& running, const ReceivedCommand& received, bool* is_last) {
  const Command& command = received.command;
  if (command.field == kStoreRequest && running.store) return TakeStore(running, received);
  if (command.field != (running.request.field | kResponse) || command.message_id != running.request.message_id ||
      received.context != running.context) {
    return Broken("is not an answer to the request");
  }
  Update(command, running.counts);
  *is_last = !IsPending(running.counts.status);
  if (running.match && !*is_last) return TakeMatch(running, received);
  // A list of the instances that failed may follow the last counts.
  if (command.has_data) {
    const auto ignore = [](absl::string_view) { return absl::OkStatus(); };
    INTRAWARP_RETURN_IF_ERROR(association_.ReceiveData(received.context, kMaxIdentifierBytes, ignore));
  }
  running.NoteCounts();
  if (running.progress) running.progress(running.counts);
  return absl::OkStatus();
}

absl::Status ServiceUser::TakeStore(Running& running, const ReceivedCommand& received) {
  const absl::Status taken = running.store(received);
  if (absl::IsInvalidArgument(taken)) association_.Abort(/*by_provider=*/true);
  INTRAWARP_RETURN_IF_ERROR(taken);
  running.moved = Clock::now();
  return absl::OkStatus();
}

absl::Status ServiceUser::TakeMatch(Running& running, const ReceivedCommand& received) {
  if (!received.command.has_data) return Broken("a match has no identifier");
  std::string bytes;
  INTRAWARP_RETURN_IF_ERROR(
      association_.ReceiveData(received.context, kMaxIdentifierBytes, [&](absl::string_view part) {
        absl::StrAppend(&bytes, part);
        return absl::OkStatus();
      }));
  const absl::StatusOr<Elements> identifier = Elements::Parse(bytes);
  if (!identifier.ok()) return Broken("an identifier cannot be read");
  running.moved = Clock::now();
  if (!running.ended.ok()) return absl::OkStatus();
  running.ended = running.match(*identifier);
  return running.ended.ok() ? absl::OkStatus() : SendCancel(running);
}

}  // namespace intrawarp::dimse
