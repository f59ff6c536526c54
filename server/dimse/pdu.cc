// SPDX-License-Identifier: Apache-2.0
#include "server/dimse/pdu.h"

#include <algorithm>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "engine/base/oid.h"
#include "engine/base/status_macros.h"

namespace intrawarp::dimse {
namespace {

constexpr char kApplicationContext[] = "1.2.840.10008.3.1.1.1";
// 2.25 and a UUID: nobody assigns it.
constexpr char kImplementationUid[] = "2.25.250133310374419385241720383124083871733";
constexpr char kImplementationName[] = "INTRAWARP";
constexpr size_t kAeBytes = 16;
constexpr size_t kReservedBytes = 32;
constexpr size_t kMaxContexts = 128;
constexpr size_t kMaxSyntaxes = 64;
constexpr size_t kMaxRoles = 256;

enum Item : uint8_t {
  kApplicationContextItem = 0x10,
  kRequestedContext = 0x20,
  kAnsweredContextItem = 0x21,
  kAbstractSyntax = 0x30,
  kTransferSyntax = 0x40,
  kUserInformation = 0x50,
  kMaxLength = 0x51,
  kImplementationClass = 0x52,
  kRoleSelectionItem = 0x54,
  kImplementationVersion = 0x55,
};

absl::Status Wrong(absl::string_view why) { return absl::InvalidArgumentError(absl::StrCat("pdu: ", why)); }

uint16_t Get16(absl::string_view bytes) {
  return static_cast<uint16_t>(static_cast<uint8_t>(bytes[0]) << 8 | static_cast<uint8_t>(bytes[1]));
}
uint32_t Get32(absl::string_view bytes) { return uint32_t{Get16(bytes)} << 16 | Get16(bytes.substr(2)); }

void Put16(size_t value, std::string& to) {
  to.push_back(static_cast<char>(value >> 8 & 0xff));
  to.push_back(static_cast<char>(value & 0xff));
}
void Put32(size_t value, std::string& to) {
  Put16(value >> 16, to);
  Put16(value, to);
}

// Text without the spaces and NULs that pad it.
std::string Trimmed(absl::string_view text) {
  while (!text.empty() && (text.back() == ' ' || text.back() == '\0')) text.remove_suffix(1);
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  return std::string(text);
}

absl::StatusOr<std::string> Uid(absl::string_view text) {
  std::string uid = Trimmed(text);
  if (!IsUid(uid)) return Wrong("not a valid UID");
  return uid;
}

// Calls take(type, body) for each item.
template <typename Take>
absl::Status ForEachItem(absl::string_view bytes, const Take& take) {
  while (!bytes.empty()) {
    if (bytes.size() < 4) return Wrong("an item is cut");
    const size_t size = Get16(bytes.substr(2));
    if (size > bytes.size() - 4) return Wrong("an item is longer than what holds it");
    INTRAWARP_RETURN_IF_ERROR(take(static_cast<uint8_t>(bytes[0]), bytes.substr(4, size)));
    bytes.remove_prefix(4 + size);
  }
  return absl::OkStatus();
}

std::string ItemOf(uint8_t type, absl::string_view body) {
  std::string item(1, static_cast<char>(type));
  item.push_back(0);
  Put16(body.size(), item);
  return absl::StrCat(item, body);
}

std::string PduOf(PduType type, absl::string_view body) {
  std::string pdu(1, static_cast<char>(type));
  pdu.push_back(0);
  Put32(body.size(), pdu);
  return absl::StrCat(pdu, body);
}

absl::StatusOr<RoleSelection> ParseRole(absl::string_view body) {
  if (body.size() < 4 || Get16(body) != body.size() - 4) return Wrong("a role selection is cut");
  RoleSelection role;
  INTRAWARP_ASSIGN_OR_RETURN(role.sop_class, Uid(body.substr(2, body.size() - 4)));
  role.scu = body[body.size() - 2] != 0;
  role.scp = body[body.size() - 1] != 0;
  return role;
}

// Members that a request and its acceptance share.
template <typename Message>
absl::Status ParseUserInformation(absl::string_view bytes, Message& to) {
  return ForEachItem(bytes, [&](uint8_t type, absl::string_view body) -> absl::Status {
    if (type == kMaxLength) {
      if (body.size() != 4) return Wrong("a maximum length has no four bytes");
      to.max_pdu_bytes = Get32(body);
    }
    if (type != kRoleSelectionItem) return absl::OkStatus();
    if (to.roles.size() >= kMaxRoles) return Wrong("too many role selections");
    INTRAWARP_ASSIGN_OR_RETURN(RoleSelection role, ParseRole(body));
    to.roles.push_back(std::move(role));
    return absl::OkStatus();
  });
}

absl::StatusOr<PresentationContext> ParseContext(absl::string_view body) {
  if (body.size() < 4) return Wrong("a presentation context is cut");
  PresentationContext context;
  context.id = static_cast<uint8_t>(body[0]);
  if (context.id % 2 == 0) return Wrong("a presentation context has an even identifier");
  INTRAWARP_RETURN_IF_ERROR(ForEachItem(body.substr(4), [&](uint8_t type, absl::string_view item) -> absl::Status {
    if (type != kAbstractSyntax && type != kTransferSyntax) return absl::OkStatus();
    INTRAWARP_ASSIGN_OR_RETURN(std::string uid, Uid(item));
    if (type == kAbstractSyntax) {
      context.abstract_syntax = std::move(uid);
      return absl::OkStatus();
    }
    if (context.transfer_syntaxes.size() >= kMaxSyntaxes) return Wrong("too many transfer syntaxes");
    context.transfer_syntaxes.push_back(std::move(uid));
    return absl::OkStatus();
  }));
  if (context.abstract_syntax.empty() || context.transfer_syntaxes.empty()) {
    return Wrong("a presentation context lacks a syntax");
  }
  return context;
}

absl::StatusOr<AnsweredContext> ParseAnswer(absl::string_view body) {
  if (body.size() < 4) return Wrong("a presentation context is cut");
  AnsweredContext context;
  context.id = static_cast<uint8_t>(body[0]);
  context.result = static_cast<ContextResult>(body[2]);
  // The syntax of a context that was not accepted has no meaning.
  INTRAWARP_RETURN_IF_ERROR(ForEachItem(body.substr(4), [&](uint8_t type, absl::string_view item) -> absl::Status {
    if (type == kTransferSyntax) context.transfer_syntax = Trimmed(item);
    return absl::OkStatus();
  }));
  if (context.result == ContextResult::kAccepted && !IsUid(context.transfer_syntax)) return Wrong("not a valid UID");
  return context;
}

// The names of both sides stand before the items.
absl::StatusOr<absl::string_view> ItemsOf(absl::string_view body) {
  constexpr size_t kFixed = 4 + 2 * kAeBytes + kReservedBytes;
  if (body.size() < kFixed) return Wrong("an association's negotiation is cut");
  if ((Get16(body) & 1) == 0) return Wrong("the protocol version is unknown");
  return body.substr(kFixed);
}

std::string NamesOf(absl::string_view called, absl::string_view calling) {
  std::string body;
  Put16(1, body);
  Put16(0, body);
  for (const absl::string_view name : {called, calling}) {
    std::string padded(name.substr(0, kAeBytes));
    padded.resize(kAeBytes, ' ');
    body += padded;
  }
  return body + std::string(kReservedBytes, '\0');
}

std::string UserInformation(uint32_t max_pdu_bytes, const std::vector<RoleSelection>& roles) {
  std::string length;
  Put32(max_pdu_bytes, length);
  std::string items = ItemOf(kMaxLength, length);
  items += ItemOf(kImplementationClass, kImplementationUid);
  for (const RoleSelection& role : roles) {
    std::string body;
    Put16(role.sop_class.size(), body);
    body += role.sop_class;
    body.push_back(role.scu ? 1 : 0);
    body.push_back(role.scp ? 1 : 0);
    items += ItemOf(kRoleSelectionItem, body);
  }
  items += ItemOf(kImplementationVersion, kImplementationName);
  return ItemOf(kUserInformation, items);
}

}  // namespace

bool IsUid(absl::string_view text) { return IsOid(text); }

bool IsAeTitle(absl::string_view text) {
  return !text.empty() && text.size() <= kAeBytes && std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.';
  });
}

