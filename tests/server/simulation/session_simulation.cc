// SPDX-License-Identifier: Apache-2.0
// A simulation of sessions, their frames, the ledger and the scheduling policy on virtual time: seeded runs of clients
// that send, flood, read slowly, vanish, come back and delete their sessions, of other work, of memory that others
// claim and of a device that fails, against the rules that stand in the files of this folder. The registrations are
// real ones of tiny frames. The first broken rule ends the run with its seed.
//
//   session_simulation [--seeds=N] [--first_seed=N] [--trace]
//
// INTRAWARP_SIMULATION_SEEDS is the number of seeds unless --seeds is given.
#include <oneapi/tbb/global_control.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/job/job_support.h"
#include "server/session/session_store.h"
#include "tests/server/simulation/simulated_client.h"
#include "tests/server/simulation/world.h"

namespace intrawarp::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int64_t kDefaultSeeds = 500;
constexpr int64_t kMostEvents = 1000000;
constexpr seconds kMostTime{600};
constexpr int kMostSessions = 5;

SchedulingOptions RandomScheduling(Dice& dice) {
  SchedulingOptions options;
  if (dice.Chance(50)) {
    options.lanes = {static_cast<int>(dice.Uniform(1, 4)), 2, 1};
    options.slots = static_cast<int>(dice.Uniform(1, 4));
    options.mixed = dice.Chance(30);
  }
  if (dice.Chance(70)) {
    options.lanes[1] += static_cast<int>(dice.Uniform(1, 4));
    options.lanes[2] += static_cast<int>(dice.Uniform(1, 4));
    options.at_once = {options.lanes[0], static_cast<int>(dice.Uniform(1, 2)), 1};
    options.short_lanes[1] = 1;
  }
  options.owner_turn = milliseconds(dice.Uniform(1, 20));
  options.owner_credit = milliseconds(dice.Uniform(0, 50));
  options.most_guarded = milliseconds(dice.Uniform(0, 100));
  options.checkpoint_interval = milliseconds(dice.Uniform(0, 3));
  return options;
}

std::optional<absl::Status> RandomFault(Dice& dice) {
  switch (dice.Uniform(1, 12)) {
    case 1:
      return absl::ResourceExhaustedError("no memory");
    case 2:
      return absl::InternalError("a copy failed");
    case 3:
      return absl::UnavailableError("the device is lost");
    default:
      return std::nullopt;
  }
}

WorldOptions RandomOptions(uint64_t seed) {
  Dice dice(seed ^ 0x9e3779b97f4a7c15U);
  WorldOptions options;
  options.scheduling = RandomScheduling(dice);
  options.limits.max_sessions = static_cast<int>(dice.Uniform(1, kMostSessions));
  LedgerOptions& ledger = options.ledger;
  ledger.lanes = options.scheduling.lanes;
  ledger.at_once = options.scheduling.at_once;
  // In half of the runs the results of a few sessions take it all.
  ledger.capacity = {.resident_bytes = dice.Chance(50) ? 1 << 20 : dice.Uniform(1, 8) << 13,
                     .workspace_bytes = int64_t{1} << 40,
                     .pinned_bytes = dice.Uniform(1, 16) << 17,
                     .uploading_bytes = 1 << 20,
                     .transforms = 32 + int64_t{kSessionTransforms} * options.limits.max_sessions,
                     .streams = 64,
                     .uploads = 8,
                     .sessions = options.limits.max_sessions};
  ledger.session_reserve.pinned_bytes = ledger.capacity.pinned_bytes / 4;
  ledger.session_reserve.transforms = int64_t{kSessionTransforms} * options.limits.max_sessions;
  ledger.session_reserve.sessions = options.limits.max_sessions;
  options.fault = RandomFault(dice);
  options.fault_call = dice.Uniform(1, 400);
  return options;
}

