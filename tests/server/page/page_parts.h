// SPDX-License-Identifier: Apache-2.0
// PageParts: what the page looks at, without a server and without its port: a CPU device, sessions with a resident
// volume of the test's own, a clock that the test moves, and frames as their pipeline would tap them.
//
// Thread-compatible; the parts have their own rules.
#ifndef INTRAWARP_TESTS_SERVER_PAGE_PAGE_PARTS_H_
#define INTRAWARP_TESTS_SERVER_PAGE_PAGE_PARTS_H_

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/device/pinned_pool.h"
#include "engine/schedule/scheduler.h"
#include "server/context/limits.h"
#include "server/device/device_set.h"
#include "server/device/served_device.h"
#include "server/job/admission_metrics.h"
#include "server/monitor/registry.h"
#include "server/page/packet.h"
#include "server/page/page_json.h"
#include "server/registration/registration_metrics.h"
#include "server/session/frame_tap.h"
#include "server/session/navigate_session.h"
#include "server/session/session_store.h"
#include "server/store/durable_objects.h"
#include "server/store/transform_store.h"
#include "tests/engine/device/faulty_device.h"
#include "tests/server/partial_context.h"

namespace intrawarp::server {

class PageParts {
 public:
  static constexpr int64_t kMemory = int64_t{64} << 20;

  PageParts() {
    EXPECT_TRUE(served_.Start(DefaultScheduling(*device_)).ok());
    parts_.devices = &devices_;
    parts_.pinned = &pinned_;
    parts_.ledger = &ledger_;
    parts_.transforms = &transforms_;
    parts_.sessions = &sessions_;
    parts_.admission = &admission_;
    parts_.registration = &registration_;
    parts_.limits = &limits_;
    parts_.seams = &seams_;
    parts_.durable = &durable_;
    devices_.Add(served_.ContextIn(parts_.Make(), 0));
  }
  ~PageParts() {
    device_->Release();
    sessions_.CloseAll(absl::OkStatus());
    served_.Shutdown();
  }

  DeviceContext& context() { return devices_[0]; }
  FaultyDevice& device() { return *device_; }
  Ledger& ledger() { return ledger_; }
  SessionStore& sessions() { return sessions_; }
  ServerLimits& limits() { return limits_; }
  const Seams& seams() const { return seams_; }
  // No copy runs any more.
  void StopCopies() { served_.Shutdown(); }
  // One look of the watchdog.
  Watchdog::Finding Check() { return served_.Check(now()); }
  void Advance(std::chrono::nanoseconds time) { now_ += time.count(); }
  std::chrono::steady_clock::time_point now() const { return seams_.steady_now(); }

  // The grid of the resident volumes and of the frames.
  static Geometry Grid() {
    Geometry grid;
    grid.size = {12, 10, 8};
    grid.spacing = {2, 2, 3};
    grid.origin = {-5, 7, 11};
    return grid;
  }
  PreparedImage Image(const Geometry& grid, float scale = 1) {
    OwnedContext owned = *OwnedContext::Create(*device_, size_t{64} << 20);
    std::vector<float> voxels(static_cast<size_t>(grid.voxels()));
    for (size_t i = 0; i < voxels.size(); ++i) voxels[i] = scale * static_cast<float>(i % 1000);
    return *PreparedImage::Prepare(owned.context(), voxels.data(), PixelType::kFloat32, 1, 0, grid);
  }
  std::shared_ptr<NavigateSession> Open(const std::string& id, const std::string& owner = "ann",
                                        bool resident_is_fixed = true) {
    auto resident = std::make_shared<StoredVolume>();
    resident->id = "ct";
    resident->digest = std::string(32, 'r');
    resident->image = Image(Grid());
    SessionSetup setup;
    setup.owner = owner;
    setup.resident = std::move(resident);
    setup.resident_is_fixed = resident_is_fixed;
    setup.expected.geometry = Grid();
    setup.expected.bytes = 4 * Grid().voxels();
    setup.plan.stages = AutomaticStages();
    setup.plan.automatic = true;
    auto session = sessions_.OpenWith(context(), id, std::move(setup));
    EXPECT_TRUE(session.ok()) << session.status();
    return session.value_or(nullptr);
  }
  // A frame with a result: a shift along x. Its pixels are those of the resident volumes, times `scale`.
  TappedFrame Frame(int64_t number, double shift = 4, float scale = 1) {
    TappedFrame frame;
    frame.number = number;
    frame.begin = now();
    frame.geometry = Grid();
    PinnedBuffer pixels = *device_->AllocatePinned(static_cast<size_t>(4 * Grid().voxels()));
    for (int64_t i = 0; i < Grid().voxels(); ++i) pixels.as<float>()[i] = scale * static_cast<float>(i % 1000);
    frame.pixels = std::make_shared<const PinnedBuffer>(std::move(pixels));
    AffineMap map = AffineMap::Identity();
    map.m[0][3] = shift;
    frame.transform = Transform(map);
    frame.total = std::chrono::milliseconds(30);
    return frame;
  }

 private:
  static LedgerOptions Capacity() {
    LedgerOptions options;
    options.capacity.resident_bytes = options.capacity.workspace_bytes = options.capacity.pinned_bytes = kMemory;
    options.capacity.sessions = 16;
    return options;
  }

  std::atomic<int64_t> now_{std::chrono::nanoseconds(std::chrono::hours(1)).count()};
  const Seams seams_{SystemSeams().random,
                     [this] { return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(now_)); },
                     SystemSeams().system_now};
  FaultyDevice* const device_ = new FaultyDevice(*OpenDevice("cpu"));  // which served_ owns
  ServedDevice served_{std::unique_ptr<Device>(device_), {kMemory, kMemory / 2}, WatchdogOptions(), nullptr};
  Registry registry_;
  const AdmissionMetrics admission_{registry_, {"cpu"}};
  const RegistrationMetrics registration_{registry_};
  ServerLimits limits_;
  Ledger ledger_{Capacity()};
  PinnedPool pinned_{{device_}, 0};
  TransformStore transforms_;
  DurableObjects durable_;
  SessionStore sessions_{[](int, bool) {}};
  PartialContext parts_;
  DeviceSet devices_;
};

// The head of a packet; the test fails when it is not one.
inline Json HeadIn(const Packet& packet) {
  std::string bytes(packet.bytes(), '\0');
  EXPECT_EQ(packet.Read(0, 0, bytes.data(), bytes.size()), bytes.size());
  uint32_t head = 0;
  std::memcpy(&head, bytes.data() + 4, sizeof(head));
  Json json = Json::parse(bytes.substr(16, head), nullptr, /*allow_exceptions=*/false);
  EXPECT_TRUE(json.is_object());
  return json;
}

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_PAGE_PAGE_PARTS_H_
