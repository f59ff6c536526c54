// SPDX-License-Identifier: Apache-2.0
#include "server/dimse/command.h"

#include <optional>
#include <utility>

#include "engine/base/status_macros.h"

namespace intrawarp::dimse {
namespace {

constexpr uint16_t kNoDataSet = 0x0101;
constexpr uint16_t kDataSet = 0x0001;

}  // namespace

absl::StatusOr<Command> ParseCommand(absl::string_view bytes) {
  Command command;
  INTRAWARP_ASSIGN_OR_RETURN(command.elements, Elements::Parse(bytes));
  const std::optional<uint16_t> field = command.elements.Get16(kCommandFieldTag);
  const std::optional<uint16_t> type = command.elements.Get16(kDataSetType);
  if (!field || !type) return absl::InvalidArgumentError("command: lacks its field or its type of data set");
  command.field = *field;
  command.has_data = *type != kNoDataSet;
  const bool has_own_id = !command.is_response() && command.field != kCancelRequest;
  const std::optional<uint16_t> id = command.elements.Get16(has_own_id ? kMessageId : kMessageIdRespondedTo);
  if (!id) return absl::InvalidArgumentError("command: lacks its message id");
  command.message_id = *id;
  return command;
}

std::string EncodeCommand(const Command& command) {
  Elements elements = command.elements;
  elements.Remove(kCommandGroupLength);  // of a command that was parsed
  const bool has_own_id = !command.is_response() && command.field != kCancelRequest;
  elements.Set16(kCommandFieldTag, command.field);
  elements.Set16(has_own_id ? kMessageId : kMessageIdRespondedTo, command.message_id);
  elements.Set16(kDataSetType, command.has_data ? kDataSet : kNoDataSet);
  const std::string rest = elements.Encode();
  Elements length;
  const auto size = static_cast<uint32_t>(rest.size());
  const char bytes[4] = {static_cast<char>(size & 0xff), static_cast<char>(size >> 8 & 0xff),
                         static_cast<char>(size >> 16 & 0xff), static_cast<char>(size >> 24 & 0xff)};
  length.SetText(kCommandGroupLength, absl::string_view(bytes, sizeof(bytes)));
  return length.Encode() + rest;
}

Command ResponseTo(const Command& request, uint16_t status) {
  Command response;
  response.field = static_cast<uint16_t>(request.field | kResponse);
  response.message_id = request.message_id;
  for (const Tag tag : {kAffectedSopClass, kAffectedSopInstance}) {
    if (request.elements.Has(tag)) response.elements.SetUid(tag, request.elements.Text(tag));
  }
  response.elements.Set16(kStatus, status);
  return response;
}

}  // namespace intrawarp::dimse
