// SPDX-License-Identifier: Apache-2.0
// Images, transforms and float64 references for tests of similarity and Jacobian.
#ifndef INTRAWARP_TESTS_ENGINE_QUALITY_QUALITY_FIXTURE_H_
#define INTRAWARP_TESTS_ENGINE_QUALITY_QUALITY_FIXTURE_H_

#include <optional>
#include <vector>

#include "engine/quality/similarity.h"
#include "tests/engine/device_test.h"

namespace intrawarp::quality_test {

// --- The reference: everything in float64, written as the definitions are ---

struct Image {
  std::vector<float> values;
  Geometry geometry;
};

inline int64_t Place(Int3 size, int x, int y, int z) { return (int64_t{z} * size.y + y) * size.x + x; }

template <typename Body>
void ForEachVoxel(Int3 size, const Body& body) {
  for (int z = 0; z < size.z; ++z)
    for (int y = 0; y < size.y; ++y)
      for (int x = 0; x < size.x; ++x) body(x, y, z);
}

bool Inside(Int3 size, Vec3d index);

double ReferenceSample(const std::vector<float>& data, Int3 size, Vec3d index, int components = 1, int component = 0);

AffineMap MeetingAffine(const Geometry& fixed, const Geometry& moving);

class QualityTest : public DeviceTest {
 protected:
  PreparedImage Prepare(const Image& image) {
    absl::StatusOr<PreparedImage> prepared =
        PreparedImage::Prepare(ctx(), image.values.data(), PixelType::kFloat32, 1, 0, image.geometry);
    EXPECT_OK(prepared) << prepared.status();
    return *std::move(prepared);
  }
  ConstMaskView Mask(const std::vector<uint8_t>& mask, const Geometry& g) {
    return mask.empty() ? ConstMaskView{} : ConstMaskView{Upload(mask), g};
  }
  Transform MakeDisplacement(const std::vector<float>& values, const Geometry& domain) {
    Buffer memory = *device().Allocate(values.size() * sizeof(float), ctx().stream());
    EXPECT_OK(device().Copy(memory.as<float>(), values.data(), values.size() * sizeof(float), ctx().stream()));
    EXPECT_OK(device().Synchronize(ctx().stream()));
    return Transform(std::move(memory), domain);
  }
  Transform MakeSpline(const std::vector<float>& points, const Geometry& grid, const AffineMap& affine) {
    Buffer memory = *device().Allocate(points.size() * sizeof(float), ctx().stream());
    EXPECT_OK(device().Copy(memory.as<float>(), points.data(), points.size() * sizeof(float), ctx().stream()));
    EXPECT_OK(device().Synchronize(ctx().stream()));
    return Transform(affine, std::move(memory), grid, std::nullopt);
  }
  SimilarityResult Measure(const Image& fixed, const Image& moving, const Transform& transform,
                           const std::vector<uint8_t>& fixed_mask = {}, const std::vector<uint8_t>& moving_mask = {}) {
    const PreparedImage f = Prepare(fixed), m = Prepare(moving);
    // Exactly as much workspace as is said to be needed, and none of it zero.
    OwnedContext owned =
        *OwnedContext::Create(device(), SimilarityWorkspaceBytes(fixed.geometry, transform.has_control_grid()));
    const ExecContext exact = owned.context();
    {
      ArenaScope scope(exact.arena());
      void* all = *exact.arena().AllocateBytes(exact.arena().capacity());
      EXPECT_OK(device().Fill(all, 0xff, exact.arena().capacity(), exact.stream()));
    }
    const absl::StatusOr<SimilarityResult> result =
        MeasureSimilarity(exact, f, m, Mask(fixed_mask, fixed.geometry), Mask(moving_mask, moving.geometry), transform);
    EXPECT_OK(result) << result.status();
    EXPECT_EQ(exact.arena().used(), 0u);
    return *result;
  }
};

// u of a control grid and its derivatives along its index axes, by the definition: control points within two nodes.
Vec3d ReferenceSpline(const std::vector<float>& points, const Geometry& grid, Vec3d p, int derivative = -1);

}  // namespace intrawarp::quality_test

#endif  // INTRAWARP_TESTS_ENGINE_QUALITY_QUALITY_FIXTURE_H_
