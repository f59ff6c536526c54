// SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/scheduling_policy.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace intrawarp {

absl::Status SchedulingPolicy::Push(JobId job, JobClass job_class, std::optional<Time> deadline, Time now) {
  const int in_use = waiting(job_class);
  if (in_use >= capacity(job_class)) {
    return absl::ResourceExhaustedError(absl::StrCat("the queue of class ", kJobClassNames[Index(job_class)],
                                                     " is full: ", in_use, " jobs wait, ", capacity(job_class),
                                                     " may"));
  }
  Account(now);
  const Place place(deadline.value_or(Time::max()), job);
  classes_[Index(job_class)].waiting.insert(place);
  places_.emplace(job, std::make_pair(job_class, place));
  return absl::OkStatus();
}

bool SchedulingPolicy::Remove(JobId job, Time now) {
  const auto found = places_.find(job);
  if (found == places_.end()) return false;
  Account(now);
  const auto& [job_class, place] = found->second;
  classes_[Index(job_class)].waiting.erase(place);
  places_.erase(found);
  return true;
}

std::vector<SchedulingPolicy::JobId> SchedulingPolicy::TakeExpired(Time now) {
  std::vector<JobId> expired;
  for (const Class& c : classes_) {
    for (const auto& [deadline, job] : c.waiting) {
      if (deadline > now) break;
      expired.push_back(job);
    }
  }
  for (JobId job : expired) Remove(job, now);
  return expired;
}

std::optional<SchedulingPolicy::Time> SchedulingPolicy::NextDeadline() const {
  Time next = Time::max();
  for (const Class& c : classes_) {
    if (!c.waiting.empty()) next = std::min(next, c.waiting.begin()->first);
  }
  return next == Time::max() ? std::nullopt : std::make_optional(next);
}

std::optional<SchedulingPolicy::Turn> SchedulingPolicy::Grant(Time now) {
  Account(now);
  computing_ = Best();
  if (!computing_) return std::nullopt;
  Class& c = classes_[Index(*computing_)];
  if (!c.started) {
    c.started = c.waiting.begin()->second;
    c.waiting.erase(c.waiting.begin());
    places_.erase(*c.started);
  }
  return Turn{*computing_, *c.started};
}

bool SchedulingPolicy::ShouldYield(Time now) {
  Account(now);
  return computing_ != JobClass::kFrame && Best() != computing_;
}

void SchedulingPolicy::Yield(Time now) {
  Account(now);
  computing_.reset();
}

void SchedulingPolicy::Abandon(JobClass job_class, Time now) {
  Account(now);
  classes_[Index(job_class)].abandoned = true;
}

void SchedulingPolicy::Finish(JobClass job_class, Time now) {
  Account(now);
  Class& c = classes_[Index(job_class)];
  c.started.reset();
  c.abandoned = false;
  if (computing_ == job_class) computing_.reset();
}

void SchedulingPolicy::Account(Time now) {
  const int64_t elapsed_ns = computing_ ? SchedulerClock::Duration(now - accounted_until_).count() : 0;
  for (int i = 0; i < kJobClasses; ++i) Charge(i, elapsed_ns);
  accounted_until_ = now;
}

void SchedulingPolicy::Charge(int index, int64_t elapsed_ns) {
  Class& c = classes_[index];
  const bool computes = computing_ == static_cast<JobClass>(index);
  const bool wants = c.started || !c.waiting.empty();
  c.debt += elapsed_ns * (options_.share_permille[index] - (computes ? 1000 : 0));
  if (!wants || c.debt < 0) c.debt = 0;
  if (c.debt >= 1000 * options_.turn.count()) c.owed = true;
  if (c.debt == 0) c.owed = false;
}

std::optional<JobClass> SchedulingPolicy::Best() const {
  std::optional<JobClass> best;
  for (int i = kJobClasses - 1; i >= 0; --i) {
    if (Wants(classes_[i])) best = static_cast<JobClass>(i);
  }
  for (int i = kJobClasses - 1; i >= 0; --i) {
    if (Wants(classes_[i]) && classes_[i].owed) best = static_cast<JobClass>(i);
  }
  return best;
}

}  // namespace intrawarp
