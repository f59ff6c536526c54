// SPDX-License-Identifier: Apache-2.0
// What the C++ client and the way to the server add to a frame. tests/bench/python_beside_cpp.py runs this program by
// turns with the same frames of the Python client.
//
//   client_overhead HOST:PORT VOLUME SIZE none|control|int16|float32 connection|shared FRAMES
//
// Each int16 frame of SIZE^3 is registered to the resident VOLUME by one iteration, and sent when the answer to the one
// before has come. A line of the output is a frame's overhead in ms: the client's time from the begin of Send to the
// answer with its field, less the device's phases in the frame's latency breakdown. Two frames before them are not
// counted.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/cpp/client.h"
#include "client/cpp/rpc_status.h"
#include "engine/base/status_macros.h"
#include "tests/bench/ball_frame.h"
#include "wire/convert.h"

namespace intrawarp {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kUncounted = 2;

struct Arguments {
  std::string address, volume;
  int size;
  std::string field;
  bool shares;
  int frames;
};

absl::StatusOr<v1::NavigateConfig> ConfigOf(const Arguments& arguments) {
  v1::NavigateConfig config;
  config.set_fixed(arguments.volume);
  v1::Stage& stage = *config.mutable_options()->add_stages();
  if (arguments.field == "control") {
    stage.mutable_ffd()->set_levels(1);
    stage.mutable_ffd()->set_iterations(1);
    config.mutable_field()->set_encoding(v1::FIELD_ENCODING_CONTROL_POINTS);
  } else {
    stage.mutable_affine()->set_levels(1);
    stage.mutable_affine()->set_iterations(1);
    if (arguments.field == "int16") {
      config.mutable_field()->set_encoding(v1::FIELD_ENCODING_INT16);
    } else if (arguments.field == "float32") {
      config.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);
    } else if (arguments.field != "none") {
      return absl::InvalidArgumentError(absl::StrCat("unknown field: ", arguments.field));
    }
  }
  *config.mutable_options()->mutable_initial_affine() = AffineMapToProto(AffineMap::Identity());
  return config;
}

absl::Status Run(const Arguments& arguments) {
  INTRAWARP_ASSIGN_OR_RETURN(const v1::NavigateConfig config, ConfigOf(arguments));
  INTRAWARP_ASSIGN_OR_RETURN(const auto client, client::Client::Connect(arguments.address));
  const std::unique_ptr<client::NavigateStream> stream = client->Navigate(config);
  INTRAWARP_RETURN_IF_ERROR(stream->WaitUntilOpened());
  if (arguments.shares) INTRAWARP_RETURN_IF_ERROR(stream->ShareMemory({}));
  const std::string voxels = Ball<int16_t>(arguments.size);
  client::GridData field;
  for (int n = 1; n <= kUncounted + arguments.frames; ++n) {
    client::Frame frame;
    frame.number = n;
    frame.geometry = Cube(arguments.size);
    frame.pixel_type = PixelType::kInt16;
    frame.bytes = voxels;
    const Clock::time_point begin = Clock::now();
    INTRAWARP_RETURN_IF_ERROR(stream->Send(frame));
    INTRAWARP_ASSIGN_OR_RETURN(const auto answer, stream->Receive(client::SinkInto(&field)));
    const double ms = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
    INTRAWARP_RETURN_IF_ERROR(client::FromRpcStatus(answer->result.status()));
    if (answer->has_field != (arguments.field != "none"))
      return absl::InternalError("no field came, or an unasked one");
    if (answer->has_field && answer->was_shared != arguments.shares) {
      return absl::InternalError("the field came by another way");
    }
    if (n > kUncounted) std::printf("%.3f\n", ms - DeviceMs(answer->result.report().latency()));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace intrawarp

int main(int argc, char** argv) {
  int size = 0, frames = 0;
  const std::string way = argc == 7 ? argv[5] : "";
  if (argc != 7 || (way != "connection" && way != "shared") || !absl::SimpleAtoi(argv[3], &size) || size < 1 ||
      !absl::SimpleAtoi(argv[6], &frames) || frames < 1) {
    std::cerr << "usage: client_overhead HOST:PORT VOLUME SIZE none|control|int16|float32 connection|shared FRAMES\n";
    return 2;
  }
  const absl::Status status = intrawarp::Run({.address = argv[1],
                                              .volume = argv[2],
                                              .size = size,
                                              .field = argv[4],
                                              .shares = way == "shared",
                                              .frames = frames});
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
