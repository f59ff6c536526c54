// SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/scheduling_policy.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/schedule/retry_after.h"
#include "engine/schedule/unreachable.h"

namespace intrawarp {
namespace {

constexpr std::array<JobClass, kJobClasses> kClasses = {JobClass::kFrame, JobClass::kInteractive, JobClass::kBatch};

std::string Milliseconds(SchedulerClock::Duration duration) {
  return absl::StrCat(std::chrono::duration<double, std::milli>(duration).count(), " ms");
}

}  // namespace

absl::Status SchedulingPolicy::Push(JobId job, const Request& request, Time now) {
  Account(now);
  Request placed = request;
  const absl::Status others = CheckOthers(placed, PlaceOf(job, placed), now);
  if (!others.ok() && !placed.deadline) placed.due.reset();
  const Place place = PlaceOf(job, placed);
  INTRAWARP_RETURN_IF_ERROR(CheckQueue(placed, place));
  INTRAWARP_RETURN_IF_ERROR(CheckDeadline(placed, place, now));
  if (placed.deadline) INTRAWARP_RETURN_IF_ERROR(others);
  Of(placed.job_class).waiting.insert(place);
  if (placed.deadline) lapses_.insert(LapseOf(job, placed));
  Flow* const flow = Enter(placed);
  jobs_.emplace(job, Entry{std::move(placed), flow, now});
  return absl::OkStatus();
}

bool SchedulingPolicy::Remove(JobId job, Time now) {
  const auto found = jobs_.find(job);
  if (found == jobs_.end() || found->second.state != State::kWaiting) return false;
  Account(now);
  const Request& request = found->second.request;
  Of(request.job_class).waiting.erase(PlaceOf(job, request));
  if (request.deadline) lapses_.erase(LapseOf(job, request));
  Leave(found->second);
  jobs_.erase(found);
  return true;
}

SchedulingPolicy::Flow* SchedulingPolicy::Enter(const Request& request) {
  Class& c = Of(request.job_class);
  const bool any = std::any_of(c.flows.begin(), c.flows.end(), [](const auto& f) { return f.second.jobs > 0; });
  if (!any) c.flows.clear();
  c.level = any ? std::max(c.level, LeastCharged(c)) : Duration(0);
  // No more than was computed since the class had no job: a job that just ends beside it gives nobody credit.
  const Duration first = any ? std::max(c.level - options_.owner_credit, Duration(0)) : Duration(0);
  // A flow that came back now would begin anew.
  std::erase_if(c.flows, [&](const auto& f) { return f.second.jobs == 0 && f.second.charged <= first; });
  Flow& flow = c.flows.try_emplace({request.owner, request.is_short}, Flow{first}).first->second;
  ++flow.jobs;
  return &flow;
}

SchedulingPolicy::Duration SchedulingPolicy::LeastCharged(const Class& c) {
  Duration least = Duration::max();
  for (const auto& [name, flow] : c.flows) {
    if (flow.started > 0) least = std::min(least, flow.charged);
  }
  return least == Duration::max() ? c.level : least;
}

void SchedulingPolicy::Leave(const Entry& entry) {
  --entry.flow->jobs;
  if (entry.state == State::kWaiting) return;
  --entry.flow->started;
  if (!entry.request.is_short) --Of(entry.request.job_class).started_long;
}

SchedulingPolicy::Place SchedulingPolicy::LapseOf(JobId job, const Request& request) {
  // A job that will end at its deadline precisely may start.
  if (!request.expected) return {*request.deadline, job};
  return {std::min(*request.deadline, *request.deadline - *request.expected + Duration(1)), job};
}

std::vector<SchedulingPolicy::JobId> SchedulingPolicy::TakeExpired(Time now) {
  std::vector<JobId> expired;
  for (const auto& [time, job] : lapses_) {
    if (time > now) break;
    expired.push_back(job);
  }
  for (JobId job : expired) Remove(job, now);
  return expired;
}

std::optional<SchedulingPolicy::Time> SchedulingPolicy::NextDeadline() const {
  return lapses_.empty() ? std::nullopt : std::make_optional(lapses_.begin()->first);
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
  if (c.waiting.erase(place) > 0) {
    // A flow that waited for a lane begins anew, too: nobody else had its turns meanwhile.
    c.level = std::max(c.level, LeastCharged(c));
    Flow& flow = *entry.flow;
    if (flow.started == 0) flow.charged = std::max(flow.charged, c.level - options_.owner_credit);
    ++c.started;
    ++flow.started;
    if (!entry.request.is_short) ++c.started_long;
  }
  if (entry.request.deadline) lapses_.erase(LapseOf(job, entry.request));
  c.held.erase(place);
  ++c.computing;
  entry.state = State::kComputing;
  entry.waited = accounted_until_ - entry.since;
}

bool SchedulingPolicy::ShouldYield(JobId job, Time now) {
  Account(now);
  const Request& request = jobs_.at(job).request;
  const JobClass own = request.job_class;
  if (own == JobClass::kFrame) return false;
  if (IsBarred(own)) return true;
  const bool no_slot = Computing(own) >= SlotsOf(own);
  if ((no_slot || Of(own).computing >= AtOnce(own)) && Next(own, job)->second != job) return true;
  const Rank rank = RankOf(own, PlaceOf(job, request));
  return no_slot && std::any_of(kClasses.begin(), kClasses.end(), [&](JobClass other) {
           if (other == own || !Share(own, other)) return false;
           const std::optional<Place> next = Next(other);
           return next && Of(other).computing < AtOnce(other) && RankOf(other, *next) < rank;
         });
}

void SchedulingPolicy::Yield(JobId job, Time now) {
  Account(now);
  Entry& entry = jobs_.at(job);
  entry.state = State::kHeld;
  entry.since = now;
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
  Leave(entry);
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
  return apart ? AtOnce(JobClass::kBatch) : options_.slots;
}

int SchedulingPolicy::AtOnce(JobClass job_class) const {
  const int given = options_.at_once[Index(job_class)], beside_frames = options_.beside_frames[Index(job_class)];
  const int most = given > 0 ? given : options_.lanes[Index(job_class)];
  return frames_open_ && beside_frames > 0 ? std::min(most, beside_frames) : most;
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
  return !IsBarred(job_class) && Computing(job_class) < SlotsOf(job_class) &&
         Of(job_class).computing < AtOnce(job_class);
}

void SchedulingPolicy::Account(Time now) {
  const Duration elapsed = now - accounted_until_;
  for (JobClass c : kClasses) Charge(c, elapsed.count(), Computing(c));
  for (auto& [id, entry] : jobs_) {
    if (entry.state != State::kComputing) continue;
    entry.computed += elapsed;
    entry.flow->charged += elapsed;
    if (Computing(entry.request.job_class) > 1) entry.beside_others += elapsed;
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

bool SchedulingPolicy::CanStart(const Entry& entry) const {
  const Request& request = entry.request;
  const Class& c = Of(request.job_class);
  const int lanes = options_.lanes[Index(request.job_class)];
  if (c.started >= lanes || entry.flow->started >= AtOnce(request.job_class)) return false;
  return request.is_short || c.started_long < lanes - options_.short_lanes[Index(request.job_class)];
}

std::optional<SchedulingPolicy::Place> SchedulingPolicy::Next(JobClass job_class, std::optional<JobId> also) const {
  const Class& c = Of(job_class);
  std::vector<Place> places;
  places.insert(places.end(), c.held.begin(), c.held.end());
  if (c.started < options_.lanes[Index(job_class)]) {
    std::copy_if(c.waiting.begin(), c.waiting.end(), std::back_inserter(places),
                 [this](const Place& place) { return CanStart(jobs_.at(place.second)); });
  }
  if (also) return NextTo(*also, std::move(places));
  if (places.empty()) return std::nullopt;
  const Place best = *std::min_element(places.begin(), places.end());
  return c.flows.size() > 1 ? ByTurn(places, best) : best;
}

SchedulingPolicy::Place SchedulingPolicy::NextTo(JobId job, std::vector<Place> places) const {
  const Entry& entry = jobs_.at(job);
  Place best = PlaceOf(job, entry.request);
  for (const Place& place : places) {
    const Entry& other = jobs_.at(place.second);
    if (other.request.deadline || other.flow == entry.flow) best = std::min(best, place);
  }
  places.push_back(PlaceOf(job, entry.request));
  return ByTurn(places, best);
}

SchedulingPolicy::Place SchedulingPolicy::ByTurn(const std::vector<Place>& places, const Place& best) const {
  const Duration most = jobs_.at(best.second).flow->charged - options_.owner_turn;
  std::vector<std::pair<Duration, Place>> turns;
  for (const Place& place : places) {
    const Flow& flow = *jobs_.at(place.second).flow;
    if (flow.charged <= most) turns.emplace_back(flow.charged, place);
  }
  std::sort(turns.begin(), turns.end());
  const auto found =
      std::find_if(turns.begin(), turns.end(), [this](const auto& turn) { return !IsGuarded(turn.second.second); });
  return found == turns.end() ? best : found->second;
}

SchedulingPolicy::Duration SchedulingPolicy::Margin() const {
  return std::max(options_.owner_turn, options_.checkpoint_interval + Duration(1));
}

bool SchedulingPolicy::IsGuarded(JobId job) const {
  const Entry& entry = jobs_.at(job);
  const Request& request = entry.request;
  const bool computes = entry.state == State::kComputing;
  if ((computes ? entry.waited : accounted_until_ - entry.since) >= options_.most_guarded) return false;
  // A frame runs to its end, and a job that starts keeps its lane until its end.
  const Duration whole = request.predicted ? Cost(request, IsCrowded(request.job_class, 0)) : options_.most_guarded;
  const bool starts = entry.state == State::kWaiting;
  const Place place = PlaceOf(job, request);
  return std::any_of(jobs_.begin(), jobs_.end(), [&](const auto& other) {
    const Entry& late = other.second;
    if (late.request.job_class != request.job_class || late.flow == entry.flow) return false;
    if (!late.request.deadline || !late.request.predicted || late.computed >= *late.request.predicted) return false;
    if (late.state == State::kAbandoned || place < PlaceOf(other.first, late.request)) return false;
    const bool all = request.job_class == JobClass::kFrame || (starts && late.state == State::kWaiting);
    const Duration delay = (all ? whole : Duration(0)) + Margin();
    return LateEnd(other.first, late, delay, accounted_until_) > Duration(0);
  });
}

bool SchedulingPolicy::IsBefore(JobId job, const Entry& entry, JobClass job_class, const Place& place,
                                bool started) const {
  const JobClass other = entry.request.job_class;
  if (job == place.second || entry.state == State::kAbandoned || !Share(other, job_class)) return false;
  if (other != job_class) return other < job_class;
  return PlaceOf(job, entry.request) < place || (!started && entry.state != State::kWaiting);
}

bool SchedulingPolicy::WasCrowded(JobId job, Time now) {
  Account(now);
  const Entry& entry = jobs_.at(job);
  return entry.beside_others > entry.computed / 2;
}

bool SchedulingPolicy::IsCrowded(JobClass job_class, int more) const {
  const Class& c = Of(job_class);
  return UsableSlots(job_class) > 1 && c.started + static_cast<int>(c.waiting.size()) + more > 1;
}

SchedulingPolicy::Duration SchedulingPolicy::Cost(const Request& request, bool crowded) {
  const Duration alone = request.predicted.value_or(Duration(0));
  return crowded ? request.crowded.value_or(alone) : alone;
}

SchedulingPolicy::Duration SchedulingPolicy::Remaining(const Entry& entry, bool crowded) {
  return std::max(Cost(entry.request, crowded) - entry.computed, Duration(0));
}

int SchedulingPolicy::UsableSlots(JobClass job_class) const {
  const int i = Index(job_class);
  return std::min({SlotsOf(job_class), AtOnce(job_class), options_.lanes[i] - options_.short_lanes[i]});
}

SchedulingPolicy::WaitTime SchedulingPolicy::Wait(JobClass job_class, const Place& place, bool started,
                                                  int more) const {
  Duration better{0}, own{0};
  int jobs = 0;
  for (const auto& [id, entry] : jobs_) {
    if (!IsBefore(id, entry, job_class, place, started)) continue;
    const JobClass other = entry.request.job_class;
    (other == job_class ? own : better) += Remaining(entry, IsCrowded(other, other == job_class ? more : 0));
    ++jobs;
  }
  const int displacements = SlotsOf(job_class) > 1 ? 1 + jobs : 1;
  const int slots = UsableSlots(job_class);
  return {better / (options_.mixed ? slots : 1) + own / slots, displacements * options_.checkpoint_interval};
}

SchedulingPolicy::Duration SchedulingPolicy::Delay(const Request& request) const {
  const Duration work = Cost(request, IsCrowded(request.job_class, 1)) / UsableSlots(request.job_class);
  // Rounded up: work divided job by job comes to less than the same work divided at once.
  const Duration displacement = SlotsOf(request.job_class) > 1 ? options_.checkpoint_interval : Duration(0);
  return work + Duration(1) + displacement;
}

SchedulingPolicy::Duration SchedulingPolicy::PredictedWait(const Request& request, Time now) {
  Account(now);
  return Wait(request.job_class, PlaceOf(INT64_MAX, request), /*started=*/false, 1).all();
}

int SchedulingPolicy::WaitingOf(JobClass job_class, const std::string& owner) const {
  int waiting = 0;
  for (const bool is_short : {false, true}) {
    const auto flow = Of(job_class).flows.find({owner, is_short});
    if (flow != Of(job_class).flows.end()) waiting += flow->second.jobs - flow->second.started;
  }
  return waiting;
}

absl::Status SchedulingPolicy::CheckQueue(const Request& request, const Place& place) const {
  const int in_use = waiting(request.job_class), places = capacity(request.job_class);
  const int own_places = options_.owner_capacity[Index(request.job_class)];
  const int own = own_places > 0 ? WaitingOf(request.job_class, request.owner) : 0;
  const bool is_own = own_places > 0 && own >= own_places;
  if (in_use < places && !is_own) return absl::OkStatus();
  const std::string name = kJobClassNames[Index(request.job_class)];
  const absl::Status full =
      absl::ResourceExhaustedError(in_use < places ? absl::StrCat("the caller's part of the queue of class ", name,
                                                                  " is full: ", own, " jobs wait, ", own_places, " may")
                                                   : absl::StrCat("the queue of class ", name, " is full: ", in_use,
                                                                  " jobs wait, ", places, " may"));
  const Duration wait = Wait(request.job_class, place, /*started=*/false, 1).all();
  return wait > Duration(0) ? WithRetryAfter(full, wait) : full;
}

absl::Status SchedulingPolicy::CheckDeadline(const Request& request, const Place& place, Time now) const {
  if (!request.deadline || !request.predicted) return absl::OkStatus();
  const Duration wait = Wait(request.job_class, place, /*started=*/false, 1).all(), left = *request.deadline - now;
  const Duration cost = Cost(request, IsCrowded(request.job_class, 1));
  if (wait + cost <= left) return absl::OkStatus();
  const absl::Status late =
      UnreachableError(absl::StrCat("the deadline cannot be met: ", Milliseconds(left), " are left, the job takes ",
                                    Milliseconds(cost), " after a wait of ", Milliseconds(wait)));
  // Waiting shortens the wait, and leaves the device to the job alone.
  const bool helps = *request.predicted + options_.checkpoint_interval <= left;
  return helps ? WithRetryAfter(late, wait + cost - left) : late;
}

bool SchedulingPolicy::IsCrowdedBy(const Entry& entry, JobClass job_class) const {
  return entry.request.job_class == job_class && entry.request.crowded && !IsCrowded(job_class, 0) &&
         IsCrowded(job_class, 1);
}

bool SchedulingPolicy::IsDelayed(JobId job, const Entry& entry, JobClass job_class, const Place& place) const {
  if (entry.request.job_class != job_class || PlaceOf(job, entry.request) < place) return false;
  return entry.state == State::kWaiting || entry.state == State::kHeld ||
         (entry.state == State::kComputing && job_class != JobClass::kFrame);
}

SchedulingPolicy::Duration SchedulingPolicy::LateEnd(JobId job, const Entry& entry, Duration delay, Time now) const {
  const Request& request = entry.request;
  if (!request.deadline || !request.predicted) return Duration(0);
  const Place place = PlaceOf(job, request);
  const bool started = entry.state != State::kWaiting;
  const Duration left = *request.deadline - now;
  // What others took until they gave way is used up, but nobody counts it; so only the work shows who is late anyway.
  const Duration before =
      Wait(request.job_class, place, started, 0).work + Remaining(entry, IsCrowded(request.job_class, 0));
  const Duration end =
      Wait(request.job_class, place, started, 1).all() + Remaining(entry, IsCrowded(request.job_class, 1));
  return before > left || end + delay <= left ? Duration(0) : end;
}

absl::Status SchedulingPolicy::CheckOthers(const Request& request, const Place& place, Time now) const {
  if (!request.predicted || !(request.deadline || request.due)) return absl::OkStatus();
  Duration until{0};
  for (const auto& [id, entry] : jobs_) {
    const bool is_delayed = IsDelayed(id, entry, request.job_class, place);
    if (!is_delayed && !IsCrowdedBy(entry, request.job_class)) continue;
    until = std::max(until, LateEnd(id, entry, is_delayed ? Delay(request) : Duration(0), now));
  }
  if (until == Duration(0)) return absl::OkStatus();
  return WithRetryAfter(UnreachableError("the deadline cannot be met without missing that of another job"), until);
}

}  // namespace intrawarp
