// SPDX-License-Identifier: Apache-2.0
#include "server/trail/audit_trail.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/status_macros.h"
#include "server/base/peer_address.h"
#include "server/monitor/log.h"
#include "server/status/errors.h"

namespace intrawarp::server {
namespace {

using std::chrono::milliseconds;

constexpr size_t kNameDigits = 32;
// How long a stop waits for the last record.
constexpr milliseconds kClosePatience{5000};

// In order.
constexpr std::array<absl::string_view, 16> kAudited = {
    "intrawarp.v1.BulkService/Download",
    "intrawarp.v1.BulkService/Upload",
    "intrawarp.v1.OperationService/CancelOperation",
    "intrawarp.v1.PacsService/FindSeries",
    "intrawarp.v1.PacsService/ImportSeries",
    "intrawarp.v1.RegistrationService/Navigate",
    "intrawarp.v1.RegistrationService/Register",
    "intrawarp.v1.ServerService/SetLogLevel",
    "intrawarp.v1.SessionService/CloseSession",
    "intrawarp.v1.SparseMatrixService/DeleteSparseMatrix",
    "intrawarp.v1.SparseMatrixService/Multiply",
    "intrawarp.v1.SparseMatrixService/MultiplyTriple",
    "intrawarp.v1.TransformService/DeleteTransform",
    "intrawarp.v1.TransformService/MapPoints",
    "intrawarp.v1.TransformService/WarpVolume",
    "intrawarp.v1.VolumeService/DeleteVolume",
};

// In order.
constexpr std::array<absl::string_view, 5> kExports = {
    "intrawarp.v1.BulkService/Download",         "intrawarp.v1.RegistrationService/Register",
    "intrawarp.v1.SparseMatrixService/Multiply", "intrawarp.v1.SparseMatrixService/MultiplyTriple",
    "intrawarp.v1.TransformService/WarpVolume",
};

// What a search knows of a patient, in order: names and numbers, which are soon guessed.
constexpr std::array<absl::string_view, 3> kOfPatients = {"accession_number", "patient_id", "patient_name"};
// In the place of a digest that would tell them.
constexpr char kGiven[] = "given";

bool IsOfPatient(absl::string_view role) { return std::binary_search(kOfPatients.begin(), kOfPatients.end(), role); }

// A digest that takes no key.
std::string PlainDigest(absl::string_view name) { return audit::ChainHash("").Next("", name).substr(0, kNameDigits); }

double Milliseconds(std::chrono::nanoseconds time) { return std::chrono::duration<double, std::milli>(time).count(); }

std::string ToJsonText(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(message, &text, options).ok()) return "";
  return text;
}

// Without the names of objects, which may be a client's words: their digests stand in the record.
std::string OptionsText(v1::RegistrationOptions options) {
  options.clear_fixed_mask();
  options.clear_moving_mask();
  options.clear_fixed_weight();
  options.clear_moving_weight();
  if (options.has_initial_transform()) options.clear_initial();
  // Points of a patient's body.
  options.clear_error();
  options.clear_landmarks();
  return ToJsonText(options);
}

std::string QualityText(const v1::Report& report) {
  v1::Report quality;
  quality.set_verdict(report.verdict());
  *quality.mutable_reasons() = report.reasons();
  *quality.mutable_affine() = report.affine();
  quality.set_overlap(report.overlap());
  quality.set_stop_reason(report.stop_reason());
  if (report.has_error()) *quality.mutable_error() = report.error();
  if (report.has_jacobian()) *quality.mutable_jacobian() = report.jacobian();
  return ToJsonText(quality);
}

// What counts together: the network of a peer in gRPC's words, else the peer.
std::string NetworkIn(const std::string& peer) {
  const std::optional<PeerAddress> address = ParsePeer(peer);
  return address ? NetworkOf(*address) : peer;
}

audit::AuditRecord RecordOf(const AuditedCall& call, const AuditedOutcome& outcome) {
  audit::AuditRecord record;
  record.action = call.method;
  record.who = call.who;
  record.peer = call.peer;
  record.outcome = outcome.code;
  record.reason = outcome.reason;
  return record;
}

}  // namespace

std::string CodeName(int code) { return std::string(absl::StatusCodeToString(static_cast<absl::StatusCode>(code))); }

