// SPDX-License-Identifier: Apache-2.0
// The time that the service adds to a frame and its field, by the way that they travel: intrawarpd as a process of its
// own, the client library here, both on this host.
//
//   shared_memory_bench [SIZE [FRAMES]]
//
// Each frame of SIZE^3 is registered by one affine iteration and answered with the field of the whole grid. Service is
// the client's time, from the begin of Send to the answer with its field, less the device's phases in the frame's
// latency breakdown (queue, upload, prepare, optimise, assess, encode, download); receive and send are the server's
// phases.
//   connection: chunks over loopback.
//   slots: shared memory, copied into it and out of it by the client.
//   in place: shared memory, the frame made and the field read where they lie.
// copy is one memcpy of the same bytes, tcp a plain stream of them over loopback. Medians in ms; the ways take turns,
// frame by frame, so that other load of the machine meets all of them.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cpp/client.h"
#include "client/cpp/rpc_status.h"
#include "engine/base/status_macros.h"
#include "tests/bench/ball_frame.h"
#include "tests/bench/interference/loopback.h"
#include "tests/bench/positional.h"
#include "tests/client/process.h"
#include "wire/convert.h"

namespace intrawarp {
namespace {

using Clock = std::chrono::steady_clock;

double MsSince(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

// One of the ways, with a session of its own.
struct Way {
  const char* name;
  bool shares;
  bool in_place;
  std::unique_ptr<client::NavigateStream> stream = nullptr;
  client::GridData field = {};
  std::vector<double> service = {}, receive = {}, send = {}, device = {};
};

struct Kind {
  PixelType pixels;
  v1::FieldEncoding encoding;
};

int64_t FieldBytes(v1::FieldEncoding encoding, int64_t voxels) {
  return 3 * voxels * (encoding == v1::FIELD_ENCODING_FLOAT32 ? 4 : 2);
}

absl::Status Open(client::Client& client, const Kind& kind, int size, Way& way) {
  v1::NavigateConfig config;
  config.set_fixed("volumes/resident");
  v1::AffineStage& stage = *config.mutable_options()->add_stages()->mutable_affine();
  stage.set_levels(1);
  stage.set_iterations(1);
  *config.mutable_options()->mutable_initial_affine() = AffineMapToProto(AffineMap::Identity());
  config.mutable_field()->set_encoding(kind.encoding);
  config.set_max_pending(1);
  *config.mutable_frame_geometry() = GeometryToProto(Cube(size));
  config.set_frame_pixel_type(PixelTypeToProto(kind.pixels));
  way.stream = client.Navigate(config);
  INTRAWARP_RETURN_IF_ERROR(way.stream->WaitUntilOpened());
  return way.shares ? way.stream->ShareMemory({.frame_slots = 2, .field_slots = 2}) : absl::OkStatus();
}

absl::Status Exchange(const Kind& kind, int size, int64_t number, const std::string& voxels, bool counts, Way& way) {
  client::Frame frame;
  frame.number = number;
  frame.geometry = Cube(size);
  frame.pixel_type = kind.pixels;
  frame.bytes = voxels;
  client::FieldView view;
  if (way.in_place) {
    // The camera's work, so to say.
    const absl::Span<char> space = way.stream->FrameSpace(static_cast<int64_t>(voxels.size()));
    std::memcpy(space.data(), voxels.data(), space.size());
    frame.bytes = {space.data(), space.size()};
    view = [](const v1::FrameField&, absl::Span<const char>) { return absl::OkStatus(); };
  }
  const Clock::time_point begin = Clock::now();
  INTRAWARP_RETURN_IF_ERROR(way.stream->Send(frame));
  INTRAWARP_ASSIGN_OR_RETURN(const auto answer, way.stream->Receive(client::SinkInto(&way.field), {}, view));
  const double ms = MsSince(begin);
  INTRAWARP_RETURN_IF_ERROR(client::FromRpcStatus(answer->result.status()));
  if (!answer->has_field || answer->was_shared != way.shares || answer->was_viewed != way.in_place) {
    return absl::InternalError("the field came by another way");
  }
  if (!counts) return absl::OkStatus();
  const v1::LatencyBreakdown& latency = answer->result.report().latency();
  way.service.push_back(ms - DeviceMs(latency));
  way.device.push_back(DeviceMs(latency));
  way.receive.push_back(latency.receive_ms());
  way.send.push_back(latency.send_ms());
  return absl::OkStatus();
}

absl::Status Compare(client::Client& client, const Kind& kind, int size, int frames) {
  const std::string voxels = kind.pixels == PixelType::kFloat32 ? Ball<float>(size) : Ball<int16_t>(size);
  const int64_t bytes = static_cast<int64_t>(voxels.size()) + FieldBytes(kind.encoding, Cube(size).voxels());
  INTRAWARP_ASSIGN_OR_RETURN(const bench::MovingFloors floors, bench::MeasureFloors(std::string(bytes, 'x')));
  std::printf("%d^3, frame %s, field %s: %.0f MB; copy %.1f, tcp %.1f\n", size,
              kind.pixels == PixelType::kFloat32 ? "float32" : "int16", v1::FieldEncoding_Name(kind.encoding).c_str(),
              static_cast<double>(bytes) / 1e6, floors.copy, floors.tcp);
  Way ways[] = {{"connection", false, false}, {"slots", true, false}, {"in place", true, true}};
  for (Way& way : ways) INTRAWARP_RETURN_IF_ERROR(Open(client, kind, size, way));
  for (int n = 0; n <= frames; ++n) {
    for (Way& way : ways) INTRAWARP_RETURN_IF_ERROR(Exchange(kind, size, n + 1, voxels, n > 0, way));
  }
  for (const Way& way : ways) {
    std::printf("  %-10s service %7.1f (%.2f of copy), receive %.1f, send %.1f; device %.1f\n", way.name,
                Median(way.service), Median(way.service) / floors.copy, Median(way.receive), Median(way.send),
                Median(way.device));
  }
  std::fflush(stdout);
  return absl::OkStatus();
}

absl::Status Bench(const std::string& server, const std::string& device, int size, int frames) {
  const client::TemporaryFolder folder;
  client::Process process({server, "--listen=127.0.0.1:0", "--http=127.0.0.1:0", "--device=" + device,
                           "--pinned_bytes=4GiB", "--shared_memory=" + (folder / "segments")});
  const std::string line = process.WaitForLine("ready");
  if (line.empty()) return absl::UnavailableError(absl::StrCat(server, ": does not serve: ", process.Wait().err));
  const size_t at = line.find("grpc=") + 5;
  INTRAWARP_ASSIGN_OR_RETURN(const auto client, client::Client::Connect(line.substr(at, line.find(' ', at) - at)));
  const std::string voxels = Ball<int16_t>(size);
  client::VolumeUpload upload;
  upload.id = "resident";
  upload.geometry = Cube(size);
  upload.pixel_type = PixelType::kInt16;
  upload.bytes = voxels;
  INTRAWARP_RETURN_IF_ERROR(client->UploadVolume(upload).status());
  for (const Kind& kind :
       {Kind{PixelType::kFloat32, v1::FIELD_ENCODING_FLOAT32}, Kind{PixelType::kInt16, v1::FIELD_ENCODING_FLOAT32},
        Kind{PixelType::kInt16, v1::FIELD_ENCODING_FLOAT16}, Kind{PixelType::kInt16, v1::FIELD_ENCODING_INT16}}) {
    INTRAWARP_RETURN_IF_ERROR(Compare(*client, kind, size, frames));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace intrawarp

int main(int argc, char** argv) {
  const absl::StatusOr<std::vector<int>> given = intrawarp::PositiveArguments(argc, argv, /*most=*/2);
  if (!given.ok()) {
    std::cerr << given.status().message() << "\n";
    return 2;
  }
  const int size = !given->empty() ? (*given)[0] : 256, frames = given->size() > 1 ? (*given)[1] : 9;
  const char* server = std::getenv("INTRAWARPD");
  const char* device = std::getenv("DEVICE");
  const absl::Status status =
      intrawarp::Bench(server != nullptr ? server : INTRAWARPD_PATH, device != nullptr ? device : "cpu", size, frames);
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
