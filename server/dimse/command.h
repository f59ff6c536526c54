// SPDX-License-Identifier: Apache-2.0
// The command sets of DIMSE (PS3.7, annex E) that a storage provider and a query client exchange. Plain values.
#ifndef INTRAWARP_SERVER_DIMSE_COMMAND_H_
#define INTRAWARP_SERVER_DIMSE_COMMAND_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/dimse/elements.h"

namespace intrawarp::dimse {

enum CommandField : uint16_t {
  kStoreRequest = 0x0001,
  kGetRequest = 0x0010,
  kFindRequest = 0x0020,
  kMoveRequest = 0x0021,
  kEchoRequest = 0x0030,
  kCancelRequest = 0x0fff,
  kResponse = 0x8000,  // with the bit of its request
};

inline constexpr Tag kCommandGroupLength = 0x00000000;
inline constexpr Tag kAffectedSopClass = 0x00000002;
inline constexpr Tag kCommandFieldTag = 0x00000100;
inline constexpr Tag kMessageId = 0x00000110;
inline constexpr Tag kMessageIdRespondedTo = 0x00000120;
inline constexpr Tag kMoveDestination = 0x00000600;
inline constexpr Tag kPriority = 0x00000700;
inline constexpr Tag kDataSetType = 0x00000800;
inline constexpr Tag kStatus = 0x00000900;
inline constexpr Tag kErrorComment = 0x00000902;  // at most 64 characters
inline constexpr Tag kAffectedSopInstance = 0x00001000;
// Counts of the sub-operations of a retrieval.
inline constexpr Tag kRemaining = 0x00001020;
inline constexpr Tag kCompleted = 0x00001021;
inline constexpr Tag kFailed = 0x00001022;
inline constexpr Tag kWarning = 0x00001023;
// In a store request: who has asked the sender to move, and by which request.
inline constexpr Tag kMoveOriginatorAe = 0x00001030;
inline constexpr Tag kMoveOriginatorId = 0x00001031;

// PS3.4, B.2.3 and C.4; PS3.7, annex C.
enum Status : uint16_t {
  kSuccess = 0x0000,
  kSopClassNotSupported = 0x0122,
  kNotAuthorized = 0x0124,
  kOutOfResources = 0xa700,
  kDataSetDoesNotMatch = 0xa900,
  kCancelled = 0xfe00,
  kPending = 0xff00,
  kPendingWithWarning = 0xff01,  // optional keys were not matched
  kCannotUnderstand = 0xc000,
};

// A command set is no larger.
inline constexpr size_t kMaxCommandBytes = 64 << 10;

struct Command {
  uint16_t field = 0;
  // Its own, or in a response that of the request.
  uint16_t message_id = 0;
  bool has_data = false;
  Elements elements;

  uint16_t status() const { return elements.Get16(kStatus).value_or(kCannotUnderstand); }
  bool is_response() const { return (field & kResponse) != 0; }
};

// INVALID_ARGUMENT "elements: ..." or "command: ...".
absl::StatusOr<Command> ParseCommand(absl::string_view bytes);
// With its group length.
std::string EncodeCommand(const Command& command);

// The response to a request, without a data set.
Command ResponseTo(const Command& request, uint16_t status);

}  // namespace intrawarp::dimse

#endif  // INTRAWARP_SERVER_DIMSE_COMMAND_H_
