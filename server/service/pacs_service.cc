// SPDX-License-Identifier: Apache-2.0
#include "server/service/pacs_service.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "io/dicom/dicom.h"
#include "server/base/names.h"
#include "server/operation/operation_messages.h"
#include "server/pacs/series_query.h"
#include "server/rpc/caller.h"
#include "server/rpc/grpc_status.h"
#include "server/rpc/unary.h"
#include "server/status/errors.h"
#include "server/store/durable_objects.h"
#include "server/store/request_table.h"
#include "server/trail/audit_trail.h"

namespace intrawarp::server {
namespace {

using std::chrono::nanoseconds;

// The limit of a question, whatever its deadline.
constexpr std::chrono::minutes kMaxQuestionTime{2};
constexpr int kDefaultMaxSeries = 200;

// A question under way; it answers on a thread of the importer. Lives until gRPC is done with it.
class Question final : public grpc::ServerUnaryReactor {
 public:
  using AskFn = std::function<absl::Status(const SourceCall&)>;

  Question(const grpc::CallbackServerContext& call, Importer& importer, const Seams& seams, AskFn ask)
      : ask_(std::move(ask)) {
    const nanoseconds left = call.deadline() - seams.system_now();
    bounds_.end = std::chrono::steady_clock::now() + std::clamp<nanoseconds>(left, nanoseconds(0), kMaxQuestionTime);
    bounds_.cancelled = [this, &importer] { return cancelled_ || importer.stopping(); };
    const absl::Status accepted = importer.Ask([this] { Finish(ToGrpcStatus(ForCaller(ask_(bounds_)))); });
    if (!accepted.ok()) Finish(ToGrpcStatus(accepted));
  }
  void OnCancel() override { cancelled_ = true; }
  void OnDone() override { delete this; }

