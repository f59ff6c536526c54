// SPDX-License-Identifier: Apache-2.0
// Results are the same bits in every partition, whatever the number of its multiprocessors.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/registration/registration.h"
#include "engine/sparse/multiply.h"
#include "engine/transform/transform.h"
#include "tests/bench/sparse_generators.h"
#include "tests/engine/device_test.h"
#include "tests/engine/sparse/reference.h"
#if INTRAWARP_WITH_CUDA
#include "engine/device/cuda_device.h"
#endif

namespace intrawarp {
namespace {

// A device and a partition of it.
struct Place {
  Device* device;
  Partition partition;
  std::string name;
};

class PartitionResultsTest : public DeviceTest {
 protected:
  PartitionResultsTest() {
#if INTRAWARP_WITH_CUDA
    int ordinal = 0;
    if (!device().partitioned() || std::sscanf(device().name().c_str(), "cuda:%d", &ordinal) != 1) return;
    for (const int frames : {32, 64}) more_.push_back(*OpenCudaDevice(ordinal, {.frames_multiprocessors = frames}));
    more_.push_back(*OpenCudaDevice(ordinal, {.green_contexts = false}));
#endif
  }

  std::vector<Place> Places() {
    std::vector<Place> places;
    AddPartitions(&device(), &places);
    for (const auto& device : more_) AddPartitions(device.get(), &places);
    return places;
  }

  // Expects `run` to give the same bytes everywhere.
  template <typename Run>
  void ExpectSameEverywhere(const Run& run) {
    std::vector<char> first;
    for (const Place& place : Places()) {
      SCOPED_TRACE(place.name);
      OwnedContext owned = *OwnedContext::Create(*place.device, kWorkspaceBytes, place.partition);
      const std::vector<char> bytes = run(owned.context());
      ASSERT_FALSE(bytes.empty());
      if (first.empty()) first = bytes;
      EXPECT_EQ(bytes.size(), first.size());
      EXPECT_TRUE(bytes == first);
    }
  }

 private:
  static void AddPartitions(Device* device, std::vector<Place>* places) {
    const std::map<Partition, const char*> names = {
        {Partition::kWhole, "whole"}, {Partition::kFrames, "frames"}, {Partition::kBatch, "batch"}};
    for (const auto& [partition, name] : names) {
      places->push_back({device, partition, absl::StrCat(name, " ", device->multiprocessors(partition))});
    }
  }

