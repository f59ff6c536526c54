// SPDX-License-Identifier: Apache-2.0
#include "server/pacs/storage_scp.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/base/status_macros.h"
#include "server/monitor/log.h"
#include "server/pacs/instance_file.h"
#include "server/pacs/put_volume.h"

namespace intrawarp::server {
namespace {

using dimse::AssociateReject;
using dimse::Association;
using dimse::Command;
using std::chrono::steady_clock;

constexpr char kVerification[] = "1.2.840.10008.1.1";
constexpr char kImplicitLittleEndian[] = "1.2.840.10008.1.2";
// Connections beyond the limit that are told so.
constexpr int kRejecting = 16;
constexpr int kNice = 10;

// Multi-frame kinds, and those whose pixels are not stored values in the end, are refused by the reader's rules.
constexpr std::array kSopClasses = {
    "1.2.840.10008.5.1.4.1.1.2",       // CT
    "1.2.840.10008.5.1.4.1.1.2.1",     // enhanced CT
    "1.2.840.10008.5.1.4.1.1.2.2",     // legacy converted enhanced CT
    "1.2.840.10008.5.1.4.1.1.4",       // MR
    "1.2.840.10008.5.1.4.1.1.4.1",     // enhanced MR
    "1.2.840.10008.5.1.4.1.1.4.4",     // legacy converted enhanced MR
    "1.2.840.10008.5.1.4.1.1.128",     // PET
    "1.2.840.10008.5.1.4.1.1.130",     // enhanced PET
    "1.2.840.10008.5.1.4.1.1.128.1",   // legacy converted enhanced PET
    "1.2.840.10008.5.1.4.1.1.20",      // nuclear medicine
    "1.2.840.10008.5.1.4.1.1.6.1",     // ultrasound
    "1.2.840.10008.5.1.4.1.1.6.2",     // enhanced ultrasound volume
    "1.2.840.10008.5.1.4.1.1.1",       // computed radiography
    "1.2.840.10008.5.1.4.1.1.12.1",    // X-ray angiography
    "1.2.840.10008.5.1.4.1.1.12.1.1",  // enhanced X-ray angiography
    "1.2.840.10008.5.1.4.1.1.12.2",    // X-ray fluoroscopy
    "1.2.840.10008.5.1.4.1.1.13.1.1",  // 3D X-ray angiography
    "1.2.840.10008.5.1.4.1.1.66.4",    // segmentation
    "1.2.840.10008.5.1.4.1.1.481.2",   // RT dose
    "1.2.840.10008.5.1.4.1.1.7",       // secondary capture
};
constexpr std::array kTransferSyntaxes = {
    "1.2.840.10008.1.2.1",  // explicit little endian
    kImplicitLittleEndian,
    "1.2.840.10008.1.2.2",     // explicit big endian
    "1.2.840.10008.1.2.1.99",  // deflated
    "1.2.840.10008.1.2.5",     // RLE
    "1.2.840.10008.1.2.4.70",  // JPEG lossless, first order
    "1.2.840.10008.1.2.4.57",  // JPEG lossless
    "1.2.840.10008.1.2.4.80",  // JPEG-LS lossless
    "1.2.840.10008.1.2.4.90",  // JPEG 2000 lossless
    "1.2.840.10008.1.2.4.81",  // JPEG-LS near lossless
    "1.2.840.10008.1.2.4.91",  // JPEG 2000
    "1.2.840.10008.1.2.4.51",  // JPEG extended
    "1.2.840.10008.1.2.4.50",  // JPEG baseline
};

template <typename List>
bool Holds(const List& list, const std::string& uid) {
  return std::find(std::begin(list), std::end(list), uid) != std::end(list);
}

// The numeric address of the other side of a socket; empty when it has gone.
std::string AddressOf(int fd) {
  sockaddr_storage name{};
  socklen_t size = sizeof(name);
  char host[NI_MAXHOST] = "";
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&name), &size) != 0) return "";
  if (getnameinfo(reinterpret_cast<sockaddr*>(&name), size, host, sizeof(host), nullptr, 0, NI_NUMERICHOST) != 0) {
    return "";
  }
  return std::string(absl::StripPrefix(host, "::ffff:"));
}