absl::StatusOr<AssociateRequest> ParseAssociateRequest(absl::string_view body) {
  INTRAWARP_ASSIGN_OR_RETURN(const absl::string_view items, ItemsOf(body));
  AssociateRequest request;
  request.called_ae = Trimmed(body.substr(4, kAeBytes));
  request.calling_ae = Trimmed(body.substr(4 + kAeBytes, kAeBytes));
  bool has_application_context = false;
  std::set<uint8_t> ids;
  INTRAWARP_RETURN_IF_ERROR(ForEachItem(items, [&](uint8_t type, absl::string_view item) -> absl::Status {
    if (type == kApplicationContextItem) has_application_context = Trimmed(item) == kApplicationContext;
    if (type == kUserInformation) return ParseUserInformation(item, request);
    if (type != kRequestedContext) return absl::OkStatus();
    if (request.contexts.size() >= kMaxContexts) return Wrong("too many presentation contexts");
    INTRAWARP_ASSIGN_OR_RETURN(PresentationContext context, ParseContext(item));
    if (!ids.insert(context.id).second) return Wrong("a presentation context's identifier repeats");
    request.contexts.push_back(std::move(context));
    return absl::OkStatus();
  }));
  if (!has_application_context) return Wrong("the application context is not DICOM's");
  if (request.contexts.empty()) return Wrong("there is no presentation context");
  return request;
}