class Simulation {
 public:
  Simulation(Stage& stage, uint64_t seed, bool trace, Tally& tally)
      : world_(stage, RandomOptions(seed), seed, trace, tally) {
    const auto clients = static_cast<int>(world_.dice.Uniform(1, kMostSessions));
    for (int i = 0; i < clients; ++i) clients_.push_back(std::make_unique<SimulatedClient>(world_, i));
    for (const auto& client : clients_) client->Begin();
    if (world_.dice.Chance(60)) NextJob();
    if (world_.dice.Chance(60)) NextClaim();
    Housekeep();
  }

  // The rule that was broken; empty when none was.
  std::string Run() {
    int64_t events = 0;
    while (world_.time.Step()) {
      world_.CheckLedger();
      if (++events < kMostEvents && world_.time.now() - begin_ < kMostTime) continue;
      std::printf("the run does not end\n");
      std::_Exit(1);
    }
    for (const auto& client : clients_) client->CheckSessions();
    world_.CheckNothingIsHeld();
    return world_.rules.broken();
  }

 private:
  // As the server's thread does every second. Once all clients are done, those who never hung up vanish.
  void Housekeep() {
    world_.sessions.Expire(world_.time.now());
    bool all_done = true;
    for (const auto& client : clients_) all_done = all_done && client->is_done();
    patience_ -= all_done ? 1 : 0;
    if (patience_ <= 0) {
      for (const auto& client : clients_) client->Vanish();
    }
    if (patience_ > 0 || world_.sessions.size() > 0) world_.time.After(seconds(1), [this] { Housekeep(); });
  }

  // Work of others, which computes between checkpoints and may be cancelled.
  void NextJob() {
    if (jobs_left_-- <= 0) return;
    Job job;
    job.job_class = world_.dice.Chance(50) ? JobClass::kBatch : JobClass::kInteractive;
    const int64_t owner = ++next_owner_;
    job.owner = reinterpret_cast<const void*>(owner);
    job.party = std::string(1, static_cast<char>('a' + world_.dice.Uniform(0, 2)));
    job.is_short = world_.dice.Chance(30);
    if (world_.dice.Chance(30)) job.deadline = world_.time.now() + world_.dice.Microseconds(1, 100000);
    const int64_t checkpoints = world_.dice.Uniform(0, world_.dice.Chance(10) ? 600 : 60);
    job.run = [checkpoints](const absl::StatusOr<const ExecContext*>& ctx) {
      for (int64_t i = 0; ctx.ok() && i < checkpoints; ++i) {
        if ((*ctx)->Checkpoint({}) == Decision::kCancel) return;
      }
    };
    ++world_.tally["other jobs"];
    (void)world_.scheduler.Submit(std::move(job));
    if (world_.dice.Chance(20)) {
      world_.time.After(world_.dice.Microseconds(0, 100000),
                        [this, owner] { world_.scheduler.Cancel(reinterpret_cast<const void*>(owner)); });
    }
    world_.time.After(world_.dice.Microseconds(0, 60000), [this] { NextJob(); });
  }

  // Claims of others, which go after a while.
  void NextClaim() {
    if (claims_left_-- <= 0) return;
    Claim claim;
    const int64_t resident = world_.ledger.capacity(Resource::kResident);
    claim.resident_bytes = world_.dice.Chance(50) ? world_.dice.Uniform(0, resident) : 0;
    claim.pinned_bytes = world_.dice.Chance(50) ? world_.dice.Uniform(0, 1 << 20) : 0;
    claim.transforms = world_.dice.Uniform(0, 12);
    absl::StatusOr<Grant> grant = world_.ledger.Admit(claim);
    CheckAdmission(claim, grant.status());
    if (grant.ok()) {
      others_.resident_bytes += claim.resident_bytes;
      others_.pinned_bytes += claim.pinned_bytes;
      others_.transforms += claim.transforms;
      auto held = std::make_shared<Grant>(*std::move(grant));
      world_.time.After(world_.dice.Microseconds(0, 500000), [this, held] {
        others_.resident_bytes -= held->held().resident_bytes;
        others_.pinned_bytes -= held->held().pinned_bytes;
        others_.transforms -= held->held().transforms;
      });
    }
    world_.time.After(world_.dice.Microseconds(0, 60000), [this] { NextClaim(); });
  }