AssociationOutcome OutcomeOf(const absl::Status& status) {
  if (absl::IsOutOfRange(status)) return AssociationOutcome::kReleased;
  if (absl::IsFailedPrecondition(status)) return AssociationOutcome::kRefused;
  if (absl::IsDeadlineExceeded(status)) return AssociationOutcome::kTimeout;
  if (absl::IsInvalidArgument(status) || absl::IsResourceExhausted(status)) return AssociationOutcome::kProtocol;
  return AssociationOutcome::kBroken;
}

constexpr std::array kOutcomeWords = {"released", "broken", "refused", "timeout", "protocol"};

dimse::AnsweredContext AnswerContext(const dimse::PresentationContext& asked) {
  dimse::AnsweredContext answer{asked.id, dimse::ContextResult::kAbstractSyntax, asked.transfer_syntaxes.front()};
  const bool is_echo = asked.abstract_syntax == kVerification;
  if (!is_echo && !Holds(kSopClasses, asked.abstract_syntax)) return answer;
  answer.result = dimse::ContextResult::kTransferSyntaxes;
  for (const std::string& syntax : asked.transfer_syntaxes) {
    if (!Holds(kTransferSyntaxes, syntax)) continue;
    answer.result = dimse::ContextResult::kAccepted;
    answer.transfer_syntax = syntax;
    break;
  }
  return answer;
}

uint16_t ResponseStatus(bool is_agreed, const absl::Status& kept) {
  if (!is_agreed) return dimse::kSopClassNotSupported;
  if (absl::IsPermissionDenied(kept)) return dimse::kNotAuthorized;
  if (absl::IsInvalidArgument(kept)) return dimse::kCannotUnderstand;
  if (absl::IsAlreadyExists(kept)) return dimse::kDataSetDoesNotMatch;
  return kept.ok() ? dimse::kSuccess : dimse::kOutOfResources;
}

}  // namespace

void YieldToFrames() { (void)setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kNice); }

absl::Span<const char* const> StorageSopClasses() { return kSopClasses; }
absl::Span<const char* const> StorageTransferSyntaxes() { return kTransferSyntaxes; }

absl::Status ReceiveStore(Association& association, const dimse::ReceivedCommand& request, StoreTarget& target,
                          const PacsMetrics& metrics, StoreTally& tally) {
  const Command& command = request.command;
  const dimse::Context& context = association.contexts().at(request.context);
  const std::string uid = command.elements.Text(dimse::kAffectedSopInstance);
  if (!command.has_data) return absl::InvalidArgumentError("command: a store request has no data set");
  const bool is_agreed = command.elements.Text(dimse::kAffectedSopClass) == context.abstract_syntax &&
                         Holds(kSopClasses, context.abstract_syntax) && dimse::IsUid(uid);
  std::unique_ptr<SpooledFile> file;
  absl::Status kept = absl::PermissionDeniedError("is not what was agreed");
  if (is_agreed) {
    absl::StatusOr<std::unique_ptr<SpooledFile>> made = target.Begin(command, uid);
    kept = made.status();
    if (made.ok()) file = *std::move(made);
  }
  if (kept.ok()) kept = file->Append(FileHeader(context.abstract_syntax, uid, context.transfer_syntax));
  int64_t bytes = 0;
  const absl::Status received =
      association.ReceiveData(request.context, kMaxInstanceBytes, [&](absl::string_view part) {
        bytes += static_cast<int64_t>(part.size());
        if (target.abandons()) return absl::CancelledError("nobody waits for the instance any more");
        if (kept.ok()) kept = file->Append(part);
        return absl::OkStatus();
      });
  // A refusal by the file is told to the sender.
  if (!received.ok()) {
    target.BrokeOff(uid, std::move(file));
    return received;
  }
  if (kept.ok()) kept = file->Close();
  if (kept.ok()) {
    kept = target.Keep(uid, std::move(file));
  } else {
    target.BrokeOff(uid, std::move(file));
    metrics.CountInstance(absl::IsPermissionDenied(kept) ? InstanceOutcome::kRefused : InstanceOutcome::kNoRoom, bytes);
  }
  if (!is_agreed) ++tally.unknown;
  if (!kept.ok()) target.Refused(kept);
  if (absl::IsAlreadyExists(kept)) ++tally.contradicting;
  tally.bytes += bytes;
  ++(kept.ok() ? tally.stored : tally.refused);
  Command response = dimse::ResponseTo(command, ResponseStatus(is_agreed, kept));
  if (absl::IsAlreadyExists(kept)) response.elements.SetText(dimse::kErrorComment, "another instance has this UID");
  return association.Send(request.context, response);
}

