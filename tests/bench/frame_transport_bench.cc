// SPDX-License-Identifier: Apache-2.0
// The transport of frames over loopback, without their registration: intrawarpd as a process of its own, the client
// library here.
//
//   [SEND=1] frame_transport_bench [SIZE...]
//
// receive: int16 frames of SIZE^3 whose deadline has passed when they are there, so that none is registered; ms is from
// the first byte sent to the answer. With SEND, send ENCODING: small frames against a resident volume of SIZE^3, each
// answered with a field; ms is the client's time less that on the device (mostly receiving the field). Medians, beside
// a plain stream of the same bytes over TCP and a copy of them, in ms.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cpp/client.h"
#include "client/cpp/rpc_status.h"
#include "engine/base/status_macros.h"
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
  return values[values.size() / 2];
}

Geometry Cube(int size) {
  Geometry geometry;
  geometry.size = {size, size, size};
  geometry.spacing = {256.0 / size, 256.0 / size, 256.0 / size};
  return geometry;
}

std::vector<int16_t> Ball(int size) {
  std::vector<int16_t> voxels(static_cast<size_t>(size) * size * size);
  size_t i = 0;
  for (int z = 0; z < size; ++z) {
    for (int y = 0; y < size; ++y) {
      for (int x = 0; x < size; ++x) {
        const int dx = 2 * x - size, dy = 2 * y - size, dz = 2 * z - size;
        voxels[i++] = static_cast<int16_t>(dx * dx + dy * dy + 2 * dz * dz < size * size ? 1000 + x * 256 / size : 0);
      }
    }
  }
  return voxels;
}

absl::string_view BytesOf(const std::vector<int16_t>& voxels) {
  return {reinterpret_cast<const char*>(voxels.data()), voxels.size() * sizeof(int16_t)};
}

absl::Status Upload(client::Client& client, const std::string& id, int size) {
  const std::vector<int16_t> voxels = Ball(size);
  client::VolumeUpload upload;
  upload.id = id;
  upload.geometry = Cube(size);
  upload.pixel_type = PixelType::kInt16;
  upload.bytes = BytesOf(voxels);
  return client.UploadVolume(upload).status();
}

v1::NavigateConfig Config() {
  v1::NavigateConfig config;
  v1::AffineStage& stage = *config.mutable_options()->add_stages()->mutable_affine();
  stage.set_levels(1);
  stage.set_iterations(1);
  return config;
}

double DeviceMs(const v1::LatencyBreakdown& latency) {
  return latency.queue_ms() + latency.upload_ms() + latency.prepare_ms() + latency.optimise_ms() + latency.assess_ms() +
         latency.encode_ms() + latency.download_ms();
}

absl::StatusOr<double> Receiving(client::Client& client, int size, int count) {
  v1::NavigateConfig config = Config();
  config.set_moving("volumes/small");
  *config.mutable_frame_geometry() = GeometryToProto(Cube(size));
  config.set_frame_pixel_type(v1::PIXEL_TYPE_INT16);
  const std::unique_ptr<client::NavigateStream> stream = client.Navigate(config);
  INTRAWARP_RETURN_IF_ERROR(stream->WaitUntilOpened());
  const std::vector<int16_t> voxels = Ball(size);
  std::vector<double> all;
  for (int n = 1; n <= count; ++n) {
    client::Frame frame;
    frame.number = n;
    frame.geometry = Cube(size);
    frame.pixel_type = PixelType::kInt16;
    frame.bytes = BytesOf(voxels);
    frame.deadline = std::chrono::nanoseconds(1);
    const Clock::time_point begin = Clock::now();
    INTRAWARP_RETURN_IF_ERROR(stream->Send(frame));
    INTRAWARP_ASSIGN_OR_RETURN(const auto answer, stream->Receive(nullptr));
    all.push_back(MsSince(begin));
    if (!absl::IsDeadlineExceeded(client::FromRpcStatus(answer->result.status()))) {
      return absl::InternalError(answer->result.status().message());
    }
  }
  return Median(all);
}

struct Sent {
  double ms = 0, send_ms = 0;
};

