// SPDX-License-Identifier: Apache-2.0
#include "server/pacs/volume_maker.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "engine/base/memory_guard.h"
#include "engine/base/status_macros.h"
#include "server/context/limits.h"
#include "server/monitor/log.h"
#include "server/pacs/storage_scp.h"
#include "server/status/errors.h"
#include "wire/convert.h"

namespace intrawarp::server {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLookPeriod{100};
// For memory that others hold: on this thread, which other series wait for, and then in the spool.
constexpr std::chrono::seconds kPatience{5};
constexpr std::chrono::seconds kPause{30};
// For an import, which holds a thread meanwhile: until it is tried again, and in all.
constexpr std::chrono::seconds kImportPause{5};
constexpr std::chrono::seconds kImportPatience{60};
constexpr size_t kShortHash = 16;
constexpr int kMaxVersions = 20;

std::string IdOf(const io::DicomEntry& entry, size_t index) {
  const std::string& modality = entry.provenance.modality;
  std::string id = absl::StrCat("dicom-", modality.empty() ? "image" : absl::AsciiStrToLower(modality), "-",
                                entry.provenance.series.substr(0, kShortHash));
  if (index > 0) absl::StrAppend(&id, "-", index + 1);
  return id;
}

// The reader's refusals, by its rules; anything else is the server's.
bool LacksImages(const io::DicomEntry& entry) { return entry.series_images < entry.announced_images; }

// More images may follow. A number of one is that of an acquisition for each image.
bool IsProvisional(const SeriesOrder& order, const io::DicomEntry& entry) {
  return !order.is_complete && entry.announced_images <= 1;
}

DicomVolumeOutcome OutcomeOf(const io::DicomEntry& entry, const absl::Status& status) {
  if (status.ok()) return DicomVolumeOutcome::kResident;
  if (entry.status.ok() && absl::IsDataLoss(status)) return DicomVolumeOutcome::kIncomplete;
  return entry.status.ok() ? DicomVolumeOutcome::kFailed : DicomVolumeOutcome::kRefused;
}

}  // namespace

VolumeMaker::VolumeMaker(ServerContext& context, InstanceSpool& spool, const PacsMetrics& metrics, AuditTrail& audit,
                         OwnerFn owner, io::DicomRoomFn reading)
    : context_(context),
      spool_(spool),
      metrics_(metrics),
      audit_(audit),
      owner_(std::move(owner)),
      reading_(std::move(reading)),
      thread_([this] { Loop(); }) {}

void VolumeMaker::Make(std::unique_ptr<GatheredSeries> series, SeriesOrder order) {
  Ordered ordered{std::move(series), std::move(order)};
  ordered.end = context_.seams.steady_now() + kImportPatience;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!stopping_) {
      ordered_.push_back(std::move(ordered));
      woken_ = true;
      wake_.notify_one();
      return;
    }
  }
  Serve(std::move(ordered));
}

void VolumeMaker::Stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    wake_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

// A series that somebody waits for comes first. One that is not wanted any more ends now.
std::optional<VolumeMaker::Ordered> VolumeMaker::Next() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto now = context_.seams.steady_now();
    const auto it = std::find_if(ordered_.begin(), ordered_.end(), [&](const Ordered& ordered) {
      return ordered.not_before <= now || IsUnwanted(ordered.order);
    });
    if (it != ordered_.end()) {
      Ordered next = std::move(*it);
      ordered_.erase(it);
      return next;
    }
  }
  if (stopping_) return std::nullopt;
  std::unique_ptr<GatheredSeries> ready = spool_.TakeReady();
  TellDropped();
  if (ready == nullptr) return std::nullopt;
  SeriesOrder order;
  order.owner = owner_(ready->key).value_or("");
  order.cancelled = [this, key = ready->key] { return !owner_(key).has_value(); };
  return Ordered{std::move(ready), std::move(order), /*is_of_spool=*/true};
}

void VolumeMaker::TellDropped() {
  const int64_t dropped = spool_.dropped_instances();
  const int64_t more = dropped - std::exchange(dropped_, dropped);
  if (more == 0) return;
  Log(Severity::kWarning, "dicom_dropped",
      {{"instances", absl::StrCat(more)}, {"cause", "they became no volume, and are too old"}});
}

void VolumeMaker::Loop() {
  YieldToFrames();
  for (;;) {
    if (std::optional<Ordered> next = Next()) {
      Serve(*std::move(next));
      continue;
    }
    std::unique_lock<std::mutex> lock(mutex_);
    if (stopping_ && ordered_.empty()) return;
    wake_.wait_for(lock, kLookPeriod, [this] { return woken_ || stopping_; });
    woken_ = false;
  }
}

void VolumeMaker::Serve(Ordered ordered) {
  Attempt attempt = MakeVolumes(*ordered.series, ordered.order);
  const SeriesOutcome& outcome = attempt.outcome;
  if (MayPass(outcome.status) && Defer(ordered, outcome.status)) return;
  const GatheredSeries& series = *ordered.series;
  for (const Attempt::Failure& failure : attempt.failures) {
    metrics_.CountVolume(DicomVolumeOutcome::kFailed);
    Record(series, ordered.order.owner, failure.id, failure.status, failure.elapsed);
  }
  Log(outcome.status.ok() ? Severity::kInfo : Severity::kWarning, "dicom_series",
      {{"peer", series.key.peer},
       {"series", series.key.series.substr(0, kShortHash)},
       {"instances", absl::StrCat(series.files.size())},
       {"volumes", absl::StrCat(outcome.volumes.size())},
       {"cause", outcome.status.ok() ? "" : outcome.status.ToString()}});
  if (ordered.is_of_spool) {
    spool_.Settle(std::move(ordered.series), outcome.status.ok());
  } else {
    ordered.series.reset();
  }
  if (ordered.order.done) ordered.order.done(outcome);
}

