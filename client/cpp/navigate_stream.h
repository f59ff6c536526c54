// SPDX-License-Identifier: Apache-2.0
// NavigateStream: frames go to the server, one result for each comes back, in order. Made by Client::Navigate.
//
// The stream carries a session of the server's, which can outlive it: after the connection broke (Receive returned
// UNAVAILABLE), Resume takes the session up again over a new one, for as long as NavigateConfig.resume_window says.
//
// The server reads only a few frames ahead (NavigateConfig.max_pending), so Send blocks until there is room. Receive
// has to run at the same time, in another thread, or after each Send: whoever sends many frames without receiving waits
// for ever.
//
// Thread safety: one thread may send (Send, CloseSend) while another receives (the other members); Cancel may be called
// from any. Nobody sends during Resume.
#ifndef INTRAWARP_CLIENT_CPP_NAVIGATE_STREAM_H_
#define INTRAWARP_CLIENT_CPP_NAVIGATE_STREAM_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/cpp/grid_data.h"
#include "engine/base/pixel_type.h"
#include "engine/geometry/geometry.h"
#include "intrawarp/v1/registration.pb.h"

namespace intrawarp::client {

// One frame. The bytes are not copied; they stay valid during Send.
struct Frame {
  // Grows from frame to frame.
  int64_t number = 0;
  Geometry geometry;
  PixelType pixel_type = PixelType::kFloat32;
  absl::string_view bytes;
  // When it was acquired; the server echoes it.
  std::optional<std::chrono::system_clock::time_point> acquisition_time = std::nullopt;
  double rescale_slope = 0;
  double rescale_intercept = 0;
  // After the server's receipt of the frame's header; unset: that of the config.
  std::optional<std::chrono::nanoseconds> deadline = std::nullopt;
};

// Takes the coarse fields that NavigateConfig.coarse_field asks for. Both are called by Receive.
struct CoarseFieldSink {
  GridSink field;
  // The field is whole; its frame has no answer yet, and may still fail. An error ends the stream with that error.
  std::function<absl::Status(const v1::FrameField& header)> received;
};

struct FrameAnswer {
  // status.code other than 0: this frame failed; the stream goes on.
  v1::FrameResult result;
  // Whether the sink got this frame's field.
  bool has_field = false;

  // The answer came after the frame's deadline, which NavigateConfig.late_frames allows; its verdict is REVIEW.
  bool is_late() const;
  // A newer frame took the place of this one (OVERLOAD_POLICY_LATEST_WINS).
  bool is_superseded() const;
};

class NavigateStream {
 public:
  // Cancels what is still under way.
  ~NavigateStream();
  NavigateStream(const NavigateStream&) = delete;
  NavigateStream& operator=(const NavigateStream&) = delete;

  // UNAVAILABLE when the stream has ended; Receive then tells why.
  absl::Status Send(const Frame& frame);
  // Says that no frame follows.
  absl::Status CloseSend();

  // Waits for the next answer; nothing when the server has answered all frames and ended the stream. An error ends the
  // stream, and is returned again by later calls. `field` (may be null when the config names no encoding) gets the
  // frame's field, and `coarse` (may be null when the config asks for none) its coarse one before.
  absl::StatusOr<std::optional<FrameAnswer>> Receive(const GridSink& field, const CoarseFieldSink& coarse = {});

  // Waits until the server has opened the session, warmed up; errors as of Receive. Need not be called.
  absl::Status WaitUntilOpened();
  // The server's word at the opening (or the last resumption), once it was received. The session's id is in
  // session().name(); frames go on above session().last_frame_number().
  const std::optional<v1::SessionOpened>& opened() const;
  // The session at its end with its statistics, once Receive has told the end of a stream that ended OK.
  const std::optional<v1::Session>& closed() const;

  // After Receive returned an error: a new stream with the same session, from its last good transform. Frames without
  // an answer are to be sent again. FAILED_PRECONDITION when the session was never opened; otherwise errors as of
  // Receive, SESSION_NOT_RESUMABLE among them. May be tried again after UNAVAILABLE.
  absl::Status Resume();

  void Cancel();

 private:
  friend class Client;
  struct Impl;
  explicit NavigateStream(std::unique_ptr<Impl> impl);

  // Opens the call with the config.
  void Open(const v1::NavigateConfig& config);
  // Ends the call after a failed read.
  absl::Status Fail(const absl::Status& status);
  // Reads until a result; false at the end of the stream.
  absl::StatusOr<bool> ReadAnswer(const GridSink& field, const CoarseFieldSink& coarse, FrameAnswer* answer);
  // The end of the stream, asked for once and kept.
  absl::Status Finish();

  std::unique_ptr<Impl> impl_;
};

}  // namespace intrawarp::client

#endif  // INTRAWARP_CLIENT_CPP_NAVIGATE_STREAM_H_
