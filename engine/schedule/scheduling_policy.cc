// SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/scheduling_policy.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/schedule/retry_after.h"

namespace intrawarp {
namespace {

constexpr std::array<JobClass, kJobClasses> kClasses = {JobClass::kFrame, JobClass::kInteractive, JobClass::kBatch};

std::string Milliseconds(SchedulerClock::Duration duration) {
  return absl::StrCat(std::chrono::duration<double, std::milli>(duration).count(), " ms");
}

}  // namespace

absl::Status SchedulingPolicy::Push(JobId job, const Request& request, Time now) {
  Account(now);
  const Place place = PlaceOf(job, request);
  INTRAWARP_RETURN_IF_ERROR(CheckQueue(request, place));
  INTRAWARP_RETURN_IF_ERROR(CheckDeadline(request, place, now));
  INTRAWARP_RETURN_IF_ERROR(CheckOthers(request, place, now));
  Of(request.job_class).waiting.insert(place);
  jobs_.emplace(job, Entry{request});
  return absl::OkStatus();
}

bool SchedulingPolicy::Remove(JobId job, Time now) {
  const auto found = jobs_.find(job);
  if (found == jobs_.end() || found->second.state != State::kWaiting) return false;
  Account(now);
  const Request& request = found->second.request;
  Of(request.job_class).waiting.erase(PlaceOf(job, request));
  jobs_.erase(found);
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
  std::optional<Rank> best;
  for (JobClass c : kClasses) {
    const std::optional<Place> next = Next(c);
    if (!next || !HasSlot(c)) continue;
    const Rank rank = RankOf(c, *next);
    best = best ? std::min(*best, rank) : rank;
  }
  if (!best) return std::nullopt;
  const JobId job = std::get<Place>(*best).second;
  Start(job);
  return Turn{std::get<JobClass>(*best), job};
}

void SchedulingPolicy::Start(JobId job) {
  Entry& entry = jobs_.at(job);
  Class& c = Of(entry.request.job_class);
  const Place place = PlaceOf(job, entry.request);
  if (c.waiting.erase(place) > 0) ++c.started;
  c.held.erase(place);
  ++c.computing;
  entry.state = State::kComputing;
}

bool SchedulingPolicy::ShouldYield(JobId job, Time now) {
  Account(now);
  const Request& request = jobs_.at(job).request;
  if (request.job_class == JobClass::kFrame) return false;
  if (IsBarred(request.job_class)) return true;
  if (Computing(request.job_class) < SlotsOf(request.job_class)) return false;
  const Rank rank = RankOf(request.job_class, PlaceOf(job, request));
  return std::any_of(kClasses.begin(), kClasses.end(), [&](JobClass other) {
    const std::optional<Place> next = Next(other);
    return Share(request.job_class, other) && next && RankOf(other, *next) < rank;
  });
}

void SchedulingPolicy::Yield(JobId job, Time now) {
  Account(now);
  Entry& entry = jobs_.at(job);
  entry.state = State::kHeld;
  Class& c = Of(entry.request.job_class);
  --c.computing;
  c.held.insert(PlaceOf(job, entry.request));
}

void SchedulingPolicy::Abandon(JobId job, Time now) {
  Account(now);
  Entry& entry = jobs_.at(job);
  entry.state = State::kAbandoned;
  Of(entry.request.job_class).held.erase(PlaceOf(job, entry.request));
}

void SchedulingPolicy::Finish(JobId job, Time now) {
  Account(now);
  const Entry& entry = jobs_.at(job);
  Class& c = Of(entry.request.job_class);
  --c.started;
  if (entry.state == State::kComputing) --c.computing;
  jobs_.erase(job);
}

bool SchedulingPolicy::MayUseWhole(JobClass job_class) const {
  return !options_.partitioned || (job_class != JobClass::kFrame && !frames_open_);
}

bool SchedulingPolicy::Share(JobClass a, JobClass b) const {
  return !options_.partitioned || (a == JobClass::kBatch) == (b == JobClass::kBatch);
}

int SchedulingPolicy::SlotsOf(JobClass job_class) const {
  const bool apart = options_.partitioned && job_class == JobClass::kBatch;
  return apart ? options_.lanes[Index(JobClass::kBatch)] : options_.slots;
}

int SchedulingPolicy::Computing(JobClass job_class) const {
  int jobs = 0;
  for (JobClass other : kClasses) jobs += Share(job_class, other) ? Of(other).computing : 0;
  return jobs;
}

bool SchedulingPolicy::IsBarred(JobClass job_class) const {
  if (options_.mixed || Of(job_class).owed) return false;
  return std::any_of(kClasses.begin(), kClasses.end(), [&](JobClass better) {
    return better < job_class && Share(better, job_class) && Of(better).computing > 0;
  });
}

bool SchedulingPolicy::HasSlot(JobClass job_class) const {
  return !IsBarred(job_class) && Computing(job_class) < SlotsOf(job_class);
}

void SchedulingPolicy::Account(Time now) {
  const Duration elapsed = now - accounted_until_;
  for (JobClass c : kClasses) Charge(c, elapsed.count(), Computing(c));
  for (auto& [id, entry] : jobs_) {
    if (entry.state == State::kComputing) entry.computed += elapsed;
  }
  accounted_until_ = now;
}

void SchedulingPolicy::Charge(JobClass job_class, int64_t elapsed_ns, int64_t in_domain) {
  Class& c = Of(job_class);
  if (in_domain > 0)
    c.debt += elapsed_ns * (options_.share_permille[Index(job_class)] * in_domain - 1000 * c.computing);
  const bool has_jobs = c.started > 0 || !c.waiting.empty();
  if (!has_jobs || c.debt < 0) c.debt = 0;
  if (c.debt >= 1000 * options_.turn.count()) c.owed = true;
  if (c.debt == 0) c.owed = false;
}

std::optional<SchedulingPolicy::Place> SchedulingPolicy::Next(JobClass job_class) const {
  const Class& c = Of(job_class);
  const bool can_start = !c.waiting.empty() && c.started < options_.lanes[Index(job_class)];
  if (!can_start) return c.held.empty() ? std::nullopt : std::make_optional(*c.held.begin());
  return c.held.empty() ? *c.waiting.begin() : std::min(*c.held.begin(), *c.waiting.begin());
}

bool SchedulingPolicy::IsBefore(JobId job, const Entry& entry, JobClass job_class, const Place& place,
                                bool started) const {
  const JobClass other = entry.request.job_class;
  if (job == place.second || entry.state == State::kAbandoned || !Share(other, job_class)) return false;
  if (other != job_class) return other < job_class;
  return PlaceOf(job, entry.request) < place || (!started && entry.state != State::kWaiting);
}

SchedulingPolicy::Duration SchedulingPolicy::Remaining(const Entry& entry) {
  return std::max(entry.request.predicted.value_or(Duration(0)) - entry.computed, Duration(0));
}

int SchedulingPolicy::UsableSlots(JobClass job_class) const {
  return std::min(SlotsOf(job_class), options_.lanes[Index(job_class)]);
}

SchedulingPolicy::WaitTime SchedulingPolicy::Wait(JobClass job_class, const Place& place, bool started) const {
  Duration better{0}, own{0};
  int jobs = 0;
  for (const auto& [id, entry] : jobs_) {
    if (!IsBefore(id, entry, job_class, place, started)) continue;
    (entry.request.job_class == job_class ? own : better) += Remaining(entry);
    ++jobs;
  }
  const int displacements = SlotsOf(job_class) > 1 ? 1 + jobs : 1;
  const int slots = UsableSlots(job_class);
  return {better / (options_.mixed ? slots : 1) + own / slots, displacements * options_.checkpoint_interval};
}

SchedulingPolicy::Duration SchedulingPolicy::Delay(const Request& request) const {
  const Duration work = request.predicted.value_or(Duration(0)) / UsableSlots(request.job_class);
  // Rounded up: work divided job by job comes to less than the same work divided at once.
  const Duration displacement = SlotsOf(request.job_class) > 1 ? options_.checkpoint_interval : Duration(0);
  return work + Duration(1) + displacement;
}

SchedulingPolicy::Duration SchedulingPolicy::PredictedWait(const Request& request, Time now) {
  Account(now);
  return Wait(request.job_class, {request.deadline.value_or(Time::max()), INT64_MAX}, /*started=*/false).all();
}

absl::Status SchedulingPolicy::CheckQueue(const Request& request, const Place& place) const {
  const int in_use = waiting(request.job_class), places = capacity(request.job_class);
  if (in_use < places) return absl::OkStatus();
  const absl::Status full =
      absl::ResourceExhaustedError(absl::StrCat("the queue of class ", kJobClassNames[Index(request.job_class)],
                                                " is full: ", in_use, " jobs wait, ", places, " may"));
  const Duration wait = Wait(request.job_class, place, /*started=*/false).all();
  return wait > Duration(0) ? WithRetryAfter(full, wait) : full;
}

absl::Status SchedulingPolicy::CheckDeadline(const Request& request, const Place& place, Time now) const {
  if (!request.deadline || !request.predicted) return absl::OkStatus();
  const Duration wait = Wait(request.job_class, place, /*started=*/false).all(), left = *request.deadline - now;
  if (wait + *request.predicted <= left) return absl::OkStatus();
  const absl::Status late = absl::DeadlineExceededError(
      absl::StrCat("the deadline cannot be met: ", Milliseconds(left), " are left, the job takes ",
                   Milliseconds(*request.predicted), " after a wait of ", Milliseconds(wait)));
  // Waiting shortens the wait alone.
  const bool helps = *request.predicted + options_.checkpoint_interval <= left;
  return helps ? WithRetryAfter(late, wait + *request.predicted - left) : late;
}

bool SchedulingPolicy::IsDelayed(JobId job, const Entry& entry, JobClass job_class, const Place& place) const {
  if (entry.request.job_class != job_class || PlaceOf(job, entry.request) < place) return false;
  return entry.state == State::kWaiting || entry.state == State::kHeld ||
         (entry.state == State::kComputing && job_class != JobClass::kFrame);
}

SchedulingPolicy::Duration SchedulingPolicy::LateEnd(JobId job, const Entry& entry, Duration delay, Time now) const {
  const Request& request = entry.request;
  if (!request.deadline || !request.predicted) return Duration(0);
  const WaitTime wait = Wait(request.job_class, PlaceOf(job, request), entry.state != State::kWaiting);
  const Duration left = *request.deadline - now, end = wait.all() + Remaining(entry);
  // What others took until they gave way is used up, but nobody counts it; so only the work shows who is late anyway.
  const bool is_late_anyway = wait.work + Remaining(entry) > left;
  return is_late_anyway || end + delay <= left ? Duration(0) : end;
}

absl::Status SchedulingPolicy::CheckOthers(const Request& request, const Place& place, Time now) const {
  if (!request.deadline || !request.predicted) return absl::OkStatus();
  Duration until{0};
  for (const auto& [id, entry] : jobs_) {
    if (IsDelayed(id, entry, request.job_class, place))
      until = std::max(until, LateEnd(id, entry, Delay(request), now));
  }
  if (until == Duration(0)) return absl::OkStatus();
  return WithRetryAfter(absl::DeadlineExceededError("the deadline cannot be met without missing that of another job"),
                        until);
}

}  // namespace intrawarp