absl::StatusOr<AssociateAccept> ParseAssociateAccept(absl::string_view body) {
  INTRAWARP_ASSIGN_OR_RETURN(const absl::string_view items, ItemsOf(body));
  AssociateAccept accept;
  INTRAWARP_RETURN_IF_ERROR(ForEachItem(items, [&](uint8_t type, absl::string_view item) -> absl::Status {
    if (type == kUserInformation) return ParseUserInformation(item, accept);
    if (type != kAnsweredContextItem) return absl::OkStatus();
    if (accept.contexts.size() >= kMaxContexts) return Wrong("too many presentation contexts");
    INTRAWARP_ASSIGN_OR_RETURN(AnsweredContext context, ParseAnswer(item));
    accept.contexts.push_back(std::move(context));
    return absl::OkStatus();
  }));
  return accept;
}

absl::StatusOr<AssociateReject> ParseAssociateReject(absl::string_view body) {
  if (body.size() != 4) return Wrong("a rejection has no four bytes");
  return AssociateReject{body[1] == 2, static_cast<uint8_t>(body[2]), static_cast<uint8_t>(body[3])};
}

std::string EncodeAssociateRequest(const AssociateRequest& request) {
  std::string body = NamesOf(request.called_ae, request.calling_ae);
  body += ItemOf(kApplicationContextItem, kApplicationContext);
  for (const PresentationContext& context : request.contexts) {
    std::string item = {static_cast<char>(context.id), 0, 0, 0};
    item += ItemOf(kAbstractSyntax, context.abstract_syntax);
    for (const std::string& syntax : context.transfer_syntaxes) item += ItemOf(kTransferSyntax, syntax);
    body += ItemOf(kRequestedContext, item);
  }
  body += UserInformation(request.max_pdu_bytes, request.roles);
  return PduOf(PduType::kAssociateRequest, body);
}

std::string EncodeAssociateAccept(const AssociateAccept& accept, absl::string_view called, absl::string_view calling) {
  std::string body = NamesOf(called, calling);
  body += ItemOf(kApplicationContextItem, kApplicationContext);
  for (const AnsweredContext& context : accept.contexts) {
    std::string item = {static_cast<char>(context.id), 0, static_cast<char>(context.result), 0};
    item += ItemOf(kTransferSyntax, context.transfer_syntax);
    body += ItemOf(kAnsweredContextItem, item);
  }
  body += UserInformation(accept.max_pdu_bytes, accept.roles);
  return PduOf(PduType::kAssociateAccept, body);
}

std::string EncodeAssociateReject(const AssociateReject& reject) {
  const std::string body = {0, static_cast<char>(reject.transient ? 2 : 1), static_cast<char>(reject.source),
                            static_cast<char>(reject.reason)};
  return PduOf(PduType::kAssociateReject, body);
}

std::string EncodeRelease(PduType type) { return PduOf(type, std::string(4, '\0')); }

std::string EncodeAbort(bool by_provider) {
  const std::string body = {0, 0, static_cast<char>(by_provider ? 2 : 0), 0};
  return PduOf(PduType::kAbort, body);
}

std::string EncodeFragmentHeader(uint8_t context, bool is_command, bool is_last, size_t payload_bytes) {
  std::string header(1, static_cast<char>(PduType::kData));
  header.push_back(0);
  Put32(payload_bytes + 6, header);
  Put32(payload_bytes + 2, header);
  header.push_back(static_cast<char>(context));
  header.push_back(static_cast<char>((is_command ? 1 : 0) | (is_last ? 2 : 0)));
  return header;
}

absl::StatusOr<std::vector<Fragment>> ParseFragments(absl::string_view body) {
  std::vector<Fragment> fragments;
  while (!body.empty()) {
    if (body.size() < 6) return Wrong("a fragment is cut");
    const size_t size = Get32(body);
    if (size < 2 || size > body.size() - 4) return Wrong("a fragment is longer than its unit");
    const uint8_t control = static_cast<uint8_t>(body[5]);
    fragments.push_back(
        {static_cast<uint8_t>(body[4]), (control & 1) != 0, (control & 2) != 0, body.substr(6, size - 2)});
    body.remove_prefix(4 + size);
  }
  if (fragments.empty()) return Wrong("a data unit is empty");
  return fragments;
}

}  // namespace intrawarp::dimse