absl::StatusOr<std::unique_ptr<StorageScp>> StorageScp::Start(Options options, const DicomPeers& peers,
                                                              InstanceSpool& spool, RunningMoves& moves,
                                                              const PacsMetrics& metrics, AuditTrail& audit) {
  INTRAWARP_ASSIGN_OR_RETURN(TcpListener listener, TcpListener::Bind(options.listen));
  std::unique_ptr<StorageScp> scp(
      new StorageScp(std::move(options), std::move(listener), peers, spool, moves, metrics, audit));
  scp->listening_ = std::thread([to = scp.get()] { to->Listen(); });
  return scp;
}

StorageScp::StorageScp(Options options, TcpListener listener, const DicomPeers& peers, InstanceSpool& spool,
                       RunningMoves& moves, const PacsMetrics& metrics, AuditTrail& audit)
    : options_(std::move(options)),
      listener_(std::move(listener)),
      peers_(peers),
      spool_(spool),
      moves_(moves),
      metrics_(metrics),
      audit_(audit) {}

StorageScp::~StorageScp() { Stop(steady_clock::now()); }

void StorageScp::Stop(steady_clock::time_point end) {
  if (stopping_.exchange(true)) return;
  wake_.Raise();
  if (listening_.joinable()) listening_.join();
  while (open_ > 0 && steady_clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& served : served_) served->connection->Abort();
  }
  Reap(/*all=*/true);
}

void StorageScp::Listen() {
  while (!stopping_) {
    pollfd polled[2] = {{listener_.fd(), POLLIN, 0}, {wake_.fd(), POLLIN, 0}};
    (void)poll(polled, 2, 1000);
    if (stopping_) return;
    Reap(/*all=*/false);
    while (Fd fd = listener_.Accept()) Take(std::move(fd));
  }
}

// Strangers get no thread, so that they keep none from a peer.
void StorageScp::Take(Fd fd) {
  std::string address = AddressOf(fd.get());
  std::lock_guard<std::mutex> lock(mutex_);
  if (!peers_.HasHost(address) || !MakeRoom(address)) return metrics_.CountAssociation(AssociationOutcome::kRefused);
  const int on = 1;
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  auto served = std::make_unique<Served>();
  served->connection = std::make_shared<dimse::Connection>(fd.release(), std::move(address));
  Served* const to = served.get();
  served_.push_back(std::move(served));
  try {
    to->thread = options_.start_thread([this, to] {
      YieldToFrames();
      Serve(*to);
      to->done = true;
      wake_.Raise();
    });
  } catch (const std::system_error&) {  // the system has no thread left
    served_.pop_back();
    metrics_.CountAssociation(AssociationOutcome::kRefused);
  }
}

