// SPDX-License-Identifier: Apache-2.0
// FrameTap: takes what a session's frames leave behind, for somebody who looks on. A session with a tap lends it the
// pixels of a frame in the frame's own buffer, so that the frame itself copies nothing and waits for nobody.
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_SERVER_SESSION_FRAME_TAP_H_
#define INTRAWARP_SERVER_SESSION_FRAME_TAP_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "engine/base/pixel_type.h"
#include "engine/device/device.h"
#include "engine/geometry/geometry.h"
#include "engine/quality/predicted_error.h"
#include "engine/transform/transform.h"
#include "intrawarp/v1/registration.pb.h"
#include "server/ledger/ledger.h"
#include "server/session/session_statistics.h"
#include "wire/convert.h"

namespace intrawarp::server {

// A frame that has a result. Member order matters: the transform's memory is freed before it is given back.
struct TappedFrame {
  int64_t number = 0;
  // Its header was received then, by seams.steady_now.
  std::chrono::steady_clock::time_point begin;
  Geometry geometry;
  PixelType pixel_type = PixelType::kFloat32;
  Rescale rescale;
  // One of the session's buffers, which the frame no longer needs: to be let go of soon.
  std::shared_ptr<const PinnedBuffer> pixels;
  std::shared_ptr<Grant> reservation;
  Transform transform = Transform(AffineMap::Identity());
  // Absent where the images have too little structure to judge by.
  std::optional<ErrorMap> error_map;
  // The client's report, without the error map.
  v1::Report report;
  FrameFate fate = FrameFate::kOk;
  // From its header to its answer, and after which an answer is late.
  std::chrono::nanoseconds total{0};
  std::optional<std::chrono::nanoseconds> limit;
};

class FrameTap {
 public:
  virtual ~FrameTap() = default;
  // Called before the frame's answer is sent: does not wait.
  virtual void Take(TappedFrame frame) = 0;
};

// Buffers that a session lends at once: one that is looked at, and the newest one behind it.
inline constexpr int kLentBuffers = 2;

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_SESSION_FRAME_TAP_H_
