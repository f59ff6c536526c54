// SPDX-License-Identifier: Apache-2.0
// The protocol data units of DICOM's upper layer (PS3.8, section 9.3) that negotiate an association: parsing within
// bounds, and encoding. Plain values; thread-safe functions.
#ifndef INTRAWARP_SERVER_DIMSE_PDU_H_
#define INTRAWARP_SERVER_DIMSE_PDU_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace intrawarp::dimse {

enum class PduType : uint8_t {
  kAssociateRequest = 1,
  kAssociateAccept = 2,
  kAssociateReject = 3,
  kData = 4,
  kReleaseRequest = 5,
  kReleaseResponse = 6,
  kAbort = 7,
};

// Type, reserved byte and length.
inline constexpr size_t kPduHeaderBytes = 6;
// A body that negotiates is no larger; 128 presentation contexts take some 60 KiB.
inline constexpr size_t kMaxNegotiationBytes = 256 << 10;

// Identifiers are odd, 1 to 255.
struct PresentationContext {
  uint8_t id = 0;
  std::string abstract_syntax;
  std::vector<std::string> transfer_syntaxes;
};

// Which sides of a service the requestor of an association takes (PS3.7, D.3.3.4).
struct RoleSelection {
  std::string sop_class;
  bool scu = true;
  bool scp = false;
};

struct AssociateRequest {
  std::string called_ae;
  std::string calling_ae;
  std::vector<PresentationContext> contexts;
  std::vector<RoleSelection> roles;
  // The largest body of a data unit that the sender takes; 0: any.
  uint32_t max_pdu_bytes = 0;
};

// PS3.8, table 9-18.
enum class ContextResult : uint8_t {
  kAccepted = 0,
  kUserRejection = 1,
  kNoReason = 2,
  kAbstractSyntax = 3,
  kTransferSyntaxes = 4,
};

struct AnsweredContext {
  uint8_t id = 0;
  ContextResult result = ContextResult::kNoReason;
  std::string transfer_syntax;
};

struct AssociateAccept {
  std::vector<AnsweredContext> contexts;
  std::vector<RoleSelection> roles;
  uint32_t max_pdu_bytes = 0;
};

// PS3.8, table 9-21.
struct AssociateReject {
  bool transient = false;
  uint8_t source = 1;
  uint8_t reason = 1;
};
inline constexpr AssociateReject kCallingAeUnknown{false, 1, 3};
inline constexpr AssociateReject kCalledAeUnknown{false, 1, 7};
inline constexpr AssociateReject kNoApplicationContext{false, 1, 2};
inline constexpr AssociateReject kCongested{true, 3, 1};
inline constexpr AssociateReject kLocalLimit{true, 3, 2};

// Bodies, without the header. INVALID_ARGUMENT "pdu: ..." for anything that does not fit into the bounds that lengths
// announce, for another protocol version or application context, and for contexts whose identifiers repeat.
absl::StatusOr<AssociateRequest> ParseAssociateRequest(absl::string_view body);
absl::StatusOr<AssociateAccept> ParseAssociateAccept(absl::string_view body);
absl::StatusOr<AssociateReject> ParseAssociateReject(absl::string_view body);

// Whole units. Those of accept repeat the request's names of application entities.
std::string EncodeAssociateRequest(const AssociateRequest& request);
std::string EncodeAssociateAccept(const AssociateAccept& accept, absl::string_view called, absl::string_view calling);
std::string EncodeAssociateReject(const AssociateReject& reject);
std::string EncodeRelease(PduType type);
// `by_provider`: the protocol was broken, rather than the user's wish.
std::string EncodeAbort(bool by_provider);

// One fragment of a message (a presentation data value) as a data unit of its own, without its payload, which follows.
std::string EncodeFragmentHeader(uint8_t context, bool is_command, bool is_last, size_t payload_bytes);

struct Fragment {
  uint8_t context = 0;
  bool is_command = false;
  bool is_last = false;
  absl::string_view payload;
};
// The fragments of a data unit's body, which must outlive them. INVALID_ARGUMENT "pdu: ...".
absl::StatusOr<std::vector<Fragment>> ParseFragments(absl::string_view body);

// As IsOid (engine/base/oid.h).
bool IsUid(absl::string_view text);
// A name of an application entity as files of configuration may hold it: 1 to 16 letters, digits, '_', '-' and '.'.
bool IsAeTitle(absl::string_view text);

}  // namespace intrawarp::dimse

#endif  // INTRAWARP_SERVER_DIMSE_PDU_H_
