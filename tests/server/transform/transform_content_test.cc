// SPDX-License-Identifier: Apache-2.0
// The content of a transform makes the same transform again when it comes back as an upload.
#include "server/transform/transform_content.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/transform/velocity.h"
#include "io/file/digest.h"
#include "server/transform/transform_kind.h"
#include "tests/engine/device_test.h"

namespace intrawarp::server {
namespace {

constexpr Int3 kSize = {5, 4, 6};
constexpr int64_t kFieldBytes = 12 * 5 * 4 * 6;

AffineMap Map() {
  AffineMap map = AffineMap::Identity();
  map.m[0][1] = 0.25;
  map.m[2][3] = -7;
  return map;
}

Geometry Domain() { return ObliqueGeometry({17, 9, 23}); }

class TransformContentTest : public DeviceTest {
 protected:
  // Memory with values of a field of this size.
  Buffer Field(int64_t values = kFieldBytes / 4) {
    const std::vector<float> host = RandomFloats(static_cast<size_t>(values), 3, -1.5, 1.5);
    Buffer memory = *device().Allocate(host.size() * sizeof(float), ctx().stream());
    EXPECT_OK(device().Copy(memory.as<float>(), host.data(), host.size() * sizeof(float), ctx().stream()));
    EXPECT_OK(device().Synchronize(ctx().stream()));
    return memory;
  }
  Transform Velocity() {
    absl::StatusOr<Transform> made = MakeVelocityTransform(ctx(), Map(), Field(), ObliqueGeometry(kSize));
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  }
  ObjectContent Copied(const Transform& transform) {
    absl::StatusOr<ObjectContent> content = CopyTransform(ctx(), transform, Grant());
    EXPECT_TRUE(content.ok()) << content.status();
    return content.ok() ? *std::move(content) : ObjectContent();
  }
  // The transform that an upload of the content makes.
  std::optional<Transform> MadeAgain(const ObjectContent& content) {
    v1::UploadHeader header = content.header;
    header.set_upload_id("again");
    header.set_total_bytes(content.bytes);
    header.set_sha256(io::Sha256Of(content.memory.data(), static_cast<size_t>(content.bytes)));
    auto object = ParseTransformUpload(header, ServerLimits());
    EXPECT_TRUE(object.ok()) << object.status();
    if (!object.ok()) return std::nullopt;
    EXPECT_OK((*object)->Validate(content.memory.data()));
    StagedUpload upload(content.memory.data(), nullptr);
    EXPECT_OK((*object)->Make(ctx(), upload));
    auto stored = (*object)->Take(Grant(), "");
    EXPECT_TRUE(stored.ok()) << stored.status();
    return stored.ok() ? std::optional<Transform>((*stored)->transform) : std::nullopt;
  }
  void ExpectSameField(const ConstFieldView& a, const ConstFieldView& b) {
    EXPECT_EQ(a.geometry, b.geometry);
    const auto count = static_cast<size_t>(3 * a.geometry.voxels());
    EXPECT_EQ(Download(a.data, count), Download(b.data, count));
  }
  static void ExpectSameMap(const AffineMap& a, const AffineMap& b) {
    for (int r = 0; r < 3; ++r) {
      for (int c = 0; c < 4; ++c) EXPECT_EQ(a.m[r][c], b.m[r][c]) << r << " " << c;
    }
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(TransformContentTest);

TEST_P(TransformContentTest, AnAffineMapIsItsHeader) {
  const ObjectContent content = Copied(Transform(Map(), Domain()));
  EXPECT_EQ(content.bytes, 0);
  EXPECT_TRUE(content.header.transform().has_affine());
  const std::optional<Transform> again = MadeAgain(content);
  ASSERT_TRUE(again && again->is_affine());
  ExpectSameMap(again->affine(), Map());
  EXPECT_FALSE(again->domain()) << "the description has it";
}

TEST_P(TransformContentTest, ADisplacementComesBack) {
  const Transform transform(Field(), ObliqueGeometry(kSize, /*left_handed=*/true));
  const ObjectContent content = Copied(transform);
  EXPECT_EQ(content.bytes, kFieldBytes);
  EXPECT_EQ(content.header.transform().field().encoding(), v1::FIELD_ENCODING_FLOAT32);
  EXPECT_EQ(content.header.transform().field().total_bytes(), kFieldBytes);
  EXPECT_FALSE(content.header.transform().field().has_affine());
  const std::optional<Transform> again = MadeAgain(content);
  ASSERT_TRUE(again && again->has_displacement());
  ExpectSameField(again->displacement(), transform.displacement());
}

TEST_P(TransformContentTest, ControlPointsComeBackWithTheirDomain) {
  for (const std::optional<Geometry>& domain : {std::optional<Geometry>(Domain()), std::optional<Geometry>()}) {
    const Transform transform(Map(), Field(), ObliqueGeometry(kSize), domain);
    const ObjectContent content = Copied(transform);
    EXPECT_EQ(content.bytes, kFieldBytes);
    const std::optional<Transform> again = MadeAgain(content);
    ASSERT_TRUE(again && again->has_control_grid());
    ExpectSameField(again->control_grid(), transform.control_grid());
    ExpectSameMap(again->affine(), Map());
    EXPECT_EQ(again->domain(), domain);
  }
}

TEST_P(TransformContentTest, AVelocityComesBackWithTheSameExponentials) {
  const Transform transform = Velocity();
  const ObjectContent content = Copied(transform);
  EXPECT_EQ(content.bytes, kFieldBytes) << "the exponentials are made again";
  EXPECT_FALSE(content.header.transform().field().has_domain());
  const std::optional<Transform> again = MadeAgain(content);
  ASSERT_TRUE(again && again->has_velocity());
  ExpectSameField(again->velocity(), transform.velocity());
  ExpectSameField(again->displacement(), transform.displacement());
  ExpectSameField(again->backward(), transform.backward());
  ExpectSameMap(again->affine(), Map());
}

TEST_P(TransformContentTest, TheGrantHoldsItsBytesAndNoMore) {
  Ledger ledger({.capacity = {.uploading_bytes = 10 * kFieldBytes}});
  const auto grant = [&] { return *ledger.Admit(Claim{{.uploading_bytes = 3 * kFieldBytes}}); };
  {
    const auto content = CopyTransform(ctx(), Velocity(), grant());
    ASSERT_TRUE(content.ok());
    EXPECT_EQ(ledger.in_use(Resource::kUploading), kFieldBytes);
  }
  const auto content = CopyTransform(ctx(), Transform(Map()), grant());
  ASSERT_TRUE(content.ok());
  EXPECT_EQ(ledger.in_use(Resource::kUploading), 0);
}

}  // namespace
}  // namespace intrawarp::server
