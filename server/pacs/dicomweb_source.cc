// SPDX-License-Identifier: Apache-2.0
#include "server/pacs/dicomweb_source.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "io/dicom/file_meta.h"
#include "server/context/limits.h"
#include "server/pacs/storage_scp.h"
#include "server/status/errors.h"

namespace intrawarp::server {
namespace {

using std::chrono::steady_clock;

// The failure as a caller sees it: a refusal by the archive, or its wrong certificate, is not a refusal of the caller,
// whose own token and request may be right.
absl::Status OfArchive(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kDataLoss:
      return status;
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kInternal:
      return absl::UnavailableError(status.message());
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return IdentityRefused(status.message());
    case absl::StatusCode::kInvalidArgument:
      // A file of the server's own; otherwise an answer 400.
      if (FieldOf(status) == "token_file" || FieldOf(status) == "authorities_file") {
        return IdentityRefused(status.message());
      }
      return absl::FailedPreconditionError(status.message());
    default:
      return absl::FailedPreconditionError(status.message());
  }
}

// A search's answer that is cut short is not a missing instance.
absl::Status OfSearch(const absl::Status& status) {
  if (absl::IsDataLoss(status)) return absl::UnavailableError(status.message());
  return absl::IsNotFound(status) ? absl::FailedPreconditionError(status.message()) : OfArchive(status);
}

std::string DateRange(const SeriesQuery& query) {
  if (query.date_from == query.date_to) return query.date_from;
  return absl::StrCat(query.date_from, "-", query.date_to);
}

dicomweb::SeriesQuery KeysOf(const SeriesQuery& query) {
  dicomweb::SeriesQuery keys;
  for (const auto& [keyword, value] : {std::pair<const char*, std::string>{"StudyInstanceUID", query.study},
                                       {"PatientID", query.patient_id},
                                       {"PatientName", query.patient_name},
                                       {"AccessionNumber", query.accession_number},
                                       {"StudyDate", DateRange(query)},
                                       {"Modality", query.modality}}) {
    if (!value.empty()) keys.keys[keyword] = value;
  }
  keys.with_patient = query.with_patient;
  keys.max_series = query.max_series;
  return keys;
}

SeriesMatch MatchOf(dicomweb::FoundSeries found) {
  SeriesMatch match;
  match.name = {std::move(found.study_uid), std::move(found.series_uid)};
  match.modality = std::move(found.modality);
  match.study_date = std::move(found.study_date);
  match.study_time = std::move(found.study_time);
  match.study_description = std::move(found.study_description);
  match.series_description = std::move(found.series_description);
  match.series_number = std::move(found.series_number);
  match.instances = found.instances;
  match.patient_id = std::move(found.patient_id);
  match.patient_name = std::move(found.patient_name);
  match.patient_birth_date = std::move(found.patient_birth_date);
  return match;
}

bool IsImage(const std::string& sop_class) {
  const auto classes = StorageSopClasses();
  return std::find(classes.begin(), classes.end(), sop_class) != classes.end();
}

// A request's outcome before it is put into words for callers.
WebOutcome OutcomeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return WebOutcome::kDone;
    case absl::StatusCode::kNotFound:
      return WebOutcome::kNotFound;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kInternal:
      return WebOutcome::kUnavailable;
    case absl::StatusCode::kDeadlineExceeded:
      return WebOutcome::kTimeout;
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kUnimplemented:
      return WebOutcome::kUnusable;
    case absl::StatusCode::kResourceExhausted:
      return WebOutcome::kTooLarge;
    case absl::StatusCode::kCancelled:
      return WebOutcome::kCancelled;
    default:
      return WebOutcome::kRefused;
  }
}

// Puts instances into an intake as they come.
class IntakeSink final : public dicomweb::InstanceSink {
 public:
  explicit IntakeSink(SeriesIntake& intake) : intake_(intake) {}

  absl::Status Begin() override { return Note(NewFile()); }
  absl::Status Append(absl::string_view bytes) override { return Note(file_->Append(bytes)); }
  absl::Status End() override { return Note(Keep()); }
  // Why it took no more: no fault of the archive's transport.
  const absl::Status& status() const { return status_; }

 private:
  absl::Status Note(const absl::Status& status) {
    status_.Update(OfSpool(status));
    return status;
  }
  absl::Status NewFile() {
    INTRAWARP_ASSIGN_OR_RETURN(file_, intake_.NewFile());
    return absl::OkStatus();
  }
  absl::Status Keep() {
    INTRAWARP_RETURN_IF_ERROR(file_->Close());
    const absl::StatusOr<io::FileMeta> meta = io::ReadFileMeta(file_->path());
    if (!meta.ok()) return absl::DataLossError("an instance of the archive is no DICOM file");
    if (!IsImage(meta->sop_class)) return absl::UnimplementedError("the series holds objects that are not images");
    const absl::Status added = intake_.Add(meta->sop_instance, std::move(file_));
    if (absl::IsAlreadyExists(added)) return absl::DataLossError("an instance came twice, with different content");
    if (!absl::IsInvalidArgument(added)) return added;
    return absl::DataLossError("an instance of the archive cannot be read, or is of another series");
  }

