// SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/job_runner.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace intrawarp {

absl::StatusOr<std::unique_ptr<JobRunner>> JobRunner::Create(Device& device, int max_queued) {
  INTRAWARP_ASSIGN_OR_RETURN(Stream stream, device.CreateStream());
  return std::unique_ptr<JobRunner>(new JobRunner(device, std::move(stream), max_queued));
}

JobRunner::JobRunner(Device& device, Stream stream, int max_queued)
    : device_(device), stream_(std::move(stream)), max_queued_(max_queued), thread_([this] { Loop(); }) {}

JobRunner::~JobRunner() { Shutdown(); }

absl::Status JobRunner::Submit(Job job) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_) return absl::UnavailableError("the server is shutting down");
    if (static_cast<int>(queue_.size()) >= max_queued_) {
      return absl::ResourceExhaustedError(absl::StrCat("the job queue is full (", max_queued_, ")"));
    }
    queue_.push_back(std::move(job));
  }
  changed_.notify_one();
  return absl::OkStatus();
}

void JobRunner::Shutdown() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  std::call_once(joined_, [this] { thread_.join(); });
}

int64_t JobRunner::pending() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int64_t>(queue_.size()) + (running_ ? 1 : 0);
}

void JobRunner::Loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Job job = std::move(queue_.front());
    queue_.pop_front();
    running_ = true;
    const bool stopping = stopping_;
    lock.unlock();
    if (stopping) {
      job.run(absl::UnavailableError("the server is shutting down"));
    } else {
      Run(job);
    }
    job = Job();  // what it holds is released before the runner counts as idle
    lock.lock();
    running_ = false;
  }
}

void JobRunner::Run(Job& job) {
  absl::StatusOr<Buffer> workspace = device_.Allocate(Arena::Rounded(job.workspace_bytes), stream_.view());
  if (!workspace.ok()) {
    job.run(workspace.status());
    return;
  }
  Arena arena(*std::move(workspace));
  const ExecContext ctx(device_, stream_.view(), arena, std::move(job.checkpoint));
  job.run(&ctx);
}

}  // namespace intrawarp