 private:
  const AskFn ask_;
  SourceCall bounds_;
  std::atomic<bool> cancelled_{false};
};

v1::RemoteProtocol ProtocolOf(RemoteKind kind) {
  switch (kind) {
    case RemoteKind::kGet:
      return v1::REMOTE_PROTOCOL_DICOM_GET;
    case RemoteKind::kMove:
      return v1::REMOTE_PROTOCOL_DICOM_MOVE;
    case RemoteKind::kDicomweb:
      return v1::REMOTE_PROTOCOL_DICOMWEB;
  }
  return v1::REMOTE_PROTOCOL_UNSPECIFIED;
}

// Where the archive is, and who it is: another one may have taken its name since an earlier start.
std::string AddressOf(const Remote& remote) {
  if (remote.kind == RemoteKind::kDicomweb) return remote.http.base_url;
  return absl::StrCat(remote.ae_title, "@", remote.host, ":", remote.port);
}

bool MaySeePatients(const Identity& caller, const Remote& remote) { return caller.roles.HasAnyOf(remote.patients); }

SeriesQuery QueryOf(const v1::FindSeriesRequest& request) {
  SeriesQuery query;
  query.study = request.study_uid();
  query.patient_id = request.patient_id();
  query.patient_name = request.patient_name();
  query.accession_number = request.accession_number();
  query.date_from = request.date_from();
  query.date_to = request.date_to();
  query.modality = request.modality();
  query.with_patient = request.with_patient();
  query.max_series = request.max_series() == 0 ? kDefaultMaxSeries : request.max_series();
  return query;
}

void FillMatch(const SeriesMatch& from, v1::SeriesMatch& to) {
  to.set_study_uid(from.name.study);
  to.set_series_uid(from.name.series);
  to.set_modality(from.modality);
  to.set_study_date(from.study_date);
  to.set_study_time(from.study_time);
  to.set_study_description(from.study_description);
  to.set_series_description(from.series_description);
  to.set_series_number(from.series_number);
  if (from.instances >= 0) to.set_instances(from.instances);
  to.set_patient_id(from.patient_id);
  to.set_patient_name(from.patient_name);
  to.set_patient_birth_date(from.patient_birth_date);
}

// Hashes of the keys, those of a patient only by the log's key: who has it and knows a value finds its searches, and
// nobody reads it there.
void AuditKeys(const SeriesQuery& query, CallAudit& audit) {
  for (const auto& [role, value] : {std::pair<const char*, const std::string&>{"study_uid", query.study},
                                    {"patient_id", query.patient_id},
                                    {"patient_name", query.patient_name},
                                    {"accession_number", query.accession_number}}) {
    if (!value.empty()) audit.Name(role, value);
  }
}

// The audit's part of a request: no UID and no key of a query.
v1::FindSeriesRequest Audited(const v1::FindSeriesRequest& request) {
  v1::FindSeriesRequest kept;
  kept.set_remote(request.remote());
  kept.set_with_patient(request.with_patient());
  return kept;
}

}  // namespace

absl::StatusOr<const Archive*> PacsService::ArchiveOf(const std::string& name) const {
  if (name.empty()) return InvalidField("remote", "must name an archive");
  if (importer_ == nullptr) return NotFound("remotes/" + name);
  return importer_->Find(name);
}

grpc::ServerUnaryReactor* PacsService::ListRemotes(grpc::CallbackServerContext* call, const v1::ListRemotesRequest*,
                                                   v1::ListRemotesResponse* response) {
  if (importer_ == nullptr) return Reply(call, absl::OkStatus());
  for (const Archive& archive : importer_->archives()) {
    v1::Remote& remote = *response->add_remotes();
    remote.set_name(archive.remote.name);
    remote.set_protocol(ProtocolOf(archive.remote.kind));
    remote.set_tls(archive.remote.tls);
    remote.set_shows_patients(MaySeePatients(CallerOf(*call), archive.remote));
  }
  return Reply(call, absl::OkStatus());
}

grpc::ServerUnaryReactor* PacsService::EchoRemote(grpc::CallbackServerContext* call,
                                                  const v1::EchoRemoteRequest* request, v1::EchoRemoteResponse*) {
  const absl::StatusOr<const Archive*> archive = ArchiveOf(request->remote());
  if (!archive.ok()) return Reply(call, archive.status());
  return new Question(*call, *importer_, context_.seams,
                      [source = (*archive)->source.get()](const SourceCall& bounds) { return source->Echo(bounds); });
}

absl::Status PacsService::CheckSearch(const grpc::CallbackServerContext& call, const Archive& archive,
                                      const SeriesQuery& query) {
  const Identity caller = CallerOf(call);
  const bool sees_patients = MaySeePatients(caller, archive.remote);
  if (query.with_patient && !sees_patients) {
    return WithReason(absl::PermissionDeniedError("with_patient: the role does not suffice"), v1::ROLE_MISSING,
                      {{"roles", RolesText(archive.remote.patients)}});
  }
  INTRAWARP_RETURN_IF_ERROR(CheckQuery(query, sees_patients));
  if (searches_.Take(caller.name, sees_patients, context_.seams.steady_now())) return absl::OkStatus();
  const int most = sees_patients ? kSearchesAMinute : kBlindSearchesAMinute;
  return WithReason(absl::ResourceExhaustedError(absl::StrCat("at most ", most, " searches a minute")), v1::CALL_RATE,
                    {{"capacity", absl::StrCat(most / 60.0)}});
}

grpc::ServerUnaryReactor* PacsService::FindSeries(grpc::CallbackServerContext* call,
                                                  const v1::FindSeriesRequest* request,
                                                  v1::FindSeriesResponse* response) {
  AuditOf(*call)->Options(Audited(*request));
  const absl::StatusOr<const Archive*> archive = ArchiveOf(request->remote());
  if (!archive.ok()) return Reply(call, archive.status());
  const SeriesQuery query = QueryOf(*request);
  AuditKeys(query, *AuditOf(*call));
  const absl::Status good = CheckSearch(*call, **archive, query);
  if (!good.ok()) return Reply(call, good);
  return new Question(*call, *importer_, context_.seams,
                      [source = (*archive)->source.get(), query, response](const SourceCall& bounds) -> absl::Status {
                        INTRAWARP_ASSIGN_OR_RETURN(const SeriesMatches matches, source->Find(query, bounds));
                        for (const SeriesMatch& match : matches.series) FillMatch(match, *response->add_series());
                        response->set_truncated(matches.truncated);
                        return absl::OkStatus();
                      });
}

absl::StatusOr<OperationTable::Begun> PacsService::BeginImport(const grpc::CallbackServerContext& call,
                                                               const v1::ImportSeriesRequest& request,
                                                               SeriesImport& import) {
  INTRAWARP_RETURN_IF_ERROR(ValidateId(request.request_id(), "request_id"));
  INTRAWARP_ASSIGN_OR_RETURN(import.archive, ArchiveOf(request.remote()));
  import.name = {request.study_uid(), request.series_uid()};
  INTRAWARP_RETURN_IF_ERROR(CheckSeriesName(import.name));
  import.owner = CallerOf(call).name;
  v1::ImportSeriesRequest content = request;
  content.clear_request_id();
  const InputPrint archive = InputPrint::OfText(AddressOf(import.archive->remote));
  const RequestKey key{request.request_id(), WithInputs(Fingerprint("ImportSeries", content), {archive}), import.owner};
  return context_.operations.Begin(OperationKind::kImport, key);
}

grpc::ServerUnaryReactor* PacsService::ImportSeries(grpc::CallbackServerContext* call,
                                                    const v1::ImportSeriesRequest* request,
                                                    v1::ImportSeriesResponse* response) {
  SeriesImport import;
  const absl::StatusOr<OperationTable::Begun> begun = BeginImport(*call, *request, import);
  v1::ImportSeriesRequest audited;
  audited.set_remote(request->remote());
  AuditOf(*call)->Options(audited);
  if (!begun.ok()) return Reply(call, begun.status());
  AuditOf(*call)->Digest("series", io::SeriesHash(import.name.series));
  if (begun->work == nullptr) {
    *response->mutable_operation() = OperationToProto(begun->operation);
    return Reply(call, absl::OkStatus());
  }
  import.work = begun->work;
  return ReplyFromDisk(call, context_.durable, [importer = importer_, import = std::move(import), response] {
    const absl::Status kept = import.work->Keep();
    if (!kept.ok()) {
      import.work->Drop();
      return kept;
    }
    *response->mutable_operation() = OperationToProto(import.work->operation());
    importer->Begin(import);
    return absl::OkStatus();
  });
}

}  // namespace intrawarp::server
