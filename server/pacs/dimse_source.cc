// SPDX-License-Identifier: Apache-2.0
#include "server/pacs/dimse_source.h"

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "server/context/limits.h"
#include "server/pacs/dicom_text.h"
#include "server/pacs/storage_scp.h"
#include "server/status/errors.h"

namespace intrawarp::server {
namespace {

using dimse::Association;
using dimse::Elements;
using dimse::ServiceUser;
using std::chrono::steady_clock;

constexpr char kImplicitLittleEndian[] = "1.2.840.10008.1.2";
constexpr std::chrono::milliseconds kLookPeriod{100};
constexpr std::chrono::seconds kConnectPatience{10};
constexpr std::chrono::seconds kCancelGrace{3};
constexpr int64_t kMaxStudies = 500;
constexpr size_t kMaxContexts = 128;
// An archive may send an instance again, but not without end.
constexpr int64_t kSpareStores = 64;
// An archive is silent on the association that asks while it sends one large instance on another.
constexpr int kMoveIdleFactor = 3;

constexpr dimse::Tag kSpecificCharacterSet = 0x00080005;
constexpr dimse::Tag kSopClass = 0x00080016;
constexpr dimse::Tag kSopInstance = 0x00080018;
constexpr dimse::Tag kStudyDate = 0x00080020;
constexpr dimse::Tag kStudyTime = 0x00080030;
constexpr dimse::Tag kAccessionNumber = 0x00080050;
constexpr dimse::Tag kLevel = 0x00080052;
constexpr dimse::Tag kModality = 0x00080060;
constexpr dimse::Tag kModalitiesInStudy = 0x00080061;
constexpr dimse::Tag kStudyDescription = 0x00081030;
constexpr dimse::Tag kSeriesDescription = 0x0008103e;
constexpr dimse::Tag kPatientName = 0x00100010;
constexpr dimse::Tag kPatientId = 0x00100020;
constexpr dimse::Tag kPatientBirthDate = 0x00100030;
constexpr dimse::Tag kStudyUid = 0x0020000d;
constexpr dimse::Tag kSeriesUid = 0x0020000e;
constexpr dimse::Tag kSeriesNumber = 0x00200011;
constexpr dimse::Tag kInstancesInSeries = 0x00201209;

// A fault of the wire is the archive's, and no fault of the caller.
absl::Status OfArchive(const absl::Status& status) {
  if (absl::IsInvalidArgument(status)) {
    return absl::UnavailableError(absl::StrCat("the archive breaks the protocol: ", status.message()));
  }
  if (absl::IsAborted(status) || absl::IsOutOfRange(status)) {
    return absl::UnavailableError(absl::StrCat("the archive broke off: ", status.message()));
  }
  if (absl::IsUnauthenticated(status)) {
    return IdentityRefused("the TLS handshake with the archive failed");
  }
  return absl::IsPermissionDenied(status) ? IdentityRefused(status.message()) : status;
}

bool IsAscii(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

std::string Digits(const std::string& text, size_t count) {
  const std::string first = text.substr(0, count);
  return first.size() == count && first.find_first_not_of("0123456789") == std::string::npos ? first : "";
}

std::string Shown(const Elements& from, dimse::Tag tag) {
  return ShownText(from.Text(tag), from.Text(kSpecificCharacterSet));
}

std::string DateRange(const SeriesQuery& query) {
  if (query.date_from.empty() && query.date_to.empty()) return "";
  if (query.date_from == query.date_to) return query.date_from;
  return absl::StrCat(query.date_from, "-", query.date_to);
}

Elements StudyKeys(const SeriesQuery& query) {
  Elements keys;
  if (!IsAscii(query.patient_id) || !IsAscii(query.patient_name) || !IsAscii(query.accession_number)) {
    keys.SetText(kSpecificCharacterSet, "ISO_IR 192");
  }
  keys.SetText(kLevel, "STUDY");
  keys.SetUid(kStudyUid, query.study);
  keys.SetText(kStudyDate, DateRange(query));
  keys.SetText(kAccessionNumber, query.accession_number);
  for (const dimse::Tag tag : {kStudyTime, kStudyDescription}) keys.SetText(tag, "");
  if (!query.modality.empty()) keys.SetText(kModalitiesInStudy, query.modality);
  if (query.with_patient || !query.patient_id.empty()) keys.SetText(kPatientId, query.patient_id);
  if (query.with_patient || !query.patient_name.empty()) keys.SetText(kPatientName, query.patient_name);
  if (query.with_patient) keys.SetText(kPatientBirthDate, "");
  return keys;
}

SeriesMatch StudyOf(const Elements& found, bool with_patient) {
  SeriesMatch study;
  study.name.study = found.Text(kStudyUid);
  study.study_date = Digits(found.Text(kStudyDate), 8);
  study.study_time = Digits(found.Text(kStudyTime), 6);
  study.study_description = Shown(found, kStudyDescription);
  if (!with_patient) return study;
  study.patient_id = Shown(found, kPatientId);
  study.patient_name = Shown(found, kPatientName);
  study.patient_birth_date = Digits(found.Text(kPatientBirthDate), 8);
  return study;
}

Elements SeriesKeys(const std::string& study, const std::string& modality) {
  Elements keys;
  keys.SetText(kLevel, "SERIES");
  keys.SetUid(kStudyUid, study);
  keys.SetText(kModality, modality);
  for (const dimse::Tag tag : {kSeriesUid, kSeriesDescription, kSeriesNumber, kInstancesInSeries}) {
    keys.SetText(tag, "");
  }
  return keys;
}

Elements RetrieveKeys(const SeriesName& name) {
  Elements keys;
  keys.SetText(kLevel, "SERIES");
  keys.SetUid(kStudyUid, name.study);
  keys.SetUid(kSeriesUid, name.series);
  return keys;
}

// Puts the instances of a C-GET into an intake.
class IntakeTarget final : public StoreTarget {
 public:
  explicit IntakeTarget(SeriesIntake& intake) : intake_(intake) {}

  absl::StatusOr<std::unique_ptr<SpooledFile>> Begin(const dimse::Command&, const std::string&) override {
    if (intake_.cancelled()) return absl::CancelledError("nobody waits for the series any more");
    return intake_.NewFile();
  }
  absl::Status Keep(const std::string& uid, std::unique_ptr<SpooledFile> file) override {
    return intake_.Add(uid, std::move(file));
  }
  void Refused(const absl::Status& why) override {
    if (absl::IsResourceExhausted(why) || absl::IsUnavailable(why)) no_room_.Update(why);
  }
  // A slow instance must not hold up a cancel for long.
  bool abandons() override {
    if (!intake_.cancelled()) return false;
    const steady_clock::time_point now = steady_clock::now();
    cancelled_at_ = std::min(cancelled_at_, now);
    return now > cancelled_at_ + kCancelGrace;
  }
  const absl::Status& no_room() const { return no_room_; }

 private:
  SeriesIntake& intake_;
  steady_clock::time_point cancelled_at_ = steady_clock::time_point::max();
  absl::Status no_room_;
};

int64_t Missing(const SeriesIntake& intake, const std::set<std::string>& instances) {
  return std::count_if(instances.begin(), instances.end(), [&](const std::string& uid) { return !intake.Has(uid); });
}

// Whether every instance is there, whatever the archive says of it.
absl::Status Judge(const SeriesIntake& intake, const std::set<std::string>& instances, const char* request,
                   const dimse::SubOperations& counts) {
  if (intake.cancelled()) return absl::CancelledError("the import was cancelled");
  const int64_t missing = Missing(intake, instances);
  if (missing == 0) return absl::OkStatus();
  const std::string said = dimse::DescribeStatus(counts.status);
  if (intake.progress().received == 0 && counts.status != dimse::kSuccess && counts.status != 0xb000) {
    return absl::FailedPreconditionError(absl::StrCat("the archive refuses: ", request, ": ", said));
  }
  return absl::DataLossError(absl::StrCat(missing, " of ", instances.size(),
                                          " instances did not come, or cannot be read: ", request, ": ", said, ", ",
                                          counts.failed, " failed"));
}

}  // namespace

// A place among the requests that run.
class DimseSource::Turn {
 public:
  explicit Turn(DimseSource& source) : source_(source) {}
  ~Turn() {
    if (!has_) return;
    std::lock_guard<std::mutex> lock(source_.mutex_);
    --source_.open_;
    source_.turn_.notify_one();
  }
  absl::Status Take(const SourceCall& call) {
    std::unique_lock<std::mutex> lock(source_.mutex_);
    while (source_.open_ >= source_.options_.remote.limits.max_associations) {
      if (call.is_cancelled()) return absl::CancelledError("the request was cancelled");
      if (steady_clock::now() >= call.end) {
        return WithReason(absl::DeadlineExceededError("other requests to the archive run"), v1::DEADLINE_PASSED);
      }
      source_.turn_.wait_for(lock, kLookPeriod);
    }
    ++source_.open_;
    has_ = true;
    return absl::OkStatus();
  }

