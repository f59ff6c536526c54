// SPDX-License-Identifier: Apache-2.0
// Bridge: what comes from OpenIGTLink peers goes to the server, and what the server answers goes to the peers.
//
// Poses and points are mapped on the thread of the connections by the newest field, so that they never wait for a
// frame. docs/use/openigtlink.md has the messages.
//
// Thread safety: Stop may be called from any thread while Run runs.
#ifndef INTRAWARP_CLIENT_IGTL_BRIDGE_H_
#define INTRAWARP_CLIENT_IGTL_BRIDGE_H_

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/igtl/codec/text.h"
#include "client/igtl/counters.h"
#include "client/igtl/frame_session.h"
#include "client/igtl/image_assembler.h"
#include "client/igtl/link_loop.h"
#include "client/igtl/options.h"
#include "client/igtl/snapshot.h"

namespace intrawarp::igtl {

class Bridge {
 public:
  // Listens already. Errors of LinkLoop.
  static absl::StatusOr<std::unique_ptr<Bridge>> Create(const BridgeOptions& options);
  ~Bridge();

  // Bound ports; 0: none.
  int port() const { return port_; }
  int metrics_port() const { return metrics_port_; }

  void Run() { loop_->Run(); }
  void Stop() { loop_->Stop(); }

 private:
  using PeerId = LinkLoop::PeerId;
  using Clock = std::chrono::steady_clock;

  explicit Bridge(const BridgeOptions& options);
  absl::Status Open();

  // On the thread of the connections.
  void Take(PeerId peer, absl::StatusOr<Message> message);
  absl::Status Dispatch(PeerId peer, const Message& message, Clock::time_point now);
  bool IsFrameDevice(const std::string& device) const;
  // Shared memory for the voxels of an image that comes.
  LentPlace PlaceOf(const MessageHeader& header, absl::string_view body_begin);
  absl::Status TakeImage(Message message, Clock::time_point now);
  // Voxels that lie in the message, as the server wants them; false while parts are missing.
  absl::StatusOr<bool> TakeVoxels(std::shared_ptr<const Message> memory, const ImageContent& image, ImageFrame& frame);
  absl::Status TakeTransform(const Message& message, Clock::time_point now);
  absl::Status TakePosition(const Message& message, Clock::time_point now);
  absl::Status TakeTools(const Message& message, Clock::time_point now);
  absl::Status TakePoints(const Message& message, Clock::time_point now);
  absl::Status TakeMesh(const Message& message, Clock::time_point now);
  absl::Status TakeString(PeerId peer, const Message& message);
  absl::Status TakeCommand(PeerId peer, const Message& message);
  void Tick();

  bool IsTool(const std::string& device) const;
  // A snapshot that may map now; null otherwise, which is counted.
  std::shared_ptr<const Snapshot> Usable(Clock::time_point now);
  std::optional<Vec3d> MapPoint(const Snapshot& snapshot, const Vec3d& wire) const;
  std::optional<AffineMap> MapPose(const Snapshot& snapshot, const std::string& name, const AffineMap& wire);
  void SendMapped(const Message& from, const Snapshot& snapshot, const std::string& content, Clock::time_point now);

  // On the thread of the session.
  void TakeResult(const FrameOutcome& outcome);
  void SendField(const FrameOutcome& outcome, const Snapshot& snapshot);
  void SendWarped(const FrameOutcome& outcome, const Snapshot& snapshot);

  // On both.
  OutMessage Pack(const std::string& type, const std::string& device, uint64_t timestamp, absl::string_view head,
                  absl::string_view rest, Metadata metadata) const;
  void Broadcast(const std::string& type, const std::string& device, uint64_t timestamp, absl::string_view head,
                 absl::string_view rest = {}, Metadata metadata = {});
  Metadata Describe(const Snapshot& snapshot, Clock::time_point now) const;
  std::shared_ptr<const Snapshot> newest() const;

  StatusContent CurrentStatus(Metadata* metadata) const;

  const BridgeOptions options_;
  Counters counters_;
  int port_ = 0;
  int metrics_port_ = 0;

  ImageAssembler assembler_;
  std::optional<AffineMap> image_pose_;  // LPS
  // The predicted error at the tips of tools; at most kMaxTips.
  std::map<std::string, std::optional<PredictedError>> tips_;
  Clock::time_point next_status_;

  mutable std::mutex mutex_;                     // guards what follows
  std::shared_ptr<const Snapshot> newest_;       // that poses are mapped by
  std::shared_ptr<const Snapshot> last_result_;  // whatever its verdict
  std::string last_failure_;

  std::unique_ptr<LinkLoop> loop_;
  // Ends first: it uses the loop.
  std::unique_ptr<FrameSession> session_;
};

}  // namespace intrawarp::igtl

#endif  // INTRAWARP_CLIENT_IGTL_BRIDGE_H_
