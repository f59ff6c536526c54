// SPDX-License-Identifier: Apache-2.0
#include "server/pacs/volume_maker.h"

#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "server/monitor/log.h"
#include "server/pacs/storage_scp.h"
#include "server/rpc/errors.h"

namespace intrawarp::server {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLookPeriod{100};
// For memory that others hold.
constexpr std::chrono::seconds kPatience{60};
constexpr size_t kShortHash = 16;

std::string IdOf(const io::DicomEntry& entry, size_t index) {
  const std::string& modality = entry.provenance.modality;
  std::string id = absl::StrCat("dicom-", modality.empty() ? "image" : absl::AsciiStrToLower(modality), "-",
                                entry.provenance.series.substr(0, kShortHash));
  if (index > 0) absl::StrAppend(&id, "-", index + 1);
  return id;
}

// The reader's refusals, by its rules; anything else is the server's.
DicomVolumeOutcome OutcomeOf(const io::DicomEntry& entry, const absl::Status& status) {
  if (status.ok()) return DicomVolumeOutcome::kResident;
  return entry.status.ok() ? DicomVolumeOutcome::kFailed : DicomVolumeOutcome::kRefused;
}

}  // namespace

VolumeMaker::VolumeMaker(ServerContext& context, InstanceSpool& spool, DicomMetrics& metrics, AuditTrail& audit,
                         OwnerFn owner)
    : context_(context), spool_(spool), metrics_(metrics), audit_(audit), owner_(std::move(owner)), thread_([this] {
        Loop();
      }) {}

void VolumeMaker::Make(std::unique_ptr<GatheredSeries> series, SeriesOrder order) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!stopping_) {
      ordered_.push_back({std::move(series), std::move(order)});
      wake_.notify_one();
      return;
    }
  }
  MakeVolumes(*series, order);
}

void VolumeMaker::Stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    wake_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

// What somebody waits for comes first.
std::optional<VolumeMaker::Ordered> VolumeMaker::Next() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!ordered_.empty()) {
      Ordered next = std::move(ordered_.front());
      ordered_.pop_front();
      return next;
    }
  }
  if (stopping_) return std::nullopt;
  std::unique_ptr<GatheredSeries> ready = spool_.TakeReady();
  if (ready == nullptr) return std::nullopt;
  SeriesOrder order{owner_(ready->key), nullptr, nullptr};
  return Ordered{std::move(ready), std::move(order)};
}

void VolumeMaker::Loop() {
  YieldToFrames();
  for (;;) {
    if (const std::optional<Ordered> next = Next()) {
      MakeVolumes(*next->series, next->order);
      continue;
    }
    std::unique_lock<std::mutex> lock(mutex_);
    if (stopping_ && ordered_.empty()) return;
    wake_.wait_for(lock, kLookPeriod, [this] { return !ordered_.empty() || stopping_; });
  }
}

void VolumeMaker::MakeVolumes(const GatheredSeries& series, const SeriesOrder& order) {
  const steady_clock::time_point begin = steady_clock::now();
  SeriesOutcome outcome;
  outcome.key = series.key;
  if (stopping_) {
    outcome.status = WithReason(absl::UnavailableError("the server is shutting down"), v1::SERVER_STOPPING);
  } else if (IsUnwanted(order)) {
    outcome.status = absl::CancelledError("nobody wants the series any more");
  } else if (series.given_up) {
    metrics_.CountVolume(DicomVolumeOutcome::kIncomplete);
    outcome.status = absl::DataLossError("slices: the transfer broke off and was not repeated");
  } else {
    io::DicomOptions options;
    options.limits.max_volume_bytes = context_.limits.max_volume_bytes;
    size_t index = 0;
    const absl::Status read = io::ReadEachDicom(
        series.folder, options,
        [&](const io::DicomEntry& entry, const std::function<absl::StatusOr<io::DicomVolume>()>& reader) {
          outcome.status.Update(MakeOne(series, order, index++, entry, reader, outcome));
        });
    outcome.status.Update(read);
    metrics_.ObserveSeries(steady_clock::now() - begin);
  }
  Log(outcome.status.ok() ? Severity::kInfo : Severity::kWarning, "dicom_series",
      {{"peer", series.key.peer},
       {"series", series.key.series.substr(0, kShortHash)},
       {"instances", absl::StrCat(series.files.size())},
       {"volumes", absl::StrCat(outcome.volumes.size())},
       {"cause", outcome.status.ok() ? "" : outcome.status.ToString()}});
  if (order.done) order.done(outcome);
}

absl::Status VolumeMaker::MakeOne(const GatheredSeries& series, const SeriesOrder& order, size_t index,
                                  const io::DicomEntry& entry,
                                  const std::function<absl::StatusOr<io::DicomVolume>()>& read,
                                  SeriesOutcome& outcome) {
  const steady_clock::time_point begin = steady_clock::now();
  absl::StatusOr<PutResult> put = absl::CancelledError("nobody wants the series any more");
  NewVolume volume;
  volume.id = IdOf(entry, index);
  if (!entry.status.ok()) {
    put = entry.status;
  } else if (!IsUnwanted(order)) {
    volume.owner = order.owner;
    volume.geometry = entry.geometry;
    volume.read = [&]() -> absl::StatusOr<io::HostVolume> {
      absl::StatusOr<io::DicomVolume> made = read();
      if (!made.ok()) return made.status();
      return std::move(made->volume);
    };
    volume.cancelled = [&] { return IsUnwanted(order); };
    put = PutVolume(context_, volume, kPatience);
  }
  metrics_.CountVolume(OutcomeOf(entry, put.status()));
  if (put.ok()) outcome.volumes.push_back(put->name);
  Record(series, order.owner, volume.id, put, steady_clock::now() - begin);
  return put.status();
}

void VolumeMaker::Record(const GatheredSeries& series, const std::string& owner, const std::string& id,
                         const absl::StatusOr<PutResult>& put, std::chrono::nanoseconds elapsed) {
  audit::AuditRecord record;
  record.action = "dicom.Volume";
  record.who = owner;
  if (put.ok()) record.digests = {{"content", put->content_digest}, {"object", put->object_digest}};
  record.names = {{"object", audit_.NameDigest(put.ok() ? put->name : VolumeName(id))}};
  record.outcome = std::string(absl::StatusCodeToString(put.status().code()));
  if (!put.ok() && ReasonOf(put.status()) != v1::ERROR_REASON_UNSPECIFIED) {
    record.reason = v1::ErrorReason_Name(ReasonOf(put.status()));
  }
  record.milliseconds = std::chrono::duration<double, std::milli>(elapsed).count();
  record.notes = {{"ae_title", series.key.peer},
                  {"series", series.key.series.substr(0, kShortHash)},
                  {"instances", absl::StrCat(series.files.size())}};
  audit_.Append(std::move(record));
}

}  // namespace intrawarp::server
