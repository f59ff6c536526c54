// SPDX-License-Identifier: Apache-2.0
// Register over gRPC: what it finds, streams and reports.
#include "server/service/registration_service.h"

#include <grpcpp/generic/generic_stub.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "server/base/version.h"
#include "tests/server/registration/registration_fixture.h"
#include "tests/server/stages.h"
#include "tests/server/volume_client.h"

namespace intrawarp::server {
namespace {

AffineMap MapOf(const v1::AffineMap& matrix) { return *AffineMapFromProto(matrix); }

// The largest distance between two maps over the corners of a grid, mm.
double Distance(const AffineMap& a, const AffineMap& b, const Geometry& grid) {
  double largest = 0;
  for (int corner = 0; corner < 8; ++corner) {
    const Vec3d p = IndexToPhysical(grid)(
        {corner & 1 ? grid.size.x - 1.0 : 0, corner & 2 ? grid.size.y - 1.0 : 0, corner & 4 ? grid.size.z - 1.0 : 0});
    const Vec3d d = a(p) - b(p);
    largest = std::max(largest, std::sqrt(Dot(d, d)));
  }
  return largest;
}

INTRAWARP_INSTANTIATE_DEVICE_TEST(RegistrationServiceTest);

TEST_P(RegistrationServiceTest, IdenticalVolumesStayWhereTheyAre) {
  PutPair();
  v1::RegisterRequest request = Request();
  request.set_moving("volumes/fixed");
  const RegisterAnswer answer = Register(request);

  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  ASSERT_TRUE(answer.result.has_value());
  const v1::Report& report = answer.result->report();
  EXPECT_LT(Distance(MapOf(report.affine()), AffineMap::Identity(), FixedGrid()), 1e-3);
  EXPECT_EQ(report.before().mse(), 0);
  EXPECT_NEAR(report.after().ncc(), 1, 1e-6);
  EXPECT_GT(report.overlap(), 0.95);
  EXPECT_EQ(report.device(), GetParam());
  EXPECT_FALSE(answer.field.has_value());
  EXPECT_EQ(context().transforms.size(), 1);
}

// A plane of the fixed volume, as a slice with its pose.
TEST_P(RegistrationServiceTest, RegistersASliceToAVolume) {
  PutPair();
  Geometry slice = FixedGrid();
  slice.size.z = 1;
  slice.origin = IndexToPhysical(FixedGrid())({0, 0, 12});
  PutVolume("slice", slice, Blobs(slice, Center(FixedGrid()), kScale, TrueMap()));
  v1::RegisterRequest request = Request(StageKind::kRigid, v1::METRIC_SSD);
  request.set_fixed("volumes/slice");
  const RegisterAnswer rigid = Register(request);
  ASSERT_TRUE(rigid.status.ok()) << rigid.status.error_message();
  EXPECT_LT(Distance(MapOf(rigid.result->report().affine()), TrueMap(), slice), 0.5);
  EXPECT_NEAR(Determinant(MapOf(rigid.result->report().affine())), 1, 1e-6);

  request.mutable_options()->clear_stages();
  const RegisterAnswer chosen = Register(request);
  ASSERT_TRUE(chosen.status.ok()) << chosen.status.error_message();
  const v1::Report& report = chosen.result->report();
  ASSERT_EQ(report.options().stages_size(), 1);
  EXPECT_EQ(report.options().stages(0).rigid().metric(), v1::METRIC_NMI);
  EXPECT_FALSE(report.has_choice());
  EXPECT_GT(report.starts_size(), 0);
}

TEST_P(RegistrationServiceTest, TellsWhetherTheVolumesShareAFrameOfReference) {
  const auto put = [&](const std::string& id, const std::string& frame) {
    UploadData data = MakeVolume(FixedGrid(), Blobs(FixedGrid(), Center(FixedGrid()), kScale, TrueMap()), "u" + id, id);
    v1::Provenance& from = *data.header.mutable_volume()->mutable_provenance();
    from.set_source(v1::PROVENANCE_SOURCE_DICOM);
    from.set_modality("CT");
    from.set_frame_of_reference_hash(frame);
    v1::UploadResponse response;
    const grpc::Status status = server::Upload(*bulk_, data, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
  };
  put("here", std::string(32, 'a'));
  put("there", std::string(32, 'b'));
  put("unknown", "");
  const auto asked = [&](const std::string& fixed, const std::string& moving) {
    v1::RegisterRequest request = Request(StageKind::kRigid);
    request.set_fixed(fixed);
    request.set_moving(moving);
    const RegisterAnswer answer = Register(request);
    EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
    const v1::Report& report = answer.result->report();
    return report.has_same_frame_of_reference() ? std::optional<bool>(report.same_frame_of_reference()) : std::nullopt;
  };
  EXPECT_EQ(asked("volumes/here", "volumes/here"), true);
  EXPECT_EQ(asked("volumes/here", "volumes/there"), false);
  EXPECT_EQ(asked("volumes/here", "volumes/unknown"), std::nullopt);
  EXPECT_EQ(asked("volumes/unknown", "volumes/unknown"), std::nullopt);
}

TEST_P(RegistrationServiceTest, FindsAKnownMapAndReportsIt) {
  PutPair();
  for (const StageKind method : {StageKind::kRigid, StageKind::kAffine}) {
    for (const v1::Metric metric : {v1::METRIC_SSD, v1::METRIC_NGF}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(method)) + " " + v1::Metric_Name(metric));
      const RegisterAnswer answer = Register(Request(method, metric));

      ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
      const v1::Report& report = answer.result->report();
      EXPECT_LT(Distance(MapOf(report.affine()), TrueMap(), FixedGrid()), metric == v1::METRIC_SSD ? 0.25 : 0.5);
      ASSERT_EQ(report.stages_size(), 1);
      EXPECT_EQ(report.options().stages(0).method_case(), static_cast<v1::Stage::MethodCase>(method));
      EXPECT_EQ(MetricOf(report.options().stages(0)), metric);
      EXPECT_EQ(report.stages(0).stop_reason(), report.stop_reason());
      ASSERT_GT(report.stages(0).levels_size(), 0);
      EXPECT_EQ(report.stages(0).levels(report.stages(0).levels_size() - 1).size(0), FixedGrid().size.x);
      EXPECT_LT(report.after().mse(), 0.1 * report.before().mse());
      EXPECT_GT(report.after().ncc(), 0.99);
      EXPECT_GT(report.after().ncc(), report.before().ncc());
      EXPECT_GT(report.after().nmi(), report.before().nmi());
      EXPECT_GT(report.after().ssim(), report.before().ssim());
      EXPECT_GT(report.overlap(), 0.5);
      EXPECT_NEAR(report.jacobian().min(), 1, 0.05);
      EXPECT_EQ(report.jacobian().nonpositive_fraction(), 0);
      EXPECT_LT(report.inverse_consistency().max_mm(), 1e-6);
      EXPECT_EQ(report.verdict(), report.reasons().empty() ? v1::VERDICT_OK : v1::VERDICT_REVIEW);
      const v1::LatencyBreakdown& latency = report.latency();
      EXPECT_GT(latency.optimise_ms(), 0);
      EXPECT_GT(latency.assess_ms(), 0);
      EXPECT_GE(latency.total_ms(), latency.queue_ms() + latency.optimise_ms() + latency.assess_ms());
      EXPECT_EQ(latency.send_ms(), 0);
    }
  }
  EXPECT_TRUE(Scraped("intrawarp_registrations_total{class=\"register\",outcome=\"ok\"} 4"));
}

TEST_P(RegistrationServiceTest, PredictsTheErrorWhereItIsAsked) {
  PutPair();
  v1::RegisterRequest request = Request();
  const v1::Report plain = Register(request).result->report();
  EXPECT_FALSE(plain.has_error_map());
  EXPECT_EQ(plain.error_at_size(), 0);
  ASSERT_TRUE(plain.has_error());

  const Vec3d center = Center(FixedGrid());
  v1::ErrorRequest& error = *request.mutable_options()->mutable_error();
  error.set_map(true);
  for (const double coordinate : {center.x, center.y, center.z, center.x + 500, center.y, center.z}) {
    error.add_points(coordinate);
  }
  const v1::Report report = Register(request).result->report();
  EXPECT_EQ(report.error().SerializeAsString(), plain.error().SerializeAsString());
  const Geometry blocks = *GeometryFromProto(report.error_map().geometry());
  ASSERT_EQ(report.error_map().expected_mm_size(), blocks.voxels());
  ASSERT_EQ(report.error_map().bound_mm_size(), blocks.voxels());
  float most = 0;
  for (const float bound : report.error_map().bound_mm()) most = std::isnan(bound) ? most : std::max(most, bound);
  EXPECT_FLOAT_EQ(most, static_cast<float>(report.error().bound_max_mm()));
  ASSERT_EQ(report.error_at_size(), 2);
  EXPECT_LT(report.error_at(0).distance_mm(), 30);
  EXPECT_GT(report.error_at(1).distance_mm(), 400);
  for (const v1::PointError& at : report.error_at()) {
    EXPECT_GT(at.expected_mm(), 0);
    EXPECT_GE(at.bound_mm(), at.expected_mm());
  }
}

TEST_P(RegistrationServiceTest, NamesWhatIsWrongWithTheErrorThatIsAsked) {
  PutPair();
  v1::RegisterRequest request = Request();
  v1::ErrorRequest& error = *request.mutable_options()->mutable_error();
  error.add_points(1);
  ExpectRegisterError(request, grpc::INVALID_ARGUMENT, "three a point", "options.error.points");
  error.add_points(NAN);
  error.add_points(1);
  ExpectRegisterError(request, grpc::INVALID_ARGUMENT, "not finite", "options.error.points");
  error.mutable_points()->Resize(3 * 4097, 0);
  error.set_points(1, 0);
  ExpectRegisterError(request, grpc::INVALID_ARGUMENT, "1024", "options.error.points");
}

TEST_P(RegistrationServiceTest, AnUnspecifiedMetricIsSsd) {
  PutPair();
  const RegisterAnswer answer = Register(Request(StageKind::kRigid, v1::METRIC_UNSPECIFIED));

  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(MetricOf(answer.result->report().options().stages(0)), v1::METRIC_SSD);
}

TEST_P(RegistrationServiceTest, StreamsProgressThenTheFieldThenTheResult) {
  PutPair();
  v1::RegisterRequest request = Request();
  request.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);
  const RegisterAnswer answer = Register(request);

  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  ASSERT_FALSE(answer.progress.empty());
  for (size_t i = 1; i < answer.progress.size(); ++i) {
    EXPECT_GE(answer.progress[i].level(), answer.progress[i - 1].level());
  }
  EXPECT_LT(answer.progress.back().level(), answer.progress.back().levels());
  ASSERT_TRUE(answer.field.has_value());
  EXPECT_EQ(answer.field->encoding(), v1::FIELD_ENCODING_FLOAT32);
  EXPECT_EQ(answer.field->total_bytes(), 12 * FixedGrid().voxels());
  EXPECT_TRUE(*GeometryFromProto(answer.field->geometry()) == FixedGrid());
  const std::string id = answer.result->transform().substr(std::string("transforms/").size());
  EXPECT_TRUE(answer.chunks.floats() == EngineField(id, FixedGrid()));
  EXPECT_GT(answer.result->report().latency().encode_ms() + answer.result->report().latency().download_ms(), 0);

