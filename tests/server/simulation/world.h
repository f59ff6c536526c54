// SPDX-License-Identifier: Apache-2.0
// The part of a server that sessions need, on virtual time: ledger, stores, pinned memory, a scheduler and a device
// that can fail. Everything that chance decides comes from the seed.
//
// Thread safety: as VirtualTime.
#ifndef INTRAWARP_TESTS_SERVER_SIMULATION_WORLD_H_
#define INTRAWARP_TESTS_SERVER_SIMULATION_WORLD_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>

#include "engine/device/pinned_pool.h"
#include "server/bulk/upload_store.h"
#include "server/context/limits.h"
#include "server/context/server_context.h"
#include "server/device/device_set.h"
#include "server/identity/message_limits.h"
#include "server/ledger/ledger.h"
#include "server/monitor/stream_watch.h"
#include "server/operation/operation_table.h"
#include "server/session/session_store.h"
#include "server/sparse/product_plans.h"
#include "server/store/durable_objects.h"
#include "server/store/matrix_store.h"
#include "server/store/request_table.h"
#include "server/store/transform_store.h"
#include "server/store/volume_store.h"
#include "tests/engine/device/faulty_device.h"
#include "tests/server/simulation/rules.h"
#include "tests/server/simulation/simulated_scheduler.h"
#include "tests/server/simulation/virtual_time.h"

namespace intrawarp::server {

class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}
  int64_t Uniform(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
  }
  bool Chance(int percent) { return Uniform(1, 100) <= percent; }
  VirtualTime::Duration Microseconds(int64_t low, int64_t high) {
    return std::chrono::microseconds(Uniform(low, high));
  }

 private:
  std::mt19937_64 random_;
};

// What happened in all runs, by name, to see that every rule was put to the test.
using Tally = std::map<std::string, int64_t>;

// What outlives the runs: threads, and a resident volume.
class Stage;

struct WorldOptions {
  SchedulingOptions scheduling;
  LedgerOptions ledger;
  ServerLimits limits;
  // The device fails a call, or has no memory for one.
  std::optional<absl::Status> fault;
  int64_t fault_call = 0;
};

// Members stand in the order of need.
struct World {
  World(Stage& stage, const WorldOptions& options, uint64_t seed, bool trace, Tally& tally);

  // The task that a worker was given is done, and the one that it gave in turn.
  void AwaitWorkers();
  // At any time.
  void CheckLedger();
  // At the end, nothing is held by anybody: bytes, places, buffers, jobs.
  void CheckNothingIsHeld();

  const WorldOptions options;
  Tally& tally;
  Dice dice;
  VirtualTime time;
  Rules rules;
  const Seams seams;
  FaultyDevice device;
  PinnedPool pinned;
  Ledger ledger;
  VolumeStore volumes;
  MatrixStore matrices;
  TransformStore transforms;
  RequestTable register_requests;
  RequestTable multiply_requests;
  ProductPlans product_plans{ledger};
  DurableObjects durable;  // without a state directory
  StreamWatch stream_watch;
  OperationTable operations{ledger, seams};
  MessageLimits message_limits{MessageLimitOptions()};
  UploadStore uploads;
  SimulatedScheduler scheduler;
  SessionStore sessions;
  WorkerPool& workers;
  // Pinned bytes that the sessions of the run have claimed when they opened, and whether a frame was larger than that.
  int64_t pinned_of_sessions = 0;
  bool has_large_frames = false;
  DeviceSet devices;
  ServerContext context;
};

std::unique_ptr<Stage, void (*)(Stage*)> MakeStage();

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_SIMULATION_WORLD_H_