  std::vector<std::unique_ptr<Device>> more_;
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(PartitionResultsTest);

void Append(const ExecContext& ctx, const void* memory, size_t size, std::vector<char>* bytes) {
  const size_t old = bytes->size();
  bytes->resize(old + size);
  EXPECT_OK(ctx.device().Copy(bytes->data() + old, memory, size, ctx.stream()));
  EXPECT_OK(ctx.device().Synchronize(ctx.stream()));
}

void Append(const ExecContext& ctx, ConstFieldView field, std::vector<char>* bytes) {
  Append(ctx, field.data, 3 * sizeof(float) * field.geometry.voxels(), bytes);
}

std::vector<char> BytesOf(const ExecContext& ctx, const RegistrationResult& result) {
  const Transform& t = result.transform;
  std::vector<char> bytes(sizeof(AffineMap));
  std::memcpy(bytes.data(), &t.affine(), sizeof(AffineMap));
  if (t.has_control_grid()) Append(ctx, t.control_grid(), &bytes);
  if (t.has_velocity()) Append(ctx, t.velocity(), &bytes);
  if (t.has_displacement()) Append(ctx, t.displacement(), &bytes);
  for (const StageReport& stage : result.stages) {
    for (const LevelReport& level : stage.levels) {
      const double values[] = {level.value_before, level.value_after, static_cast<double>(level.iterations)};
      const char* const begin = reinterpret_cast<const char*>(values);
      bytes.insert(bytes.end(), begin, begin + sizeof(values));
    }
  }
  return bytes;
}

// Waves in a body; `phase` moves them by some voxels.
std::vector<float> Waves(Int3 size, double phase) {
  std::vector<float> values;
  for (int z = 0; z < size.z; ++z)
    for (int y = 0; y < size.y; ++y)
      for (int x = 0; x < size.x; ++x) {
        const double u = x - size.x / 2.0, v = y - size.y / 2.0, w = z - size.z / 2.0;
        const double body = std::exp(-(u * u + v * v + w * w) / (0.12 * size.x * size.x));
        const double waves = std::sin(0.31 * x + phase) + std::cos(0.27 * y - 0.5 * phase) + std::sin(0.23 * z + phase);
        values.push_back(static_cast<float>(100 * body + 12 * waves));
      }
  return values;
}

PreparedImage Prepare(const ExecContext& ctx, Int3 size, double phase) {
  Geometry g;
  g.size = size;
  g.spacing = {1.1, 1.0, 1.3};
  return *PreparedImage::Prepare(ctx, Waves(size, phase).data(), PixelType::kFloat32, 1, 0, g);
}

constexpr Int3 kSizes[] = {{64, 64, 64}, {61, 47, 39}};

std::vector<char> Registered(const ExecContext& ctx, Int3 size, const StageOptions& stage) {
  const PreparedImage fixed = Prepare(ctx, size, 0), moving = Prepare(ctx, size, 0.6);
  RegistrationInput input{&fixed, &moving, nullptr, nullptr, {stage}, AffineMap::Identity()};
  const absl::StatusOr<RegistrationResult> result = Register(ctx, input);
  EXPECT_OK(result) << result.status();
  return result.ok() ? BytesOf(ctx, *result) : std::vector<char>();
}

TEST_P(PartitionResultsTest, Registrations) {
  const std::map<std::string, StageOptions> stages = {
      {"affine ssd", AffineOptions{.iterations = 10}},
      {"affine ngf", AffineOptions{.metric = MetricKind::kNgf, .iterations = 10}},
      {"ffd nmi", FfdOptions{.metric = MetricKind::kNmi, .iterations = 8}},
      {"ffd lncc", FfdOptions{.metric = MetricKind::kLncc, .iterations = 8}},
      {"log-demons", LogDemonsOptions{.iterations = 12}},
      {"log-demons with momentum", LogDemonsOptions{.iterations = 12, .momentum = 0.9}},
  };
  for (const Int3 size : kSizes) {
    for (const auto& [name, stage] : stages) {
      SCOPED_TRACE(absl::StrCat(name, " ", size.x));
      ExpectSameEverywhere([&](const ExecContext& ctx) { return Registered(ctx, size, stage); });
    }
  }
}

std::vector<char> Square(const ExecContext& ctx, const HostCsr<double>& matrix, const MultiplyOptions& options) {
  const CsrMatrix a = *CsrMatrix::Upload(ctx.device(), ctx.stream(), CastValues<float>(matrix));
  const absl::StatusOr<CsrMatrix> c = Multiply(ctx, a.view(), a.view(), options);
  EXPECT_OK(c) << c.status();
  if (!c.ok()) return {};
  const ConstCsrView view = c->view();
  std::vector<char> bytes;
  Append(ctx, view.row_offsets, (view.rows + size_t{1}) * sizeof(int64_t), &bytes);
  Append(ctx, view.column_indices, view.entries * sizeof(int32_t), &bytes);
  Append(ctx, view.values, view.entries * sizeof(float), &bytes);
  return bytes;
}

TEST_P(PartitionResultsTest, Products) {
  const std::map<std::string, HostCsr<double>> matrices = {{"fem", Fem27(3, 9, 1)},
                                                           {"rmat", RMat(11, 20000, .57, .19, .19, 2)}};
  std::vector<MultiplyPath> paths = {MultiplyPath::kAuto};
  if (ctx().is_cuda()) {
    paths.insert(paths.end(), {MultiplyPath::kScalar, MultiplyPath::kTiles, MultiplyPath::kReusePlan});
  }
  for (const auto& [name, matrix] : matrices) {
    for (const MultiplyPath path : paths) {
      for (const MultiplyPrecision precision : {MultiplyPrecision::kFp32, MultiplyPrecision::kFp16}) {
        SCOPED_TRACE(absl::StrCat(name, " ", static_cast<int>(path), " ", static_cast<int>(precision)));
        MultiplyOptions options;
        options.precision = precision;
        options.path = path;
        ExpectSameEverywhere([&](const ExecContext& ctx) { return Square(ctx, matrix, options); });
      }
    }
  }
}

}  // namespace
}  // namespace intrawarp