// With the mutex held. The oldest silent connection of the address that has most of them gives way, where a new one of
// `address` does not bring that one to as many.
bool StorageScp::MakeRoom(const std::string& address) {
  const size_t most = static_cast<size_t>(options_.max_associations) + kRejecting;
  size_t live = 0;
  std::map<std::string, int> silent;
  for (const auto& served : served_) {
    if (served->gave_way) continue;
    ++live;
    silent[served->connection->peer()] += served->is_silent ? 1 : 0;
  }
  if (live < most) return true;
  const auto fullest =
      std::max_element(silent.begin(), silent.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  // Threads that gave way end soon, and are bounded, too.
  if (served_.size() >= 2 * most || fullest->second <= silent[address] + 1) return false;
  const auto oldest = std::find_if(served_.begin(), served_.end(), [&](const auto& served) {
    return !served->gave_way && served->is_silent && served->connection->peer() == fullest->first;
  });
  if (oldest == served_.end()) return false;  // it has just got its association
  (*oldest)->gave_way = true;
  (*oldest)->connection->Abort();
  return true;
}

// On the listening thread, or once it has ended.
void StorageScp::Reap(bool all) {
  wake_.Clear();
  std::list<std::unique_ptr<Served>> ended;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto it = served_.begin(); it != served_.end();) {
      const auto next = std::next(it);
      if (all || (*it)->done) ended.splice(ended.end(), served_, it);
      it = next;
    }
  }
  for (const auto& served : ended) served->thread.join();
}

void StorageScp::Refuse(const std::string& address, const absl::Status& why) {
  Log(Severity::kWarning, "dicom_association_refused", {{"address", address}, {"cause", std::string(why.message())}});
  audit_.AppendRefusal({"dicom.Associate", "", address}, {CodeName(static_cast<int>(why.code())), ""});
}

absl::StatusOr<const DicomPeer*> StorageScp::Admit(const dimse::AssociateRequest& request, const std::string& address,
                                                   AssociateReject* reject) {
  const DicomPeer* const peer = peers_.Find(request.calling_ae);
  *reject = dimse::kCallingAeUnknown;
  if (peer == nullptr) return absl::PermissionDeniedError("the calling AE title is not listed");
  if (peer->host != address) return absl::PermissionDeniedError("the calling AE title has another address");
  *reject = dimse::kCalledAeUnknown;
  if (request.called_ae != options_.ae_title)
    return absl::PermissionDeniedError("the called AE title is not this server's");
  *reject = dimse::kCongested;
  if (stopping_) return absl::UnavailableError("the server is shutting down");
  INTRAWARP_RETURN_IF_ERROR(audit_.Available());
  *reject = dimse::kLocalLimit;
  std::lock_guard<std::mutex> lock(mutex_);
  int& open = open_of_[peer->ae_title];
  if (open_ >= options_.max_associations || open >= peer->max_associations) {
    return absl::ResourceExhaustedError("there are too many associations");
  }
  ++open;
  ++open_;
  return peer;
}

Association::Answer StorageScp::Decide(const dimse::AssociateRequest& request, const std::string& address,
                                       const DicomPeer** peer) {
  Association::Answer answer;
  const absl::StatusOr<const DicomPeer*> admitted = Admit(request, address, &answer.reject);
  if (!admitted.ok()) {
    Refuse(address, admitted.status());
    return answer;
  }
  *peer = *admitted;
  answer.accepted = true;
  answer.accept.max_pdu_bytes = dimse::kMaxPduBytes;
  for (const dimse::PresentationContext& context : request.contexts) {
    answer.accept.contexts.push_back(AnswerContext(context));
  }
  return answer;
}

