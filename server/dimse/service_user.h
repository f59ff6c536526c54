// SPDX-License-Identifier: Apache-2.0
// ServiceUser: what a user of an archive's services asks on an association: C-ECHO, C-FIND, C-GET and C-MOVE (PS3.4,
// annexes A and C), one request at a time. A request that is cancelled, or wants no more matches, sends C-CANCEL and
// gives the other side a moment to end it; after that the association is aborted.
//
// Errors: those of receiving and sending (association.h), where a broken association is ABORTED; FAILED_PRECONDITION
// when the other side refuses, with the status that it gave as a number; DEADLINE_EXCEEDED; CANCELLED. After
// DEADLINE_EXCEEDED and after errors of the protocol the association is over, after a refusal it can be used. No error
// holds a text from the other side.
//
// Thread safety: thread-compatible.
#ifndef INTRAWARP_SERVER_DIMSE_SERVICE_USER_H_
#define INTRAWARP_SERVER_DIMSE_SERVICE_USER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/dimse/association.h"
#include "server/dimse/elements.h"

namespace intrawarp::dimse {

inline constexpr char kVerificationClass[] = "1.2.840.10008.1.1";
inline constexpr char kStudyRootFind[] = "1.2.840.10008.5.1.4.1.2.2.1";
inline constexpr char kStudyRootMove[] = "1.2.840.10008.5.1.4.1.2.2.2";
inline constexpr char kStudyRootGet[] = "1.2.840.10008.5.1.4.1.2.2.3";

// An identifier has no more bytes.
inline constexpr int64_t kMaxIdentifierBytes = 256 << 10;

// How long a request may take.
struct RequestBounds {
  // The end of the whole request.
  Clock::time_point end = Clock::time_point::max();
  // Without a message, and without a change of `activity`.
  std::chrono::milliseconds idle{60000};
  // Without fewer remaining or more completed sub-operations than ever before, a store request or a change of
  // `activity`, however many responses come.
  std::chrono::milliseconds stalled = std::chrono::minutes(10);
  // Asked ten times a second. Empty: never.
  std::function<bool()> cancelled;
  // A number that changes while something goes on elsewhere, as instances that arrive on another association. Empty:
  // there is nothing.
  std::function<int64_t()> activity;
};

// The instances of a retrieval, as the other side counts them.
struct SubOperations {
  int64_t remaining = 0;
  int64_t completed = 0;
  int64_t failed = 0;
  int64_t warning = 0;
  uint16_t status = kPending;

  int64_t total() const { return remaining + completed + failed + warning; }
};

class ServiceUser {
 public:
  // An error ends the request with it, after C-CANCEL.
  using MatchFn = std::function<absl::Status(const Elements& identifier)>;
  using ProgressFn = std::function<void(const SubOperations& counts)>;
  // Receives the data set of a store request and answers it. An error ends the association.
  using StoreFn = std::function<absl::Status(const ReceivedCommand& request)>;

  // `association` outlives it.
  explicit ServiceUser(Association& association) : association_(association) {}

  absl::Status Echo(const RequestBounds& bounds);

  // Study root. Calls `match` for each of the first `max_matches`; OUT_OF_RANGE when there are more.
  absl::Status Find(const Elements& identifier, int64_t max_matches, const MatchFn& match, const RequestBounds& bounds);

  // Study root. The counts of the last response, also where its status is one of failure (0xB000: some failed). Counts
  // that a response leaves out are those of the response before it.
  absl::StatusOr<SubOperations> Get(const Elements& identifier, const StoreFn& store, const ProgressFn& progress,
                                    const RequestBounds& bounds);
  // `id` tells the request apart from others of the same application entity: store requests at the destination name it.
  absl::StatusOr<SubOperations> Move(const Elements& identifier, const std::string& destination, uint16_t id,
                                     const ProgressFn& progress, const RequestBounds& bounds);

 private:
  struct Running;

  absl::StatusOr<uint8_t> ContextFor(const char* sop_class) const;
  Command RequestFor(uint16_t field, const char* sop_class, uint16_t id) const;
  absl::Status Run(const Command& request, const Elements* identifier, const MatchFn& match, const StoreFn& store,
                   const ProgressFn& progress, const RequestBounds& bounds, SubOperations& counts);
  absl::Status Next(Running& running, ReceivedCommand& received);
  absl::Status Take(Running& running, const ReceivedCommand& received, bool* is_last);
  absl::Status TakeStore(Running& running, const ReceivedCommand& received);
  absl::Status TakeMatch(Running& running, const ReceivedCommand& received);
  absl::Status Broken(absl::string_view why);
  absl::Status SendCancel(Running& running);

  Association& association_;
  uint16_t next_id_ = 1;
};

// "status 0xA801 (the destination is unknown)": the status of a response, in words of ours where the standard has some.
std::string DescribeStatus(uint16_t status);

}  // namespace intrawarp::dimse

#endif  // INTRAWARP_SERVER_DIMSE_SERVICE_USER_H_
