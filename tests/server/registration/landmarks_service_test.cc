// SPDX-License-Identifier: Apache-2.0
// Landmarks over the wire: they move the result, the report says how far it is from them, and a frame may bring its
// own.
#include <cmath>
#include <vector>

#include "tests/server/deformed_pair.h"
#include "tests/server/navigate_frames.h"
#include "tests/server/stages.h"

namespace intrawarp::server {
namespace {

v1::Landmark MakeLandmark(Vec3d fixed, Vec3d moving, double sigma_mm) {
  v1::Landmark landmark;
  for (int a = 0; a < 3; ++a) landmark.add_fixed(fixed[a]);
  for (int a = 0; a < 3; ++a) landmark.add_moving(moving[a]);
  landmark.set_sigma_mm(sigma_mm);
  return landmark;
}

class LandmarksServiceTest : public DeformedPairTest {
 protected:
  double DistanceTo(const v1::Landmark& landmark, const v1::RegisterResult& result) {
    const AffineMap map = *AffineMapFromProto(result.report().affine());
    const Vec3d away = map(Vec3d{landmark.fixed(0), landmark.fixed(1), landmark.fixed(2)}) -
                       Vec3d{landmark.moving(0), landmark.moving(1), landmark.moving(2)};
    return std::sqrt(Dot(away, away));
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(LandmarksServiceTest);

TEST_P(LandmarksServiceTest, AResultGoesToThemAndTheReportSaysHowNear) {
  PutPair();
  v1::RegisterRequest request = AffineThen(StageKind::kAffine);
  const Vec3d center = Center(FixedGrid());
  const v1::Landmark landmark = MakeLandmark(center, center + Vec3d{9, 0, 0}, 0.2);
  RegisterAnswer answer = Register(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_FALSE(answer.result->report().has_landmarks());
  const double before = DistanceTo(landmark, *answer.result);

  *request.mutable_options()->add_landmarks() = landmark;
  request.mutable_options()->mutable_landmarks(0)->clear_sigma_mm();
  answer = Register(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.result->report().options().landmarks(0).sigma_mm(), 1);

  request.mutable_options()->mutable_landmarks(0)->set_sigma_mm(0.2);
  answer = Register(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  const v1::Report& report = answer.result->report();
  ASSERT_EQ(report.landmarks().distance_mm_size(), 1);
  EXPECT_NEAR(report.landmarks().distance_mm(0), DistanceTo(landmark, *answer.result), 1e-6);
  EXPECT_EQ(report.landmarks().max_mm(), report.landmarks().distance_mm(0));
  EXPECT_LT(report.landmarks().max_mm(), 0.5 * before);
}

TEST_P(LandmarksServiceTest, WrongOnesAreNamed) {
  PutPair();
  const auto expect_refused = [&](const v1::Landmark& landmark, const char* field) {
    v1::RegisterRequest request = AffineThen(StageKind::kAffine);
    *request.mutable_options()->add_landmarks() = MakeLandmark({}, {}, 1);
    *request.mutable_options()->add_landmarks() = landmark;
    const RegisterAnswer answer = Register(request);
    EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(answer.status.error_message(), testing::StartsWith(field));
  };
  expect_refused(MakeLandmark({}, {}, 0), "options.landmarks[1].sigma_mm");
  expect_refused(MakeLandmark({std::nan(""), 0, 0}, {}, 1), "options.landmarks[1]");
  v1::Landmark longer = MakeLandmark({}, {}, 1);
  longer.add_moving(0);
  expect_refused(longer, "options.landmarks[1].moving");
  v1::RegisterRequest request = AffineThen(StageKind::kAffine);
  for (int i = 0; i < 257; ++i) *request.mutable_options()->add_landmarks() = MakeLandmark({}, {}, 1);
  EXPECT_EQ(Register(request).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

class FrameLandmarksTest : public ServiceTest {
 protected:
  // The result of frame 1 with such landmarks in its header.
  v1::FrameResult Frame(const v1::NavigateConfig& config, const std::vector<v1::Landmark>* landmarks) {
    std::vector<v1::NavigateRequest> requests = FrameRequests(1, Grid(), MovingFrame(Grid(), 1));
    if (landmarks != nullptr) {
      v1::LandmarkList& list = *requests[0].mutable_frame()->mutable_landmarks();
      for (const v1::Landmark& each : *landmarks) *list.add_landmarks() = each;
    }
    v1::NavigateRequest opening;
    *opening.mutable_config() = config;
    requests.insert(requests.begin(), opening);
    grpc::ClientContext rpc;
    const auto stream = registration_->Navigate(&rpc);
    for (const v1::NavigateRequest& request : requests) EXPECT_TRUE(stream->Write(request));
    stream->WritesDone();
    v1::FrameResult result;
    v1::NavigateResponse response;
    while (stream->Read(&response)) {
      if (response.has_result()) result = response.result();
    }
    const grpc::Status status = stream->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(result.frame_number(), 1);
    return result;
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(FrameLandmarksTest);

TEST_P(FrameLandmarksTest, AFrameBringsItsOwnInThePlaceOfTheSessions) {
  PutVolume("resident", Grid(), ResidentImage());
  v1::NavigateConfig config = RigidConfig();
  const Vec3d center = Center(Grid());
  *config.mutable_options()->add_landmarks() = MakeLandmark(center, MapOfFrame(1)(center), 1);
  const v1::FrameResult of_session = Frame(config, nullptr);
  ASSERT_EQ(of_session.report().landmarks().distance_mm_size(), 1);
  const double agreed = of_session.report().landmarks().max_mm();
  EXPECT_LT(agreed, 0.5);

  const std::vector<v1::Landmark> others = {MakeLandmark(center, center + Vec3d{-6, 0, 0}, 0.1),
                                            MakeLandmark(center, center + Vec3d{-6, 0, 0}, 0.1)};
  const v1::FrameResult pulled = Frame(config, &others);
  ASSERT_EQ(pulled.report().landmarks().distance_mm_size(), 2);
  EXPECT_EQ(pulled.report().options().landmarks_size(), 2);
  EXPECT_LT(pulled.report().landmarks().max_mm(), 4);

  const std::vector<v1::Landmark> none;
  const v1::FrameResult without = Frame(config, &none);
  EXPECT_FALSE(without.report().has_landmarks());
  EXPECT_EQ(without.report().options().landmarks_size(), 0);

  const std::vector<v1::Landmark> wrong = {MakeLandmark(center, center, -1)};
  const v1::FrameResult refused = Frame(config, &wrong);
  EXPECT_EQ(refused.status().code(), static_cast<int>(grpc::StatusCode::INVALID_ARGUMENT));
  EXPECT_THAT(refused.status().message(), testing::StartsWith("frame.landmarks.landmarks[0].sigma_mm"));
}

}  // namespace
}  // namespace intrawarp::server