bool IsExport(absl::string_view method) { return std::binary_search(kExports.begin(), kExports.end(), method); }

bool IsAudited(absl::string_view method) { return std::binary_search(kAudited.begin(), kAudited.end(), method); }

absl::Status AuditTrail::Open(state::FileLayer& files, audit::AuditOptions options,
                              std::vector<std::pair<std::string, std::string>> notes) {
  names_ = std::make_unique<audit::ChainHash>(options.key);
  options.now = seams_.steady_now;
  INTRAWARP_ASSIGN_OR_RETURN(log_, audit::AuditLog::Open(files, std::move(options)));
  const audit::Position head = log_->head();
  Log(Severity::kInfo, "audit_opened", {{"head", audit::FormatPosition(head)}});
  audit::AuditRecord record;
  record.action = "start";
  record.notes = std::move(notes);
  Append(std::move(record));
  return absl::OkStatus();
}

void AuditTrail::Close() {
  if (log_ == nullptr) return;
  RecordUnrecorded();
  audit::AuditRecord record;
  record.action = "stop";
  Append(std::move(record));
  const bool ended = log_->Stop(kClosePatience);
  Log(ended ? Severity::kInfo : Severity::kError, ended ? "audit_closed" : "audit_abandoned",
      {{"head", audit::FormatPosition(log_->head())}});
  // A thread that waits for the disk keeps what it uses.
  if (!ended) (void)log_.release();
  log_ = nullptr;
}

absl::Status Unrecorded() {
  return WithReason(absl::UnavailableError("the audit log cannot be written"), v1::AUDIT_UNAVAILABLE);
}

absl::Status AuditTrail::Available() const {
  return log_ == nullptr || log_->available() ? absl::OkStatus() : Unrecorded();
}

void AuditTrail::Append(audit::AuditRecord record, audit::AuditLog::DoneFn done) {
  if (log_ == nullptr) {
    if (done) done(absl::OkStatus());
    return;
  }
  record.time = seams_.system_now();
  log_->Append(std::move(record), std::move(done));
}

void AuditTrail::AppendRefusal(const AuditedCall& call, const AuditedOutcome& outcome, audit::AuditLog::DoneFn done) {
  bool is_recorded = log_ != nullptr;
  if (is_recorded) {
    std::lock_guard<std::mutex> lock(mutex_);
    is_recorded = TakeRefusal(call.who.empty() ? Source("", NetworkIn(call.peer)) : Source(call.who, ""));
  }
  if (is_recorded) return Append(RecordOf(call, outcome), std::move(done));
  if (done) done(absl::OkStatus());
}

bool AuditTrail::TakeRefusal(const Source& source) {
  const bool is_stranger = source.first.empty();
  // Identities are as many as the files of credentials have.
  if (is_stranger && refused_.count(source) == 0) {
    const auto networks =
        std::count_if(refused_.begin(), refused_.end(), [](const auto& each) { return each.first.first.empty(); });
    if (static_cast<size_t>(networks) >= kRefusedSources) {
      ++refused_[Source()].unrecorded;
      return false;
    }
  }
  Refused& refused = refused_[source];
  const bool is_scarce = stranger_refusals_ >= kStrangerRefusals;
  const int most = !is_stranger ? kKnownRefusals : is_scarce ? kScarceRefusals : kRefusalsAMinute;
  if (refused.recorded >= most) {
    ++refused.unrecorded;
    return false;
  }
  ++refused.recorded;
  stranger_refusals_ += is_stranger ? 1 : 0;
  return true;
}

void AuditTrail::RecordUnrecorded() {
  std::map<Source, Refused> refused;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    refused.swap(refused_);
    stranger_refusals_ = 0;
  }
  for (const auto& [source, each] : refused) {
    if (each.unrecorded == 0) continue;
    audit::AuditRecord record;
    record.action = "refusals";
    record.who = source.first;
    record.peer = source.second;
    record.notes = {{"unrecorded_refusals", absl::StrCat(each.unrecorded)}};
    Append(std::move(record));
  }
}

std::string AuditTrail::NameDigest(absl::string_view name) const {
  return names_ == nullptr ? "" : names_->Next("", name).substr(0, kNameDigits);
}

