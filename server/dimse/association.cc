// SPDX-License-Identifier: Apache-2.0
#include "server/dimse/association.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace intrawarp::dimse {
namespace {

using std::chrono::milliseconds;

// Where the other side sets no bound.
constexpr size_t kMaxSentBytes = 256 << 10;
constexpr size_t kLeastSentBytes = 1024;

// When a message that began then and has so many bytes must have moved on.
Clock::time_point EndOfPatience(Clock::time_point begin, int64_t bytes, milliseconds progress) {
  return begin + progress + milliseconds(bytes * 1000 / kLeastRate);
}

// The end of the connection between units is an end without a release.
absl::Status Lost(const absl::Status& status) {
  if (!absl::IsOutOfRange(status) && !absl::IsUnavailable(status)) return status;
  return absl::AbortedError("the connection broke");
}

absl::Status Rejected(const AssociateReject& reject) {
  const std::string why = absl::StrCat("association: rejected (source ", reject.source, ", reason ", reject.reason,
                                       reject.transient ? ", transient)" : ")");
  if (reject.transient) return absl::UnavailableError(why);
  const bool knows_us_not = reject.source == kCallingAeUnknown.source &&
                            (reject.reason == kCallingAeUnknown.reason || reject.reason == kCalledAeUnknown.reason);
  return knows_us_not ? absl::PermissionDeniedError(why) : absl::FailedPreconditionError(why);
}

}  // namespace

absl::StatusOr<Association::Unit> Association::ReadUnit(Connection& connection, Clock::time_point first,
                                                        const Patience& patience, size_t max_bytes) {
  const absl::Status ready = connection.WaitReadable(first);
  if (!ready.ok()) return Lost(ready);
  const Clock::time_point end = Clock::now() + patience.progress;
  char header[kPduHeaderBytes];
  absl::Status read = connection.Read(header, sizeof(header), end);
  if (!read.ok()) return Lost(read);
  size_t size = 0;
  for (size_t i = 2; i < kPduHeaderBytes; ++i) size = size << 8 | static_cast<uint8_t>(header[i]);
  if (size > max_bytes) return absl::InvalidArgumentError("pdu: is larger than was agreed");
  Unit unit;
  unit.type = static_cast<PduType>(header[0]);
  unit.body.resize(size);
  read = connection.Read(unit.body.data(), size, end);
  if (!read.ok()) return Lost(read);
  return unit;
}

absl::StatusOr<std::unique_ptr<Association>> Association::Accept(std::shared_ptr<Connection> connection,
                                                                 const Patience& patience, const DecideFn& decide) {
  std::unique_ptr<Association> association(new Association(std::move(connection), patience));
  Connection& to = *association->connection_;
  const Clock::time_point end = Clock::now() + patience.progress;
  absl::StatusOr<Unit> unit = ReadUnit(to, end, patience, kMaxNegotiationBytes);
  if (!unit.ok()) return association->Fail(unit.status());
  if (unit->type != PduType::kAssociateRequest) {
    return association->Fail(absl::InvalidArgumentError("pdu: is not a request for an association"));
  }
  const absl::StatusOr<AssociateRequest> request = ParseAssociateRequest(unit->body);
  if (!request.ok()) return association->Fail(request.status());
  const Answer answer = decide(*request);
  if (!answer.accepted) {
    (void)to.Write(EncodeAssociateReject(answer.reject), end);
    to.Close(Clock::now() + std::chrono::seconds(1));
    return absl::FailedPreconditionError("the association was rejected");
  }
  INTRAWARP_RETURN_IF_ERROR(
      to.Write(EncodeAssociateAccept(answer.accept, request->called_ae, request->calling_ae), end));
  for (const AnsweredContext& context : answer.accept.contexts) {
    if (context.result != ContextResult::kAccepted) continue;
    const auto asked = std::find_if(request->contexts.begin(), request->contexts.end(),
                                    [&](const PresentationContext& c) { return c.id == context.id; });
    association->contexts_[context.id] = {asked->abstract_syntax, context.transfer_syntax};
  }
  if (request->max_pdu_bytes > 0) {
    association->max_sent_bytes_ = std::clamp<size_t>(request->max_pdu_bytes, kLeastSentBytes, kMaxSentBytes);
  }
  return association;
}

