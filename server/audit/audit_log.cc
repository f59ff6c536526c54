// SPDX-License-Identifier: Apache-2.0
#include "server/audit/audit_log.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace intrawarp::audit {
namespace {

constexpr size_t kMaxBatch = 256;
constexpr size_t kMaxJsonBytes = kMaxLineBytes - kHashDigits - 2;
constexpr size_t kMaxText = 1000;

absl::Status Unavailable() { return absl::UnavailableError("the audit log cannot be written"); }

// A record that always fits into a line.
AuditRecord WithoutDetails(const AuditRecord& record) {
  AuditRecord brief;
  brief.time = record.time;
  brief.action = record.action.substr(0, kMaxText);
  brief.who = record.who.substr(0, kMaxText);
  brief.peer = record.peer.substr(0, kMaxText);
  brief.frame = record.frame;
  brief.outcome = record.outcome.substr(0, kMaxText);
  brief.reason = record.reason.substr(0, kMaxText);
  brief.notes = {{"details", "left out: the record was too long"}};
  return brief;
}

std::string PathOf(const std::string& directory, int64_t number) {
  return absl::StrCat(directory, "/", AuditFileName(number));
}

// The last record of a file, which is not verified.
absl::StatusOr<Position> LastPosition(state::FileLayer& files, const std::string& path) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::unique_ptr<state::File> file, files.Open(path, state::OpenMode::kRead));
  LineReader reader(*file);
  Position last;
  for (;;) {
    INTRAWARP_ASSIGN_OR_RETURN(const std::optional<absl::string_view> text, reader.Next());
    if (!text) return last;
    const std::optional<Line> line = ParseLine(*text);
    if (!line) return absl::DataLossError(absl::StrCat("the audit log is damaged after record ", last.seq));
    last = {line->seq, std::string(line->hash)};
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<AuditLog>> AuditLog::Open(state::FileLayer& files, AuditOptions options) {
  std::unique_ptr<AuditLog> log(new AuditLog(files, std::move(options)));
  INTRAWARP_RETURN_IF_ERROR(log->Start());
  return log;
}

AuditLog::AuditLog(state::FileLayer& files, AuditOptions options)
    : files_(files), options_(std::move(options)), hash_(options_.key) {}

AuditLog::~AuditLog() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

absl::Status AuditLog::Start() {
  INTRAWARP_ASSIGN_OR_RETURN(lock_, files_.Lock(absl::StrCat(options_.directory, "/lock")));
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<std::string> names, files_.List(options_.directory));
  std::vector<int64_t> numbers;
  for (const std::string& name : names) {
    if (const std::optional<int64_t> number = AuditFileNumber(name)) numbers.push_back(*number);
  }
  std::sort(numbers.begin(), numbers.end());
  INTRAWARP_RETURN_IF_ERROR(OpenLast(numbers));
  INTRAWARP_RETURN_IF_ERROR(CheckHead());
  INTRAWARP_ASSIGN_OR_RETURN(head_file_,
                             files_.Open(absl::StrCat(options_.directory, "/head"), state::OpenMode::kWrite));
  INTRAWARP_RETURN_IF_ERROR(WriteHead());
  INTRAWARP_RETURN_IF_ERROR(head_file_->Sync());
  INTRAWARP_RETURN_IF_ERROR(files_.SyncDirectory(options_.directory));
  head_ = end_;
  thread_ = std::thread([this] {
    Loop();
    std::lock_guard<std::mutex> lock(mutex_);
    has_ended_ = true;
    ended_.notify_all();
  });
  return absl::OkStatus();
}

// A file that a crash left without a record goes on where the one before it ended.
absl::Status AuditLog::OpenLast(const std::vector<int64_t>& numbers) {
  if (numbers.empty()) return OpenFile(1);
  if (numbers.size() > 1) {
    INTRAWARP_ASSIGN_OR_RETURN(end_, LastPosition(files_, PathOf(options_.directory, numbers[numbers.size() - 2])));
  }
  return Recover(numbers.back());
}

absl::Status AuditLog::OpenFile(int64_t number) {
  INTRAWARP_ASSIGN_OR_RETURN(std::unique_ptr<state::File> file,
                             files_.Open(PathOf(options_.directory, number), state::OpenMode::kWrite));
  INTRAWARP_RETURN_IF_ERROR(files_.SyncDirectory(options_.directory));
  file_ = std::move(file);
  number_ = number;
  size_ = 0;
  return absl::OkStatus();
}

// Verifies the file, and cuts off what is not a whole line.
absl::Status AuditLog::Recover(int64_t number) {
  INTRAWARP_RETURN_IF_ERROR(OpenFile(number));
  LineReader reader(*file_);
  for (;;) {
    INTRAWARP_ASSIGN_OR_RETURN(const std::optional<absl::string_view> text, reader.Next());
    if (!text) break;
    const std::optional<Line> line = ParseLine(*text);
    // Older files may have been moved away: then the first record tells what came before it.
    const bool is_first = size_ == 0 && end_.seq == 0;
    const bool follows = line && (is_first || line->seq == end_.seq + 1) &&
                         (is_first || hash_.Next(end_.hash, line->json) == line->hash);
    if (!follows) {
      return absl::DataLossError(absl::StrCat("the audit log is damaged after record ", end_.seq,
                                              ", or its key is another one; verify it, and move it away"));
    }
    end_ = {line->seq, std::string(line->hash)};
    size_ = reader.offset();
  }
  if (reader.torn_bytes() == 0) return absl::OkStatus();
  INTRAWARP_RETURN_IF_ERROR(file_->Truncate(size_));
  return file_->Sync();
}