void StorageScp::Serve(Served& served) {
  const std::shared_ptr<dimse::Connection>& connection = served.connection;
  const steady_clock::time_point begin = steady_clock::now();
  const std::string& address = connection->peer();
  if (options_.tls != nullptr) {
    const absl::Status shaken = connection->AcceptTls(*options_.tls, begin + options_.patience.progress);
    if (!shaken.ok()) {
      metrics_.CountAssociation(AssociationOutcome::kRefused);
      return Refuse(address, shaken);
    }
  }
  const DicomPeer* peer = nullptr;
  absl::StatusOr<std::unique_ptr<Association>> association =
      Association::Accept(connection, options_.patience,
                          [&](const dimse::AssociateRequest& request) { return Decide(request, address, &peer); });
  if (peer == nullptr) return metrics_.CountAssociation(OutcomeOf(association.status()));
  served.is_silent = false;
  StoreTally tally;
  absl::Status status = association.status();
  if (status.ok()) {
    const int64_t number = ++numbers_;
    status = ServeCommands(**association, *peer, number, tally);
    spool_.EndAssociation(number, absl::IsOutOfRange(status) && tally.unknown == 0, numbers_);
  }
  Report(*peer, address, status, tally, steady_clock::now() - begin);
  std::lock_guard<std::mutex> lock(mutex_);
  --open_of_[peer->ae_title];
  --open_;
}

// Files the instances of one association: unsolicited ones in the spool, a C-MOVE's in the import that asked for them.
class StorageScp::PeerTarget final : public StoreTarget {
 public:
  PeerTarget(StorageScp& scp, const DicomPeer& peer, int64_t association, StoreTally& tally)
      : scp_(scp), peer_(peer), association_(association), tally_(tally) {}

  absl::StatusOr<std::unique_ptr<SpooledFile>> Begin(const Command& request, const std::string& uid) override {
    intake_ = nullptr;
    if (request.elements.Text(dimse::kMoveOriginatorAe) == scp_.options_.ae_title) {
      intake_ = scp_.moves_.Named(request.elements.Get16(dimse::kMoveOriginatorId).value_or(0), peer_.ae_title);
      if (intake_ == nullptr)
        return absl::PermissionDeniedError("belongs to a move that has ended, or to no move of this peer");
      return intake_->NewFile();
    }
    const absl::Status expected = scp_.spool_.Expect(peer_, InstanceHash(uid));
    if (!expected.ok()) ++tally_.unknown;
    INTRAWARP_RETURN_IF_ERROR(expected);
    return scp_.spool_.NewFile(peer_);
  }

  // The peer's own series lacks the instance, where the part tells which one that is.
  void BrokeOff(const std::string& uid, std::unique_ptr<SpooledFile> part) override {
    if (intake_ != nullptr || part == nullptr || !part->Close().ok()) return;
    const InstanceDescription described = DescribeInstance(part->path(), scp_.options_.reading);
    if (!described.group.empty()) scp_.spool_.Attribute({peer_.ae_title, described.group}, InstanceHash(uid));
  }

  absl::Status Keep(const std::string& uid, std::unique_ptr<SpooledFile> file) override {
    if (intake_ != nullptr) return intake_->Add(uid, std::move(file));
    const std::string instance = InstanceHash(uid);
    const int64_t bytes = file->bytes();
    const InstanceDescription described = DescribeInstance(file->path(), scp_.options_.reading);
    if (!described.status.ok()) return Refuse(instance, described, bytes);
    const SeriesKey key{peer_.ae_title, described.group};
    if (!described.instance.empty() && described.instance != instance) {
      scp_.spool_.Attribute(key, instance);
      scp_.metrics_.CountInstance(InstanceOutcome::kRefused, bytes);
      return absl::AlreadyExistsError("the data set is another instance than the request says");
    }
    const RunningMoves::Owner owner = scp_.moves_.Of(peer_.ae_title, described.series, association_);
    if (owner.intake != nullptr) {
      scp_.spool_.Divert(key, instance);
      return owner.intake->Add(uid, std::move(file));
    }
    if (owner.is_late) {
      scp_.spool_.Attribute(key, instance);
      scp_.metrics_.CountInstance(InstanceOutcome::kRefused, bytes);
      return absl::PermissionDeniedError("belongs to a move that has ended");
    }
    const absl::Status added = scp_.spool_.Add(key, instance, std::move(file), association_, described.announced);
    // The first one of two that differ is there.
    const bool contradicts = absl::IsAlreadyExists(added);
    if (contradicts) scp_.spool_.Unexpect(peer_, instance);
    if (!added.ok() && !contradicts) scp_.spool_.Attribute(key, instance);
    scp_.metrics_.CountInstance(added.ok()    ? InstanceOutcome::kStored
                                : contradicts ? InstanceOutcome::kRefused
                                              : InstanceOutcome::kNoRoom,
                                bytes);
    return added;
  }

