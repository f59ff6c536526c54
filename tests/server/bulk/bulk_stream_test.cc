// SPDX-License-Identifier: Apache-2.0
#include "server/bulk/bulk_stream.h"

#include "engine/device/pinned_pool.h"
#include "tests/engine/device_test.h"

namespace intrawarp::server {
namespace {

class BulkStreamTest : public DeviceTest {
 protected:
  BulkStreamTest() : pool_(device(), 64 << 20) {}
  // Poisoned, so that what is announced but not written shows.
  BulkBuffer Make(int64_t bytes) {
    std::shared_ptr<PinnedBuffer> memory = *pool_.Lease(bytes);
    std::memset(memory->as<char>(), 0xff, bytes);
    return BulkBuffer(memory, bytes);
  }
  static AffineMap SomeMap() {
    AffineMap map = AffineMap::Identity();
    map.m[0][1] = 0.25;
    map.m[1][3] = -3;
    map.m[2][2] = 1.125;
    return map;
  }

  static FieldAnswer FloatField(const Geometry& grid) {
    FieldAnswer answer;
    answer.grid = grid;
    return answer;
  }

  PinnedPool pool_;
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(BulkStreamTest);

TEST_P(BulkStreamTest, ProducesTheFieldFromTheFront) {
  const Transform transform(SomeMap());
  for (const Int3 size :
       {Int3{1, 1, 1}, Int3{64, 64, 64}, Int3{67, 65, 129}}) {  // less than a slab, one, and some more
    const Geometry grid = ObliqueGeometry(size);
    const int64_t bytes = 12 * grid.voxels();
    BulkBuffer stream = Make(bytes);
    LatencyBreakdown latency;
    std::vector<int64_t> announced;
    const absl::Status status = ProduceField(ctx(), transform, FloatField(grid), stream, latency, [&] {
      announced.push_back(stream.produced());
      // What is announced is final: no float of it is still poisoned.
      const float* last = reinterpret_cast<const float*>(stream.at(0)) + announced.back() / 4 - 1;
      EXPECT_FALSE(std::isnan(*last));
      return true;
    });

    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(stream.produced(), bytes);
    EXPECT_FALSE(stream.abandoned());
    EXPECT_TRUE(std::is_sorted(announced.begin(), announced.end()));
    EXPECT_EQ(announced.size(), (grid.voxels() + (1 << 18) - 1) >> 18);
    EXPECT_EQ(announced.back(), bytes);
    float* whole = Poisoned<float>(3 * grid.voxels());
    ASSERT_OK(EvaluateField(ctx(), transform, grid, 0, grid.voxels(), whole));
    const std::vector<float> expected = Download(whole, 3 * grid.voxels());
    EXPECT_EQ(std::memcmp(stream.at(0), expected.data(), bytes), 0);
    EXPECT_GT(latency.phase(Phase::kEncode).count(), 0);
  }
}

TEST_P(BulkStreamTest, EndsWhenNobodyWaits) {
  const Geometry grid = ObliqueGeometry({128, 64, 128});  // four slabs
  BulkBuffer stream = Make(12 * grid.voxels());
  LatencyBreakdown latency;
  int calls = 0;
  const absl::Status status =
      ProduceField(ctx(), Transform(SomeMap()), FloatField(grid), stream, latency, [&] { return ++calls < 2; });

  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(calls, 2);
  EXPECT_TRUE(stream.abandoned());
  EXPECT_EQ(stream.produced(), int64_t{2} * 12 << 18);
}

TEST_P(BulkStreamTest, CopiesDeviceMemory) {
  for (const size_t count : {size_t{1}, size_t{786432}, size_t{2000003}}) {
    const std::vector<float> values = RandomFloats(count, 11);
    const float* on_device = Upload(values);
    BulkBuffer stream = Make(4 * count);
    LatencyBreakdown latency;
    ASSERT_OK(ProduceCopy(ctx(), on_device, stream, latency, [] { return true; }));
    EXPECT_EQ(stream.produced(), 4 * count);
    EXPECT_EQ(std::memcmp(stream.at(0), values.data(), 4 * count), 0);
  }
}

// What arrives, decoded, is within the stated bound of the float32 field, and the bound is small.
TEST_P(BulkStreamTest, SmallEncodingsKeepTheirBound) {
  const Transform transform(SomeMap());
  const Geometry grid = ObliqueGeometry({67, 65, 129});
  float* whole = Poisoned<float>(3 * grid.voxels());
  ASSERT_OK(EvaluateField(ctx(), transform, grid, 0, grid.voxels(), whole));
  const std::vector<float> expected = Download(whole, 3 * grid.voxels());
  float largest = 0;
  for (float value : expected) largest = std::max(largest, std::abs(value));
  for (const ComponentType type : {ComponentType::kFloat16, ComponentType::kInt16}) {
    FieldRequest request;
    request.component = type;
    absl::StatusOr<OwnedContext> exact = OwnedContext::Create(device(), ProduceFieldWorkspaceBytes(device(), grid));
    ASSERT_OK(exact.status());
    const absl::StatusOr<FieldAnswer> answer = MakeFieldAnswer(exact->context(), request, transform, grid);
    ASSERT_OK(answer.status());
    EXPECT_EQ(answer->header.total_bytes(), 6 * grid.voxels());
    BulkBuffer stream = Make(answer->header.total_bytes());
    LatencyBreakdown latency;
    ASSERT_OK(ProduceField(exact->context(), transform, *answer, stream, latency, [] { return true; }));
    EXPECT_EQ(stream.produced(), answer->header.total_bytes());
    const double bound = answer->header.max_error_mm();
    EXPECT_LT(bound, largest / (type == ComponentType::kInt16 ? 30000 : 1000));
    double worst = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      const double value = type == ComponentType::kInt16
                               ? reinterpret_cast<const int16_t*>(stream.at(0))[i] * answer->header.scale()
                               : static_cast<float>(reinterpret_cast<const _Float16*>(stream.at(0))[i]);
      worst = std::max(worst, std::abs(value - expected[i]));
    }
    EXPECT_LE(worst, bound);
    EXPECT_GT(worst, 0.1 * bound);
  }
}

TEST_P(BulkStreamTest, NeedsTheWorkspaceItAsksFor) {
  const Geometry small = ObliqueGeometry({5, 6, 7}), large = ObliqueGeometry({100, 100, 100});
  for (const Geometry& grid : {small, large}) {
    absl::StatusOr<OwnedContext> exact = OwnedContext::Create(device(), ProduceFieldWorkspaceBytes(device(), grid));
    ASSERT_OK(exact.status());
    BulkBuffer stream = Make(12 * grid.voxels());
    LatencyBreakdown latency;
    EXPECT_OK(
        ProduceField(exact->context(), Transform(SomeMap()), FloatField(grid), stream, latency, [] { return true; }));
  }
}

}  // namespace
}  // namespace intrawarp::server
