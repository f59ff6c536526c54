// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/interference/flood.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "tests/bench/bench_support.h"
#include "tests/bench/interference/options.h"
#include "tests/bench/interference/statistics.h"

namespace intrawarp::bench {
namespace {

constexpr double kRefusalPause = 0.01;

// C = A A, kept and deleted, or received and dropped.
absl::Status Square(const std::string& matrix, bool sent, client::Client& client) {
  v1::MultiplyRequest request;
  request.set_a("sparseMatrices/" + matrix);
  request.set_b("sparseMatrices/" + matrix);
  if (sent) {
    client::SparseMatrix product;
    return client.Multiply(request, nullptr, &product).status();
  }
  request.mutable_keep();
  INTRAWARP_ASSIGN_OR_RETURN(const v1::MultiplyResult result, client.Multiply(request, nullptr, nullptr));
  return client.DeleteSparseMatrix(result.sparse_matrix().name());
}

// A volume of float32 noise, of about so many bytes.
struct Noise {
  Geometry geometry;
  std::vector<float> voxels;
};

std::shared_ptr<const Noise> MakeNoise(int64_t bytes, uint32_t seed) {
  auto noise = std::make_shared<Noise>();
  constexpr int kSide = 256;
  const int64_t slices = std::max<int64_t>(1, bytes / (kSide * kSide * 4));
  noise->geometry.size = {kSide, kSide, static_cast<int>(slices)};
  noise->voxels.resize(noise->geometry.voxels());
  uint32_t state = seed * 2654435761u + 1;
  for (float& voxel : noise->voxels) {
    state = state * 1664525u + 1013904223u;
    voxel = static_cast<float>(state >> 20);
  }
  return noise;
}

absl::Status UploadAndDelete(const Noise& noise, client::Client& client, int worker) {
  client::VolumeUpload upload;
  upload.id = absl::StrCat("flood-", worker);
  upload.geometry = noise.geometry;
  upload.bytes = {reinterpret_cast<const char*>(noise.voxels.data()), noise.voxels.size() * sizeof(float)};
  INTRAWARP_RETURN_IF_ERROR(client.UploadVolume(upload).status());
  return client.DeleteVolume("volumes/" + upload.id);
}

absl::Status RegisterAndDelete(const v1::RegisterRequest& request, client::Client& client) {
  INTRAWARP_ASSIGN_OR_RETURN(const v1::RegisterResult result, client.Register(request, nullptr, nullptr));
  return client.DeleteTransform(result.transform());
}

std::unique_ptr<Flood> StartProducts(Site& site, const std::string& name, const std::string& matrix) {
  return std::make_unique<Flood>(site, name, 4,
                                 [matrix, sent = site.options().products_sent](client::Client& client, int, int64_t) {
                                   return Square(matrix, sent, client);
                                 });
}

std::unique_ptr<Flood> StartUploads(Site& site) {
  const auto noise = MakeNoise(site.options().upload_bytes, site.options().seed);
  return std::make_unique<Flood>(site, "uploads", 2, [noise](client::Client& client, int worker, int64_t) {
    return UploadAndDelete(*noise, client, worker);
  });
}

std::unique_ptr<Flood> StartRegistrations(Site& site) {
  v1::RegisterRequest request;
  request.set_fixed("volumes/flood-fixed");
  request.set_moving(Site::RestName(site.options().size));
  *request.mutable_options() = Value(OptionsOfMethod("affine,ffd"));
  return std::make_unique<Flood>(site, "registrations", 4, [request](client::Client& client, int, int64_t) {
    return RegisterAndDelete(request, client);
  });
}

absl::Status PrepareRegistrations(Site& site) {
  INTRAWARP_ASSIGN_OR_RETURN(const BreathSequence* images, site.Images(site.options().size));
  INTRAWARP_ASSIGN_OR_RETURN(const std::unique_ptr<client::Client> client, site.Connect());
  client::VolumeUpload upload;
  upload.id = "flood-fixed";
  upload.geometry = images->geometry();
  upload.pixel_type = PixelType::kInt16;
  upload.bytes = BytesOf(images->phases()[images->phases().size() / 2].voxels);
  return client->UploadVolume(upload).status();
}

}  // namespace

Flood::Flood(Site& site, std::string name, int workers, Operation operation)
    : name_(std::move(name)), operation_(std::move(operation)) {
  for (int worker = 0; worker < workers; ++worker) {
    clients_.push_back(Value(site.Connect()));
    threads_.emplace_back([this, worker, client = clients_.back().get()] { Loop(*client, worker); });
  }
}

Flood::~Flood() { Stop(); }

void Flood::Stop() {
  stop_ = true;
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void Flood::Loop(client::Client& client, int worker) {
  for (int64_t number = 0; !stop_; ++number) {
    const double begin = Now();
    const absl::Status status = operation_(client, worker, number);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (status.ok()) {
        done_.push_back({begin, Now()});
      } else {
        ++errors_[ErrorName(status)];
      }
    }
    if (!status.ok()) SleepUntil(Now() + kRefusalPause);
  }
}

double Flood::Rate(double from, double to) const {
  double operations = 0;
  for (const Done& done : done_) operations += Overlap(done.begin, done.end, from, to);
  return operations / (to - from);
}

absl::Status PrepareFloods(Site& site, const std::string& names) {
  for (const std::string& name : FloodsOf(names)) {
    if (name == "fem") {
      INTRAWARP_RETURN_IF_ERROR(site.PutMatrix(site.options().fem));
    } else if (name == "rmat") {
      INTRAWARP_RETURN_IF_ERROR(site.PutMatrix(site.options().rmat));
    } else if (name == "registrations") {
      INTRAWARP_RETURN_IF_ERROR(PrepareRegistrations(site));
    } else if (name != "uploads") {
      return absl::InvalidArgumentError(absl::StrCat("--floods: there is no ", name));
    }
  }
  return absl::OkStatus();
}

std::vector<std::unique_ptr<Flood>> StartFloods(Site& site, const std::string& names) {
  std::vector<std::unique_ptr<Flood>> floods;
  for (const std::string& name : FloodsOf(names)) {
    if (name == "fem") floods.push_back(StartProducts(site, "fem", site.options().fem));
    if (name == "rmat") floods.push_back(StartProducts(site, "rmat", site.options().rmat));
    if (name == "uploads") floods.push_back(StartUploads(site));
    if (name == "registrations") floods.push_back(StartRegistrations(site));
  }
  return floods;
}

}  // namespace intrawarp::bench
