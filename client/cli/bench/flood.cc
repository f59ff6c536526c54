// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bench/flood.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "client/cli/bench/matrices.h"
#include "engine/base/status_macros.h"

namespace intrawarp::cli::bench {
namespace {

constexpr std::chrono::milliseconds kRefusalPause(10);
constexpr size_t kMaxTimes = 1000000;
// After so many unexpected failures a flood ends.
constexpr int64_t kMaxFailures = 100;
// Products and transforms that a deletion has missed expire after this time.
constexpr int kTtlSeconds = 2 * 3600;

// C = A A, kept and deleted: the product itself, without its transfer.
Flood::Operation Square(const std::string& matrix, Holdings* holdings) {
  v1::MultiplyRequest request;
  request.set_a(matrix);
  request.set_b(matrix);
  request.mutable_keep()->mutable_ttl()->set_seconds(kTtlSeconds);
  return [request, holdings](client::Client& client, const client::CallOptions& options, int64_t*) {
    v1::MultiplyRequest own = request;
    const std::string name = holdings->NewMatrix();
    own.mutable_keep()->set_id(IdOf(name));
    const absl::Status status = client.Multiply(own, nullptr, nullptr, options).status();
    const absl::Status deleted = holdings->Release(name, status, client);
    return status.ok() ? deleted : status;
  };
}

// uint16 noise in slices of 512 x 256, of at least so many bytes.
std::shared_ptr<const io::HostVolume> MakeNoise(int64_t bytes, uint32_t seed) {
  constexpr int kWidth = 512, kHeight = 256;
  constexpr int64_t kSliceBytes = int64_t{kWidth} * kHeight * 2;
  auto noise = std::make_shared<io::HostVolume>();
  noise->pixel_type = PixelType::kUint16;
  noise->geometry.size = {kWidth, kHeight, static_cast<int>((bytes + kSliceBytes - 1) / kSliceBytes)};
  noise->pixels.resize(static_cast<size_t>(noise->geometry.size.z * kSliceBytes));
  uint32_t state = seed * 2654435761u + 1;
  for (uint8_t& byte : noise->pixels) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<uint8_t>(state >> 24);
  }
  return noise;
}

Flood::Operation UploadAndDelete(std::shared_ptr<const io::HostVolume> noise, Holdings* holdings) {
  return [noise, holdings](client::Client& client, const client::CallOptions& options, int64_t* sent) {
    const std::string name = holdings->NewVolume();
    const absl::Status status = UploadVolumeAs(name, *noise, client, options);
    if (status.ok()) *sent += static_cast<int64_t>(noise->pixels.size());
    const absl::Status deleted = holdings->Release(name, status, client);
    return status.ok() ? deleted : status;
  };
}

Flood::Operation RegisterAndDelete(const FloodOptions& options, const ClientImages& images, Holdings* holdings) {
  v1::RegisterRequest request;
  request.set_fixed(images.fixed);
  request.set_moving(images.rest);
  *request.mutable_options() = options.registration;
  request.mutable_ttl()->set_seconds(kTtlSeconds);
  return [request, holdings](client::Client& client, const client::CallOptions& call, int64_t*) {
    v1::RegisterRequest own = request;
    const std::string name = holdings->NewTransform();
    own.set_transform_id(IdOf(name));
    const absl::Status status = client.Register(own, nullptr, nullptr, call).status();
    const absl::Status deleted = holdings->Release(name, status, client);
    return status.ok() ? deleted : status;
  };
}

absl::StatusOr<std::string> PutMatrix(HostCsr<float> matrix, Holdings* holdings, client::Client& client,
                                      const client::CallOptions& call) {
  std::string name = holdings->NewMatrix();
  INTRAWARP_RETURN_IF_ERROR(UploadMatrixAs(name, std::move(matrix), client, call));
  return name;
}

}  // namespace

Flood::Flood(std::string name, int clients, Operation operation)
    : name_(std::move(name)), wanted_(clients), operation_(std::move(operation)) {}

Flood::~Flood() {
  Stop();
  Cancel();
  Join();
}