  grpc::ClientContext rpc;
  v1::GetTransformRequest get;
  v1::GetTransformResponse stored;
  get.set_name(answer.result->transform());
  ASSERT_TRUE(transforms_->GetTransform(&rpc, get, &stored).ok());
  EXPECT_EQ(stored.transform().report().SerializeAsString(), answer.result->report().SerializeAsString());
  EXPECT_EQ(stored.transform().affine().SerializeAsString(), answer.result->report().affine().SerializeAsString());
  EXPECT_TRUE(*GeometryFromProto(stored.transform().domain()) == FixedGrid());
}

TEST_P(RegistrationServiceTest, TheSameRequestGivesTheSameBits) {
  PutPair();
  const RegisterAnswer first = Register(Request()), second = Register(Request());

  ASSERT_TRUE(first.status.ok() && second.status.ok());
  EXPECT_EQ(first.result->report().affine().SerializeAsString(), second.result->report().affine().SerializeAsString());
  EXPECT_EQ(first.result->report().after().SerializeAsString(), second.result->report().after().SerializeAsString());
  EXPECT_NE(first.result->transform(), second.result->transform());
}

TEST_P(RegistrationServiceTest, AReportTellsItsOrigin) {
  PutPair();
  PutVolume("mask", FixedGrid(), std::vector<float>(static_cast<size_t>(FixedGrid().voxels()), 1), "digest of a mask");
  PutVolume("weight", MovingGrid(), std::vector<float>(static_cast<size_t>(MovingGrid().voxels()), 1),
            "digest of weights");
  v1::RegisterRequest request = Request();
  request.mutable_options()->set_fixed_mask("volumes/mask");
  request.mutable_options()->set_moving_weight("volumes/weight");
  const auto seconds_now = [] { return std::chrono::system_clock::to_time_t(std::chrono::system_clock::now()); };
  const int64_t before = seconds_now();
  const RegisterAnswer answer = Register(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  const v1::ReportProvenance& origin = answer.result->report().provenance();
  EXPECT_EQ(origin.server_version(), ThisBuild().version);
  EXPECT_EQ(origin.server_revision(), ThisBuild().revision);
  EXPECT_EQ(origin.fixed(), "volumes/fixed");
  EXPECT_EQ(origin.moving(), "volumes/moving");
  EXPECT_EQ(origin.fixed_digest(), "fixed");
  EXPECT_EQ(origin.moving_digest(), "moving");
  EXPECT_EQ(origin.fixed_mask_digest(), "digest of a mask");
  EXPECT_EQ(origin.moving_mask_digest(), "");
  EXPECT_EQ(origin.fixed_weight_digest(), "");
  EXPECT_EQ(origin.moving_weight_digest(), "digest of weights");
  const auto& received = origin.receive_time();
  const auto& reported = origin.report_time();
  EXPECT_LE(std::pair(received.seconds(), received.nanos()), std::pair(reported.seconds(), reported.nanos()));
  EXPECT_GE(received.seconds(), before - 1);
  EXPECT_LE(reported.seconds(), seconds_now() + 1);
}

TEST_P(RegistrationServiceTest, StagesFollowOneAnother) {
  PutPair();
  v1::RegisterRequest request = Request(StageKind::kRigid, v1::METRIC_NGF);
  SetLevels(*request.mutable_options()->mutable_stages(0), 1);
  SetIterations(*request.mutable_options()->mutable_stages(0), 2);
  SetMethod(*request.mutable_options()->add_stages(), StageKind::kAffine);
  const RegisterAnswer answer = Register(request);

  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  const v1::Report& report = answer.result->report();
  ASSERT_EQ(report.stages_size(), 2);
  EXPECT_EQ(report.stages(0).levels_size(), 1);
  EXPECT_LE(report.stages(0).levels(0).iterations(), 2);
  EXPECT_EQ(report.options().stages(1).method_case(), static_cast<v1::Stage::MethodCase>(StageKind::kAffine));
  EXPECT_EQ(report.stop_reason(), report.stages(1).stop_reason());
  EXPECT_LT(Distance(MapOf(report.affine()), TrueMap(), FixedGrid()), 0.25);
}

TEST_P(RegistrationServiceTest, StartsWhereItIsTold) {
  PutPair();
  v1::RegisterRequest request = Request(StageKind::kRigid);
  SetLevels(*request.mutable_options()->mutable_stages(0), 1);
  SetIterations(*request.mutable_options()->mutable_stages(0), 1);
  *request.mutable_options()->mutable_initial_affine() = AffineMapToProto(TrueMap());
  const RegisterAnswer from_matrix = Register(request);
  PutTransform("start", Transform(TrueMap()));
  request.mutable_options()->set_initial_transform("transforms/start");
  const RegisterAnswer from_transform = Register(request);

  ASSERT_TRUE(from_matrix.status.ok() && from_transform.status.ok()) << from_matrix.status.error_message();
  // One iteration would not bring it here from anywhere else.
  EXPECT_LT(Distance(MapOf(from_matrix.result->report().affine()), TrueMap(), FixedGrid()), 0.1);
  EXPECT_EQ(from_matrix.result->report().affine().SerializeAsString(),
            from_transform.result->report().affine().SerializeAsString());
}

TEST_P(RegistrationServiceTest, SearchesItsStartAndReportsTheCandidates) {
  // Turned by 130 degrees about the z axis.
  const double c = std::cos(130 * M_PI / 180), s = std::sin(130 * M_PI / 180);
  AffineMap turn = AffineMap::Identity();
  turn.m[0][0] = turn.m[1][1] = c;
  turn.m[0][1] = -s;
  turn.m[1][0] = s;
  const Vec3d center = Center(FixedGrid()), shift = center - turn(center);
  for (int r = 0; r < 3; ++r) turn.m[r][3] = shift[r];
  PutVolume("fixed", FixedGrid(), Blobs(FixedGrid(), center, kScale, turn));
  PutVolume("moving", MovingGrid(), Blobs(MovingGrid(), center, kScale, AffineMap::Identity()));
  v1::RegisterRequest request = Request(StageKind::kRigid);
  const RegisterAnswer found = Register(request);
  *request.mutable_options()->mutable_initial_affine() = AffineMapToProto(turn);
  const RegisterAnswer given = Register(request);

  ASSERT_TRUE(found.status.ok() && given.status.ok()) << found.status.error_message();
  const v1::Report& report = found.result->report();
  EXPECT_LT(Distance(MapOf(report.affine()), turn, FixedGrid()), 0.25);
  ASSERT_GT(report.starts_size(), 1);
  EXPECT_EQ(report.starts(0).kind(), v1::START_KIND_ROTATION);
  EXPECT_EQ(report.starts(report.starts_size() - 1).kind(), v1::START_KIND_MIRRORED);
  EXPECT_LT(report.starts(0).score_after(), report.starts(0).score_before());
  EXPECT_GT(report.starts(0).overlap(), 0.9);
  EXPECT_LT(Distance(MapOf(report.starts(0).end()), turn, FixedGrid()), 3);
  EXPECT_GT(report.start_margin(), 0.1);
  EXPECT_EQ(given.result->report().starts_size(), 0);
  EXPECT_FALSE(given.result->report().has_start_margin());
}

TEST_P(RegistrationServiceTest, MirroredImagesAreForReview) {
  const Vec3d center = Center(FixedGrid());
  AffineMap mirror = AffineMap::Identity();
  mirror.m[0][0] = -1;
  mirror.m[0][3] = 2 * center.x;
  PutVolume("fixed", FixedGrid(), Blobs(FixedGrid(), center, kScale, mirror));
  PutVolume("moving", MovingGrid(), Blobs(MovingGrid(), center, kScale, AffineMap::Identity()));
  const RegisterAnswer answer = Register(Request(StageKind::kRigid));

  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  const v1::Report& report = answer.result->report();
  EXPECT_EQ(report.verdict(), v1::VERDICT_REVIEW);
  EXPECT_FALSE(report.affine_shape().mirrors());
  const auto mirrored = std::find_if(report.reasons().begin(), report.reasons().end(), [](const v1::VerdictReason& r) {
    return r.cause() == v1::VERDICT_CAUSE_MIRRORED;
  });
  ASSERT_NE(mirrored, report.reasons().end());
  EXPECT_EQ(mirrored->message(), "mirrored images");
  EXPECT_GT(mirrored->value(), mirrored->limit());
}

// As a mask, and as weights of 0 and 1.
TEST_P(RegistrationServiceTest, MasksAndWeightsSelectWhatCounts) {
  PutPair();
  // Everything in one half of the fixed image is wrong, and masked out.
  std::vector<float> voxels = Blobs(FixedGrid(), Center(FixedGrid()), kScale, TrueMap());
  std::vector<float> mask(voxels.size(), 1.0f);
  const std::vector<float> noise = RandomFloats(voxels.size(), 3, 0, 300);
  for (size_t i = 0; i < voxels.size(); ++i) {
    if (static_cast<int>(i % FixedGrid().size.x) >= FixedGrid().size.x / 3) continue;
    voxels[i] = noise[i];
    mask[i] = 0;
  }
  PutVolume("broken", FixedGrid(), voxels);
  PutVolume("fixed_mask", FixedGrid(), mask);
  PutVolume("moving_mask", MovingGrid(), std::vector<float>(MovingGrid().voxels(), 7.0f));
  v1::RegisterRequest request = Request();
  request.set_fixed("volumes/broken");
  request.mutable_options()->set_fixed_mask("volumes/fixed_mask");
  request.mutable_options()->set_moving_mask("volumes/moving_mask");
  v1::RegisterRequest weighed = request;
  weighed.mutable_options()->set_fixed_weight(request.options().fixed_mask());
  weighed.mutable_options()->clear_fixed_mask();
  for (const v1::RegisterRequest& asked : {request, weighed}) {
    const RegisterAnswer answer = Register(asked);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    EXPECT_LT(Distance(MapOf(answer.result->report().affine()), TrueMap(), FixedGrid()), 0.2);
    EXPECT_GT(answer.result->report().after().ncc(), 0.99);
    EXPECT_EQ(answer.result->report().options().fixed_weight(), asked.options().fixed_weight());
  }
}

TEST_P(RegistrationServiceTest, RegistersImagesOfOnePlane) {
  Geometry grid;
  grid.size = {64, 56, 1};
  grid.spacing = {1.5, 1.25, 3};
  AffineMap shift = AffineMap::Identity();
  shift.m[0][3] = 4;
  shift.m[1][3] = -3;
  PutVolume("fixed", grid, Blobs(grid, Center(grid), kScale, shift));
  PutVolume("moving", grid, Blobs(grid, Center(grid), kScale, AffineMap::Identity()));
  v1::RegisterRequest request = Request(StageKind::kRigid);
  request.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);
  const RegisterAnswer answer = Register(request);

  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_LT(Distance(MapOf(answer.result->report().affine()), shift, grid), 0.05);
  const std::vector<float> field = answer.chunks.floats();
  ASSERT_EQ(field.size(), 3 * grid.voxels());
  EXPECT_NEAR(field[0], 4, 0.05);
  EXPECT_NEAR(field[1], -3, 0.05);
  EXPECT_NEAR(field[2], 0, 1e-4);
}