absl::StatusOr<std::unique_ptr<Association>> Association::Request(std::shared_ptr<Connection> connection,
                                                                  const Patience& patience,
                                                                  const AssociateRequest& request) {
  std::unique_ptr<Association> association(new Association(std::move(connection), patience));
  Connection& to = *association->connection_;
  const Clock::time_point end = Clock::now() + patience.progress;
  INTRAWARP_RETURN_IF_ERROR(to.Write(EncodeAssociateRequest(request), end));
  absl::StatusOr<Unit> unit = ReadUnit(to, end, patience, kMaxNegotiationBytes);
  if (!unit.ok()) return association->Fail(unit.status());
  if (unit->type == PduType::kAssociateReject) {
    const absl::StatusOr<AssociateReject> reject = ParseAssociateReject(unit->body);
    if (!reject.ok()) return reject.status();
    return Rejected(*reject);
  }
  if (unit->type != PduType::kAssociateAccept) {
    return association->Fail(absl::InvalidArgumentError("pdu: is not an answer to a request"));
  }
  const absl::StatusOr<AssociateAccept> accept = ParseAssociateAccept(unit->body);
  if (!accept.ok()) return association->Fail(accept.status());
  for (const AnsweredContext& context : accept->contexts) {
    const auto asked = std::find_if(request.contexts.begin(), request.contexts.end(),
                                    [&](const PresentationContext& c) { return c.id == context.id; });
    if (context.result != ContextResult::kAccepted || asked == request.contexts.end()) continue;
    if (std::count(asked->transfer_syntaxes.begin(), asked->transfer_syntaxes.end(), context.transfer_syntax) == 0) {
      return association->Fail(absl::InvalidArgumentError("pdu: accepts a transfer syntax that was not proposed"));
    }
    association->contexts_[context.id] = {asked->abstract_syntax, context.transfer_syntax};
  }
  for (const RoleSelection& role : accept->roles) {
    const auto asked = std::find_if(request.roles.begin(), request.roles.end(),
                                    [&](const RoleSelection& r) { return r.sop_class == role.sop_class; });
    if (asked != request.roles.end() && asked->scp && role.scp) association->provided_.insert(role.sop_class);
  }
  if (association->contexts_.empty()) {
    association->Release();
    return absl::FailedPreconditionError("association: the other side accepts none of the services");
  }
  if (accept->max_pdu_bytes > 0) {
    association->max_sent_bytes_ = std::clamp<size_t>(accept->max_pdu_bytes, kLeastSentBytes, kMaxSentBytes);
  }
  return association;
}

uint8_t Association::ContextOf(absl::string_view abstract_syntax) const {
  for (const auto& [id, context] : contexts_) {
    if (context.abstract_syntax == abstract_syntax) return id;
  }
  return 0;
}

absl::Status Association::Fail(const absl::Status& status) {
  if (absl::IsInvalidArgument(status) || absl::IsResourceExhausted(status)) Abort(/*by_provider=*/true);
  if (absl::IsDeadlineExceeded(status)) Abort(/*by_provider=*/false);
  return status;
}

absl::Status Association::ReceiveUnit(Clock::time_point first) {
  fragments_.clear();
  next_ = 0;
  absl::StatusOr<Unit> unit = ReadUnit(*connection_, first, patience_, kMaxPduBytes);
  if (!unit.ok()) return Fail(unit.status());
  unit_ = *std::move(unit);
  if (unit_.type == PduType::kReleaseRequest) {
    const Clock::time_point end = Clock::now() + patience_.progress;
    if (connection_->Write(EncodeRelease(PduType::kReleaseResponse), end).ok()) {
      connection_->Close(Clock::now() + std::chrono::seconds(1));
    }
    return absl::OutOfRangeError("the other side released the association");
  }
  if (unit_.type == PduType::kAbort) return absl::AbortedError("the other side aborted the association");
  if (unit_.type != PduType::kData) return Fail(absl::InvalidArgumentError("pdu: is of an unexpected type"));
  absl::StatusOr<std::vector<Fragment>> fragments = ParseFragments(unit_.body);
  if (!fragments.ok()) return Fail(fragments.status());
  fragments_ = *std::move(fragments);
  return absl::OkStatus();
}

absl::StatusOr<Fragment> Association::NextFragment(Clock::time_point first) {
  if (next_ == fragments_.size()) INTRAWARP_RETURN_IF_ERROR(ReceiveUnit(first));
  const Fragment fragment = fragments_[next_++];
  if (contexts_.count(fragment.context) != 0) return fragment;
  return Fail(absl::InvalidArgumentError("pdu: names a context that was not accepted"));
}