  // Others never get the part of sessions, nor are they refused what is free.
  void CheckAdmission(const Claim& claim, const absl::Status& status) {
    bool fits = true;
    for (const Resource resource : {Resource::kResident, Resource::kPinned, Resource::kTransforms}) {
      const ResourceUse use = world_.ledger.use(resource);
      const int64_t before = others_[resource], now = status.ok() ? claim[resource] : 0;
      world_.rules.Check(use.in_use - use.session_in_use == before + now, "the ledger knows what others hold");
      const int64_t kept = std::max(use.session_in_use, use.session_reserve);
      fits = fits && (claim[resource] == 0 || before + claim[resource] + kept <= use.capacity);
    }
    world_.rules.Check(status.ok() == fits, "a claim is admitted when it fits beside the part of sessions");
    ++world_.tally[status.ok() ? "claims admitted" : "claims refused"];
  }

  World world_;
  std::vector<std::unique_ptr<SimulatedClient>> clients_;
  const VirtualTime::Time begin_ = world_.time.now();
  int64_t jobs_left_ = world_.dice.Uniform(1, 40);
  int64_t claims_left_ = world_.dice.Uniform(1, 40);
  int64_t patience_ = world_.dice.Uniform(1, 10);  // seconds
  int64_t next_owner_ = 0;
  Amounts others_;
};

std::string Describe(const Tally& tally) {
  std::string all;
  for (const auto& [what, count] : tally) absl::StrAppend(&all, "\n  ", count, " ", what);
  return all;
}

// Whether the runs put every rule to the test.
bool Covers(const Tally& tally) {
  for (const char* what : {"frames OK", "frames OK late", "frames FRAME_SUPERSEDED", "frames DEADLINE_PASSED",
                           "frames INVALID_FIELD", "frames dropped", "sessions opened", "sessions resumed",
                           "sessions not resumed", "sessions idle", "sessions deleted", "streams broken",
                           "streams concluded", "floods", "other jobs", "claims admitted", "claims refused"}) {
    if (tally.contains(what)) continue;
    std::printf("it never happened: %s\n", what);
    return false;
  }
  return true;
}

struct Arguments {
  int64_t seeds = kDefaultSeeds;
  int64_t first_seed = 1;
  bool trace = false;
};

Arguments Parse(int argc, char** argv) {
  Arguments arguments;
  if (const char* seeds = std::getenv("INTRAWARP_SIMULATION_SEEDS")) arguments.seeds = std::atoll(seeds);
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (absl::StartsWith(argument, "--seeds=")) arguments.seeds = std::atoll(argument.c_str() + 8);
    if (absl::StartsWith(argument, "--first_seed=")) arguments.first_seed = std::atoll(argument.c_str() + 13);
    if (argument == "--trace") arguments.trace = true;
  }
  return arguments;
}

int Main(int argc, char** argv) {
  const Arguments arguments = Parse(argc, argv);
  // Frames are too small for several cores.
  const oneapi::tbb::global_control one_core(oneapi::tbb::global_control::max_allowed_parallelism, 1);
  const auto stage = MakeStage();
  const auto begin = std::chrono::steady_clock::now();
  Tally tally;
  for (int64_t i = 0; i < arguments.seeds; ++i) {
    const int64_t seed = arguments.first_seed + i;
    const std::string error = Simulation(*stage, seed, arguments.trace, tally).Run();
    if (error.empty()) continue;
    std::printf("seed %lld, the %lldth: broken: %s\n", static_cast<long long>(seed), static_cast<long long>(i + 1),
                error.c_str());
    return 1;
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  std::printf("%lld seeds in %.1f s:%s\n", static_cast<long long>(arguments.seeds), elapsed.count(),
              Describe(tally).c_str());
  return arguments.seeds < kDefaultSeeds || Covers(tally) ? 0 : 1;
}

}  // namespace
}  // namespace intrawarp::server

int main(int argc, char** argv) { return intrawarp::server::Main(argc, argv); }