TEST_P(RegistrationServiceTest, ABudgetEndsTheOptimisation) {
  PutPair();
  v1::RegisterRequest request = Request();
  request.mutable_options()->mutable_budget()->set_nanos(1);
  ExpectRegisterError(request, grpc::DEADLINE_EXCEEDED, "options.budget: ", "options.budget");
  EXPECT_TRUE(Scraped("intrawarp_registrations_total{class=\"register\",outcome=\"deadline_missed\"} 1"));

  request.mutable_options()->set_best_effort(true);
  const RegisterAnswer answer = Register(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.result->report().stop_reason(), v1::STOP_REASON_BUDGET);
  EXPECT_EQ(answer.result->report().verdict(), v1::VERDICT_REVIEW);
  std::vector<v1::VerdictCause> causes;
  for (const v1::VerdictReason& reason : answer.result->report().reasons()) causes.push_back(reason.cause());
  EXPECT_THAT(causes, testing::Contains(v1::VERDICT_CAUSE_NOT_CONVERGED));
  EXPECT_EQ(causes.back(), v1::VERDICT_CAUSE_LATE) << "the whole answer took more than a nanosecond";
  EXPECT_DOUBLE_EQ(answer.result->report().reasons().rbegin()->limit(), 1e-6);
  EXPECT_TRUE(Scraped("intrawarp_registration_nonconverged_total{reason=\"budget\"} 1"));

  request.mutable_options()->mutable_budget()->set_seconds(3600);
  const RegisterAnswer ample = Register(request);
  ASSERT_TRUE(ample.status.ok()) << ample.status.error_message();
  EXPECT_NE(ample.result->report().stop_reason(), v1::STOP_REASON_BUDGET);
  for (const v1::VerdictReason& reason : ample.result->report().reasons()) {
    EXPECT_NE(reason.cause(), v1::VERDICT_CAUSE_LATE);
  }
}

}  // namespace
}  // namespace intrawarp::server
