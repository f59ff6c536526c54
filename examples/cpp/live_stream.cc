// SPDX-License-Identifier: Apache-2.0
// A live stream with late frames handled: the twin of python/live_stream.py.
//   live_stream HOST:PORT FIXED.nii.gz FRAME.nii.gz...
#include <cstdio>
#include <thread>
#include <vector>

#include "client/cpp/client.h"
#include "engine/base/status_macros.h"
#include "io/format/nifti.h"
#include "io/format/volume.h"

using intrawarp::client::Client;
using intrawarp::io::HostVolume;
using intrawarp::io::ReadNifti;

// Uploads the resident volume, and gives its name.
absl::StatusOr<std::string> Put(Client& client, const HostVolume& volume) {
  intrawarp::client::VolumeUpload upload;
  upload.geometry = volume.geometry;
  upload.pixel_type = volume.pixel_type;
  upload.bytes = {reinterpret_cast<const char*>(volume.pixels.data()), volume.pixels.size()};
  upload.rescale_slope = volume.rescale_slope;
  upload.rescale_intercept = volume.rescale_intercept;
  INTRAWARP_ASSIGN_OR_RETURN(const intrawarp::v1::UploadResponse answer, client.UploadVolume(upload));
  return answer.volume().name();
}

intrawarp::client::Frame FrameOf(int64_t number, const HostVolume& volume) {
  intrawarp::client::Frame frame;
  frame.number = number;
  frame.geometry = volume.geometry;
  frame.pixel_type = volume.pixel_type;
  frame.bytes = {reinterpret_cast<const char*>(volume.pixels.data()), volume.pixels.size()};
  frame.rescale_slope = volume.rescale_slope;
  frame.rescale_intercept = volume.rescale_intercept;
  return frame;
}

// What became of one frame. A late or failed frame is said, and the next one goes on from the last good result.
void Tell(const intrawarp::client::FrameAnswer& answer) {
  const auto& result = answer.result;
  const long long number = result.frame_number();
  if (answer.is_superseded()) {
    std::printf("frame %lld: a newer frame took its place\n", number);
  } else if (result.status().code() != 0) {
    std::printf("frame %lld: failed or late: %s\n", number, result.status().message().c_str());
  } else {
    const bool is_ok = result.report().verdict() == intrawarp::v1::VERDICT_OK;
    std::printf("frame %lld: %s, expected error %.2f mm, %.0f ms\n", number, is_ok ? "OK" : "REVIEW",
                result.report().error().expected_mm(), result.report().latency().total_ms());
  }
}

absl::Status Run(int argc, char** argv) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::unique_ptr<Client> client, Client::Connect(argv[1]));
  INTRAWARP_ASSIGN_OR_RETURN(const HostVolume fixed, ReadNifti(argv[2]));
  intrawarp::v1::NavigateConfig config;
  INTRAWARP_ASSIGN_OR_RETURN(*config.mutable_fixed(), Put(*client, fixed));
  std::vector<HostVolume> frames;
  for (int i = 3; i < argc; ++i) {
    INTRAWARP_ASSIGN_OR_RETURN(HostVolume frame, ReadNifti(argv[i]));
    frames.push_back(std::move(frame));
  }
  config.mutable_options()->add_stages()->mutable_affine();
  config.mutable_frame_deadline()->set_seconds(30);  // 0.15 s on a GPU: an answer that comes later is of no use
  const auto stream = client->Navigate(config);
  // The server reads a few frames ahead, so that frames are sent on a thread of their own.
  std::thread sender([&] {
    for (size_t i = 0; i < frames.size(); ++i) {
      if (!stream->Send(FrameOf(static_cast<int64_t>(i), frames[i])).ok()) break;
    }
    stream->CloseSend().IgnoreError();
  });
  absl::StatusOr<std::optional<intrawarp::client::FrameAnswer>> answer;
  while ((answer = stream->Receive(nullptr)).ok() && answer->has_value()) Tell(**answer);
  sender.join();
  return answer.status();
}

int main(int argc, char** argv) {
  const absl::Status status = Run(argc, argv);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
