// SPDX-License-Identifier: Apache-2.0
// Log-demons over the wire: velocities and the fields made of them, forward and back, velocities that a client brings
// back, and what is wrong with requests.
#include <cmath>
#include <limits>

#include "tests/server/registration/native_form_fixture.h"
#include "tests/server/stages.h"

namespace intrawarp::server {
namespace {

constexpr auto kInvalid = grpc::INVALID_ARGUMENT;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// v at a point inside the grid, linear between voxels.
Vec3d VelocityAt(const Geometry& grid, const std::vector<float>& v, const Vec3d& p) {
  const Vec3d at = PhysicalToIndex(grid)(p);
  Vec3d sum{0, 0, 0};
  for (int corner = 0; corner < 8; ++corner) {
    double weight = 1;
    int64_t voxel = 0;
    for (int a = 2; a >= 0; --a) {
      const int last = grid.size[a] - 1;
      const double clamped = std::clamp(at[a], 0.0, double(last));
      const int low = std::min(int(clamped), std::max(last - 1, 0));
      const int upper = (corner >> a) & 1;
      weight *= upper ? clamped - low : 1 - (clamped - low);
      voxel = voxel * grid.size[a] + std::min(low + upper, last);
    }
    for (int c = 0; c < 3; ++c) sum[c] += weight * v[3 * voxel + c];
  }
  return sum;
}

// exp(sign v)(p): the flow for a unit of time, by small steps of Heun's method.
Vec3d Flow(const Geometry& grid, const std::vector<float>& v, Vec3d p, double sign) {
  constexpr int kSteps = 256;
  for (int i = 0; i < kSteps; ++i) {
    const Vec3d first = VelocityAt(grid, v, p);
    const Vec3d second = VelocityAt(grid, v, p + (sign / kSteps) * first);
    p = p + (sign / (2 * kSteps)) * (first + second);
  }
  return p;
}

double Length(const Vec3d& d) { return std::sqrt(Dot(d, d)); }

// Well inside the fixed grid, x y z of each.
std::vector<double> InnerPoints(const Geometry& grid) {
  std::vector<double> points;
  for (int i = 0; i < 60; ++i) {
    const Vec3d p = IndexToPhysical(grid)({5.5 + i % 22, 6.0 + i * 0.45, 5.0 + i % 8});
    for (int a = 0; a < 3; ++a) points.push_back(p[a]);
  }
  return points;
}
Vec3d PointOf(const std::vector<double>& points, size_t i) {
  return {points[3 * i], points[3 * i + 1], points[3 * i + 2]};
}

class DemonsServiceTest : public NativeFormTest {
 protected:
  explicit DemonsServiceTest(const ServerLimits& limits = ServerLimits())
      : NativeFormTest("log_demons", v1::FIELD_ENCODING_VELOCITY, limits) {}
  static v1::RegisterRequest Request() {
    v1::RegisterRequest request = AffineThen(StageKind::kLogDemons);
    SetIterations(*request.mutable_options()->mutable_stages(1), 15);
    return request;
  }
  // Log-demons alone, from the identity.
  static v1::RegisterRequest DeformableRequest() {
    v1::RegisterRequest request = Request();
    request.mutable_options()->mutable_stages()->DeleteSubrange(0, 1);
    *request.mutable_options()->mutable_initial_affine() = AffineMapToProto(AffineMap::Identity());
    return request;
  }
  static v1::LogDemonsStage& Demons(v1::RegisterRequest& request) {
    return *request.mutable_options()->mutable_stages(1)->mutable_log_demons();
  }
  static double VoxelMm() { return std::cbrt(FixedGrid().spacing.x * FixedGrid().spacing.y * FixedGrid().spacing.z); }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(DemonsServiceTest);

TEST_P(DemonsServiceTest, GivesItsVelocity) {
  PutPair();
  v1::RegisterRequest request = Request();
  request.mutable_field()->set_encoding(v1::FIELD_ENCODING_VELOCITY);
  const RegisterAnswer answer = Register(request);

  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  const v1::Report& report = answer.result->report();
  ASSERT_EQ(report.stages_size(), 2);
  EXPECT_EQ(report.options().stages(1).method_case(), static_cast<v1::Stage::MethodCase>(StageKind::kLogDemons));
  EXPECT_EQ(MetricOf(report.options().stages(1)), v1::METRIC_SSD);
  ASSERT_EQ(report.stages(1).levels_size(), 2);
  EXPECT_LT(report.stages(1).levels(1).value_after(), report.stages(1).levels(1).value_before());
  EXPECT_GT(report.after().ncc(), report.before().ncc());
  EXPECT_GT(report.jacobian().min(), 0);
  EXPECT_LT(report.jacobian().min(), 0.999);
  EXPECT_EQ(report.jacobian().nonpositive_fraction(), 0);
  ASSERT_TRUE(report.has_inverse_consistency());
  EXPECT_GT(report.inverse_consistency().mean_mm(), 0);
  EXPECT_LT(report.inverse_consistency().mean_mm(), 0.05 * VoxelMm());
  EXPECT_GE(report.inverse_consistency().max_mm(), report.inverse_consistency().mean_mm());
  ASSERT_TRUE(answer.field.has_value());
  const v1::FieldHeader& header = *answer.field;
  EXPECT_EQ(header.encoding(), v1::FIELD_ENCODING_VELOCITY);
  EXPECT_EQ(header.scale(), 0);
  EXPECT_EQ(header.max_error_mm(), 0);
  EXPECT_FALSE(header.has_domain());
  EXPECT_EQ(header.affine().SerializeAsString(), report.affine().SerializeAsString());
  EXPECT_TRUE(*GeometryFromProto(header.geometry()) == FixedGrid());
  EXPECT_EQ(header.total_bytes(), 12 * FixedGrid().voxels());
  EXPECT_EQ(answer.chunks.bytes().size(), 12 * FixedGrid().voxels());

  const std::string id = Id(answer.result->transform());
  const v1::Transform stored = Get(id);
  EXPECT_EQ(stored.kind(), v1::TRANSFORM_KIND_VELOCITY);
  EXPECT_TRUE(*GeometryFromProto(stored.domain()) == FixedGrid());
  EXPECT_FALSE(stored.has_control_grid());
  EXPECT_EQ(stored.affine().SerializeAsString(), header.affine().SerializeAsString());
  // v, exp(v) and exp(-v).
  EXPECT_EQ(stored.resident_bytes(), 36 * FixedGrid().voxels());
  EXPECT_GE(context().ledger.in_use(Resource::kResident), stored.resident_bytes());
  EXPECT_EQ(stored.report().SerializeAsString(), report.SerializeAsString());
  const Download again = GetNative(id);
  ASSERT_TRUE(again.status.ok()) << again.status.error_message();
  EXPECT_EQ(again.field->SerializeAsString(), header.SerializeAsString());
  EXPECT_TRUE(again.chunks.bytes() == answer.chunks.bytes());
}

TEST_P(DemonsServiceTest, TheFieldIsTheFlowOfTheVelocityAndTheInverseThatOfMinusIt) {
  const std::string id = RegisteredId(Request());
  const Download velocity = GetNative(id), dense = GetField(WholeField(id));

  ASSERT_TRUE(velocity.status.ok() && dense.status.ok()) << velocity.status.error_message();
  const Geometry fixed = FixedGrid();
  const std::vector<float> v = velocity.chunks.floats(), field = dense.chunks.floats();
  const AffineMap affine = *AffineMapFromProto(velocity.field->affine()), back = Inverse(affine);
  ASSERT_EQ(field.size(), v.size());
  EXPECT_TRUE(field == EngineField(id, fixed));
  const std::vector<double> at = InnerPoints(fixed), there = MapPoints(id, false, at);
  const std::vector<double> home = MapPoints(id, true, there);
  double largest = 0;
  for (size_t i = 0; 3 * i < at.size(); ++i) {
    const Vec3d p = PointOf(at, i), q = PointOf(there, i);
    const Vec3d flown = Flow(fixed, v, p, 1);
    EXPECT_LT(Length(affine(flown) - q), 0.05 * VoxelMm()) << i;
    EXPECT_LT(Length(Flow(fixed, v, back(q), -1) - PointOf(home, i)), 0.05 * VoxelMm()) << i;
    EXPECT_LT(Length(PointOf(home, i) - p), 0.1 * VoxelMm()) << i;
    largest = std::max(largest, Length(flown - p));
  }
  EXPECT_GT(largest, 0.5);
  // The field agrees with the points.
  const Int3 n = fixed.size;
  for (int64_t i = 0; i < fixed.voxels(); i += 101) {
    const Vec3d p = IndexToPhysical(fixed)({double(i % n.x), double(i / n.x % n.y), double(i / n.x / n.y)});
    const std::vector<double> mapped = MapPoints(id, false, {p.x, p.y, p.z});
    for (int c = 0; c < 3; ++c) ASSERT_NEAR(field[3 * i + c], mapped[c] - p[c], 1e-3) << i;
  }
}

TEST_P(DemonsServiceTest, EveryEncodingRegionAndStrideIsPartOfTheSameField) {
  const std::string id = RegisteredId(Request());
  const Int3 start{3, 7, 2}, size{27, 30, 13}, stride{2, 1, 5}, expected{14, 30, 3};
  for (const v1::FieldEncoding encoding : {v1::FIELD_ENCODING_FLOAT32, v1::FIELD_ENCODING_FLOAT16,
                                           v1::FIELD_ENCODING_INT16, v1::FIELD_ENCODING_VELOCITY}) {
    SCOPED_TRACE(v1::FieldEncoding_Name(encoding));
    const bool is_velocity = encoding == v1::FIELD_ENCODING_VELOCITY;
    v1::DownloadRequest request = WholeField(id);
    v1::FieldRequest& field = *request.mutable_field();
    field.set_encoding(encoding);
    for (int a = 0; a < 3; ++a) {
      field.add_region_start(start[a]);
      field.add_region_size(size[a]);
      field.add_stride(stride[a]);
    }
    const Download part = GetField(request);
    ASSERT_TRUE(part.status.ok()) << part.status.error_message();
    EXPECT_EQ(GeometryFromProto(part.field->geometry())->size, expected);
    EXPECT_EQ(part.field->has_affine(), is_velocity);
    const bool is_small = encoding == v1::FIELD_ENCODING_FLOAT16 || encoding == v1::FIELD_ENCODING_INT16;
    ASSERT_EQ(part.chunks.bytes().size(), (is_small ? 6 : 12) * 14 * 30 * 3);
    EXPECT_EQ(part.field->max_error_mm() > 0, is_small);
    if (is_small) continue;
    ExpectPart(part.chunks.floats(), is_velocity ? GetNative(id).chunks.floats() : EngineField(id, FixedGrid()), start,
               stride, expected);
  }
}

TEST_P(DemonsServiceTest, AVelocityBroughtBackIsTheSameTransform) {
  const std::string id = RegisteredId(Request());
  ExpectTheSameBroughtBack(id);
  const std::vector<double> at = InnerPoints(FixedGrid()), there = MapPoints(id, false, at);
  EXPECT_EQ(MapPoints("again", false, at), there);
  EXPECT_EQ(MapPoints("again", true, there), MapPoints(id, true, there));
  // Device memory of both is counted, and given back.
  const int64_t used = context().ledger.in_use(Resource::kResident);
  ASSERT_TRUE(context().transforms.Erase("again").ok());
  EXPECT_TRUE(
      Eventually([&] { return context().ledger.in_use(Resource::kResident) == used - 36 * FixedGrid().voxels(); }));
}

// On half the grid the velocity is not quite the earlier one.
TEST_P(DemonsServiceTest, StartsFromAnEarlierVelocity) {
  v1::RegisterRequest request = Request();
  request.mutable_options()->mutable_stages(1)->mutable_log_demons()->set_velocity_grid(v1::VELOCITY_GRID_FULL);
  ExpectToStartFromAnEarlierOne(request);
}

TEST_P(DemonsServiceTest, ADeformableMethodDoesNotStartFromTheOther) {
  PutPair();
  const RegisterAnswer demons = Register(Request()), ffd = Register(AffineThen(StageKind::kFfd));
  ASSERT_TRUE(demons.status.ok() && ffd.status.ok()) << demons.status.error_message() << ffd.status.error_message();
  v1::RegisterRequest request = Request();
  request.mutable_options()->set_initial_transform(ffd.result->transform());
  EXPECT_STATUS(Register(request).status, grpc::UNIMPLEMENTED, "options.initial_transform: ");
  request = AffineThen(StageKind::kFfd);
  request.mutable_options()->set_initial_transform(demons.result->transform());
  EXPECT_STATUS(Register(request).status, grpc::UNIMPLEMENTED, "options.initial_transform: ");
  // The affine part serves a stage that needs no more.
  request.mutable_options()->mutable_stages()->RemoveLast();
  EXPECT_TRUE(Register(request).status.ok());
}

TEST_P(DemonsServiceTest, RegistersImagesOfOnePlane) {
  ASSERT_TRUE(ExpectImagesOfOnePlaneRegistered(DeformableRequest()).status.ok());
}

TEST_P(DemonsServiceTest, ABudgetThatEndsAtOnceStillGivesWhatWasAskedFor) {
  PutPair();
  ASSERT_TRUE(ExpectABudgetThatEndsAtOnce(Request()).status.ok());

  // An earlier velocity is not lost.
  v1::RegisterRequest request = Request();
  request.mutable_field()->set_encoding(v1::FIELD_ENCODING_VELOCITY);
  const RegisterAnswer good = Register(request);
  ASSERT_TRUE(good.status.ok()) << good.status.error_message();
  request.mutable_options()->set_initial_transform(good.result->transform());
  request.mutable_options()->mutable_stages()->DeleteSubrange(0, 1);
  request.mutable_options()->mutable_budget()->set_nanos(1);
  request.mutable_options()->set_best_effort(true);
  const RegisterAnswer late = Register(request);
  ASSERT_TRUE(late.status.ok()) << late.status.error_message();
  EXPECT_EQ(late.field->affine().SerializeAsString(), good.field->affine().SerializeAsString());
  const std::vector<float> had = good.chunks.floats(), has = late.chunks.floats();
  ASSERT_EQ(has.size(), had.size());
  double difference = 0, size = 0;
  for (size_t i = 0; i < had.size(); ++i) {
    difference += (has[i] - had[i]) * (has[i] - had[i]);
    size += had[i] * had[i];
  }
  EXPECT_GT(size, 0);
  EXPECT_LT(difference, 0.01 * size);
}

TEST_P(DemonsServiceTest, EveryOptionRunsAndRepeatsItself) {
  PutPair();
  std::vector<std::function<void(v1::Stage&)>> options = {
      [](v1::Stage& s) { s.mutable_log_demons()->set_symmetric(true); },
      [](v1::Stage& s) { s.mutable_log_demons()->set_match_intensities(true); },
      [](v1::Stage& s) { s.mutable_log_demons()->set_velocity_grid(v1::VELOCITY_GRID_HALF); },
      [](v1::Stage& s) { s.mutable_log_demons()->set_fluid_sigma(0); },
      [](v1::Stage& s) { s.mutable_log_demons()->set_diffusion_sigma(0.5); },
      [](v1::Stage& s) { s.mutable_log_demons()->set_max_step(0.5); },
      [](v1::Stage& s) { SetMetric(s, v1::METRIC_SSD); }};
  for (const v1::VelocityUpdate update :
       {v1::VELOCITY_UPDATE_ADD, v1::VELOCITY_UPDATE_COMPOSE, v1::VELOCITY_UPDATE_BCH}) {
    options.push_back([update](v1::Stage& s) { s.mutable_log_demons()->set_velocity_update(update); });
  }
  v1::RegisterRequest plain = Request();
  const RegisterAnswer usual = Register(plain);
  ASSERT_TRUE(usual.status.ok()) << usual.status.error_message();
  const std::string usual_bytes = GetNative(Id(usual.result->transform())).chunks.bytes();
  for (size_t i = 0; i < options.size(); ++i) {
    SCOPED_TRACE(i);
    v1::RegisterRequest request = plain;
    options[i](*request.mutable_options()->mutable_stages(1));
    const RegisterAnswer answer = Register(request), again = Register(request);
    ASSERT_TRUE(answer.status.ok() && again.status.ok()) << answer.status.error_message();
    const v1::LevelReport& finest = answer.result->report().stages(1).levels(1);
    // Where intensities are matched anew at every level, the values belong to different images.
    if (!Demons(request).match_intensities()) {
      EXPECT_LT(finest.value_after(), finest.value_before());
    }
    const std::string bytes = GetNative(Id(answer.result->transform())).chunks.bytes();
    EXPECT_TRUE(bytes == GetNative(Id(again.result->transform())).chunks.bytes());
    const bool is_default =
        Demons(request).metric() == v1::METRIC_SSD || Demons(request).velocity_update() == v1::VELOCITY_UPDATE_COMPOSE;
    EXPECT_EQ(bytes == usual_bytes, is_default);
  }
}

TEST_P(DemonsServiceTest, NamesWhatIsWrongWithAStage) {
  PutPair();
  const auto expect = [&](const std::function<void(v1::Stage&)>& change, const std::string& field) {
    ExpectStageError(Request(), change, field);
  };
  for (const double sigma : {kNan, -0.5, 64.5, HUGE_VAL}) {
    expect([&](v1::Stage& s) { s.mutable_log_demons()->set_fluid_sigma(sigma); }, "fluid_sigma");
    expect([&](v1::Stage& s) { s.mutable_log_demons()->set_diffusion_sigma(sigma); }, "diffusion_sigma");
  }
  for (const double step : {kNan, -0.5, 0.0, 100.5, HUGE_VAL}) {
    expect([&](v1::Stage& s) { s.mutable_log_demons()->set_max_step(step); }, "max_step");
  }
  v1::RegisterRequest unknown = Request();
  Demons(unknown).set_velocity_update(v1::VelocityUpdate(7));
  ExpectRegisterError(unknown, grpc::UNIMPLEMENTED, "7", "options.stages[1].log_demons.velocity_update");
  for (const v1::Metric metric : {v1::METRIC_NGF, v1::METRIC_NMI, v1::METRIC_LNCC}) {
    v1::RegisterRequest request = Request();
    Demons(request).set_metric(metric);
    EXPECT_STATUS(Register(request).status, grpc::UNIMPLEMENTED, "options.stages[1].log_demons.metric: ");
  }
  expect([](v1::Stage& s) { SetLevels(s, 17); }, "levels");
  expect([](v1::Stage& s) { SetIterations(s, -1); }, "iterations");
  for (const StageKind after : {StageKind::kAffine, StageKind::kFfd}) {
    v1::RegisterRequest request = Request();
    v1::Stage& last = *request.mutable_options()->add_stages();
    SetMethod(last, after);
    SetMetric(last, v1::METRIC_SSD);
    ExpectRegisterError(request, kInvalid, "options.stages[2].method: ", "options.stages[2].method");
  }

  EXPECT_TRUE(Register(Request()).status.ok());
}

TEST_P(DemonsServiceTest, AVelocityComesFromLogDemonsAlone) {
  PutPair();
  v1::RegisterRequest request = AffineThen(StageKind::kFfd);
  request.mutable_field()->set_encoding(v1::FIELD_ENCODING_VELOCITY);
  ExpectRegisterError(request, kInvalid, "VELOCITY comes from log_demons", "field.encoding");
  request = Request();
  request.mutable_field()->set_encoding(v1::FIELD_ENCODING_CONTROL_POINTS);
  ExpectRegisterError(request, kInvalid, "CONTROL_POINTS come from ffd", "field.encoding");
  PutTransform("m", Transform(AffineMap::Identity(), FixedGrid()));
  const Download download = GetNative("m");
  EXPECT_STATUS(download.status, grpc::FAILED_PRECONDITION, "field.encoding: transforms/m has no VELOCITY");
  EXPECT_FALSE(download.field.has_value());
  const RegisterAnswer answer = Register(Request());
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_STATUS(GetEncoded(Id(answer.result->transform()), v1::FIELD_ENCODING_CONTROL_POINTS).status,
                grpc::FAILED_PRECONDITION, "has no CONTROL_POINTS");
}

TEST_P(DemonsServiceTest, RefusesVelocitiesThatAreNone) {
  const Int3 size{5, 4, 6};
  const v1::FieldHeader good = NativeHeader(size);
  const std::vector<float> velocity = RandomFloats(3 * 5 * 4 * 6, 9, -2, 2);
  const auto expect = [&](const std::function<void(v1::FieldHeader&)>& change, const std::string& field) {
    ExpectHeaderError(good, velocity, change, field);
  };
  expect([](v1::FieldHeader& h) { h.mutable_geometry()->set_size(2, 7); }, "total_bytes");
  expect([](v1::FieldHeader& h) { h.set_total_bytes(std::numeric_limits<int64_t>::max()); }, "total_bytes");
  expect([](v1::FieldHeader& h) { h.mutable_geometry()->set_size(0, int64_t{1} << 40); }, "geometry.size");
  expect([](v1::FieldHeader& h) { h.mutable_geometry()->set_spacing(1, kNan); }, "geometry.spacing");
  expect([](v1::FieldHeader& h) { h.clear_geometry(); }, "geometry.size");
  expect([](v1::FieldHeader& h) { h.clear_affine(); }, "affine.values");
  expect([](v1::FieldHeader& h) { h.mutable_affine()->set_values(0, 0); }, "affine.values");
  expect([](v1::FieldHeader& h) { *h.mutable_domain() = h.geometry(); }, "domain");
  expect([](v1::FieldHeader& h) { h.set_encoding(v1::FieldEncoding(6)); }, "encoding");
  constexpr float kInf = std::numeric_limits<float>::infinity(), kMost = std::numeric_limits<float>::max();
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInf, kMost, -kMost, 1e5f}) {
    std::vector<float> broken = velocity;
    broken.back() = bad;
    const grpc::Status status = Send(NativeRequests("v", good, Bytes(broken))).status;
    EXPECT_STATUS(status, kInvalid, "field: holds a component");
    EXPECT_EQ(FieldOf(status), "field");
  }
  // A client that stops half way.
  auto half = NativeRequests("v", good, Bytes(velocity));
  *half.back().mutable_chunk() = MakeChunk(0, half.back().chunk().data().substr(0, 100));
  EXPECT_STATUS(Send(half).status, kInvalid, "the stream ended after 100 of");
  EXPECT_EQ(context().transforms.size(), 0);
  EXPECT_TRUE(Eventually([this] { return context().ledger.in_use(Resource::kStreams) == 0; }));
  context().uploads.Clear();
  EXPECT_TRUE(Eventually([this] { return context().ledger.in_use(Resource::kResident) == 0; }));
  // A single voxel and a plane are grids, too; without motion nothing moves.
  EXPECT_TRUE(Send(NativeRequests("voxel", NativeHeader({1, 1, 1}), Bytes({1, -2, 3}))).status.ok());
  EXPECT_TRUE(Send(NativeRequests("plane", NativeHeader({5, 4, 1}), Bytes(std::vector<float>(60)))).status.ok());
  EXPECT_THAT(GetField(WholeField("plane")).chunks.floats(), testing::Each(0.0f));
  EXPECT_TRUE(Send(NativeRequests("v", good, Bytes(velocity))).status.ok());
}

TEST_P(DemonsServiceTest, NamesWhatIsWrongWithTheImages) {
  PutPair();
  const Geometry fixed = FixedGrid(), moving = MovingGrid();
  PutVolume("constant", moving, std::vector<float>(moving.voxels(), 3.0f));
  PutVolume("empty", fixed, std::vector<float>(fixed.voxels(), 0.0f));
  AffineMap far = AffineMap::Identity();
  far.m[0][3] = 5000;
  const auto expect = [&](const std::function<void(v1::RegisterRequest&)>& change, const std::string& text,
                          const std::string& field) {
    v1::RegisterRequest request = Request();
    request.mutable_options()->mutable_stages()->DeleteSubrange(0, 1);
    request.mutable_field()->set_encoding(v1::FIELD_ENCODING_VELOCITY);
    change(request);
    ExpectRegisterError(request, grpc::FAILED_PRECONDITION, text, field);
  };
  expect([](auto& r) { r.set_moving("volumes/constant"); }, "constant", "moving");
  expect([](auto& r) { r.set_fixed("volumes/empty"); }, "constant", "fixed");
  expect([](auto& r) { r.mutable_options()->set_fixed_mask("volumes/empty"); }, "selects no", "options.fixed_mask");
  expect([&](auto& r) { *r.mutable_options()->mutable_initial_affine() = AffineMapToProto(far); }, "overlap", "");
}

class CrowdedDemonsServiceTest : public DemonsServiceTest {
 protected:
  static ServerLimits Limits() {
    ServerLimits limits;
    limits.resident_capacity_bytes = 72 * FixedGrid().voxels() - 1;
    return limits;
  }
  CrowdedDemonsServiceTest() : DemonsServiceTest(Limits()) {}
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(CrowdedDemonsServiceTest);

// Not when all the work is done.
TEST_P(CrowdedDemonsServiceTest, AResultWithoutRoomIsRefusedBeforeItIsMade) {
  PutPair();
  v1::RegisterRequest request = Request();
  request.mutable_field()->set_encoding(v1::FIELD_ENCODING_VELOCITY);
  const RegisterAnswer first = Register(request), second = Register(request);
  ASSERT_TRUE(first.status.ok()) << first.status.error_message();
  EXPECT_STATUS(second.status, grpc::RESOURCE_EXHAUSTED, "resident_memory");
  EXPECT_TRUE(second.progress.empty());
  EXPECT_FALSE(second.field.has_value());
  EXPECT_EQ(context().ledger.in_use(Resource::kResident), 36 * FixedGrid().voxels());
  ASSERT_TRUE(context().transforms.Erase(Id(first.result->transform())).ok());
  EXPECT_TRUE(Eventually([this] { return context().ledger.in_use(Resource::kResident) == 0; }));
  EXPECT_TRUE(Register(request).status.ok());
}

}  // namespace
}  // namespace intrawarp::server
