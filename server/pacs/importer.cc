// SPDX-License-Identifier: Apache-2.0
#include "server/pacs/importer.h"

#include <algorithm>
#include <future>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/status_macros.h"
#include "io/dicom/dicom.h"
#include "server/monitor/log.h"
#include "server/pacs/storage_scp.h"
#include "server/status/errors.h"

namespace intrawarp::server {
namespace {

using std::chrono::steady_clock;

constexpr int kImportThreads = 4;
constexpr int kQuestionThreads = 4;
constexpr int kMaxQuestions = 32;
constexpr size_t kShortHash = 16;
constexpr char kInstances[] = "instances";

absl::Status Stopping() {
  return WithReason(absl::UnavailableError("the server is shutting down"), v1::SERVER_STOPPING);
}

}  // namespace

absl::Status ForCaller(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
      return WithDefaultReason(status, v1::ARCHIVE_UNAVAILABLE);
    case absl::StatusCode::kDeadlineExceeded:
      return WithDefaultReason(status, v1::ARCHIVE_TOO_SLOW);
    case absl::StatusCode::kFailedPrecondition:
      return WithDefaultReason(status, v1::ARCHIVE_REFUSED);
    case absl::StatusCode::kDataLoss:
      return WithDefaultReason(status, v1::RETRIEVAL_INCOMPLETE);
    case absl::StatusCode::kResourceExhausted:
      return WithDefaultReason(status, v1::RETRIEVAL_TOO_LARGE);
    default:
      return status;
  }
}

absl::Status OfSpool(const absl::Status& status) {
  if (absl::IsResourceExhausted(status)) return WithDefaultReason(status, v1::SPOOL_FULL);
  return absl::IsUnavailable(status) ? WithDefaultReason(status, v1::SPOOL_UNAVAILABLE) : status;
}

absl::Status IdentityRefused(absl::string_view why) {
  return WithReason(absl::FailedPreconditionError(why), v1::ARCHIVE_IDENTITY_REFUSED);
}

Importer::Importer(std::vector<Archive> archives, InstanceSpool& spool, VolumeMaker& maker, const PacsMetrics& metrics,
                   AuditTrail& audit, io::DicomRoomFn reading)
    : archives_(std::move(archives)),
      spool_(spool),
      maker_(maker),
      metrics_(metrics),
      audit_(audit),
      reading_(std::move(reading)),
      questions_(kQuestionThreads) {
  for (int i = 0; i < kImportThreads; ++i) threads_.emplace_back([this] { Loop(); });
}

Importer::~Importer() { Stop(steady_clock::now()); }

absl::StatusOr<const Archive*> Importer::Find(absl::string_view name) const {
  const auto it =
      std::find_if(archives_.begin(), archives_.end(), [&](const Archive& a) { return a.remote.name == name; });
  if (it == archives_.end()) return NotFound(absl::StrCat("remotes/", name));
  return &*it;
}

absl::Status Importer::Ask(std::function<void()> question) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (stopping_) return Stopping();
  if (asked_ >= kMaxQuestions) {
    return WithReason(absl::ResourceExhaustedError("too many questions to archives are under way"), v1::QUEUE_FULL,
                      InUse(asked_, kMaxQuestions));
  }
  ++asked_;
  questions_.Submit([this, question = std::move(question)] {
    question();
    --asked_;
  });
  return absl::OkStatus();
}

int64_t Importer::running() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int64_t>(running_.size());
}

int64_t Importer::waiting() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int64_t>(waiting_.size());
}

void Importer::Begin(SeriesImport import) {
  auto job = std::make_shared<Job>();
  job->import = std::move(import);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_) return job->import.work->Failed(Stopping());
    waiting_.push_back(job);
    changed_.notify_all();
  }
  job->import.work->set_on_cancel([this, weak = std::weak_ptr<Job>(job)] {
    if (const std::shared_ptr<Job> cancelled = weak.lock()) Cancel(cancelled);
  });
}

// One that still waits ends here; no thread may be free for it.
void Importer::Cancel(const std::shared_ptr<Job>& job) {
  bool is_waiting = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    job->cancelled = true;
    if (job->intake != nullptr) job->intake->Cancel();
    is_waiting = std::erase(waiting_, job) != 0;
  }
  if (is_waiting) End(*job, absl::CancelledError("the import was cancelled"), {}, std::chrono::nanoseconds(0));
}

// The first job whose series is not being imported already. Null at the end.
std::shared_ptr<Importer::Job> Importer::Next() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    const auto it = std::find_if(waiting_.begin(), waiting_.end(), [&](const std::shared_ptr<Job>& job) {
      return std::none_of(running_.begin(), running_.end(),
                          [&](const auto& other) { return other->key() == job->key(); });
    });
    if (it != waiting_.end()) {
      const std::shared_ptr<Job> job = *it;
      waiting_.erase(it);
      running_.insert(job);
      return job;
    }
    if (stopping_ && waiting_.empty()) return nullptr;
    changed_.wait(lock);
  }
}

void Importer::Loop() {
  YieldToFrames();
  while (const std::shared_ptr<Job> job = Next()) {
    Run(*job);
    std::lock_guard<std::mutex> lock(mutex_);
    running_.erase(job);
    changed_.notify_all();
  }
}