 private:
  // A whole instance that the reader refused. Where others have the memory now, any series may lack it until it comes
  // again.
  absl::Status Refuse(const std::string& instance, const InstanceDescription& described, int64_t bytes) {
    scp_.metrics_.CountInstance(described.has_room ? InstanceOutcome::kUnreadable : InstanceOutcome::kNoRoom, bytes);
    if (!described.has_room && MayPass(described.status)) return described.status;
    if (described.is_slice && !described.group.empty()) {
      scp_.spool_.Attribute({peer_.ae_title, described.group}, instance);
    } else {
      tally_.unknown += described.is_slice ? 1 : 0;
      scp_.spool_.Unexpect(peer_, instance);
    }
    return described.has_room ? absl::InvalidArgumentError("the reader cannot use it") : described.status;
  }

  StorageScp& scp_;
  const DicomPeer& peer_;
  const int64_t association_;
  StoreTally& tally_;
  std::shared_ptr<SeriesIntake> intake_;  // of the instance that comes, when it names one
};

absl::Status StorageScp::ServeCommands(Association& association, const DicomPeer& peer, int64_t number,
                                       StoreTally& tally) {
  PeerTarget target(*this, peer, number, tally);
  for (;;) {
    INTRAWARP_ASSIGN_OR_RETURN(const dimse::ReceivedCommand request, association.ReceiveCommand());
    if (request.command.field == dimse::kEchoRequest && !request.command.has_data) {
      INTRAWARP_RETURN_IF_ERROR(association.Send(request.context, dimse::ResponseTo(request.command, dimse::kSuccess)));
    } else if (request.command.field == dimse::kStoreRequest) {
      const absl::Status received = ReceiveStore(association, request, target, metrics_, tally);
      if (absl::IsInvalidArgument(received)) association.Abort(/*by_provider=*/true);
      INTRAWARP_RETURN_IF_ERROR(received);
    } else {
      association.Abort(/*by_provider=*/true);
      return absl::InvalidArgumentError("command: is neither a store nor an echo request");
    }
  }
}

void StorageScp::Report(const DicomPeer& peer, const std::string& address, const absl::Status& status,
                        const StoreTally& tally, std::chrono::nanoseconds elapsed) {
  const AssociationOutcome outcome = OutcomeOf(status);
  const char* const word = kOutcomeWords[static_cast<size_t>(outcome)];
  metrics_.CountAssociation(outcome);
  const std::string stored = absl::StrCat(tally.stored), refused = absl::StrCat(tally.refused);
  Log(outcome == AssociationOutcome::kReleased && tally.refused == 0 ? Severity::kInfo : Severity::kWarning,
      "dicom_association",
      {{"peer", peer.ae_title},
       {"address", address},
       {"outcome", word},
       {"stored", stored},
       {"refused", refused},
       {"contradicting", absl::StrCat(tally.contradicting)},
       {"bytes", absl::StrCat(tally.bytes)}});
  audit::AuditRecord record;
  record.action = "dicom.Associate";
  record.who = peer.owner;
  record.peer = address;
  record.outcome =
      outcome == AssociationOutcome::kReleased ? "OK" : std::string(absl::StatusCodeToString(status.code()));
  record.milliseconds = std::chrono::duration<double, std::milli>(elapsed).count();
  record.notes = {{"ae_title", peer.ae_title},
                  {"ended", word},
                  {"stored", stored},
                  {"refused", refused},
                  {"bytes", absl::StrCat(tally.bytes)}};
  audit_.Append(std::move(record));
}

}  // namespace intrawarp::server