VolumeMaker::Attempt VolumeMaker::MakeVolumes(GatheredSeries& series, const SeriesOrder& order) {
  Attempt attempt;
  attempt.outcome.key = series.key;
  if (stopping_) {
    attempt.outcome.status = WithReason(absl::UnavailableError("the server is shutting down"), v1::SERVER_STOPPING);
  } else if (IsUnwanted(order)) {
    attempt.outcome.status = absl::CancelledError("nobody wants the series any more");
  } else if (series.given_up) {
    metrics_.CountVolume(DicomVolumeOutcome::kIncomplete);
    attempt.outcome.status = absl::DataLossError("slices: the transfer broke off and was not repeated");
  } else {
    return MakeAll(series, order);
  }
  return attempt;
}

VolumeMaker::Attempt VolumeMaker::MakeAll(GatheredSeries& series, const SeriesOrder& order) {
  const steady_clock::time_point begin = steady_clock::now();
  Attempt attempt;
  attempt.outcome.key = series.key;
  // A failure that passes wins over one that does not: the series is made again then.
  const auto update = [&first = attempt.outcome.status](const absl::Status& status) {
    if (MayPass(status) && !MayPass(first)) first = status;
    first.Update(status);
  };
  io::DicomOptions options;
  options.limits.max_volume_bytes = context_.limits.max_volume_bytes;
  options.limits.room = reading_;
  size_t index = 0;
  update(io::ReadEachDicom(
      series.folder, options,
      [&](const io::DicomEntry& entry, const std::function<absl::StatusOr<io::DicomVolume>()>& reader) {
        update(MakeOne(series, order, index++, entry, reader, attempt));
      }));
  metrics_.ObserveSeries(steady_clock::now() - begin);
  return attempt;
}

// Whether the series is made again later. One of the spool whose peer is not listed any more goes, but for a stop: the
// next server decides then.
bool VolumeMaker::Defer(Ordered& ordered, const absl::Status& why) {
  const auto now = context_.seams.steady_now();
  if (ordered.is_of_spool ? IsUnwanted(ordered.order) && !stopping_ : IsUnwanted(ordered.order) || now >= ordered.end) {
    return false;
  }
  const bool is_first = !ordered.series->was_put_back;
  if (is_first && !stopping_) {
    metrics_.CountVolume(DicomVolumeOutcome::kDeferred);
    Log(Severity::kWarning, "dicom_series_waits",
        {{"peer", ordered.series->key.peer},
         {"series", ordered.series->key.series.substr(0, kShortHash)},
         {"instances", absl::StrCat(ordered.series->files.size())},
         {"cause", why.ToString()}});
  }
  if (ordered.is_of_spool) {
    spool_.PutBack(std::move(ordered.series), now + kPause);
    return true;
  }
  ordered.series->was_put_back = true;
  ordered.not_before = now + kImportPause;
  std::lock_guard<std::mutex> lock(mutex_);
  ordered_.push_back(std::move(ordered));
  return true;
}

absl::Status VolumeMaker::MakeOne(GatheredSeries& series, const SeriesOrder& order, size_t index,
                                  const io::DicomEntry& entry,
                                  const std::function<absl::StatusOr<io::DicomVolume>()>& read, Attempt& attempt) {
  const steady_clock::time_point begin = steady_clock::now();
  absl::StatusOr<PutResult> put = absl::CancelledError("nobody wants the series any more");
  NewVolume volume;
  volume.id = IdOf(entry, index);
  const std::string first_id = volume.id;
  if (const auto made = series.made.find(first_id); made != series.made.end()) {
    attempt.outcome.volumes.push_back(made->second);
    return absl::OkStatus();
  }
  if (!entry.status.ok()) {
    put = entry.status;
  } else if (LacksImages(entry)) {
    put = absl::DataLossError("slices: fewer images have come than they say that their series has");
  } else if (!IsUnwanted(order)) {
    volume.owner = order.owner;
    volume.geometry = entry.geometry;
    const io::DicomProvenance& from = entry.provenance;
    volume.provenance = ProvenanceToProto(order.source, from.modality, from.series, from.frame_of_reference);
    volume.read = [&]() -> absl::StatusOr<io::HostVolume> {
      absl::StatusOr<io::DicomVolume> made = read();
      if (!made.ok()) return made.status();
      return std::move(made->volume);
    };
    volume.is_provisional = IsProvisional(order, entry);
    volume.cancelled = [&] { return IsUnwanted(order); };
    put = Put(volume);
  }
  const std::chrono::nanoseconds elapsed = steady_clock::now() - begin;
  if (MayPass(put.status())) {
    attempt.failures.push_back({volume.id, put.status(), elapsed});
    return put.status();
  }
  metrics_.CountVolume(OutcomeOf(entry, put.status()));
  if (put.ok()) {
    series.made[first_id] = put->name;
    attempt.outcome.volumes.push_back(put->name);
  }
  Record(series, order.owner, volume.id, put, elapsed);
  return put.status();
}

// The volume that has the id stays: somebody may use it.
absl::StatusOr<PutResult> VolumeMaker::Put(NewVolume& volume) {
  const std::string id = volume.id;
  for (int version = 2;; ++version) {
    absl::StatusOr<PutResult> put = GuardMemory([&] { return PutVolume(context_, volume, kPatience); });
    if (!absl::IsAlreadyExists(put.status()) || version > kMaxVersions) return put;
    volume.id = absl::StrCat(id, "-v", version);
  }
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