void AuditLog::Append(AuditRecord record, DoneFn done) {
  bool refused = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    refused = pending_.size() >= kMaxPending;
    if (refused) {
      ++lost_;
      ++unwritten_losses_;
    } else {
      // Nobody waits for a disk that is known to fail.
      DoneFn waits = failed_ || hangs_ ? nullptr : std::exchange(done, nullptr);
      pending_.push_back({std::move(record), std::move(waits), options_.now()});
    }
  }
  wake_.notify_one();
  if (done) done(Unavailable());
}

bool AuditLog::Stop(std::chrono::milliseconds patience) {
  std::unique_lock<std::mutex> lock(mutex_);
  stopping_ = true;
  wake_.notify_all();
  return ended_.wait_for(lock, patience, [this] { return has_ended_; });
}

void AuditLog::Check(Time now) {
  std::vector<DoneFn> waited;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    hangs_ = !pending_.empty() && now - pending_.front().since > options_.patience;
    if (!hangs_) return;
    for (Pending& pending : pending_) {
      if (pending.done) waited.push_back(std::exchange(pending.done, nullptr));
    }
  }
  for (const DoneFn& done : waited) done(Unavailable());
}

bool AuditLog::available() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return !failed_ && !hangs_;
}

Position AuditLog::head() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return head_;
}

int64_t AuditLog::lost() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return lost_;
}

void AuditLog::Loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stopping_ || !pending_.empty(); });
    if (pending_.empty()) return;
    // Elements of a deque stay where they are while others are added at its end.
    std::vector<Pending*> batch;
    for (size_t i = 0; i < std::min(kMaxBatch, pending_.size()); ++i) batch.push_back(&pending_[i]);
    const int64_t lost = unwritten_losses_;
    lock.unlock();
    const absl::Status status = Write(batch, lost);
    Finished(batch.size(), lost, status);
    lock.lock();
    if (status.ok()) continue;
    if (stopping_) return;
    wake_.wait_for(lock, options_.retry, [this] { return stopping_; });
  }
}

absl::Status AuditLog::Write(const std::vector<Pending*>& batch, int64_t lost) {
  if (std::exchange(has_remains_, true)) INTRAWARP_RETURN_IF_ERROR(file_->Truncate(size_));
  if (size_ >= options_.file_bytes) INTRAWARP_RETURN_IF_ERROR(OpenFile(number_ + 1));
  Position end = end_;
  std::string text;
  const auto add = [&](const AuditRecord& record) {
    const std::string previous = size_ == 0 && text.empty() ? end.hash : "";
    std::string json = ToJson(record, end.seq + 1, previous);
    if (json.size() > kMaxJsonBytes) json = ToJson(WithoutDetails(record), end.seq + 1, previous);
    end = {end.seq + 1, hash_.Next(end.hash, json)};
    absl::StrAppend(&text, end.hash, " ", json, "\n");
  };
  if (lost > 0) {
    AuditRecord losses;
    losses.time = batch.front()->record.time;
    losses.action = "lost";
    losses.notes = {{"records", absl::StrCat(lost)}};
    add(losses);
  }
  for (const Pending* pending : batch) add(pending->record);
  INTRAWARP_RETURN_IF_ERROR(file_->WriteAt(size_, text.data(), text.size()));
  INTRAWARP_RETURN_IF_ERROR(file_->Sync());
  has_remains_ = false;
  size_ += static_cast<int64_t>(text.size());
  end_ = std::move(end);
  // One that stays behind still names a record of the log.
  (void)WriteHead();
  return absl::OkStatus();
}

// A log that has lost its end must not go on as if nothing had been there.
absl::Status AuditLog::CheckHead() {
  const absl::StatusOr<std::optional<Head>> head = ReadHead(files_, options_.directory);
  // Nothing was acknowledged before the first head.
  if (absl::IsDataLoss(head.status()) && end_.seq == 0) return absl::OkStatus();
  INTRAWARP_RETURN_IF_ERROR(head.status());
  if (!head->has_value()) return absl::OkStatus();
  head_line_ = (*head)->line;
  const Position& known = (*head)->position;
  if (known.seq < end_.seq || (known.seq == end_.seq && known.hash == end_.hash)) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("the audit log ends with record ", end_.seq, ", and its head names record ",
                                          known.seq, "; verify it, and move it away"));
}

absl::Status AuditLog::WriteHead() {
  const std::string text = FormatHeadLine(end_);
  const int line = 1 - head_line_;
  INTRAWARP_RETURN_IF_ERROR(
      head_file_->WriteAt(static_cast<int64_t>(line) * static_cast<int64_t>(text.size()), text.data(), text.size()));
  head_line_ = line;
  return absl::OkStatus();
}

void AuditLog::Finished(size_t batch, int64_t lost, const absl::Status& status) {
  std::vector<DoneFn> done;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    failed_ = !status.ok();
    // The records behind the batch would wait for the same disk.
    const size_t answered = status.ok() ? batch : pending_.size();
    for (size_t i = 0; i < answered; ++i) {
      if (pending_[i].done) done.push_back(std::exchange(pending_[i].done, nullptr));
    }
    if (status.ok()) {
      pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(batch));
      unwritten_losses_ -= lost;
      head_ = end_;
      hangs_ = false;
    }
  }
  for (const DoneFn& call : done) call(status.ok() ? absl::OkStatus() : Unavailable());
}

}  // namespace intrawarp::audit