absl::StatusOr<Sent> Sending(client::Client& client, v1::FieldEncoding encoding, int count) {
  v1::NavigateConfig config = Config();
  config.set_fixed("volumes/large");
  *config.mutable_frame_geometry() = GeometryToProto(Cube(32));
  config.set_frame_pixel_type(v1::PIXEL_TYPE_INT16);
  config.mutable_field()->set_encoding(encoding);
  const std::unique_ptr<client::NavigateStream> stream = client.Navigate(config);
  const std::vector<int16_t> voxels = Ball(32);
  std::vector<double> all, send;
  client::GridData field;
  for (int n = 1; n <= count; ++n) {
    client::Frame frame;
    frame.number = n;
    frame.geometry = Cube(32);
    frame.pixel_type = PixelType::kInt16;
    frame.bytes = BytesOf(voxels);
    const Clock::time_point begin = Clock::now();
    INTRAWARP_RETURN_IF_ERROR(stream->Send(frame));
    INTRAWARP_ASSIGN_OR_RETURN(const auto answer, stream->Receive(client::SinkInto(&field)));
    const double ms = MsSince(begin);
    INTRAWARP_RETURN_IF_ERROR(client::FromRpcStatus(answer->result.status()));
    all.push_back(ms - DeviceMs(answer->result.report().latency()));
    send.push_back(answer->result.report().latency().send_ms());
  }
  return Sent{Median(all), Median(send)};
}

absl::Status Send(client::Client& client, int size) {
  INTRAWARP_RETURN_IF_ERROR(Upload(client, "large", size));
  for (const auto encoding : {v1::FIELD_ENCODING_INT16, v1::FIELD_ENCODING_FLOAT32}) {
    const size_t bytes = size_t{3} * size * size * size * (encoding == v1::FIELD_ENCODING_INT16 ? 2 : 4);
    INTRAWARP_ASSIGN_OR_RETURN(const bench::MovingFloors floors, bench::MeasureFloors(std::string(bytes, 'x')));
    INTRAWARP_ASSIGN_OR_RETURN(const Sent sent, Sending(client, encoding, 15));
    std::printf("send %d^3 %s: %.2f ms, send phase %.2f, tcp %.2f, crc %.2f, memcpy %.2f\n", size,
                v1::FieldEncoding_Name(encoding).c_str(), sent.ms, sent.send_ms, floors.tcp, floors.crc32c,
                floors.copy);
    std::fflush(stdout);
  }
  return client.DeleteVolume("volumes/large");
}

absl::Status Bench(const std::string& server, const std::vector<int>& sizes) {
  client::Process process({server, "--listen=127.0.0.1:0", "--http=127.0.0.1:0", "--device=cpu"});
  const std::string line = process.WaitForLine("ready");
  const size_t at = line.find("grpc=") + 5;
  INTRAWARP_ASSIGN_OR_RETURN(const auto client, client::Client::Connect(line.substr(at, line.find(' ', at) - at)));
  INTRAWARP_RETURN_IF_ERROR(Upload(*client, "small", 32));
  for (const int size : sizes) {
    const std::vector<int16_t> voxels = Ball(size);
    INTRAWARP_ASSIGN_OR_RETURN(const bench::MovingFloors floors, bench::MeasureFloors(BytesOf(voxels)));
    INTRAWARP_ASSIGN_OR_RETURN(const double receive, Receiving(*client, size, 60));
    std::printf("receive %d^3 int16: %.2f ms, tcp %.2f, crc %.2f, memcpy %.2f\n", size, receive, floors.tcp,
                floors.crc32c, floors.copy);
    std::fflush(stdout);
  }
  if (std::getenv("SEND") == nullptr) return absl::OkStatus();
  for (const int size : sizes) INTRAWARP_RETURN_IF_ERROR(Send(*client, size));
  return absl::OkStatus();
}

}  // namespace
}  // namespace intrawarp

int main(int argc, char** argv) {
  absl::StatusOr<std::vector<int>> sizes = intrawarp::PositiveArguments(argc, argv, /*most=*/argc);
  if (!sizes.ok()) {
    std::cerr << sizes.status().message() << "\n";
    return 2;
  }
  if (sizes->empty()) sizes = {128, 256};
  const char* server = std::getenv("INTRAWARPD");
  const absl::Status status = intrawarp::Bench(server != nullptr ? server : INTRAWARPD_PATH, *sizes);
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
