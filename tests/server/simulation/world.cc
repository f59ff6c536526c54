// SPDX-License-Identifier: Apache-2.0
#include "tests/server/simulation/world.h"

#include <semaphore>
#include <utility>
#include <vector>

#include "engine/device/device.h"
#include "engine/image/pyramid.h"
#include "engine/schedule/copy_lane.h"
#include "server/base/version.h"
#include "server/base/worker_pool.h"
#include "server/monitor/device_probe.h"
#include "server/monitor/watchdog.h"
#include "server/server_metrics.h"
#include "tests/server/simulation/frames.h"

namespace intrawarp::server {

namespace {

constexpr int64_t kRecentResults = 16;  // of a session

}  // namespace

class Stage {
 public:
  Stage()
      : device_(*OpenDevice("cpu")),
        probe_(*DeviceProbe::Create(*device_, *device_->memory())),
        copies_(*CopyLane::Create(*device_)),
        watchdog_(WatchdogOptions(), nullptr),
        metrics_(ThisBuild(), {device_->name()}, {}, std::chrono::system_clock::now()),
        workers_(1) {
    const size_t bytes = PreparedImage::WorkspaceBytes(FrameGrid(), PixelType::kFloat32);
    OwnedContext owned = *OwnedContext::Create(*device_, bytes);
    const std::vector<float> voxels = FrameVoxels(0);
    auto volume = std::make_shared<StoredVolume>();
    volume->id = kResident;
    volume->digest = kResident;
    volume->image = *PreparedImage::Prepare(owned.context(), voxels.data(), PixelType::kFloat32, 1, 0, FrameGrid());
    volume_ = std::move(volume);
  }

  const DeviceProbe& probe() const { return *probe_; }
  const Watchdog& watchdog() const { return watchdog_; }
  CopyLane& copies() { return *copies_; }
  WorkerPool& workers() { return workers_; }
  RoomMetrics metrics() { return metrics_.rooms(); }
  const VolumeStore::Pointer& volume() const { return volume_; }

 private:
  const std::unique_ptr<Device> device_;
  const std::unique_ptr<DeviceProbe> probe_;
  const std::unique_ptr<CopyLane> copies_;
  const Watchdog watchdog_;
  ServerMetrics metrics_;
  WorkerPool workers_;
  VolumeStore::Pointer volume_;
};

std::unique_ptr<Stage, void (*)(Stage*)> MakeStage() {
  return {new Stage, [](Stage* stage) { delete stage; }};
}

World::World(Stage& stage, const WorldOptions& world_options, uint64_t seed, bool trace, Tally& all)
    : options(world_options),
      tally(all),
      dice(seed),
      rules(time, trace),
      seams{[this] { return static_cast<uint32_t>(dice.Uniform(0, UINT32_MAX)); }, [this] { return time.now(); },
            [this] { return std::chrono::system_clock::time_point(time.now().time_since_epoch()); }},
      device(*OpenDevice("cpu")),
      pinned(device, static_cast<size_t>(options.ledger.capacity.pinned_bytes)),
      ledger(options.ledger),
      stream_watch(std::chrono::nanoseconds(0)),
      uploads(ledger, pinned, seams, std::chrono::nanoseconds(0)),
      scheduler(device, options.scheduling, time, rules, [this] { return dice.Microseconds(100, 3000); }),
      sessions([this](int, bool any_open) { scheduler.SetFramesOpen(any_open); }),
      workers(stage.workers()),
      context{devices,           workers,       workers,        pinned,     ledger,
              volumes,           matrices,      transforms,     uploads,    sessions,
              stage.metrics(),   stream_watch,  options.limits, seams,      register_requests,
              multiply_requests, product_plans, durable,        operations, message_limits} {
  devices.Add({context, 0, device, stage.probe(), stage.watchdog(), scheduler, stage.copies()});
  volumes.Insert(stage.volume()).IgnoreError();
  if (options.fault) device.FailAt(options.fault_call, *options.fault);
}

void World::AwaitWorkers() {
  // The task of a worker submits another one: bringing the volume, then taking memory.
  for (int task = 0; task < 2; ++task) {
    std::binary_semaphore done(0);
    workers.Submit([&] { done.release(); });
    done.acquire();
  }
}

void World::CheckLedger() {
  for (int i = 0; i < kResources; ++i) {
    const ResourceUse use = ledger.use(static_cast<Resource>(i));
    rules.Check(use.in_use >= 0 && use.in_use <= use.capacity, "no resource is used beyond its capacity");
  }
  const ResourceUse use = ledger.use(Resource::kPinned);
  const auto leased = static_cast<int64_t>(pinned.leased_bytes());
  rules.Check(leased + use.in_use - use.session_in_use <= use.in_use, "what is leased has been claimed");
  rules.Check(has_large_frames || use.session_in_use <= pinned_of_sessions,
              "frames make do with the memory that their session took");
  rules.Check(transforms.size() <= kRecentResults * sessions.size(), "recent results are bounded");
}

void World::CheckNothingIsHeld() {
  rules.Check(sessions.size() == 0, "every session is gone at last");
  rules.Check(scheduler.pending() == 0, "every job has ended");
  rules.Check(transforms.size() == 0, "no kept result outlives its session");
  rules.Check(pinned.leased_bytes() == 0, "every pinned buffer is given back");
  rules.Check(device.live().buffers == 0, "every device buffer is freed");
  for (int i = 0; i < kResources; ++i) {
    const auto resource = static_cast<Resource>(i);
    rules.Check(ledger.in_use(resource) == 0, absl::StrCat("the ledger is empty at last: ", kResourceNames[i]));
  }
}

}  // namespace intrawarp::server
