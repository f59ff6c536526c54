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
// Shared memory. On the server's host ShareMemory makes frames and fields go through memory that both processes map,
// instead of the connection: frames are copied into a slot (or made there: FrameSpace), fields out of one (or read
// there: FieldView). A frame that is larger than a slot, and a field that the server has no free slot for, travels in
// chunks; Transfers tells how many did. The segment is the stream's, and a session that is resumed gets a new one.
//
// Thread safety: one thread may send (Send, FrameSpace, CloseSend) while another receives (the other members); Cancel
// and transfers may be called from any. Nobody sends during Resume and ShareMemory.
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
#include "absl/types/span.h"
#include "client/cpp/grid_data.h"
#include "engine/base/pixel_type.h"
#include "engine/geometry/geometry.h"
#include "intrawarp/v1/registration.pb.h"

namespace intrawarp::client {

// One frame. The bytes stay valid during Send.
struct Frame {
  // Grows from frame to frame.
  int64_t number = 0;
  Geometry geometry;
  PixelType pixel_type = PixelType::kFloat32;
  absl::string_view bytes;
  // Holds the bytes, unchanged, until the transport has let go of them, which may be after Send; released on any
  // thread. Unset: Send copies the bytes that travel in chunks.
  std::shared_ptr<const void> owner = nullptr;
  // When it was acquired; the server echoes it.
  std::optional<std::chrono::system_clock::time_point> acquisition_time = std::nullopt;
  double rescale_slope = 0;
  double rescale_intercept = 0;
  // After the server's receipt of the frame's header; unset: that of the config.
  std::optional<std::chrono::nanoseconds> deadline = std::nullopt;
  // The frame's own landmarks; unset: the landmarks of the config.
  std::optional<v1::LandmarkList> landmarks = std::nullopt;
  // "volumes/{id}" on the frame's grid, in a session with NavigateConfig.frame_masks: the frame's own mask and weights;
  // empty: the frame has the mask and weights of the config. A session that goes on at another server finds no volume
  // of these names there.
  std::string mask = "";
  std::string weight = "";
};

// Takes the coarse fields that NavigateConfig.coarse_field asks for. Both are called by Receive.
struct CoarseFieldSink {
  GridSink field;
  // The field is whole; its frame has no answer yet, and may still fail. An error ends the stream with that error.
  std::function<absl::Status(const v1::FrameField& header)> received;
};

// Gets a field where it lies, in the encoding that its header names, valid and little-endian for the length of the
// call. Another process can write there; so a value is as trustworthy as the server. An error ends the stream with that
// error.
using FieldView = std::function<absl::Status(const v1::FrameField& header, absl::Span<const char> bytes)>;

// A stream's wishes for shared memory; unset: the server chooses by the session's grid (v1::SharedMemoryRequest).
struct SharedMemoryOptions {
  std::optional<int> frame_slots = std::nullopt;
  std::optional<int> field_slots = std::nullopt;
  std::optional<int64_t> frame_slot_bytes = std::nullopt;
  std::optional<int64_t> field_slot_bytes = std::nullopt;
  // Frames carry a checksum, which the server compares with that of its copy.
  bool checksum = false;
};

// How frames and fields have travelled, over all streams of the session.
struct Transfers {
  int64_t frames_shared = 0;
  int64_t frames_in_chunks = 0;
  int64_t fields_shared = 0;
  int64_t fields_in_chunks = 0;
};

struct FrameAnswer {
  // status.code other than 0: this frame failed; the stream goes on.
  v1::FrameResult result;
  // Whether the sink, or the view, got this frame's field.
  bool has_field = false;
  // Whether the field came through shared memory, and the view got it.
  bool was_shared = false;
  bool was_viewed = false;

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

  // UNAVAILABLE when the stream has ended; Receive then tells why. Waits for a slot where memory is shared.
  absl::Status Send(const Frame& frame);
  // The memory of the next slot, for a frame of so many bytes that is made there: the next Send of bytes that begin
  // there copies nothing, and one of other bytes takes the slot for them. Waits for the slot. Empty where no memory is
  // shared, the frame has no room in a slot, or the stream has ended.
  absl::Span<char> FrameSpace(int64_t bytes);
  // Says that no frame follows.
  absl::Status CloseSend();

  // Waits for the next answer; nothing when the server has answered all frames and ended the stream. An error ends the
  // stream, and is returned again by later calls. `field` (may be null when the config names no encoding) gets the
  // frame's field, and `coarse` (may be null when the config asks for none) its coarse one before.
  // `view` (may be null) gets, instead of `field`, the final fields that come through shared memory. DATA_LOSS when the
  // server took the memory back before all of it was read: what the view or the sink got is void then.
  absl::StatusOr<std::optional<FrameAnswer>> Receive(const GridSink& field, const CoarseFieldSink& coarse = {},
                                                     const FieldView& view = nullptr);

  // Waits until the server has opened the session, warmed up; errors as of Receive. Need not be called.
  absl::Status WaitUntilOpened();
  // Shares memory with a server on this host, before the first frame of a stream; waits for the opening. After an error
  // that is not the stream's (Receive tells) frames and fields go in chunks: FAILED_PRECONDITION when the server shares
  // none, NOT_FOUND when it is on another host, PERMISSION_DENIED when this user may not have it, RESOURCE_EXHAUSTED
  // and others when it has too little. Resume asks for it again, and goes on in chunks where it is not to be had any
  // more.
  absl::Status ShareMemory(const SharedMemoryOptions& options = {});
  // OK while the stream shares memory; otherwise why it does not.
  const absl::Status& memory_status() const;
  Transfers transfers() const;

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
  absl::StatusOr<bool> ReadAnswer(const GridSink& field, const CoarseFieldSink& coarse, const FieldView& view,
                                  FrameAnswer* answer);
  // Waits until the next slot is free; false when the stream has ended.
  bool WaitForSlot();
  // Puts the frame into a slot and names it in the header; false when the stream has ended.
  bool PutIntoSlot(const Frame& frame, v1::FrameHeader& header);
  absl::Status Share(const SharedMemoryOptions& options);
  // The server's answer to a request for shared memory.
  absl::StatusOr<v1::SharedMemoryOffer> ReadOffer();
  // The end of the stream, asked for once and kept.
  absl::Status Finish();

  std::unique_ptr<Impl> impl_;
};

}  // namespace intrawarp::client

#endif  // INTRAWARP_CLIENT_CPP_NAVIGATE_STREAM_H_