  SeriesIntake& intake_;
  std::unique_ptr<SpooledFile> file_;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DicomwebSource>> DicomwebSource::Create(dicomweb::HttpOptions http,
                                                                       const DicomPeer& limits,
                                                                       const PacsMetrics& metrics) {
  INTRAWARP_RETURN_IF_ERROR(dicomweb::Archive::Create(http).status());
  return std::unique_ptr<DicomwebSource>(new DicomwebSource(std::move(http), limits, metrics));
}

absl::StatusOr<std::unique_ptr<dicomweb::Archive>> DicomwebSource::Open(const SourceCall& call) const {
  dicomweb::HttpOptions http = http_;
  http.end = call.end;
  http.cancelled = call.cancelled;
  return dicomweb::Archive::Create(std::move(http));
}

absl::StatusOr<dicomweb::SeriesFound> DicomwebSource::Search(dicomweb::Archive& archive,
                                                             const dicomweb::SeriesQuery& query) const {
  absl::StatusOr<dicomweb::SeriesFound> found = archive.FindSeries(query);
  metrics_.CountWebRequest(WebRequest::kSearch, OutcomeOf(found.status()));
  if (!found.ok()) return OfSearch(found.status());
  return found;
}

absl::Status DicomwebSource::Echo(const SourceCall& call) {
  const auto archive = Open(call);
  if (!archive.ok()) return OfSearch(archive.status());
  return Search(**archive, {.max_series = 1}).status();
}

absl::StatusOr<SeriesMatches> DicomwebSource::Find(const SeriesQuery& query, const SourceCall& call) {
  const auto archive = Open(call);
  if (!archive.ok()) return OfSearch(archive.status());
  INTRAWARP_ASSIGN_OR_RETURN(dicomweb::SeriesFound found, Search(**archive, KeysOf(query)));
  SeriesMatches matches;
  matches.truncated = found.truncated;
  for (dicomweb::FoundSeries& series : found.series) {
    SeriesMatch match = MatchOf(std::move(series));
    // An archive that ignores a key must not answer for another study.
    const bool fits = (query.study.empty() || match.name.study == query.study) &&
                      (query.modality.empty() || match.modality == query.modality);
    if (fits) matches.series.push_back(std::move(match));
  }
  return matches;
}

absl::Status DicomwebSource::Retrieve(SeriesIntake& intake) {
  SourceCall call;
  call.cancelled = [&] { return intake.cancelled(); };
  // All pages of the search together have the time of one exchange.
  SourceCall search = call;
  search.end = steady_clock::now() + http_.timeout;
  const auto searched = Open(search);
  if (!searched.ok()) return OfSearch(searched.status());
  dicomweb::FoundSeries series{.study_uid = intake.name().study, .series_uid = intake.name().series};
  INTRAWARP_ASSIGN_OR_RETURN(
      const dicomweb::SeriesFound found,
      Search(**searched, {.keys = {{"StudyInstanceUID", series.study_uid}, {"SeriesInstanceUID", series.series_uid}}}));
  const auto match = std::find_if(found.series.begin(), found.series.end(), [&](const dicomweb::FoundSeries& other) {
    return other.study_uid == series.study_uid && other.series_uid == series.series_uid;
  });
  if (match == found.series.end()) return absl::NotFoundError("the archive has no such series");
  series.instances = match->instances;
  if (series.instances > limits_.max_instances) {
    return absl::ResourceExhaustedError("the series has too many instances");
  }
  std::vector<std::string> listed;
  if (series.instances < 0) {
    INTRAWARP_ASSIGN_OR_RETURN(listed, ListOf(**searched, series));
    if (!listed.empty()) series.instances = static_cast<int64_t>(listed.size());
  }
  if (series.instances >= 0) intake.set_total(series.instances);
  const auto archive = Open(call);
  if (!archive.ok()) return OfSearch(archive.status());
  INTRAWARP_RETURN_IF_ERROR(Bring(**archive, series, intake));
  const bool is_whole =
      std::all_of(listed.begin(), listed.end(), [&](const std::string& uid) { return intake.Has(uid); });
  return is_whole ? absl::OkStatus() : absl::DataLossError("the archive sent other instances than it lists");
}

// The instances of a series whose number the archive does not say; none where it does not list them either.
absl::StatusOr<std::vector<std::string>> DicomwebSource::ListOf(dicomweb::Archive& archive,
                                                                const dicomweb::FoundSeries& series) const {
  absl::StatusOr<std::vector<std::string>> listed = archive.ListInstances(series, limits_.max_instances);
  const bool counts = absl::IsResourceExhausted(listed.status()) || absl::IsCancelled(listed.status()) ||
                      absl::IsDeadlineExceeded(listed.status());
  if (listed.ok() || counts) return listed;
  return std::vector<std::string>();
}

absl::Status DicomwebSource::Bring(dicomweb::Archive& archive, const dicomweb::FoundSeries& series,
                                   SeriesIntake& intake) const {
  IntakeSink sink(intake);
  dicomweb::RetrieveLimits limits;
  limits.max_instances = limits_.max_instances;
  limits.max_bytes = limits_.max_bytes;
  const absl::StatusOr<dicomweb::Retrieved> retrieved = archive.Retrieve(series, limits, sink);
  metrics_.CountWebRequest(WebRequest::kRetrieve, OutcomeOf(retrieved.status()));
  if (!sink.status().ok()) return sink.status();
  INTRAWARP_RETURN_IF_ERROR(OfArchive(retrieved.status()));
  // Without a number, an instance that comes twice may stand in the place of another.
  const int64_t expected = series.instances < 0 ? retrieved->instances : series.instances;
  if (intake.progress().received >= expected) return absl::OkStatus();
  return absl::DataLossError("the archive sent instances twice in the place of others");
}

}  // namespace intrawarp::server
