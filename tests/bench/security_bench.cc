// SPDX-License-Identifier: Apache-2.0
// What TLS and a token cost: two servers of one program, one in plain text and one with TLS and tokens, asked in turn
// over loopback.
//
//   security_bench [ROUNDS]
//
// unary: GetServerInfo. frame SIZE: an int16 frame of SIZE^3 whose deadline has passed when it is there, so that none
// is registered, from the first byte sent to the answer. connect: a new client and its first answer. Medians, in ms.
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
#include "server/identity/credentials.h"
#include "tests/bench/positional.h"
#include "tests/client/process.h"
#include "tests/server/identity/certificates.h"
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
  geometry.spacing = {1, 1, 1};
  return geometry;
}

// A server, its clients' options, and what was measured of it.
struct Site {
  Site(const std::vector<std::string>& command, const client::ClientOptions& client_options)
      : process(command), options(client_options) {
    const std::string line = process.WaitForLine("ready");
    const size_t at = line.find("grpc=") + 5;
    address = line.substr(at, line.find(' ', at) - at);
  }

  client::Process process;
  client::ClientOptions options;
  std::string address;
  std::unique_ptr<client::Client> client;
  std::unique_ptr<client::NavigateStream> stream;
  std::vector<double> connect, unary, frame;
};

absl::Status Connect(Site& site) {
  const Clock::time_point begin = Clock::now();
  INTRAWARP_ASSIGN_OR_RETURN(site.client, client::Client::Connect(site.address, site.options));
  INTRAWARP_RETURN_IF_ERROR(site.client->GetServerInfo().status());
  site.connect.push_back(MsSince(begin));
  return absl::OkStatus();
}

absl::Status OpenStream(Site& site, int size) {
  const std::vector<int16_t> voxels(size_t{32} * 32 * 32, 7);
  client::VolumeUpload upload;
  upload.id = "resident";
  upload.geometry = Cube(32);
  upload.pixel_type = PixelType::kInt16;
  upload.bytes = {reinterpret_cast<const char*>(voxels.data()), voxels.size() * sizeof(int16_t)};
  INTRAWARP_RETURN_IF_ERROR(site.client->UploadVolume(upload).status());
  v1::NavigateConfig config;
  v1::AffineStage& stage = *config.mutable_options()->add_stages()->mutable_affine();
  stage.set_levels(1);
  stage.set_iterations(1);
  config.set_moving("volumes/resident");
  *config.mutable_frame_geometry() = GeometryToProto(Cube(size));
  config.set_frame_pixel_type(v1::PIXEL_TYPE_INT16);
  site.stream = site.client->Navigate(config);
  return site.stream->WaitUntilOpened();
}

absl::Status Unary(Site& site) {
  const Clock::time_point begin = Clock::now();
  INTRAWARP_RETURN_IF_ERROR(site.client->GetServerInfo().status());
  site.unary.push_back(MsSince(begin));
  return absl::OkStatus();
}

absl::Status SendFrame(Site& site, int size, int number, const std::vector<int16_t>& voxels) {
  client::Frame frame;
  frame.number = number;
  frame.geometry = Cube(size);
  frame.pixel_type = PixelType::kInt16;
  frame.bytes = {reinterpret_cast<const char*>(voxels.data()), voxels.size() * sizeof(int16_t)};
  frame.deadline = std::chrono::nanoseconds(1);
  const Clock::time_point begin = Clock::now();
  INTRAWARP_RETURN_IF_ERROR(site.stream->Send(frame));
  INTRAWARP_ASSIGN_OR_RETURN(const auto answer, site.stream->Receive(nullptr));
  site.frame.push_back(MsSince(begin));
  if (absl::IsDeadlineExceeded(client::FromRpcStatus(answer->result.status()))) return absl::OkStatus();
  return absl::InternalError(answer->result.status().message());
}

absl::Status Measure(std::vector<std::unique_ptr<Site>>& sites, int rounds) {
  for (int round = 0; round < 20; ++round) {
    for (const auto& site : sites) INTRAWARP_RETURN_IF_ERROR(Connect(*site));
  }
  for (int round = 0; round < 10 * rounds; ++round) {
    for (const auto& site : sites) INTRAWARP_RETURN_IF_ERROR(Unary(*site));
  }
  std::printf("%-10s %10s %10s\n", "", "plain", "TLS+token");
  const auto print = [&](const std::string& what, std::vector<double> Site::*values) {
    std::printf("%-10s %10.3f %10.3f\n", what.c_str(), Median((*sites[0]).*values), Median((*sites[1]).*values));
    std::fflush(stdout);
  };
  print("connect", &Site::connect);
  print("unary", &Site::unary);
  for (const int size : {64, 128}) {
    const std::vector<int16_t> voxels(size_t{1} * size * size * size, 7);
    for (const auto& site : sites) INTRAWARP_RETURN_IF_ERROR(OpenStream(*site, size));
    for (const auto& site : sites) site->frame.clear();
    for (int round = 1; round <= rounds; ++round) {
      for (const auto& site : sites) INTRAWARP_RETURN_IF_ERROR(SendFrame(*site, size, round, voxels));
    }
    for (const auto& site : sites) site->stream.reset();
    print(absl::StrCat("frame ", size), &Site::frame);
  }
  return absl::OkStatus();
}

absl::Status Bench(const std::string& server, int rounds) {
  const server::TestFolder folder;
  const server::TestCertificate authority = server::MakeAuthority("bench");
  const server::TestCertificate certificate = server::MakeServerCertificate(authority);
  INTRAWARP_ASSIGN_OR_RETURN(const server::NewToken token, server::MakeToken("bench", server::Roles::All()));
  client::ClientOptions secure;
  secure.security.tls_ca = folder.Write("ca", authority.certificate);
  secure.security.token_file = folder.Write("token", token.token);
  const std::vector<std::string> plain = {server, "--listen=127.0.0.1:0", "--http=127.0.0.1:0", "--device=cpu"};
  std::vector<std::string> tls = plain;
  tls.push_back("--tls_cert=" + folder.Write("cert", certificate.certificate));
  tls.push_back("--tls_key=" + folder.Write("key", certificate.key));
  tls.push_back("--tokens=" + folder.Write("tokens", token.line));
  std::vector<std::unique_ptr<Site>> sites;
  sites.push_back(std::make_unique<Site>(plain, client::ClientOptions()));
  sites.push_back(std::make_unique<Site>(tls, secure));
  return Measure(sites, rounds);
}

}  // namespace
}  // namespace intrawarp

int main(int argc, char** argv) {
  const char* const server = std::getenv("INTRAWARPD");
  const absl::StatusOr<std::vector<int>> given = intrawarp::PositiveArguments(argc, argv, /*most=*/1);
  if (!given.ok()) {
    std::cerr << given.status().message() << "\n";
    return 2;
  }
  const int rounds = given->empty() ? 60 : given->front();
  const absl::Status status = intrawarp::Bench(server != nullptr ? server : INTRAWARPD_PATH, rounds);
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
