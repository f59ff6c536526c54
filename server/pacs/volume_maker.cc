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
// For memory that others hold: on this thread, which other series wait for, and then in the spool.
constexpr std::chrono::seconds kPatience{5};
constexpr std::chrono::seconds kPause{30};
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
                         OwnerFn owner, DoneFn done, io::DicomRoomFn reading)
    : context_(context),
      spool_(spool),
      metrics_(metrics),
      audit_(audit),
      owner_(std::move(owner)),
      done_(std::move(done)),
      reading_(std::move(reading)),
      thread_([this] { Loop(); }) {}

void VolumeMaker::Wake() {
  std::lock_guard<std::mutex> lock(mutex_);
  woken_ = true;
  wake_.notify_one();
}

void VolumeMaker::Stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    wake_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void VolumeMaker::Loop() {
  YieldToFrames();
  while (!stopping_) {
    if (std::unique_ptr<GatheredSeries> ready = spool_.TakeReady()) {
      Make(std::move(ready));
      continue;
    }
    std::unique_lock<std::mutex> lock(mutex_);
    wake_.wait_for(lock, kLookPeriod, [this] { return woken_ || stopping_; });
    woken_ = false;
  }
}

void VolumeMaker::Make(std::unique_ptr<GatheredSeries> series) {
  SeriesOutcome outcome;
  outcome.key = series->key;
  const std::optional<std::string> owner = owner_(series->key);
  if (!owner) {
    outcome.status = absl::CancelledError("nobody wants the series any more");
  } else if (series->given_up) {
    metrics_.CountVolume(DicomVolumeOutcome::kIncomplete);
    outcome.status = absl::DataLossError("slices: the transfer broke off and was not repeated");
  } else {
    outcome = MakeAll(*series, *owner);
    if (MayPass(outcome.status)) return Defer(std::move(series), outcome.status);
  }
  Log(outcome.status.ok() ? Severity::kInfo : Severity::kWarning, "dicom_series",
      {{"peer", series->key.peer},
       {"series", series->key.series.substr(0, kShortHash)},
       {"instances", absl::StrCat(series->files.size())},
       {"volumes", absl::StrCat(outcome.volumes.size())},
       {"cause", outcome.status.ok() ? "" : outcome.status.ToString()}});
  series.reset();
  done_(outcome);
}

SeriesOutcome VolumeMaker::MakeAll(GatheredSeries& series, const std::string& owner) {
  const steady_clock::time_point begin = steady_clock::now();
  SeriesOutcome outcome;
  outcome.key = series.key;
  // A failure that passes wins over one that does not: the series is made again then.
  const auto update = [&outcome](const absl::Status& status) {
    if (MayPass(status) && !MayPass(outcome.status)) outcome.status = status;
    outcome.status.Update(status);
  };
  io::DicomOptions options;
  options.limits.max_volume_bytes = context_.limits.max_volume_bytes;
  options.limits.room = reading_;
  size_t index = 0;
  update(io::ReadEachDicom(
      series.folder, options,
      [&](const io::DicomEntry& entry, const std::function<absl::StatusOr<io::DicomVolume>()>& reader) {
        update(MakeOne(series, owner, index++, entry, reader, outcome));
      }));
  metrics_.ObserveSeries(steady_clock::now() - begin);
  return outcome;
}

void VolumeMaker::Defer(std::unique_ptr<GatheredSeries> series, const absl::Status& why) {
  if (!series->was_put_back && !stopping_) {
    metrics_.CountVolume(DicomVolumeOutcome::kDeferred);
    Log(Severity::kWarning, "dicom_series_waits",
        {{"peer", series->key.peer},
         {"series", series->key.series.substr(0, kShortHash)},
         {"instances", absl::StrCat(series->files.size())},
         {"cause", why.ToString()}});
  }
  spool_.PutBack(std::move(series), context_.seams.steady_now() + kPause);
}

absl::Status VolumeMaker::MakeOne(GatheredSeries& series, const std::string& owner, size_t index,
                                  const io::DicomEntry& entry,
                                  const std::function<absl::StatusOr<io::DicomVolume>()>& read,
                                  SeriesOutcome& outcome) {
  const steady_clock::time_point begin = steady_clock::now();
  absl::StatusOr<PutResult> put = absl::CancelledError("the server is shutting down");
  NewVolume volume;
  volume.id = IdOf(entry, index);
  if (series.made.contains(volume.id)) {
    outcome.volumes.push_back(VolumeName(volume.id));
    return absl::OkStatus();
  }
  if (!entry.status.ok()) {
    put = entry.status;
  } else if (!stopping_) {
    volume.owner = owner;
    volume.geometry = entry.geometry;
    volume.read = [&]() -> absl::StatusOr<io::HostVolume> {
      absl::StatusOr<io::DicomVolume> made = read();
      if (!made.ok()) return made.status();
      return std::move(made->volume);
    };
    volume.cancelled = [&] { return stopping_ || !owner_(series.key).has_value(); };
    put = PutVolume(context_, volume, kPatience);
  }
  if (MayPass(put.status())) return put.status();
  metrics_.CountVolume(OutcomeOf(entry, put.status()));
  if (put.ok()) {
    series.made.insert(volume.id);
    outcome.volumes.push_back(put->name);
  }
  Record(series, owner, volume.id, put, steady_clock::now() - begin);
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
