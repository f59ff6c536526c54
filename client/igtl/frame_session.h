// SPDX-License-Identifier: Apache-2.0
// FrameSession: images go to a session on the server, results come back, for as long as the bridge runs.
//
// A session is opened by the first image and opened anew after the volume, the method, or the size or type of images
// changed. After an error the session is opened again after a pause (RetryPause); after the server was lost this needs
// no new image. The new session knows nothing of the lost one. Only the newest image waits; the server supersedes in
// the same way (OVERLOAD_POLICY_LATEST_WINS).
//
// Thread safety: all members may be called from any thread; on_result comes from the session's own thread.
#ifndef INTRAWARP_CLIENT_IGTL_FRAME_SESSION_H_
#define INTRAWARP_CLIENT_IGTL_FRAME_SESSION_H_

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "client/cpp/client.h"
#include "client/igtl/counters.h"
#include "client/igtl/options.h"
#include "client/igtl/slot_loan.h"

namespace intrawarp::igtl {

// A whole image, little-endian.
struct ImageFrame {
  Geometry geometry;
  PixelType pixel_type = PixelType::kFloat32;
  // Holds the voxels; `voxels` lies in it.
  std::shared_ptr<const std::string> memory;
  absl::string_view voxels;
  // Has the voxels instead, where it is set.
  std::shared_ptr<SlotLoan> loan;
  uint64_t timestamp = 0;
  std::chrono::steady_clock::time_point received;
};

struct FrameOutcome {
  client::FrameAnswer answer;
  client::GridData field;
  // The fixed image's grid.
  Geometry domain;
  // When its image was received; unset where that is not known any more.
  std::optional<ImageFrame> frame;
  // The resident volume, and the client, for the length of the call.
  std::string volume;
  client::Client* client = nullptr;
};

class FrameSession {
 public:
  using OnResult = std::function<void(const FrameOutcome& outcome)>;

  // `counters` outlive the session. The options' volume and method are where it begins.
  FrameSession(const BridgeOptions& options, OnResult on_result, Counters* counters);
  // Cancels what is under way.
  ~FrameSession();

  void Put(ImageFrame frame);
  // Memory that is shared with the server, for the voxels of an image that is about to come; null where the session has
  // none now, or is for other images.
  std::shared_ptr<SlotLoan> LendSlot(const Int3& size, PixelType pixel_type);

  void Start();
  void Stop();
  void SetVolume(const std::string& volume);
  // INVALID_ARGUMENT for a method that is none.
  absl::Status SetMethod(const std::string& method);

  struct State {
    // "stopped", "waits_for_an_image", "open", "open_without_shared_memory_CODE", or the code that the last session, or
    // the last try to open one, ended with, until a session is open again.
    std::string word;
    // A session was open, the server was lost, and no session is open since. Start, SetVolume and SetMethod leave this
    // as it is; Stop ends it.
    bool is_lost = false;
    // Tries in a row that failed, where no session is open.
    int failures = 0;
  };
  State state() const;

 private:
  struct Plan {
    bool is_running = false;
    std::string volume;
    std::string method;
    int version = 0;
  };
  class Run;
  // Which images a session is for.
  struct Kind {
    Geometry geometry;
    PixelType pixel_type = PixelType::kFloat32;
  };

  void Loop();
  // With the mutex held.
  void ForgetFailures();
  void ForgetLoss();
  // Notes the end of a run; the pause before the next one, if any.
  std::optional<std::chrono::milliseconds> EndRun(const Run& run, const absl::Status& status);
  // With the mutex held. The slot is not the bridge's any more; another loan than `kept` goes on without it.
  void TakeSlotBack(const std::shared_ptr<SlotLoan>& kept);
  void Change(const std::function<void(Plan& plan)>& change);
  void SetOpen(const std::string& word);

  const BridgeOptions options_;
  const OnResult on_result_;
  Counters& counters_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  Plan plan_;
  bool is_ending_ = false;
  std::optional<ImageFrame> newest_;
  State state_ = {"stopped", false, 0};
  int failures_ = 0;          // in a row, without an answer to a frame between them
  std::optional<Kind> lost_;  // the images of the session that was lost
  // The next slot of shared memory, free for images of this kind; empty: none.
  absl::Span<char> slot_;
  Kind slot_kind_;
  std::weak_ptr<SlotLoan> loan_;
  client::NavigateStream* stream_ = nullptr;  // to be cancelled by Change

  std::thread thread_;
};

// The pause after so many failures in a row, 1 at least: a quarter of a second, then twice as long each time, at most
// 5 s.
std::chrono::milliseconds RetryPause(int failures);

// Voxels between the nodes of a coarse field, so that it has at most so many nodes: the axis with the finest nodes is
// thinned out first.
Int3 StrideFor(const Geometry& grid, int64_t nodes);

}  // namespace intrawarp::igtl

#endif  // INTRAWARP_CLIENT_IGTL_FRAME_SESSION_H_