void Importer::Run(Job& job) {
  const steady_clock::time_point begin = steady_clock::now();
  job.import.work->Started();
  IntakeProgress progress;
  const absl::StatusOr<std::vector<std::string>> made = Bring(job, progress);
  End(job, made, progress, steady_clock::now() - begin);
}

absl::StatusOr<std::vector<std::string>> Importer::Bring(Job& job, IntakeProgress& progress) {
  const SeriesImport& import = job.import;
  absl::StatusOr<std::shared_ptr<SeriesIntake>> opened =
      SeriesIntake::Open(spool_, metrics_, import.archive->remote.limits, import.name, reading_);
  if (!opened.ok()) return OfSpool(opened.status());
  const std::shared_ptr<SeriesIntake> intake = *std::move(opened);
  intake->set_on_progress([work = import.work](const IntakeProgress& now) {
    work->Progressed({"receiving", now.received, std::max<int64_t>(now.total, 0), kInstances});
  });
  {
    std::lock_guard<std::mutex> lock(mutex_);
    job.intake = intake;
    if (job.cancelled) intake->Cancel();
  }
  const absl::Status retrieved = import.archive->source->Retrieve(*intake);
  progress = intake->progress();
  INTRAWARP_RETURN_IF_ERROR(ForCaller(retrieved));
  INTRAWARP_RETURN_IF_ERROR(ForCaller(intake->contradiction()));
  return MakeVolumes(job, *intake);
}

absl::StatusOr<std::vector<std::string>> Importer::MakeVolumes(Job& job, SeriesIntake& intake) {
  const IntakeProgress progress = intake.progress();
  job.import.work->Progressed({"making volumes", progress.received, progress.received, kInstances});
  std::promise<SeriesOutcome> made;
  SeriesOrder order;
  order.owner = job.import.owner;
  order.source = v1::PROVENANCE_SOURCE_RETRIEVED;
  order.is_complete = progress.total >= 0;
  order.cancelled = [&job] { return job.cancelled.load(); };
  order.done = [&made](const SeriesOutcome& outcome) { made.set_value(outcome); };
  maker_.Make(intake.Take(), std::move(order));
  const SeriesOutcome outcome = made.get_future().get();
  if (outcome.status.ok()) return outcome.volumes;
  if (outcome.volumes.empty()) return absl::IsDataLoss(outcome.status) ? ForCaller(outcome.status) : outcome.status;
  const std::string kept = absl::StrCat("; other volumes were made: ", absl::StrJoin(outcome.volumes, ", "));
  absl::Status status(outcome.status.code(), absl::StrCat(outcome.status.message(), kept));
  outcome.status.ForEachPayload(
      [&](absl::string_view type, const absl::Cord& payload) { status.SetPayload(type, payload); });
  return status;
}

void Importer::End(Job& job, const absl::StatusOr<std::vector<std::string>>& made, const IntakeProgress& progress,
                   std::chrono::nanoseconds elapsed) {
  const SeriesImport& import = job.import;
  absl::Status status = made.status();
  if (!status.ok() && stopping_) status = Stopping();
  const bool is_cancelled = absl::IsCancelled(status);
  metrics_.CountImport(status.ok()    ? ImportOutcome::kDone
                       : is_cancelled ? ImportOutcome::kCancelled
                                      : ImportOutcome::kFailed,
                       elapsed);
  const std::string series = io::SeriesHash(import.name.series).substr(0, kShortHash);
  const std::string instances = absl::StrCat(progress.received);
  Log(status.ok() || is_cancelled ? Severity::kInfo : Severity::kWarning, "dicom_import",
      {{"remote", import.archive->remote.name},
       {"series", series},
       {"instances", instances},
       {"bytes", absl::StrCat(progress.bytes)},
       {"cause", status.ok() ? "" : status.ToString()}});
  audit::AuditRecord record;
  record.action = "dicom.Import";
  record.who = import.owner;
  record.outcome = std::string(absl::StatusCodeToString(status.code()));
  record.milliseconds = std::chrono::duration<double, std::milli>(elapsed).count();
  record.notes = {{"remote", import.archive->remote.name},
                  {"series", series},
                  {"instances", instances},
                  {"bytes", absl::StrCat(progress.bytes)}};
  audit_.Append(std::move(record));
  if (status.ok()) return import.work->Done(*made);
  import.work->Failed(status);
}

void Importer::Stop(steady_clock::time_point end) {
  while (running() + waiting() > 0 && steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  std::deque<std::shared_ptr<Job>> dropped;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_.exchange(true)) return;
    dropped.swap(waiting_);
    for (const std::shared_ptr<Job>& job : running_) {
      job->cancelled = true;
      if (job->intake != nullptr) job->intake->Cancel();
    }
    changed_.notify_all();
  }
  for (const std::shared_ptr<Job>& job : dropped) End(*job, Stopping(), {}, std::chrono::nanoseconds(0));
  for (std::thread& thread : threads_) thread.join();
  questions_.Shutdown();
}

}  // namespace intrawarp::server
