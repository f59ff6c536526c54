// SPDX-License-Identifier: Apache-2.0
#include "server/pacs/series_intake.h"

#include <algorithm>
#include <utility>

#include "engine/base/status_macros.h"
#include "server/context/limits.h"
#include "server/dimse/pdu.h"
#include "server/pacs/instance_file.h"

namespace intrawarp::server {
namespace {

InstanceOutcome OutcomeOf(const absl::Status& kept) {
  if (kept.ok()) return InstanceOutcome::kStored;
  if (absl::IsAlreadyExists(kept)) return InstanceOutcome::kRefused;
  return absl::IsInvalidArgument(kept) ? InstanceOutcome::kUnreadable : InstanceOutcome::kNoRoom;
}

}  // namespace

SeriesIntake::SeriesIntake(InstanceSpool& spool, const PacsMetrics& metrics, const DicomPeer& limits, SeriesName name,
                           io::DicomRoomFn reading)
    : spool_(spool),
      metrics_(metrics),
      limits_(limits),
      name_(std::move(name)),
      hash_(io::SeriesHash(name_.series)),
      reading_(std::move(reading)) {}

absl::StatusOr<std::shared_ptr<SeriesIntake>> SeriesIntake::Open(InstanceSpool& spool, const PacsMetrics& metrics,
                                                                 const DicomPeer& limits, SeriesName name,
                                                                 io::DicomRoomFn reading) {
  std::shared_ptr<SeriesIntake> intake(new SeriesIntake(spool, metrics, limits, std::move(name), std::move(reading)));
  INTRAWARP_ASSIGN_OR_RETURN(intake->series_, spool.NewSeries({limits.ae_title, intake->hash_}));
  return intake;
}

absl::StatusOr<std::unique_ptr<SpooledFile>> SeriesIntake::NewFile() { return spool_.NewPassingFile(limits_); }

absl::Status SeriesIntake::Add(const std::string& uid, std::unique_ptr<SpooledFile> file) {
  const int64_t bytes = file->bytes();
  const absl::Status kept = Keep(uid, std::move(file));
  metrics_.CountInstance(OutcomeOf(kept), bytes);
  if (!kept.ok()) return kept;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    progress_.bytes += bytes;
  }
  Report();
  return absl::OkStatus();
}

void SeriesIntake::Report() const {
  if (on_progress_) on_progress_(progress());
}

absl::Status SeriesIntake::Keep(const std::string& uid, std::unique_ptr<SpooledFile> file) {
  const InstanceDescription described = DescribeInstance(file->path(), reading_);
  if (!described.has_room) return described.status;
  if (!described.status.ok()) return absl::InvalidArgumentError("the reader cannot use it");
  if (described.series != hash_) return absl::InvalidArgumentError("is of another series than was asked for");
  if (!dimse::IsUid(uid) || (!described.instance.empty() && described.instance != InstanceHash(uid))) {
    return absl::InvalidArgumentError("is another instance than its name says, or its name is no UID");
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (series_ == nullptr) return absl::CancelledError("nobody waits for the series any more");
  if (!group_.empty() && group_ != described.group) {
    return absl::InvalidArgumentError("is of another study or patient than the other instances");
  }
  group_ = described.group;
  const absl::Status added = spool_.AddTo(*series_, InstanceHash(uid), std::move(file));
  is_contradicted_ = is_contradicted_ || absl::IsAlreadyExists(added);
  INTRAWARP_RETURN_IF_ERROR(added);
  progress_.received = static_cast<int64_t>(series_->files.size());
  progress_.total = progress_.total < 0 ? -1 : std::max(progress_.total, progress_.received);
  return absl::OkStatus();
}

bool SeriesIntake::Has(const std::string& uid) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return series_ != nullptr && series_->files.count(InstanceHash(uid)) != 0;
}

absl::Status SeriesIntake::contradiction() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return is_contradicted_ ? absl::DataLossError("an instance came twice, with different content") : absl::OkStatus();
}

void SeriesIntake::set_total(int64_t instances) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    progress_.total = std::max(instances, progress_.received);
  }
  Report();
}

IntakeProgress SeriesIntake::progress() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return progress_;
}

std::unique_ptr<GatheredSeries> SeriesIntake::Take() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::move(series_);
}

}  // namespace intrawarp::server
