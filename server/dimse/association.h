// SPDX-License-Identifier: Apache-2.0
// Association: the messages of DIMSE on one connection, as the acceptor or as the requestor.
//
// Bounds. A data unit from the other side has at most kMaxPduBytes, whatever it announces, and is complete within
// `progress` of its first byte. A message moves on: at no time has it taken longer than `progress` beyond what
// kLeastRate makes of its bytes. A command set has kMaxCommandBytes, a data set the bytes that its receiver allows.
//
// Errors of receiving: OUT_OF_RANGE after a release by the other side, ABORTED after its abort or a broken connection,
// DEADLINE_EXCEEDED when it is idle or too slow, INVALID_ARGUMENT for a broken protocol, CANCELLED after
// Connection::Abort. After each of them the association is over.
//
// Thread safety: thread-compatible; the connection's Abort is safe on any thread.
#ifndef INTRAWARP_SERVER_DIMSE_ASSOCIATION_H_
#define INTRAWARP_SERVER_DIMSE_ASSOCIATION_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/dimse/command.h"
#include "server/dimse/connection.h"
#include "server/dimse/pdu.h"

namespace intrawarp::dimse {

inline constexpr uint32_t kMaxPduBytes = 256 << 10;
// Bytes a second that a message must have at least.
inline constexpr int64_t kLeastRate = 16 << 10;

struct Patience {
  // For what has begun: a data unit, a negotiation, a write.
  std::chrono::milliseconds progress{30000};
  // Between two messages.
  std::chrono::milliseconds idle{60000};
};

// An accepted presentation context.
struct Context {
  std::string abstract_syntax;
  std::string transfer_syntax;
};

struct ReceivedCommand {
  uint8_t context = 0;
  Command command;
};

class Association {
 public:
  // Takes pieces of a data set in their order. After an error it gets no more, and the rest is passed over.
  using TakeFn = std::function<absl::Status(absl::string_view)>;
  // Answers a request, by an acceptance or a rejection.
  struct Answer {
    bool accepted = false;
    AssociateAccept accept;
    AssociateReject reject;
  };
  using DecideFn = std::function<Answer(const AssociateRequest&)>;

  // Receives a request and answers as `decide` wants. FAILED_PRECONDITION when it rejected; errors of receiving.
  static absl::StatusOr<std::unique_ptr<Association>> Accept(std::shared_ptr<Connection> connection,
                                                             const Patience& patience, const DecideFn& decide);
  // FAILED_PRECONDITION "association: ..." when the other side rejects, or accepts none of the contexts.
  static absl::StatusOr<std::unique_ptr<Association>> Request(std::shared_ptr<Connection> connection,
                                                              const Patience& patience,
                                                              const AssociateRequest& request);

  // By identifier.
  const std::map<uint8_t, Context>& contexts() const { return contexts_; }
  // The identifier of an accepted context of this service; 0 when there is none.
  uint8_t ContextOf(absl::string_view abstract_syntax) const;

  // Whether the other side lets us provide the service, by its answer to our role selection.
  bool MayProvide(absl::string_view abstract_syntax) const {
    return provided_.count(std::string(abstract_syntax)) != 0;
  }

  // Waits for the beginning of the next message. DEADLINE_EXCEEDED when there is none at `end`; the association goes
  // on. Other errors of receiving.
  absl::Status WaitMessage(Clock::time_point end);
  // The next command. The data set that it announces must be received before the next one.
  absl::StatusOr<ReceivedCommand> ReceiveCommand();
  // Receives a data set of at most `max_bytes` in this context. The error of `take` once all was passed over, but
  // CANCELLED at once; RESOURCE_EXHAUSTED above the bound. After these two the association is over.
  absl::Status ReceiveData(uint8_t context, int64_t max_bytes, const TakeFn& take);
  // UNAVAILABLE, DEADLINE_EXCEEDED, CANCELLED.
  absl::Status Send(uint8_t context, const Command& command, absl::string_view data = {});

  // Ends the association: politely, as far as the other side takes part within `progress`, or at once.
  void Release();
  void Abort(bool by_provider);

 private:
  struct Unit {
    PduType type = PduType::kAbort;
    std::string body;
  };

  Association(std::shared_ptr<Connection> connection, const Patience& patience)
      : connection_(std::move(connection)), patience_(patience) {}
  static absl::StatusOr<Unit> ReadUnit(Connection& connection, Clock::time_point first, const Patience& patience,
                                       size_t max_bytes);
  absl::StatusOr<Fragment> NextFragment(Clock::time_point first);
  absl::Status ReceiveUnit(Clock::time_point first);
  absl::Status SendPart(uint8_t context, bool is_command, absl::string_view bytes);
  // Tells the other side of a broken protocol, or of what took too long.
  absl::Status Fail(const absl::Status& status);

  const std::shared_ptr<Connection> connection_;
  const Patience patience_;
  std::map<uint8_t, Context> contexts_;
  std::set<std::string> provided_;        // services that we may provide as the requestor
  size_t max_sent_bytes_ = kMaxPduBytes;  // of a data unit's body
  Unit unit_;                             // the last that came
  std::vector<Fragment> fragments_;       // of it
  size_t next_ = 0;                       // the first of them that was not taken
};

}  // namespace intrawarp::dimse

#endif  // INTRAWARP_SERVER_DIMSE_ASSOCIATION_H_