 private:
  DimseSource& source_;
  bool has_ = false;
};

dimse::AssociateRequest DimseSource::RequestFor(const std::vector<const char*>& services) const {
  dimse::AssociateRequest request{options_.remote.ae_title, options_.ae_title, {}, {}, dimse::kMaxPduBytes};
  for (const char* service : services) {
    const auto id = static_cast<uint8_t>(2 * request.contexts.size() + 1);
    request.contexts.push_back({id, service, {kImplicitLittleEndian}});
  }
  return request;
}

// A context for each transfer syntax where there is room for them, so that the archive can send what it has.
dimse::AssociateRequest DimseSource::GetRequest(const std::set<std::string>& sop_classes) const {
  dimse::AssociateRequest request = RequestFor({dimse::kStudyRootGet});
  const auto add = [&](const std::string& sop_class, std::vector<std::string> syntaxes) {
    const auto id = static_cast<uint8_t>(2 * request.contexts.size() + 1);
    request.contexts.push_back({id, sop_class, std::move(syntaxes)});
  };
  const auto known = StorageTransferSyntaxes();
  const std::vector<std::string> all(known.begin(), known.end());
  const bool is_roomy = sop_classes.size() * all.size() < kMaxContexts;
  for (const std::string& sop_class : sop_classes) {
    request.roles.push_back({sop_class, /*scu=*/false, /*scp=*/true});
    if (!is_roomy) add(sop_class, all);
    for (const std::string& syntax : all) {
      if (is_roomy) add(sop_class, {syntax});
    }
  }
  return request;
}

dimse::RequestBounds DimseSource::BoundsOf(const SourceCall& call) const {
  dimse::RequestBounds bounds;
  bounds.end = call.end;
  bounds.idle = options_.patience.idle;
  bounds.cancelled = call.cancelled;
  return bounds;
}

absl::StatusOr<std::unique_ptr<Association>> DimseSource::Open(const dimse::AssociateRequest& request,
                                                               const SourceCall& call) const {
  if (call.is_cancelled()) return absl::CancelledError("the request was cancelled");
  const Remote& remote = options_.remote;
  const auto end = std::min(call.end, steady_clock::now() + kConnectPatience);
  absl::StatusOr<std::shared_ptr<dimse::Connection>> connection =
      dimse::Connection::Connect(remote.host, remote.port, end);
  if (!connection.ok()) return absl::UnavailableError("the archive cannot be connected to");
  if (remote.tls) INTRAWARP_RETURN_IF_ERROR(OfArchive((*connection)->ConnectTls(*options_.tls, end)));
  absl::StatusOr<std::unique_ptr<Association>> association =
      Association::Request(*std::move(connection), options_.patience, request);
  const bool opened = association.ok();
  metrics_.CountRequest(opened ? RequestOutcome::kOpened : RequestOutcome::kFailed);
  if (!opened) return OfArchive(association.status());
  return association;
}

absl::Status DimseSource::Echo(const SourceCall& call) {
  Turn turn(*this);
  INTRAWARP_RETURN_IF_ERROR(turn.Take(call));
  INTRAWARP_ASSIGN_OR_RETURN(const std::unique_ptr<Association> association,
                             Open(RequestFor({dimse::kVerificationClass}), call));
  const absl::Status answered = ServiceUser(*association).Echo(BoundsOf(call));
  if (answered.ok()) association->Release();
  return OfArchive(answered);
}

absl::StatusOr<SeriesMatches> DimseSource::Find(const SeriesQuery& query, const SourceCall& call) {
  Turn turn(*this);
  INTRAWARP_RETURN_IF_ERROR(turn.Take(call));
  INTRAWARP_ASSIGN_OR_RETURN(const std::unique_ptr<Association> association,
                             Open(RequestFor({dimse::kStudyRootFind}), call));
  SeriesMatches matches;
  ServiceUser user(*association);
  const absl::Status found = FindIn(user, query, call, matches);
  if (!found.ok()) return OfArchive(found);
  association->Release();
  return matches;
}

absl::Status DimseSource::FindIn(ServiceUser& user, const SeriesQuery& query, const SourceCall& call,
                                 SeriesMatches& matches) const {
  std::vector<SeriesMatch> studies;
  const absl::Status found = user.Find(
      StudyKeys(query), kMaxStudies,
      [&](const Elements& match) {
        // An archive that matches nothing must not answer for another study.
        SeriesMatch study = StudyOf(match, query.with_patient);
        const bool fits = dimse::IsUid(study.name.study) && (query.study.empty() || study.name.study == query.study);
        if (fits) studies.push_back(std::move(study));
        return absl::OkStatus();
      },
      BoundsOf(call));
  matches.truncated = absl::IsOutOfRange(found);
  if (!found.ok() && !matches.truncated) return found;
  for (const SeriesMatch& study : studies) {
    if (static_cast<int>(matches.series.size()) == query.max_series) matches.truncated = true;
    if (matches.truncated && static_cast<int>(matches.series.size()) >= query.max_series) break;
    INTRAWARP_RETURN_IF_ERROR(FindSeries(user, query, study, call, matches));
  }
  return absl::OkStatus();
}

absl::Status DimseSource::FindSeries(ServiceUser& user, const SeriesQuery& query, const SeriesMatch& study,
                                     const SourceCall& call, SeriesMatches& matches) const {
  const int64_t left = query.max_series - static_cast<int64_t>(matches.series.size());
  const absl::Status found = user.Find(
      SeriesKeys(study.name.study, query.modality), left,
      [&](const Elements& match) {
        SeriesMatch series = study;
        series.name.series = match.Text(kSeriesUid);
        series.modality = Shown(match, kModality);
        series.series_description = Shown(match, kSeriesDescription);
        series.series_number = Shown(match, kSeriesNumber);
        if (!absl::SimpleAtoi(match.Text(kInstancesInSeries), &series.instances) || series.instances < 0) {
          series.instances = -1;
        }
        const bool fits = dimse::IsUid(series.name.series) && match.Text(kStudyUid) == study.name.study &&
                          (query.modality.empty() || series.modality == query.modality);
        if (fits) matches.series.push_back(std::move(series));
        return absl::OkStatus();
      },
      BoundsOf(call));
  if (absl::IsOutOfRange(found)) matches.truncated = true;
  return absl::IsOutOfRange(found) ? absl::OkStatus() : found;
}

absl::StatusOr<DimseSource::Listed> DimseSource::List(const SeriesName& name, const SourceCall& call) const {
  INTRAWARP_ASSIGN_OR_RETURN(const std::unique_ptr<Association> association,
                             Open(RequestFor({dimse::kStudyRootFind}), call));
  Elements keys = RetrieveKeys(name);
  keys.SetText(kLevel, "IMAGE");
  keys.SetUid(kSopInstance, "");
  keys.SetUid(kSopClass, "");
  Listed listed;
  const int64_t most = options_.remote.limits.max_instances;
  const absl::Status found = ServiceUser(*association)
                                 .Find(
                                     keys, most,
                                     [&](const Elements& match) {
                                       const std::string uid = match.Text(kSopInstance);
                                       const std::string sop_class = match.Text(kSopClass);
                                       if (!dimse::IsUid(uid) || match.Text(kSeriesUid) != name.series) {
                                         return absl::InvalidArgumentError("a match is not an instance of the series");
                                       }
                                       listed.instances.insert(uid);
                                       if (dimse::IsUid(sop_class)) listed.sop_classes.insert(sop_class);
                                       return absl::OkStatus();
                                     },
                                     BoundsOf(call));
  if (absl::IsOutOfRange(found)) {
    return absl::ResourceExhaustedError(absl::StrCat("the series has more than ", most, " instances"));
  }
  if (!found.ok()) return OfArchive(found);
  association->Release();
  if (listed.instances.empty()) return absl::NotFoundError("the archive has no such series");
  return listed;
}

absl::Status DimseSource::CheckListed(const Listed& listed) const {
  const auto known = StorageSopClasses();
  for (const std::string& sop_class : listed.sop_classes) {
    if (std::find(known.begin(), known.end(), sop_class) == known.end()) {
      return absl::UnimplementedError("the series holds objects that are not images, or of a kind that is not read");
    }
  }
  return absl::OkStatus();
}

absl::Status DimseSource::Retrieve(SeriesIntake& intake) {
  SourceCall call;
  call.cancelled = [&intake] { return intake.cancelled(); };
  Turn turn(*this);
  INTRAWARP_RETURN_IF_ERROR(turn.Take(call));
  INTRAWARP_ASSIGN_OR_RETURN(const Listed listed, List(intake.name(), call));
  INTRAWARP_RETURN_IF_ERROR(CheckListed(listed));
  intake.set_total(static_cast<int64_t>(listed.instances.size()));
  return options_.remote.kind == RemoteKind::kGet ? Get(intake, listed, call) : Move(intake, listed, call);
}

absl::Status DimseSource::Get(SeriesIntake& intake, const Listed& listed, const SourceCall& call) {
  std::set<std::string> classes = listed.sop_classes;
  if (classes.empty()) classes.insert(StorageSopClasses().begin(), StorageSopClasses().end());
  INTRAWARP_ASSIGN_OR_RETURN(const std::unique_ptr<Association> association, Open(GetRequest(classes), call));
  const bool may_store = std::any_of(classes.begin(), classes.end(),
                                     [&](const std::string& sop_class) { return association->MayProvide(sop_class); });
  if (!may_store) {
    association->Release();
    return absl::FailedPreconditionError("the archive does not send by C-GET: it accepts no role of storage");
  }
  IntakeTarget target(intake);
  StoreTally tally;
  const int64_t most = 2 * static_cast<int64_t>(listed.instances.size()) + kSpareStores;
  const auto store = [&](const dimse::ReceivedCommand& request) -> absl::Status {
    if (tally.stored + tally.refused >= most)
      return absl::InvalidArgumentError("more instances come than the series has");
    return ReceiveStore(*association, request, target, metrics_, tally);
  };
  dimse::RequestBounds bounds = BoundsOf(call);
  bounds.cancelled = [&] { return intake.cancelled() || !target.no_room().ok(); };
  const absl::StatusOr<dimse::SubOperations> counts =
      ServiceUser(*association).Get(RetrieveKeys(intake.name()), store, nullptr, bounds);
  if (!target.no_room().ok() && !intake.cancelled()) return OfSpool(target.no_room());
  if (!counts.ok()) return OfArchive(counts.status());
  association->Release();
  return Judge(intake, listed.instances, "C-GET", *counts);
}

absl::Status DimseSource::Move(SeriesIntake& intake, const Listed& listed, const SourceCall& call) {
  const uint16_t id = moves_.Begin(options_.remote.ae_title, intake.shared_from_this());
  if (id == 0) return WithReason(absl::ResourceExhaustedError("too many moves run"), v1::QUEUE_FULL);
  const auto end = absl::MakeCleanup([&] { moves_.End(id, newest_()); });
  // Some archives complain of a move without a query.
  INTRAWARP_ASSIGN_OR_RETURN(const std::unique_ptr<Association> association,
                             Open(RequestFor({dimse::kStudyRootMove, dimse::kStudyRootFind}), call));
  dimse::RequestBounds bounds = BoundsOf(call);
  bounds.idle *= kMoveIdleFactor;
  bounds.activity = [&intake] { return intake.progress().received; };
  const absl::StatusOr<dimse::SubOperations> counts =
      ServiceUser(*association).Move(RetrieveKeys(intake.name()), options_.ae_title, id, nullptr, bounds);
  if (!counts.ok()) return OfArchive(counts.status());
  association->Release();
  if (counts->status == dimse::kSuccess) INTRAWARP_RETURN_IF_ERROR(WaitForRest(intake, listed));
  return Judge(intake, listed.instances, "C-MOVE", *counts);
}

// An archive may say that it is done before its last images have come.
absl::Status DimseSource::WaitForRest(const SeriesIntake& intake, const Listed& listed) const {
  int64_t received = intake.progress().received;
  steady_clock::time_point moved = steady_clock::now();
  while (!intake.cancelled() && Missing(intake, listed.instances) > 0 &&
         steady_clock::now() < moved + options_.patience.progress) {
    std::this_thread::sleep_for(kLookPeriod);
    if (std::exchange(received, intake.progress().received) != received) moved = steady_clock::now();
  }
  return absl::OkStatus();
}

}  // namespace intrawarp::server
