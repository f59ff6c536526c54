// SPDX-License-Identifier: Apache-2.0
// FFD over the wire: control grids and dense fields in every encoding, region and stride, grids that a client brings
// back, and what is wrong with requests.
#include <cmath>
#include <limits>

#include "engine/transform/control_grid.h"
#include "tests/server/registration/native_form_fixture.h"
#include "tests/server/stages.h"

namespace intrawarp::server {
namespace {

constexpr auto kInvalid = grpc::INVALID_ARGUMENT;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// The centred cubic B-spline.
double Spline(double t) {
  t = std::abs(t);
  if (t < 1) return 2.0 / 3 - t * t + t * t * t / 2;
  return t < 2 ? (2 - t) * (2 - t) * (2 - t) / 6 : 0;
}

// A(p + u(p)) - p from what travels, by all terms of the sum.
Vec3d Displacement(const v1::FieldHeader& header, const std::vector<float>& coefficients, const Vec3d& p) {
  const Geometry grid = *GeometryFromProto(header.geometry());
  const Vec3d at = PhysicalToIndex(grid)(p);
  Vec3d moved = p;
  size_t i = 0;
  for (int z = 0; z < grid.size.z; ++z) {
    for (int y = 0; y < grid.size.y; ++y) {
      for (int x = 0; x < grid.size.x; ++x, i += 3) {
        const double weight = Spline(at.x - x) * Spline(at.y - y) * Spline(at.z - z);
        for (int c = 0; c < 3; ++c) moved[c] += weight * coefficients[i + c];
      }
    }
  }
  return (*AffineMapFromProto(header.affine()))(moved)-p;
}

class FfdServiceTest : public NativeFormTest {
 protected:
  FfdServiceTest() : NativeFormTest("ffd", v1::FIELD_ENCODING_CONTROL_POINTS) {}
  static v1::RegisterRequest Request(v1::Metric metric = v1::METRIC_SSD) {
    v1::RegisterRequest request = AffineThen(StageKind::kFfd);
    SetMetric(*request.mutable_options()->mutable_stages(1), metric);
    return request;
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(FfdServiceTest);

TEST_P(FfdServiceTest, GivesItsControlPoints) {
  PutPair();
  v1::RegisterRequest request = Request(v1::METRIC_UNSPECIFIED);
  request.mutable_field()->set_encoding(v1::FIELD_ENCODING_CONTROL_POINTS);
  const RegisterAnswer answer = Register(request);

  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  const v1::Report& report = answer.result->report();
  ASSERT_EQ(report.stages_size(), 2);
  EXPECT_EQ(report.options().stages(1).method_case(), static_cast<v1::Stage::MethodCase>(StageKind::kFfd));
  EXPECT_EQ(MetricOf(report.options().stages(1)), v1::METRIC_NMI);
  EXPECT_GT(report.after().ncc(), report.before().ncc());
  EXPECT_GT(report.jacobian().min(), 0);
  EXPECT_LT(report.jacobian().min(), 0.999);
  EXPECT_FALSE(report.has_inverse_consistency());
  ASSERT_TRUE(answer.field.has_value());
  const v1::FieldHeader& header = *answer.field;
  EXPECT_EQ(header.encoding(), v1::FIELD_ENCODING_CONTROL_POINTS);
  EXPECT_EQ(header.scale(), 0);
  EXPECT_EQ(header.max_error_mm(), 0);
  EXPECT_EQ(header.affine().SerializeAsString(), report.affine().SerializeAsString());
  EXPECT_TRUE(*GeometryFromProto(header.domain()) == FixedGrid());
  const Geometry grid = *GeometryFromProto(header.geometry());
  EXPECT_TRUE(grid == *MakeControlGrid(FixedGrid(), 5 * FixedGrid().spacing));
  EXPECT_EQ(header.total_bytes(), 12 * grid.voxels());
  EXPECT_EQ(answer.chunks.bytes().size(), 12 * grid.voxels());

  const std::string id = Id(answer.result->transform());
  const v1::Transform stored = Get(id);
  EXPECT_EQ(stored.kind(), v1::TRANSFORM_KIND_CONTROL_GRID);
  EXPECT_TRUE(*GeometryFromProto(stored.control_grid()) == grid);
  EXPECT_TRUE(*GeometryFromProto(stored.domain()) == FixedGrid());
  EXPECT_EQ(stored.affine().SerializeAsString(), header.affine().SerializeAsString());
  EXPECT_EQ(stored.resident_bytes(), 12 * grid.voxels());
  EXPECT_EQ(stored.report().SerializeAsString(), report.SerializeAsString());
  const Download again = GetNative(id);
  ASSERT_TRUE(again.status.ok()) << again.status.error_message();
  EXPECT_EQ(again.field->SerializeAsString(), header.SerializeAsString());
  EXPECT_TRUE(again.chunks.bytes() == answer.chunks.bytes());
}

TEST_P(FfdServiceTest, SlidingTellsItsSecondLayer) {
  PutPair();
  v1::RegisterRequest request = Request();
  const RegisterAnswer plain = Register(request);
  request.mutable_options()->mutable_stages(1)->mutable_ffd()->set_sliding(true);
  const RegisterAnswer sliding = Register(request);

  ASSERT_TRUE(plain.status.ok()) << plain.status.error_message();
  ASSERT_TRUE(sliding.status.ok()) << sliding.status.error_message();
  EXPECT_FALSE(plain.result->report().stages(1).has_second_layer_fraction());
  const v1::Report& report = sliding.result->report();
  EXPECT_FALSE(report.stages(0).has_second_layer_fraction());
  ASSERT_TRUE(report.stages(1).has_second_layer_fraction());
  EXPECT_GE(report.stages(1).second_layer_fraction(), 0);
  EXPECT_LT(report.stages(1).second_layer_fraction(), 1);
}

TEST_P(FfdServiceTest, ControlPointsAreTheField) {
  const std::string id = RegisteredId(Request());
  const Download points = GetNative(id), dense = GetField(WholeField(id));

  ASSERT_TRUE(points.status.ok() && dense.status.ok());
  const std::vector<float> field = dense.chunks.floats(), coefficients = points.chunks.floats();
  const Geometry fixed = FixedGrid();
  ASSERT_EQ(field.size(), 3 * fixed.voxels());
  EXPECT_TRUE(field == EngineField(id, fixed));
  double largest = 0;
  for (int64_t i = 0; i < fixed.voxels(); i += 97) {
    const Vec3d index{double(i % fixed.size.x), double(i / fixed.size.x % fixed.size.y),
                      double(i / fixed.size.x / fixed.size.y)};
    const Vec3d d = Displacement(*points.field, coefficients, IndexToPhysical(fixed)(index));
    for (int c = 0; c < 3; ++c) EXPECT_NEAR(field[3 * i + c], d[c], 1e-4) << i;
    largest = std::max(largest, std::abs(d.x));
  }
  EXPECT_GT(largest, 0.5);
}

TEST_P(FfdServiceTest, SmallEncodingsKeepTheirBoundAndAreTheRegistrationsField) {
  PutPair();
  for (const v1::FieldEncoding encoding : {v1::FIELD_ENCODING_FLOAT16, v1::FIELD_ENCODING_INT16}) {
    v1::RegisterRequest request = Request();
    request.mutable_field()->set_encoding(encoding);
    const RegisterAnswer answer = Register(request);

    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    EXPECT_EQ(answer.field->encoding(), encoding);
    EXPECT_EQ(answer.field->total_bytes(), 6 * FixedGrid().voxels());
    EXPECT_EQ(answer.field->scale() > 0, encoding == v1::FIELD_ENCODING_INT16);
    EXPECT_GT(answer.field->max_error_mm(), 0);
    EXPECT_LT(answer.field->max_error_mm(), encoding == v1::FIELD_ENCODING_INT16 ? 1e-3 : 2e-2);
    const std::string id = Id(answer.result->transform()), bytes = answer.chunks.bytes();
    const std::vector<float> expected = EngineField(id, FixedGrid());
    ASSERT_EQ(bytes.size(), 2 * expected.size());
    double worst = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      double value = 0;
      if (encoding == v1::FIELD_ENCODING_INT16) {
        int16_t number;
        std::memcpy(&number, bytes.data() + 2 * i, 2);
        value = number * answer.field->scale();
      } else {
        _Float16 number;
        std::memcpy(&number, bytes.data() + 2 * i, 2);
        value = static_cast<double>(number);
      }
      worst = std::max(worst, std::abs(value - expected[i]));
    }
    EXPECT_LE(worst, answer.field->max_error_mm());
    EXPECT_GT(worst, 0);
    v1::DownloadRequest download = WholeField(id);
    download.mutable_field()->set_encoding(encoding);
    const Download again = GetField(download);
    EXPECT_EQ(again.field->SerializeAsString(), answer.field->SerializeAsString());
    EXPECT_TRUE(again.chunks.bytes() == bytes);
  }
}

TEST_P(FfdServiceTest, ARegionAndAStrideArePartsOfTheField) {
  PutPair();
  const Int3 start{3, 7, 2}, size{27, 30, 13}, stride{2, 1, 5};
  v1::RegisterRequest request = Request();
  v1::FieldRequest& field = *request.mutable_field();
  field.set_encoding(v1::FIELD_ENCODING_FLOAT32);
  for (int a = 0; a < 3; ++a) {
    field.add_region_start(start[a]);
    field.add_region_size(size[a]);
    field.add_stride(stride[a]);
  }
  const RegisterAnswer answer = Register(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  const std::string id = Id(answer.result->transform());
  v1::DownloadRequest download = WholeField(id);
  *download.mutable_field() = field;
  const Download again = GetField(download);
  ASSERT_TRUE(again.status.ok()) << again.status.error_message();
  EXPECT_EQ(again.field->SerializeAsString(), answer.field->SerializeAsString());
  EXPECT_TRUE(again.chunks.bytes() == answer.chunks.bytes());

  const Int3 expected{14, 30, 3};
  EXPECT_EQ(GeometryFromProto(answer.field->geometry())->size, expected);
  ExpectPart(answer.chunks.floats(), EngineField(id, FixedGrid()), start, stride, expected);
}

TEST_P(FfdServiceTest, ControlPointsBroughtBackAreTheSameTransform) {
  const std::string id = RegisteredId(Request());
  const Download points = ExpectTheSameBroughtBack(id);
  std::vector<double> at;
  for (int i = 0; i < 40; ++i) {
    const Vec3d p = IndexToPhysical(FixedGrid())({4.0 + i % 25, 5.0 + i * 0.7, 4.0 + i % 11});
    for (int a = 0; a < 3; ++a) at.push_back(p[a]);
  }
  const std::vector<double> there = MapPoints(id, false, at);
  EXPECT_EQ(MapPoints("again", false, at), there);
  for (size_t i = 0; i < at.size(); i += 3) {
    const Vec3d p{at[i], at[i + 1], at[i + 2]}, d = Displacement(*points.field, points.chunks.floats(), p);
    for (int a = 0; a < 3; ++a) EXPECT_NEAR(there[i + a], p[a] + d[a], 1e-4);
  }
  const std::vector<double> home = MapPoints(id, true, there);
  EXPECT_EQ(MapPoints("again", true, there), home);
  EXPECT_THAT(home, testing::Pointwise(testing::DoubleNear(1e-3), at));
}

TEST_P(FfdServiceTest, AGridWithoutADomainNeedsAGridToBeEvaluatedOn) {
  const v1::FieldHeader header = NativeHeader({5, 4, 6});
  const std::vector<float> coefficients = RandomFloats(3 * 5 * 4 * 6, 9, -2, 2);
  ASSERT_TRUE(Send(NativeRequests("g", header, Bytes(coefficients))).status.ok());

  EXPECT_FALSE(Get("g").has_domain());
  EXPECT_FALSE(GetNative("g").field->has_domain());
  EXPECT_EQ(FieldOf(GetField(WholeField("g")).status), "geometry");
  v1::DownloadRequest request = WholeField("g");
  // Across the edge of the spline's domain, and not in its direction.
  Geometry grid = ObliqueGeometry({9, 8, 7}, /*left_handed=*/true);
  grid.origin = Center(*GeometryFromProto(header.geometry())) + Vec3d{3, 0, 0};
  *request.mutable_geometry() = GeometryToProto(grid);
  const Download download = GetField(request);
  ASSERT_TRUE(download.status.ok()) << download.status.error_message();
  EXPECT_TRUE(download.chunks.floats() == EngineField("g", grid));
  v1::DownloadRequest control_points = request;
  control_points.mutable_field()->set_encoding(v1::FIELD_ENCODING_CONTROL_POINTS);
  EXPECT_EQ(FieldOf(GetField(control_points).status), "geometry");
}

TEST_P(FfdServiceTest, StartsFromAnEarlierGrid) { ExpectToStartFromAnEarlierOne(Request()); }

TEST_P(FfdServiceTest, RegistersImagesOfOnePlane) {
  const RegisterAnswer answer = ExpectImagesOfOnePlaneRegistered(Request());
  ASSERT_TRUE(answer.status.ok());
  EXPECT_GE(answer.field->geometry().size(0), 4);
}

TEST_P(FfdServiceTest, ABudgetThatEndsAtOnceStillGivesWhatWasAskedFor) {
  PutPair();
  const RegisterAnswer answer = ExpectABudgetThatEndsAtOnce(Request());
  ASSERT_TRUE(answer.status.ok());
  // The grid of the coarsest level is smaller than the one that room had been made for.
  const int64_t bytes = Get(Id(answer.result->transform())).resident_bytes();
  EXPECT_GT(bytes, 0);
  EXPECT_TRUE(Eventually([&] { return context().ledger.in_use(Resource::kResident) == bytes; }));

  // An earlier grid is not lost.
  v1::RegisterRequest request = Request();
  request.mutable_field()->set_encoding(v1::FIELD_ENCODING_CONTROL_POINTS);
  const RegisterAnswer good = Register(request);
  ASSERT_TRUE(good.status.ok()) << good.status.error_message();
  request.mutable_options()->set_initial_transform(good.result->transform());
  request.mutable_options()->mutable_budget()->set_nanos(1);
  request.mutable_options()->set_best_effort(true);
  const RegisterAnswer late = Register(request);
  ASSERT_TRUE(late.status.ok()) << late.status.error_message();
  EXPECT_EQ(late.field->affine().SerializeAsString(), good.field->affine().SerializeAsString());
  EXPECT_TRUE(*GeometryFromProto(late.field->geometry()) == *GeometryFromProto(good.field->geometry()));
  EXPECT_THAT(late.chunks.floats(), testing::Pointwise(testing::FloatNear(1e-4f), good.chunks.floats()));
}

TEST_P(FfdServiceTest, EveryMetricAndOptimizerRuns) {
  PutPair();
  for (const v1::Metric metric : {v1::METRIC_SSD, v1::METRIC_NGF, v1::METRIC_NMI, v1::METRIC_LNCC, v1::METRIC_MIND}) {
    for (const v1::Optimizer optimizer : {v1::OPTIMIZER_LBFGS, v1::OPTIMIZER_CONJUGATE_GRADIENT}) {
      SCOPED_TRACE(v1::Metric_Name(metric) + " " + v1::Optimizer_Name(optimizer));
      v1::RegisterRequest request = Request(metric);
      v1::Stage& stage = *request.mutable_options()->mutable_stages(1);
      stage.mutable_ffd()->set_optimizer(optimizer);
      stage.mutable_ffd()->set_spacing_vox(6.5);
      stage.mutable_ffd()->set_bending_weight(0.01);
      stage.mutable_ffd()->set_elasticity_weight(0.01);
      stage.mutable_ffd()->set_jacobian_weight(0.02);
      stage.mutable_ffd()->set_total_variation_weight(0.03);
      const RegisterAnswer answer = Register(request), again = Register(request);

      ASSERT_TRUE(answer.status.ok() && again.status.ok()) << answer.status.error_message();
      const v1::Report& report = answer.result->report();
      EXPECT_EQ(MetricOf(report.options().stages(1)), metric);
      EXPECT_EQ(report.options().stages(1).ffd().total_variation_weight(), 0.03);
      const v1::LevelReport& finest = report.stages(1).levels(report.stages(1).levels_size() - 1);
      EXPECT_LT(finest.value_after(), finest.value_before());
      const auto first = GetNative(Id(answer.result->transform()));
      EXPECT_TRUE(first.chunks.bytes() == GetNative(Id(again.result->transform())).chunks.bytes());
      EXPECT_TRUE(*GeometryFromProto(first.field->geometry()) ==
                  *MakeControlGrid(FixedGrid(), 6.5 * FixedGrid().spacing));
    }
  }
}

TEST_P(FfdServiceTest, NamesWhatIsWrongWithAStage) {
  PutPair();
  const auto expect = [&](const std::function<void(v1::Stage&)>& change, const std::string& field) {
    ExpectStageError(Request(), change, field);
  };
  for (const double spacing : {0.5, kNan, -1.0, 1e9, HUGE_VAL, 0.999}) {
    expect([&](v1::Stage& s) { s.mutable_ffd()->set_spacing_vox(spacing); }, "spacing_vox");
  }
  for (const double weight : {kNan, -0.5, HUGE_VAL}) {
    expect([&](v1::Stage& s) { s.mutable_ffd()->set_bending_weight(weight); }, "bending_weight");
    expect([&](v1::Stage& s) { s.mutable_ffd()->set_elasticity_weight(weight); }, "elasticity_weight");
    expect([&](v1::Stage& s) { s.mutable_ffd()->set_jacobian_weight(weight); }, "jacobian_weight");
    expect([&](v1::Stage& s) { s.mutable_ffd()->set_total_variation_weight(weight); }, "total_variation_weight");
  }
  const auto unknown = [&](const std::function<void(v1::FfdStage&)>& change, const std::string& field) {
    v1::RegisterRequest request = Request();
    change(*request.mutable_options()->mutable_stages(1)->mutable_ffd());
    ExpectRegisterError(request, grpc::UNIMPLEMENTED, "value", "options.stages[1].ffd." + field);
  };
  v1::RegisterRequest sliding = Request(v1::METRIC_NMI);
  sliding.mutable_options()->mutable_stages(1)->mutable_ffd()->set_sliding(true);
  ExpectRegisterError(sliding, grpc::UNIMPLEMENTED, "metric ssd", "options.stages[1].ffd.sliding");
  unknown([](v1::FfdStage& s) { s.set_optimizer(v1::Optimizer(7)); }, "optimizer");
  unknown([](v1::FfdStage& s) { s.set_metric(v1::Metric(-3)); }, "metric");
  v1::RegisterRequest request = Request();
  request.mutable_options()->mutable_stages()->SwapElements(0, 1);
  ExpectRegisterError(request, kInvalid, "the method of the stage before", "options.stages[1].method");

  EXPECT_TRUE(Register(Request()).status.ok());
}

TEST_P(FfdServiceTest, NamesWhatIsWrongWithAFieldRequest) {
  PutPair();
  const auto expect = [&](const std::function<void(v1::FieldRequest&)>& change, const std::string& field) {
    v1::RegisterRequest request = Request();
    request.mutable_field()->set_encoding(v1::FIELD_ENCODING_INT16);
    change(*request.mutable_field());
    ExpectRegisterError(request, kInvalid, "field." + field + ": ", "field." + field);
  };
  const auto set = [](google::protobuf::RepeatedField<int64_t>* to, std::vector<int64_t> values) {
    to->Assign(values.begin(), values.end());
  };
  const auto region = [&](std::vector<int64_t> start, std::vector<int64_t> size) {
    return [=](v1::FieldRequest& f) {
      set(f.mutable_region_start(), start);
      set(f.mutable_region_size(), size);
    };
  };
  const auto stride = [&](std::vector<int64_t> values) {
    return [=](v1::FieldRequest& f) { set(f.mutable_stride(), values); };
  };
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  expect([](v1::FieldRequest& f) { f.clear_encoding(); }, "encoding");
  expect([](v1::FieldRequest& f) { f.set_encoding(v1::FieldEncoding(-1)); }, "encoding");
  expect(region({0, 0, 18}, {1, 1, 1}), "region_start");
  expect(region({0, -1, 0}, {1, 1, 1}), "region_start");
  expect(region({kHuge, 0, 0}, {1, 1, 1}), "region_start");
  expect(region({0, 0}, {1, 1, 1}), "region_start");
  expect(region({1, 0, 0}, {33, 1, 1}), "region_size");
  expect(region({0, 0, 0}, {1, 0, 1}), "region_size");
  expect(region({0, 0, 0}, {1, 1, kHuge}), "region_size");
  expect(region({0, 0, 0}, {}), "region_size");
  expect(stride({0, 1, 1}), "stride");
  expect(stride({1, -2, 1}), "stride");
  expect(stride({1, 1, kHuge}), "stride");
  expect(stride({2}), "stride");
  expect(
      [&](v1::FieldRequest& f) {
        f.set_encoding(v1::FIELD_ENCODING_CONTROL_POINTS);
        stride({1, 1, 1})(f);
      },
      "stride");
  v1::RegisterRequest affine = Request();
  affine.mutable_options()->mutable_stages()->RemoveLast();
  affine.mutable_field()->set_encoding(v1::FIELD_ENCODING_CONTROL_POINTS);
  ExpectRegisterError(affine, kInvalid, "CONTROL_POINTS come from ffd", "field.encoding");

  // A stride of more voxels than there are leaves the first ones.
  v1::RegisterRequest coarse = Request();
  coarse.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);
  stride({16384, 16384, 16384})(*coarse.mutable_field());
  const RegisterAnswer answer = Register(coarse);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.field->total_bytes(), 12);
}

TEST_P(FfdServiceTest, ControlPointsOfAnAffineTransformAreRefused) {
  PutTransform("m", Transform(AffineMap::Identity(), FixedGrid()));
  const Download download = GetNative("m");
  EXPECT_STATUS(download.status, grpc::FAILED_PRECONDITION, "field.encoding: transforms/m has no CONTROL_POINTS");
  EXPECT_FALSE(download.field.has_value());
}

TEST_P(FfdServiceTest, RefusesGridsThatAreNone) {
  const v1::FieldHeader good = NativeHeader({5, 4, 6});
  const std::vector<float> coefficients = RandomFloats(3 * 5 * 4 * 6, 9, -2, 2);
  const auto expect = [&](const std::function<void(v1::FieldHeader&)>& change, const std::string& field) {
    ExpectHeaderError(good, coefficients, change, field);
  };
  const auto size = [](int64_t x, int64_t y, int64_t z) {
    return [=](v1::FieldHeader& h) {
      int a = 0;
      for (const int64_t n : {x, y, z}) h.mutable_geometry()->set_size(a++, n);
    };
  };
  expect(size(5, 4, 7), "total_bytes");
  expect([](v1::FieldHeader& h) { h.set_total_bytes(-1); }, "total_bytes");
  expect([](v1::FieldHeader& h) { h.set_total_bytes(std::numeric_limits<int64_t>::max()); }, "total_bytes");
  for (const int64_t nodes : {0, 2, 3}) {
    expect(size(nodes, 4, 6), "geometry.size");
    expect(size(5, nodes, 6), "geometry.size");
    expect(size(5, 4, nodes), "geometry.size");
  }
  expect(size(1, 1, 1), "geometry.size");
  expect(size(16384, 16384, 16384), "geometry.size");
  expect(size(int64_t{1} << 40, int64_t{1} << 40, 4), "geometry.size");
  expect([](v1::FieldHeader& h) { h.mutable_geometry()->set_spacing(1, kNan); }, "geometry.spacing");
  expect([](v1::FieldHeader& h) { h.mutable_geometry()->set_origin(0, HUGE_VAL); }, "geometry.origin");
  expect([](v1::FieldHeader& h) { h.clear_geometry(); }, "geometry.size");
  expect([](v1::FieldHeader& h) { h.clear_affine(); }, "affine.values");
  expect([](v1::FieldHeader& h) { h.mutable_affine()->set_values(0, 0); }, "affine.values");
  expect([](v1::FieldHeader& h) { h.mutable_affine()->set_values(3, kNan); }, "affine.values");
  expect([](v1::FieldHeader& h) { h.mutable_domain(); }, "domain.size");
  for (const v1::FieldEncoding encoding : {v1::FIELD_ENCODING_FLOAT16, v1::FIELD_ENCODING_INT16}) {
    expect([=](v1::FieldHeader& h) { h.set_encoding(encoding); }, "encoding");
  }
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> broken = coefficients;
    broken.back() = bad;
    const grpc::Status status = Send(NativeRequests("g", good, Bytes(broken))).status;
    EXPECT_STATUS(status, kInvalid, "NaN or infinite");
    EXPECT_EQ(FieldOf(status), "field");
  }
  EXPECT_EQ(context().transforms.size(), 0);
  EXPECT_TRUE(Eventually([this] { return context().ledger.in_use(Resource::kResident) == 0; }));
  // A plane of control points belongs to a 2-D image.
  EXPECT_TRUE(Send(NativeRequests("plane", NativeHeader({5, 4, 1}), Bytes(RandomFloats(60, 3)))).status.ok());
  EXPECT_TRUE(Send(NativeRequests("g", good, Bytes(coefficients))).status.ok());
}

TEST_P(FfdServiceTest, NamesWhatIsWrongWithTheImages) {
  PutPair();
  const Geometry fixed = FixedGrid(), moving = MovingGrid();
  const auto low_side = [](const Geometry& grid) {
    std::vector<float> mask(grid.voxels());
    for (int64_t i = 0; i < grid.voxels(); ++i) mask[i] = i % grid.size.x < 8;
    return mask;
  };
  PutVolume("constant", moving, std::vector<float>(moving.voxels(), 3.0f));
  // The fixed grid is left-handed: its low side is the moving one's high side.
  PutVolume("here", fixed, low_side(fixed));
  PutVolume("there", moving, low_side(moving));
  std::vector<float> few(fixed.voxels(), 0.0f);
  for (int i = 0; i < 63; ++i) few[9000 + i] = 1;
  PutVolume("few", fixed, few);
  Geometry tiny = fixed;
  tiny.size = {3, 3, 3};
  PutVolume("tiny", tiny, RandomFloats(27, 4));
  const auto with = [](const std::function<void(v1::RegisterRequest&)>& change, v1::Metric metric) {
    v1::RegisterRequest request = Request(metric);
    request.mutable_options()->mutable_stages()->DeleteSubrange(0, 1);
    *request.mutable_options()->mutable_initial_affine() = AffineMapToProto(AffineMap::Identity());
    change(request);
    return request;
  };
  const auto kFailed = grpc::FAILED_PRECONDITION;
  for (const v1::Metric metric : {v1::METRIC_SSD, v1::METRIC_NGF, v1::METRIC_NMI, v1::METRIC_LNCC, v1::METRIC_MIND}) {
    SCOPED_TRACE(v1::Metric_Name(metric));
    ExpectRegisterError(with([](auto& r) { r.set_moving("volumes/constant"); }, metric), kFailed, "constant", "moving");
    ExpectRegisterError(with([](auto& r) { r.set_fixed("volumes/constant"); }, metric), kFailed, "constant", "fixed");
    ExpectRegisterError(with(
                            [](auto& r) {
                              r.mutable_options()->set_fixed_mask("volumes/here");
                              r.mutable_options()->set_moving_mask("volumes/there");
                            },
                            metric),
                        kFailed, "overlap", "");
    EXPECT_TRUE(Register(with([](auto&) {}, metric)).status.ok());
  }
  ExpectRegisterError(with([](auto& r) { r.mutable_options()->set_fixed_mask("volumes/few"); }, v1::METRIC_NMI),
                      kFailed, "nmi needs 64", "options.fixed_mask");
  ExpectRegisterError(with(
                          [](auto& r) {
                            r.set_fixed("volumes/tiny");
                            r.mutable_options()->mutable_stages(0)->mutable_ffd()->set_spacing_vox(2);
                          },
                          v1::METRIC_NMI),
                      kFailed, "nmi needs 64", "fixed");
  ExpectRegisterError(with(
                          [](auto& r) {
                            r.set_fixed("volumes/tiny");
                            r.mutable_options()->mutable_stages(0)->mutable_ffd()->set_spacing_vox(9);
                          },
                          v1::METRIC_SSD),
                      kInvalid, "coarser than the image", "options.stages[0].ffd.spacing_vox");
}

}  // namespace
}  // namespace intrawarp::server
