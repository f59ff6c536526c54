// SPDX-License-Identifier: Apache-2.0
// DICOM's upper layer. The first byte chooses the door: a body for one of the parsers, or all that a peer sends on a
// connection, to the acceptor or to the requestor of an association. What is parsed is encoded and parsed again as the
// same; what an association sends is well-formed, whatever the peer sent before.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "server/dimse/association.h"
#include "server/dimse/command.h"
#include "server/dimse/elements.h"
#include "server/dimse/pdu.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

namespace dimse = intrawarp::dimse;
using intrawarp::fuzz::Require;
using intrawarp::fuzz::RequireRefusal;

// Every answer fits into the socket's buffer, since nobody reads it before the end.
constexpr size_t kMaxConversation = 8 << 10;
constexpr int64_t kMaxDataBytes = 2000;

absl::string_view BodyOf(const std::string& unit) { return absl::string_view(unit).substr(dimse::kPduHeaderBytes); }

bool SameContexts(const std::vector<dimse::PresentationContext>& a, const std::vector<dimse::PresentationContext>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.id == y.id && x.abstract_syntax == y.abstract_syntax && x.transfer_syntaxes == y.transfer_syntaxes;
  });
}

bool SameRoles(const std::vector<dimse::RoleSelection>& a, const std::vector<dimse::RoleSelection>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.sop_class == y.sop_class && x.scu == y.scu && x.scp == y.scp;
  });
}

void TryRequest(absl::string_view body) {
  const auto request = dimse::ParseAssociateRequest(body);
  RequireRefusal(request.status());
  if (!request.ok()) return;
  for (const dimse::PresentationContext& context : request->contexts) {
    Require(context.id % 2 == 1 && dimse::IsUid(context.abstract_syntax), "a context's identifier and syntax");
  }
  const auto again = dimse::ParseAssociateRequest(BodyOf(dimse::EncodeAssociateRequest(*request)));
  Require(again.ok(), "a request that is encoded can be parsed");
  Require(SameContexts(request->contexts, again->contexts) && SameRoles(request->roles, again->roles) &&
              request->max_pdu_bytes == again->max_pdu_bytes,
          "the same request");
}

void TryAnswers(absl::string_view body) {
  const auto accept = dimse::ParseAssociateAccept(body);
  RequireRefusal(accept.status());
  if (accept.ok()) {
    const auto again = dimse::ParseAssociateAccept(BodyOf(dimse::EncodeAssociateAccept(*accept, "A", "B")));
    Require(again.ok() && again->contexts.size() == accept->contexts.size(), "the same acceptance");
    Require(SameRoles(accept->roles, again->roles), "the same roles");
  }
  RequireRefusal(dimse::ParseAssociateReject(body).status());
}

void TryFragments(absl::string_view body) {
  const auto fragments = dimse::ParseFragments(body);
  RequireRefusal(fragments.status());
  if (!fragments.ok()) return;
  size_t bytes = 0;
  for (const dimse::Fragment& fragment : *fragments) bytes += 6 + fragment.payload.size();
  Require(bytes == body.size(), "fragments fill their unit");
}

void TryCommand(absl::string_view bytes) {
  const auto elements = dimse::Elements::Parse(bytes);
  RequireRefusal(elements.status());
  if (elements.ok()) Require(elements->Encode() == bytes, "the same elements");
  const auto command = dimse::ParseCommand(bytes);
  RequireRefusal(command.status());
  if (!command.ok()) return;
  (void)command->status();
  const auto again = dimse::ParseCommand(dimse::EncodeCommand(*command));
  Require(again.ok() && again->field == command->field && again->message_id == command->message_id &&
              again->has_data == command->has_data,
          "the same command");
  const auto response = dimse::ParseCommand(dimse::EncodeCommand(dimse::ResponseTo(*command, dimse::kSuccess)));
  Require(response.ok() && response->is_response() && response->status() == dimse::kSuccess, "a response to it");
}

// The bytes that an association has written: whole units of known types, whose fragments hold commands.
void RequireWellFormed(absl::string_view sent) {
  while (!sent.empty()) {
    Require(sent.size() >= dimse::kPduHeaderBytes, "a whole header");
    size_t size = 0;
    for (size_t i = 2; i < dimse::kPduHeaderBytes; ++i) size = size << 8 | static_cast<uint8_t>(sent[i]);
    Require(sent.size() - dimse::kPduHeaderBytes >= size, "a whole unit");
    const absl::string_view body = sent.substr(dimse::kPduHeaderBytes, size);
    switch (static_cast<dimse::PduType>(sent[0])) {
      case dimse::PduType::kAssociateRequest:
        Require(dimse::ParseAssociateRequest(body).ok(), "a request");
        break;
      case dimse::PduType::kAssociateAccept:
        Require(dimse::ParseAssociateAccept(body).ok(), "an acceptance");
        break;
      case dimse::PduType::kAssociateReject:
        Require(dimse::ParseAssociateReject(body).ok(), "a rejection");
        break;
      case dimse::PduType::kData:
        Require(dimse::ParseFragments(body).ok(), "fragments");
        break;
      case dimse::PduType::kReleaseRequest:
      case dimse::PduType::kReleaseResponse:
      case dimse::PduType::kAbort:
        Require(size == 4, "four bytes");
        break;
      default:
        Require(false, "a known type");
    }
    sent.remove_prefix(dimse::kPduHeaderBytes + size);
  }
}