void AuditTrail::Check(std::chrono::steady_clock::time_point now) {
  if (log_ == nullptr) return;
  log_->Check(now);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (now - minute_ < std::chrono::minutes(1)) return;
    minute_ = now;
  }
  RecordUnrecorded();
}

audit::Position AuditTrail::head() const { return log_ == nullptr ? audit::Position() : log_->head(); }

int64_t AuditTrail::lost() const { return log_ == nullptr ? 0 : log_->lost(); }

void CallAudit::Trace(const std::string& trace_id) {
  if (trail_ == nullptr) return;
  std::lock_guard<std::mutex> lock(mutex_);
  record_.notes.emplace_back("trace", trace_id);
}

void CallAudit::Digest(absl::string_view role, const std::string& sha256) {
  if (trail_ == nullptr) return;
  std::lock_guard<std::mutex> lock(mutex_);
  record_.digests.emplace_back(role, sha256);
}

void CallAudit::Name(absl::string_view role, absl::string_view resource) {
  if (trail_ == nullptr) return;
  std::string digest = trail_->NameDigest(resource);
  if (IsOfPatient(role) && digest == PlainDigest(resource)) digest = kGiven;
  std::lock_guard<std::mutex> lock(mutex_);
  record_.names.emplace_back(role, std::move(digest));
}

void CallAudit::Options(const google::protobuf::Message& options) {
  if (trail_ == nullptr) return;
  std::lock_guard<std::mutex> lock(mutex_);
  record_.options = ToJsonText(options);
}

void CallAudit::Device(absl::string_view device) {
  if (trail_ == nullptr) return;
  std::lock_guard<std::mutex> lock(mutex_);
  record_.device = std::string(device);
}

void CallAudit::Report(const v1::Report& report) {
  if (trail_ == nullptr) return;
  std::lock_guard<std::mutex> lock(mutex_);
  record_.device = report.device();
  record_.options = OptionsText(report.options());
  record_.quality = QualityText(report);
}

audit::AuditRecord CallAudit::NewRecord(const AuditedCall& call, const AuditedOutcome& outcome) {
  audit::AuditRecord record = RecordOf(call, outcome);
  std::lock_guard<std::mutex> lock(mutex_);
  record.digests = record_.digests;
  record.names = record_.names;
  record.options = record_.options;
  record.device = record_.device;
  record.quality = record_.quality;
  record.notes = record_.notes;
  return record;
}

void CallAudit::Begin(const AuditedCall& call, audit::AuditLog::DoneFn done) {
  if (trail_ == nullptr) return done(absl::OkStatus());
  {
    std::lock_guard<std::mutex> lock(mutex_);
    record_.notes.emplace_back("call", trail_->NewCallId());
  }
  audit::AuditRecord record = NewRecord(call, AuditedOutcome());
  record.outcome = audit::kBegun;
  trail_->Append(std::move(record), std::move(done));
}

void CallAudit::Close(const AuditedCall& call, const AuditedOutcome& outcome, std::chrono::nanoseconds elapsed,
                      audit::AuditLog::DoneFn done) {
  if (trail_ == nullptr) return done(absl::OkStatus());
  audit::AuditRecord record = NewRecord(call, outcome);
  record.milliseconds = Milliseconds(elapsed);
  trail_->Append(std::move(record), std::move(done));
}

void CallAudit::Frame(absl::string_view session, const AuditedFrame& frame, const v1::Report* report) {
  if (trail_ == nullptr) return;
  audit::AuditRecord record;
  record.action = "frame";
  record.names = {{"session", trail_->NameDigest(session)}};
  {
    std::lock_guard<std::mutex> lock(mutex_);
    record.notes = record_.notes;
  }
  record.frame = frame.number;
  record.digests = frame.digests;
  record.checksum = absl::StrFormat("%08x", frame.checksum);
  record.outcome = CodeName(static_cast<int>(frame.status.code()));
  if (!frame.status.ok()) record.reason = v1::ErrorReason_Name(ReasonOf(frame.status));
  record.milliseconds = Milliseconds(frame.elapsed);
  if (report != nullptr) {
    record.device = report->device();
    record.quality = QualityText(*report);
  }
  trail_->Append(std::move(record));
}

}  // namespace intrawarp::server