absl::Status Flood::Start(const ConnectFunction& connect, LoadClock::Clock::time_point begin) {
  begin_ = begin;
  for (int i = 0; i < wanted_; ++i) {
    INTRAWARP_ASSIGN_OR_RETURN(std::unique_ptr<client::Client> client, connect());
    clients_.push_back(std::move(client));
  }
  running_ = wanted_;
  for (const auto& client : clients_) {
    threads_.emplace_back([this, client = client.get()] {
      Loop(*client);
      --running_;
    });
  }
  return absl::OkStatus();
}

void Flood::Loop(client::Client& client) {
  const LoadClock clock(begin_, &cancellation_);
  while (!stopped_) {
    const double begin = clock.Now();
    int64_t sent = 0;
    const absl::Status status = operation_(client, {.cancellation = &cancellation_}, &sent);
    const double end = clock.Now();
    if (!status.ok() && cancellation_.cancelled()) return;
    Note({begin, end}, status, sent);
    if (!status.ok()) (void)cancellation_.WaitFor(kRefusalPause);
  }
}

void Flood::Note(const Done& done, const absl::Status& status, int64_t sent) {
  std::lock_guard<std::mutex> lock(mutex_);
  result_.bytes_sent += sent;
  if (status.ok()) {
    ++result_.done;
    if (done_.size() < kMaxTimes) done_.push_back(done);
    return;
  }
  const bool is_refusal = FateOf(status) == Fate::kRefused;
  ++(is_refusal ? result_.refused : result_.failed)[ErrorName(status)];
  if (is_refusal) return;
  if (result_.first_failure.ok()) result_.first_failure = status;
  if (Total(result_.failed) >= kMaxFailures) Stop();
}

void Flood::Join() {
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

FloodResult Flood::Finish(double from, double to) {
  Stop();
  Join();
  result_.name = name_;
  result_.clients = wanted_;
  std::vector<double> milliseconds;
  double operations = 0;
  for (const Done& done : done_) {
    operations += OverlapPart(done.begin, done.end, from, to);
    if (done.end >= from && done.end <= to) milliseconds.push_back(1e3 * (done.end - done.begin));
  }
  result_.per_second = to > from ? operations / (to - from) : 0;
  result_.milliseconds = PercentilesOf(std::move(milliseconds));
  return result_;
}

absl::StatusOr<FloodGround> PrepareFloods(const FloodOptions& options, uint32_t seed, Holdings* holdings,
                                          client::Client& client, const client::CallOptions& call) {
  FloodGround ground;
  if (options.fem_products > 0) {
    INTRAWARP_ASSIGN_OR_RETURN(ground.fem_matrix,
                               PutMatrix(FiniteElementMatrix(options.matrix_rows, seed), holdings, client, call));
  }
  if (options.random_products > 0) {
    INTRAWARP_ASSIGN_OR_RETURN(ground.random_matrix,
                               PutMatrix(RandomMatrix(options.matrix_rows, seed), holdings, client, call));
  }
  if (options.uploads > 0) ground.noise = MakeNoise(options.upload_bytes, seed);
  return ground;
}

std::vector<std::unique_ptr<Flood>> MakeFloods(const FloodOptions& options, const FloodGround& ground,
                                               const ClientImages* images, Holdings* holdings) {
  std::vector<std::unique_ptr<Flood>> floods;
  const auto add = [&](const char* name, int clients, Flood::Operation operation) {
    floods.push_back(std::make_unique<Flood>(name, clients, std::move(operation)));
  };
  if (options.fem_products > 0) add("fem_products", options.fem_products, Square(ground.fem_matrix, holdings));
  if (options.random_products > 0) {
    add("random_products", options.random_products, Square(ground.random_matrix, holdings));
  }
  if (options.uploads > 0) add("uploads", options.uploads, UploadAndDelete(ground.noise, holdings));
  if (options.registrations > 0 && images != nullptr) {
    add("registrations", options.registrations, RegisterAndDelete(options, *images, holdings));
  }
  return floods;
}

}  // namespace intrawarp::cli::bench