// A connection whose peer has sent these bytes and then ends its side.
class Peer {
 public:
  explicit Peer(absl::string_view bytes) {
    int ends[2];
    Require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0, "socketpair");
    fd_ = ends[1];
    connection_ = std::make_shared<dimse::Connection>(ends[0], "127.0.0.1");
    Require(write(fd_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()), "write");
    shutdown(fd_, SHUT_WR);
  }
  Peer(const Peer&) = delete;
  ~Peer() { close(fd_); }

  const std::shared_ptr<dimse::Connection>& connection() const { return connection_; }
  std::string Received() {
    std::string all;
    char bytes[4096];
    for (ssize_t n = 0; (n = read(fd_, bytes, sizeof(bytes))) > 0;) all.append(bytes, static_cast<size_t>(n));
    return all;
  }

 private:
  int fd_ = -1;
  std::shared_ptr<dimse::Connection> connection_;
};

dimse::Patience Patience() { return {std::chrono::milliseconds(5000), std::chrono::milliseconds(5000)}; }

// Every second service is accepted, so that both kinds of contexts are there.
dimse::Association::Answer Decide(const dimse::AssociateRequest& request) {
  dimse::Association::Answer answer;
  answer.accepted = request.called_ae != "NOBODY";
  answer.reject = dimse::kCalledAeUnknown;
  for (const dimse::PresentationContext& context : request.contexts) {
    const bool is_known = context.abstract_syntax.back() != '0';
    answer.accept.contexts.push_back(
        {context.id, is_known ? dimse::ContextResult::kAccepted : dimse::ContextResult::kAbstractSyntax,
         context.transfer_syntaxes.front()});
  }
  return answer;
}

// Serves as a storage provider serves its peers.
void Serve(dimse::Association& association) {
  for (;;) {
    const auto request = association.ReceiveCommand();
    if (!request.ok()) return;
    Require(association.contexts().count(request->context) == 1, "a context that was accepted");
    absl::Status taken;
    if (request->command.has_data) {
      int64_t bytes = 0;
      const absl::Status received =
          association.ReceiveData(request->context, kMaxDataBytes, [&](absl::string_view piece) {
            bytes += static_cast<int64_t>(piece.size());
            return bytes % 7 == 6 ? absl::ResourceExhaustedError("no room") : absl::OkStatus();
          });
      Require(bytes <= kMaxDataBytes, "no more data than allowed");
      if (!received.ok() && received.message() != "no room") return;
      taken = received;
    }
    const uint16_t status = taken.ok() ? dimse::kSuccess : dimse::kOutOfResources;
    if (!association.Send(request->context, dimse::ResponseTo(request->command, status)).ok()) return;
  }
}

void TryAcceptor(absl::string_view bytes) {
  Peer peer(bytes);
  const auto association = dimse::Association::Accept(peer.connection(), Patience(), Decide);
  if (association.ok()) Serve(**association);
  RequireWellFormed(peer.Received());
}

void TryRequestor(absl::string_view bytes) {
  Peer peer(bytes);
  const dimse::AssociateRequest request{
      "CALLED",
      "CALLING",
      {{1, "1.2.840.10008.1.1", {"1.2.840.10008.1.2"}}, {3, "1.2.840.10008.5.1.4.1.2.2.1", {"1.2.840.10008.1.2"}}},
      {{"1.2.840.10008.5.1.4.1.1.2", false, true}},
      dimse::kMaxPduBytes};
  const auto association = dimse::Association::Request(peer.connection(), Patience(), request);
  if (association.ok()) {
    Require(!(*association)->contexts().empty(), "an accepted context");
    Serve(**association);
    (*association)->Release();
  }
  RequireWellFormed(peer.Received());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0 || size > kMaxConversation) return 0;
  // A copy of its own, so that a sanitizer sees a read beyond it.
  const std::vector<char> copy(data + 1, data + size);
  const absl::string_view bytes(copy.data(), copy.size());
  switch (data[0] % 6) {
    case 0:
      TryRequest(bytes);
      break;
    case 1:
      TryAnswers(bytes);
      break;
    case 2:
      TryFragments(bytes);
      break;
    case 3:
      TryCommand(bytes);
      break;
    case 4:
      TryAcceptor(bytes);
      break;
    default:
      TryRequestor(bytes);
  }
  return 0;
}
