// SPDX-License-Identifier: Apache-2.0
#include "tests/server/registration/native_form_fixture.h"

#include <utility>

#include "wire/convert.h"

namespace intrawarp::server {

std::string NativeFormTest::RegisteredId(const v1::RegisterRequest& request) {
  PutPair();
  const RegisterAnswer answer = Register(request);
  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  return answer.result.has_value() ? Id(answer.result->transform()) : "";
}

v1::FieldHeader NativeFormTest::NativeHeader(Int3 size) const {
  v1::FieldHeader header;
  const Geometry grid = ObliqueGeometry(size);
  *header.mutable_geometry() = GeometryToProto(grid);
  header.set_encoding(native_);
  header.set_total_bytes(12 * grid.voxels());
  *header.mutable_affine() = AffineMapToProto(AffineMap::Identity());
  return header;
}

void NativeFormTest::ExpectPart(const std::vector<float>& part, const std::vector<float>& whole, Int3 start,
                                Int3 stride, Int3 size) {
  const Int3 fixed = FixedGrid().size;
  ASSERT_EQ(part.size(), size_t{3} * size.x * size.y * size.z);
  size_t i = 0;
  for (int z = 0; z < size.z; ++z) {
    for (int y = 0; y < size.y; ++y) {
      for (int x = 0; x < size.x; ++x, i += 3) {
        const int64_t row = int64_t{start.z + stride.z * z} * fixed.y + start.y + stride.y * y;
        const int64_t voxel = row * fixed.x + start.x + stride.x * x;
        for (int c = 0; c < 3; ++c) ASSERT_NEAR(part[i + c], whole[3 * voxel + c], 2e-5) << x << " " << y << " " << z;
      }
    }
  }
}

NativeFormTest::Download NativeFormTest::ExpectTheSameBroughtBack(const std::string& id) {
  Download native = GetNative(id);
  const Upload upload = Send(NativeRequests("again", *native.field, native.chunks.bytes()));
  EXPECT_TRUE(upload.status.ok()) << upload.status.error_message();
  v1::Transform original = Get(id);
  original.clear_report();
  original.clear_expire_time();  // only results have one
  original.set_name("transforms/again");
  *original.mutable_create_time() = upload.response.transform().create_time();
  EXPECT_EQ(upload.response.transform().SerializeAsString(), original.SerializeAsString());
  const Download back = GetNative("again");
  EXPECT_EQ(back.field->SerializeAsString(), native.field->SerializeAsString());
  EXPECT_TRUE(back.chunks.bytes() == native.chunks.bytes());
  EXPECT_TRUE(GetField(WholeField("again")).chunks.bytes() == GetField(WholeField(id)).chunks.bytes());
  for (const bool inverse : {false, true}) {
    for (const v1::Interpolation interpolation : {v1::INTERPOLATION_LINEAR, v1::INTERPOLATION_CUBIC}) {
      const Download a = GetWarped(id, inverse, interpolation), b = GetWarped("again", inverse, interpolation);
      EXPECT_TRUE(a.status.ok() && b.status.ok()) << a.status.error_message() << b.status.error_message();
      EXPECT_TRUE(a.chunks.bytes() == b.chunks.bytes());
      const bool is_cubic = interpolation == v1::INTERPOLATION_CUBIC;
      EXPECT_TRUE(a.chunks.floats() == EngineWarp(id, "moving", inverse,
                                                  is_cubic ? Interpolation::kCubic : Interpolation::kLinear, -1,
                                                  FixedGrid()));
      EXPECT_THAT(a.chunks.floats(), testing::Contains(testing::Gt(50.0f)));
    }
  }
  return native;
}

void NativeFormTest::ExpectToStartFromAnEarlierOne(v1::RegisterRequest request) {
  PutPair();
  request.mutable_options()->mutable_stages()->DeleteSubrange(0, 1);
  v1::Stage& stage = *request.mutable_options()->mutable_stages(0);
  SetLevels(stage, 1);
  SetIterations(stage, 6);
  *request.mutable_options()->mutable_initial_affine() = AffineMapToProto(AffineMap::Identity());
  const RegisterAnswer first = Register(request);
  ASSERT_TRUE(first.status.ok()) << first.status.error_message();
  // The stored one, and the same one through a client.
  const Download native = GetNative(Id(first.result->transform()));
  ASSERT_TRUE(Send(NativeRequests("brought", *native.field, native.chunks.bytes())).status.ok());
  request.mutable_options()->set_initial_transform(first.result->transform());
  const RegisterAnswer second = Register(request);
  request.mutable_options()->set_initial_transform("transforms/brought");
  const RegisterAnswer third = Register(request);

  ASSERT_TRUE(second.status.ok() && third.status.ok()) << second.status.error_message();
  const v1::LevelReport& before = first.result->report().stages(0).levels(0);
  const v1::LevelReport& after = second.result->report().stages(0).levels(0);
  EXPECT_LT(before.value_after(), 0.7 * before.value_before());
  EXPECT_NEAR(after.value_before(), before.value_after(), 1e-5 * before.value_before());
  EXPECT_LT(after.value_after(), after.value_before());
  EXPECT_EQ(third.result->report().stages(0).SerializeAsString(),
            second.result->report().stages(0).SerializeAsString());
}

NativeFormTest::RegisterAnswer NativeFormTest::ExpectImagesOfOnePlaneRegistered(v1::RegisterRequest request) {
  const Geometry grid = ObliqueGeometry({48, 64, 1});
  AffineMap turned = AffineMap::Identity();
  turned.m[0][0] = 1.1;
  turned.m[0][3] = -0.1 * Center(grid).x;
  PutVolume("fixed", grid, Blobs(grid, Center(grid), kScale, turned));
  PutVolume("moving", grid, Blobs(grid, Center(grid), kScale, AffineMap::Identity()));
  request.mutable_field()->set_encoding(native_);
  RegisterAnswer answer = Register(request);
  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  if (!answer.status.ok()) return answer;
  EXPECT_EQ(answer.field->geometry().size(2), 1);
  EXPECT_GT(answer.result->report().after().ncc(), answer.result->report().before().ncc());
  const std::string id = Id(answer.result->transform());
  EXPECT_TRUE(Send(NativeRequests("again", *answer.field, answer.chunks.bytes())).status.ok());
  EXPECT_TRUE(GetField(WholeField("again")).chunks.bytes() == GetField(WholeField(id)).chunks.bytes());
  return answer;
}

NativeFormTest::RegisterAnswer NativeFormTest::ExpectABudgetThatEndsAtOnce(v1::RegisterRequest request) {
  request.mutable_field()->set_encoding(native_);
  request.mutable_options()->mutable_budget()->set_nanos(1);
  ExpectRegisterError(request, grpc::DEADLINE_EXCEEDED, "options.budget: ", "options.budget");
  request.mutable_options()->set_best_effort(true);
  RegisterAnswer answer = Register(request);
  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  if (!answer.status.ok()) return answer;
  EXPECT_EQ(answer.result->report().stop_reason(), v1::STOP_REASON_BUDGET);
  EXPECT_EQ(answer.field->encoding(), native_);
  EXPECT_THAT(answer.chunks.floats(), testing::Each(0.0f));
  return answer;
}

void NativeFormTest::ExpectStageError(v1::RegisterRequest request, const std::function<void(v1::Stage&)>& change,
                                      const std::string& field) {
  change(*request.mutable_options()->mutable_stages(1));
  const std::string path = "options.stages[1]." + stage_ + "." + field;
  ExpectRegisterError(request, grpc::INVALID_ARGUMENT, path + ": ", path);
}

void NativeFormTest::ExpectHeaderError(const v1::FieldHeader& good, const std::vector<float>& values,
                                       const std::function<void(v1::FieldHeader&)>& change, const std::string& field) {
  v1::FieldHeader header = good;
  change(header);
  auto requests = NativeRequests("wrong", good, Bytes(values));
  *requests[0].mutable_header()->mutable_transform()->mutable_field() = header;
  const grpc::Status status = Send(requests).status;
  EXPECT_STATUS(status, grpc::INVALID_ARGUMENT, "header.transform.field." + field + ": ");
  EXPECT_EQ(FieldOf(status), "header.transform.field." + field);
}

}  // namespace intrawarp::server