absl::Status Association::WaitMessage(Clock::time_point end) {
  if (next_ < fragments_.size()) return absl::OkStatus();
  const absl::Status ready = connection_->WaitReadable(end);
  return ready.ok() || absl::IsDeadlineExceeded(ready) ? ready : Lost(ready);
}

absl::StatusOr<ReceivedCommand> Association::ReceiveCommand() {
  ReceivedCommand received;
  std::string bytes;
  bool begun = false;
  Clock::time_point end = Clock::now() + patience_.idle;
  for (;;) {
    INTRAWARP_ASSIGN_OR_RETURN(const Fragment fragment, NextFragment(end));
    if (!begun) {
      begun = true;
      received.context = fragment.context;
      end = Clock::now() + patience_.progress;
    }
    if (!fragment.is_command || fragment.context != received.context) {
      return Fail(absl::InvalidArgumentError("pdu: a command was expected"));
    }
    if (bytes.size() + fragment.payload.size() > kMaxCommandBytes) {
      return Fail(absl::InvalidArgumentError("command: is too large"));
    }
    absl::StrAppend(&bytes, fragment.payload);
    if (fragment.is_last) break;
    if (Clock::now() >= end) return Fail(absl::DeadlineExceededError("the command took too long"));
  }
  absl::StatusOr<Command> command = ParseCommand(bytes);
  if (!command.ok()) return Fail(command.status());
  received.command = *std::move(command);
  return received;
}

absl::Status Association::ReceiveData(uint8_t context, int64_t max_bytes, const TakeFn& take) {
  absl::Status taken;
  int64_t bytes = 0;
  const Clock::time_point begin = Clock::now();
  for (;;) {
    const Clock::time_point end = EndOfPatience(begin, bytes, patience_.progress);
    if (Clock::now() >= end) return Fail(absl::DeadlineExceededError("the data set comes too slowly"));
    INTRAWARP_ASSIGN_OR_RETURN(const Fragment fragment, NextFragment(end));
    if (fragment.is_command || fragment.context != context) {
      return Fail(absl::InvalidArgumentError("pdu: a data set was expected"));
    }
    bytes += static_cast<int64_t>(fragment.payload.size());
    if (bytes > max_bytes) return Fail(absl::ResourceExhaustedError("the data set is too large"));
    if (taken.ok()) taken = take(fragment.payload);
    if (absl::IsCancelled(taken)) {
      Abort(/*by_provider=*/false);
      return taken;
    }
    if (fragment.is_last) return taken;
  }
}

absl::Status Association::SendPart(uint8_t context, bool is_command, absl::string_view bytes) {
  const size_t most = max_sent_bytes_ - 6;
  do {
    const absl::string_view piece = bytes.substr(0, most);
    bytes.remove_prefix(piece.size());
    const std::string unit =
        absl::StrCat(EncodeFragmentHeader(context, is_command, bytes.empty(), piece.size()), piece);
    INTRAWARP_RETURN_IF_ERROR(connection_->Write(unit, Clock::now() + patience_.progress));
  } while (!bytes.empty());
  return absl::OkStatus();
}

absl::Status Association::Send(uint8_t context, const Command& command, absl::string_view data) {
  INTRAWARP_RETURN_IF_ERROR(SendPart(context, /*is_command=*/true, EncodeCommand(command)));
  return command.has_data ? SendPart(context, /*is_command=*/false, data) : absl::OkStatus();
}

void Association::Release() {
  const Clock::time_point end = Clock::now() + patience_.progress;
  if (!connection_->Write(EncodeRelease(PduType::kReleaseRequest), end).ok()) return;
  // What still comes before the answer has no reader any more.
  while (Clock::now() < end) {
    const absl::StatusOr<Unit> unit = ReadUnit(*connection_, end, patience_, kMaxPduBytes);
    if (!unit.ok() || unit->type != PduType::kData) break;
  }
  connection_->Close(Clock::now());
}

void Association::Abort(bool by_provider) {
  (void)connection_->Write(EncodeAbort(by_provider), Clock::now() + milliseconds(200));
  connection_->Close(Clock::now() + milliseconds(200));
}

}  // namespace intrawarp::dimse
