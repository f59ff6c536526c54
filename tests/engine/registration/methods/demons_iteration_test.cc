// SPDX-License-Identifier: Apache-2.0
// Iterations on every device against the operators of vector_field.h, which have tests of their own, one after another
// on the CPU; the smoothing of the force against float64.
#include "engine/registration/methods/demons_iteration.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "engine/device/recording.h"
#include "engine/transform/vector_field.h"
#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

size_t Voxels(Int3 size) { return size_t{1} * size.x * size.y * size.z; }

std::vector<float> Waves(Int3 size, float phase, float noise, uint32_t seed) {
  std::vector<float> values = RandomFloats(Voxels(size), seed, -noise, noise);
  size_t i = 0;
  for (int z = 0; z < size.z; ++z)
    for (int y = 0; y < size.y; ++y)
      for (int x = 0; x < size.x; ++x) {
        values[i++] += std::sin(0.31f * x + phase) + std::cos(0.27f * y - 0.2f * z + phase) + std::sin(0.23f * z + x);
      }
  return values;
}

std::vector<float> SmoothVelocity(Int3 size, float amplitude) {
  std::vector<float> v;
  for (int z = 0; z < size.z; ++z)
    for (int y = 0; y < size.y; ++y)
      for (int x = 0; x < size.x; ++x) {
        v.push_back(amplitude * std::sin(0.2f * y + 0.1f * z));
        v.push_back(amplitude * std::cos(0.15f * x - 0.1f * z));
        v.push_back(size.z > 1 ? amplitude * std::sin(0.12f * z + 0.1f * x) : 0);
      }
  return v;
}

// From 25 to 245, and little different between neighbours, where a rounding can decide which is nearest.
std::vector<uint8_t> SmoothWeights(Int3 size, float phase) {
  std::vector<uint8_t> bytes;
  for (int z = 0; z < size.z; ++z)
    for (int y = 0; y < size.y; ++y)
      for (int x = 0; x < size.x; ++x) {
        const float wave = std::sin(0.05f * x + phase) * std::cos(0.04f * y - 0.03f * z);
        bytes.push_back(static_cast<uint8_t>(135 + 110 * wave));
      }
  return bytes;
}

// Convolved along an axis with a Gaussian cut at ceil(3 sigma), over what is inside.
std::vector<double> Smoothed(const std::vector<double>& in, Int3 size, int axis, double sigma) {
  const int radius = static_cast<int>(std::ceil(3 * sigma));
  const int64_t strides[3] = {1, size.x, int64_t{size.x} * size.y};
  std::vector<double> out;
  for (int z = 0; z < size.z; ++z)
    for (int y = 0; y < size.y; ++y)
      for (int x = 0; x < size.x; ++x) {
        const int at = Int3{x, y, z}[axis];
        double sum = 0, weights = 0;
        for (int k = std::max(-radius, -at); k <= std::min(radius, size[axis] - 1 - at); ++k) {
          const double weight = k == 0 ? 1 : std::exp(-0.5 * k * k / (sigma * sigma));
          sum += weight * in[out.size() + k * strides[axis]];
          weights += weight;
        }
        out.push_back(sum / weights);
      }
  return out;
}

// A force on a coarser grid: the means over the voxels whose centres lie in one of its voxels, N in its voxels.
std::vector<float> CoarseForce(const std::vector<float>& force, Int3 size, Int3 coarse) {
  const size_t n = Voxels(size), m = Voxels(coarse);
  std::vector<double> sums(4 * m), counts(m);
  size_t i = 0;
  for (int z = 0; z < size.z; ++z)
    for (int y = 0; y < size.y; ++y)
      for (int x = 0; x < size.x; ++x, ++i) {
        const auto cell = [&](int at, int axis) { return (2 * at + 1) * coarse[axis] / (2 * size[axis]); };
        const size_t to = (size_t{1} * cell(z, 2) * coarse.y + cell(y, 1)) * coarse.x + cell(x, 0);
        counts[to] += 1;
        sums[3 * m + to] += force[3 * n + i];
        for (int c = 0; c < 3; ++c) sums[3 * to + c] += force[3 * i + c] * double(coarse[c]) / size[c];
      }
  std::vector<float> means(4 * m);
  for (size_t k = 0; k < m; ++k) {
    for (int c = 0; c < 3; ++c) means[3 * k + c] = static_cast<float>(sums[3 * k + c] / counts[k]);
    means[3 * m + k] = static_cast<float>(sums[3 * m + k] / counts[k]);
  }
  return means;
}

// The vectors of a force (demons_step.h): N and D smoothed apart, then divided.
std::vector<float> SmoothedForce(const std::vector<float>& force, Int3 size, Vec3d sigma) {
  const size_t n = Voxels(size);
  const auto smoothed = [&](const std::function<float(size_t)>& value) {
    std::vector<double> values(n);
    for (size_t i = 0; i < n; ++i) values[i] = value(i);
    for (int axis = 0; axis < 3; ++axis) values = Smoothed(values, size, axis, sigma[axis]);
    return values;
  };
  const std::vector<double> denominators = smoothed([&](size_t i) { return force[3 * n + i]; });
  std::vector<float> u(3 * n);
  for (int c = 0; c < 3; ++c) {
    const std::vector<double> numerators = smoothed([&](size_t i) { return force[3 * i + c]; });
    for (size_t i = 0; i < n; ++i) {
      u[3 * i + c] = denominators[i] > 1e-9 ? static_cast<float>(numerators[i] / denominators[i]) : 0.0f;
    }
  }
  return u;
}

struct Problem {
  Int3 size, moving_size;
  // The velocity's grid.
  Int3 velocity_size;
  AffineMap from_fixed = AffineMap::Identity();
  float amplitude = 3;
  double fluid_sigma = 3, diffusion_sigma = 2;
  VelocityUpdate update = VelocityUpdate::kCompose;
  bool symmetric = false;
  bool half_fields = false;
  float momentum = 0;
  int iterations = 2;
  // Images with weights (SmoothWeights).
  bool fixed_weights = false, moving_weights = false;
};

struct Outcome {
  std::vector<float> velocity;
  DemonsState state;
};

Problem OfSize(Int3 size) {
  Problem p;
  p.size = p.velocity_size = size;
  p.moving_size = {size.x + 3, size.y + 1, size.z > 1 ? size.z + 2 : 1};
  p.from_fixed.m[0][0] = 1.02;
  p.from_fixed.m[0][1] = 0.03;
  p.from_fixed.m[1][3] = 0.7;
  return p;
}

class DemonsIterationTest : public DeviceTest {
 protected:
  // The images and fields of a problem in this device's memory.
  struct Loaded {
    DemonsIteration step;
    DemonsFields fields;
  };
  Loaded Load(const Problem& p) {
    const size_t n = Voxels(p.size), m = Voxels(p.velocity_size);
    Loaded l;
    std::vector<float> fixed = Waves(p.size, 0, 0.05f, 1), moving = Waves(p.moving_size, 0.4f, 0.05f, 2);
    // Voxels that are not samples.
    if (n > 1000) fixed[n / 2] = fixed[n / 3] = moving[n / 2] = NAN;
    l.step.force.size = p.size;
    l.step.force.force_size = p.velocity_size;
    l.step.force.sides = {0.9f, 1, 1.1f};
    l.step.fixed = Upload(fixed);
    l.step.moving = {Upload(moving), p.moving_size, p.from_fixed};
    l.step.symmetric = p.symmetric;
    l.step.moving_on_fixed = Poisoned<float>(n);
    l.step.warped = Poisoned<float>(n);
    if (p.fixed_weights) l.step.fixed_weights = {Upload(SmoothWeights(p.size, 0.3f)), kWeightPerUnit};
    if (p.moving_weights) l.step.moving.weights = {Upload(SmoothWeights(p.moving_size, 1.9f)), kWeightPerUnit};
    l.step.weights_on_fixed = Poisoned<uint8_t>(n);
    l.step.warped_weights = Poisoned<uint8_t>(n);
    l.step.fluid_sigma = p.fluid_sigma;
    l.step.diffusion_sigma = p.diffusion_sigma;
    l.step.update = p.update;
    l.step.half_fields = p.half_fields;
    l.fields.velocity = Upload(SmoothVelocity(p.velocity_size, p.amplitude));
    l.fields.update = Poisoned<float>(4 * m);
    l.fields.work = Poisoned<float>(3 * m);
    l.fields.spare = Poisoned<float>(4 * m);
    DemonsState state;
    state.max_iterations = 50;
    state.most_momentum = p.momentum;
    l.fields.state = Upload(std::vector<DemonsState>{state});
    EXPECT_OK(WarpSource(ctx(), l.step.moving, nullptr, p.size, l.step.moving_on_fixed));
    EXPECT_OK(WarpWeights(ctx(), l.step.moving, nullptr, p.size, l.step.weights_on_fixed));
    EXPECT_OK(LargestComponent(ctx(), l.fields.velocity, p.velocity_size, &l.fields.state->largest));
    return l;
  }

  Outcome Unload(const Loaded& l) {
    return {Download(l.fields.velocity, 3 * Voxels(l.step.force.force_size)), Download(l.fields.state, 1)[0]};
  }

  Outcome Run(const Problem& p, int max_squarings = kMaxSquarings, bool recorded = false) {
    Loaded l = Load(p);
    EXPECT_OK(BeginDemonsIterations(ctx(), p.velocity_size, &l.fields));
    if (p.momentum > 0) l.fields.reached = Upload(Download(l.fields.velocity, 3 * Voxels(p.velocity_size)));
    const auto iterate = [&](const ExecContext& c) { return IterateDemons(c, l.step, max_squarings, l.fields); };
    const auto recording = recorded ? absl::make_optional(*Recording::Make(ctx(), iterate)) : absl::nullopt;
    for (int i = 0; i < p.iterations; ++i) EXPECT_OK(recorded ? recording->Enqueue(ctx()) : iterate(ctx()));
    EXPECT_OK(EndDemonsIterations(ctx(), p.velocity_size, &l.fields));
    return Unload(l);
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(DemonsIterationTest);

// The operators one after another, on the CPU.
class Reference {
 public:
  explicit Reference(const Problem& p) : p_(p), cpu_(*OwnedContext::Create(TestDevice("cpu"), size_t{64} << 20)) {}

  Outcome Run() {
    const size_t n = Voxels(p_.size), m = Voxels(p_.velocity_size);
    fixed_ = Waves(p_.size, 0, 0.05f, 1);
    moving_ = Waves(p_.moving_size, 0.4f, 0.05f, 2);
    if (n > 1000) fixed_[n / 2] = fixed_[n / 3] = moving_[n / 2] = NAN;
    velocity_ = SmoothVelocity(p_.velocity_size, p_.amplitude);
    for (auto* image : {&warped_, &moving_on_fixed_}) image->resize(n);
    for (auto* field : {&next_, &u_}) field->resize(3 * m);
    displacement_.resize(3 * n);
    force_.resize(4 * n);
    state_.max_iterations = 50;
    state_.most_momentum = p_.momentum;
    reached_ = velocity_;
    of_fixed_ = SmoothWeights(p_.size, 0.3f);
    of_moving_ = SmoothWeights(p_.moving_size, 1.9f);
    warped_weights_.resize(n);
    weights_on_fixed_.resize(n);
    EXPECT_OK(WarpSource(context(), Moving(), nullptr, p_.size, moving_on_fixed_.data()));
    EXPECT_OK(WarpWeights(context(), Moving(), nullptr, p_.size, weights_on_fixed_.data()));
    for (int i = 0; i < p_.iterations && !state_.done; ++i) Iterate();
    EXPECT_OK(LargestComponent(context(), velocity_.data(), p_.velocity_size, &state_.largest));
    return {velocity_, state_};
  }

 private:
  ExecContext context() { return cpu_.context(); }
  DemonsWeights OfFixed() {
    return p_.fixed_weights ? DemonsWeights{of_fixed_.data(), kWeightPerUnit} : DemonsWeights{};
  }
  DemonsWeights OfMoving() {
    return p_.moving_weights ? DemonsWeights{of_moving_.data(), kWeightPerUnit} : DemonsWeights{};
  }
  DemonsSource Moving() { return {moving_.data(), p_.moving_size, p_.from_fixed, OfMoving()}; }

  void AddForce(float factor, const DemonsSource& source, const float* fixed, const DemonsWeights& fixed_weights,
                float weight, DemonsState* state) {
    float largest;
    const Int3 grid = p_.velocity_size;
    EXPECT_OK(LargestComponent(context(), velocity_.data(), grid, &largest));
    EXPECT_OK(
        ExponentiateVectorField(context(), velocity_.data(), grid, factor, &largest, kMaxSquarings, next_.data()));
    EXPECT_OK(ResampleVectorField(context(), next_.data(), grid, displacement_.data(), p_.size));
    EXPECT_OK(WarpSource(context(), source, displacement_.data(), p_.size, warped_.data()));
    EXPECT_OK(WarpWeights(context(), source, displacement_.data(), p_.size, warped_weights_.data()));
    DemonsForceTask task;
    task.fixed_weights = fixed_weights;
    if (source.weights.bytes != nullptr) task.warped_weights = {warped_weights_.data(), kWeightPerUnit};
    task.size = task.force_size = p_.size;
    task.sides = {0.9f, 1, 1.1f};
    task.fixed = fixed;
    task.warped = warped_.data();
    task.weight = weight;
    task.accumulate = state == nullptr;
    EXPECT_OK(DemonsForce(context(), task, force_.data(), state));
  }

  void Iterate() {
    const ExecContext c = context();
    AddForce(1, Moving(), fixed_.data(), OfFixed(), p_.symmetric ? 0.5f : 1, &state_);
    if (state_.done) return;
    if (p_.symmetric) {
      DemonsWeights on_fixed = OfMoving();
      if (p_.moving_weights) on_fixed.bytes = weights_on_fixed_.data();
      AddForce(-1, {fixed_.data(), p_.size, AffineMap::Identity(), OfFixed()}, moving_on_fixed_.data(), on_fixed, -0.5f,
               nullptr);
    }
    const Int3 grid = p_.velocity_size;
    DemonsForceTask on_grid;
    on_grid.size = p_.size;
    on_grid.force_size = grid;
    const Vec3d fluid = SigmaOnVelocity(on_grid, p_.fluid_sigma),
                diffusion = SigmaOnVelocity(on_grid, p_.diffusion_sigma);
    u_ = SmoothedForce(CoarseForce(force_, p_.size, grid), grid, fluid);
    switch (p_.update) {
      case VelocityUpdate::kAdd:
        for (size_t i = 0; i < next_.size(); ++i) next_[i] = velocity_[i] + u_[i];
        break;
      case VelocityUpdate::kCompose:
        EXPECT_OK(ComposeVectorFields(c, u_.data(), velocity_.data(), grid, next_.data()));
        break;
      case VelocityUpdate::kBch:
        EXPECT_OK(BchUpdate(c, velocity_.data(), u_.data(), grid, next_.data()));
        break;
    }
    EXPECT_OK(SmoothVectorField(c, next_.data(), grid, diffusion, velocity_.data()));
    const std::vector<float> reached = velocity_;
    for (size_t i = 0; i < reached.size(); ++i) {
      velocity_[i] += state_.momentum * (reached[i] - reached_[i]);
    }
    reached_ = reached;
  }

  Problem p_;
  OwnedContext cpu_;
  std::vector<uint8_t> of_fixed_, of_moving_, warped_weights_, weights_on_fixed_;
  std::vector<float> fixed_, moving_, warped_, moving_on_fixed_, velocity_, reached_, force_, next_, u_, displacement_;
  DemonsState state_;
};

void ExpectNear(const Outcome& got, const Outcome& expected, float tolerance) {
  ASSERT_EQ(got.velocity.size(), expected.velocity.size());
  for (size_t i = 0; i < got.velocity.size(); ++i) {
    ASSERT_NEAR(got.velocity[i], expected.velocity[i], tolerance) << "at " << i;
  }
  EXPECT_EQ(got.state.iterations, expected.state.iterations);
  EXPECT_EQ(got.state.status, expected.state.status);
  EXPECT_EQ(got.state.done, expected.state.done);
  // Where a sample ends, a rounding decides.
  EXPECT_NEAR(got.state.samples, expected.state.samples, 1e-4 * expected.state.samples);
  EXPECT_NEAR(got.state.value, expected.state.value, 1e-4 * expected.state.value + 1e-12);
  EXPECT_NEAR(got.state.largest, expected.state.largest, tolerance);
}

constexpr float kTolerance = 2e-3f;

TEST_P(DemonsIterationTest, IsItsOperatorsOneAfterAnother) {
  for (const Int3 size : {Int3{1, 1, 1}, Int3{2, 1, 3}, Int3{37, 29, 1}, Int3{1, 70, 9}, Int3{64, 78, 16},
                          Int3{65, 79, 17}, Int3{33, 160, 5}, Int3{131, 9, 35}}) {
    SCOPED_TRACE(testing::Message() << size.x << " " << size.y << " " << size.z);
    const Problem p = OfSize(size);
    ExpectNear(Run(p), Reference(p).Run(), kTolerance);
  }
}

TEST_P(DemonsIterationTest, EveryUpdateAndMode) {
  for (const VelocityUpdate update : {VelocityUpdate::kAdd, VelocityUpdate::kCompose, VelocityUpdate::kBch}) {
    for (const bool symmetric : {false, true}) {
      SCOPED_TRACE(testing::Message() << static_cast<int>(update) << " " << symmetric);
      Problem p = OfSize({45, 38, 19});
      p.update = update;
      p.symmetric = symmetric;
      ExpectNear(Run(p), Reference(p).Run(), kTolerance);
    }
  }
}

// Weights of either image, of both, on both grids of the velocity, and in the plane.
TEST_P(DemonsIterationTest, Weights) {
  for (const Int3 size : {Int3{45, 38, 19}, Int3{37, 29, 1}}) {
    for (const Int3 coarse : {size, Int3{size.x / 2, size.y / 2, size.z}}) {
      for (int which = 1; which < 4; ++which) {
        for (const bool symmetric : {false, true}) {
          SCOPED_TRACE(testing::Message() << size.z << " " << coarse.x << " " << which << " " << symmetric);
          Problem p = OfSize(size);
          p.velocity_size = coarse;
          p.symmetric = symmetric;
          p.fixed_weights = which & 1;
          p.moving_weights = which & 2;
          const Outcome got = Run(p);
          ExpectNear(got, Reference(p).Run(), kTolerance);
          Problem without = p;
          without.fixed_weights = without.moving_weights = false;
          EXPECT_NE(Run(without).velocity, got.velocity);
          EXPECT_EQ(Run(p, kMaxSquarings, /*recorded=*/true).velocity, got.velocity);
        }
      }
    }
  }
}

// The nearest byte, 0 outside.
TEST_P(DemonsIterationTest, WarpedWeightsAreTheNearest) {
  const Int3 size{21, 13, 7}, moving{17, 15, 8};
  const std::vector<uint8_t> bytes = SmoothWeights(moving, 0.7f);
  std::vector<float> u = RandomFloats(3 * Voxels(size), 61, -3, 3);
  DemonsSource source;
  source.size = moving;
  source.from_fixed.m[0][1] = 0.1;
  source.from_fixed.m[2][3] = 0.4;
  source.weights = {Upload(bytes), kWeightPerUnit};
  for (const bool still : {false, true}) {
    uint8_t* out = Poisoned<uint8_t>(Voxels(size));
    ASSERT_OK(WarpWeights(ctx(), source, still ? nullptr : Upload(u), size, out));
    const std::vector<uint8_t> got = Download(out, Voxels(size));
    size_t i = 0;
    int zeros = 0;
    for (int z = 0; z < size.z; ++z)
      for (int y = 0; y < size.y; ++y)
        for (int x = 0; x < size.x; ++x, ++i) {
          const Vec3d moved = still ? Vec3d{0, 0, 0} : Vec3d{u[3 * i], u[3 * i + 1], u[3 * i + 2]};
          const Vec3d at = source.from_fixed(Vec3d{double(x), double(y), double(z)} + moved);
          bool inside = true, ambiguous = false;
          int64_t nearest = 0;
          for (int a = 2; a >= 0; --a) {
            const double up = at[a] + 0.5;
            ambiguous |= std::abs(up - std::round(up)) < 1e-4;
            inside &= up >= 0 && up <= moving[a];
            nearest = nearest * moving[a] + std::min(static_cast<int>(std::floor(up)), moving[a] - 1);
          }
          if (ambiguous) continue;
          ASSERT_EQ(got[i], inside ? bytes[nearest] : 0) << i;
          zeros += !inside;
        }
    EXPECT_GT(zeros, 0);
  }
}

// Wherever a sampled Gaussian can, the sigma on a coarser grid has the variance that half the sigma stands for.
TEST(DemonsIterationSigmaTest, HasTheVarianceOnACoarserGrid) {
  DemonsForceTask force;
  force.size = {40, 41, 7};
  force.force_size = {20, 20, 7};
  for (const double sigma : {0.0, 0.3, 0.7, 1.0, 2.0, 3.0, 7.0}) {
    const Vec3d got = SigmaOnVelocity(force, sigma);
    EXPECT_EQ(got.z, sigma);
    for (int a = 0; a < 2; ++a) {
      const double wanted = sigma * force.force_size[a] / force.size[a];
      double sum = 0, variance = 0;
      const int radius = static_cast<int>(std::ceil(3 * got[a]));
      for (int k = -radius; k <= radius; ++k) {
        const double weight = k == 0 ? 1 : std::exp(-0.5 * k * k / (got[a] * got[a]));
        sum += weight;
        variance += k * k * weight;
      }
      EXPECT_NEAR(variance / sum, wanted * wanted, wanted < 1 ? 1e-3 * wanted : 0.05 * wanted * wanted)
          << sigma << " " << a;
      EXPECT_GE(got[a], wanted);
    }
  }
}

// The velocity on a grid of half the voxels along the axes that a pyramid halves, of an odd size, too.
TEST_P(DemonsIterationTest, VelocityOnACoarserGrid) {
  const Int3 sizes[][2] = {{{64, 78, 16}, {32, 39, 8}}, {{65, 79, 17}, {32, 39, 8}}, {{45, 38, 19}, {22, 19, 19}},
                           {{37, 29, 1}, {18, 14, 1}},  {{1, 70, 9}, {1, 35, 9}},    {{3, 5, 7}, {1, 2, 3}}};
  for (const auto& [size, coarse] : sizes) {
    for (const bool symmetric : {false, true}) {
      for (const VelocityUpdate update : {VelocityUpdate::kAdd, VelocityUpdate::kCompose, VelocityUpdate::kBch}) {
        SCOPED_TRACE(testing::Message() << size.x << " " << size.y << " " << size.z << " " << symmetric << " "
                                        << static_cast<int>(update));
        Problem p = OfSize(size);
        p.velocity_size = coarse;
        p.amplitude = 1.5f;
        p.symmetric = symmetric;
        p.update = update;
        p.momentum = 0.9f;
        p.iterations = 3;
        const Outcome got = Run(p);
        ExpectNear(got, Reference(p).Run(), kTolerance);
        EXPECT_EQ(got.velocity, Run(p, kMaxSquarings, true).velocity);
      }
    }
  }
}

TEST_P(DemonsIterationTest, CoarserVelocityWithEveryNumberOfSquarings) {
  for (const float amplitude : {0.0f, 0.7f, 1.5f, 3.0f, 6.0f}) {
    for (const bool half : {false, true}) {
      // A rounding to float16 is up to 2^-9 of 6 voxels, and more with every squaring.
      if (half && amplitude > 3) continue;
      SCOPED_TRACE(testing::Message() << amplitude << " " << half);
      Problem p = OfSize({45, 38, 19});
      p.velocity_size = {22, 19, 9};
      p.amplitude = amplitude;
      p.half_fields = half;
      p.iterations = 1;
      ExpectNear(Run(p), Reference(p).Run(), half ? 0.05f : kTolerance);
    }
  }
}

TEST_P(DemonsIterationTest, EverySigma) {
  const double sigmas[][2] = {{0, 0}, {1, 0.6}, {0, 4}, {4, 0}, {2.3, 4.5}, {7, 1}};
  for (const auto& [fluid, diffusion] : sigmas) {
    for (const VelocityUpdate update : {VelocityUpdate::kAdd, VelocityUpdate::kCompose, VelocityUpdate::kBch}) {
      SCOPED_TRACE(testing::Message() << fluid << " " << diffusion << " " << static_cast<int>(update));
      Problem p = OfSize({41, 36, 21});
      p.fluid_sigma = fluid;
      p.diffusion_sigma = diffusion;
      p.update = update;
      p.iterations = 1;
      ExpectNear(Run(p), Reference(p).Run(), kTolerance);
    }
  }
}

TEST_P(DemonsIterationTest, MomentumGoesOnInTheDirectionOfTheLastChange) {
  for (const double diffusion : {0.0, 0.7, 2.0, 5.0}) {
    for (const bool symmetric : {false, true}) {
      SCOPED_TRACE(testing::Message() << diffusion << " " << symmetric);
      Problem p = OfSize({45, 38, 19});
      p.diffusion_sigma = diffusion;
      p.symmetric = symmetric;
      p.momentum = 0.9f;
      p.iterations = 4;
      const Outcome got = Run(p);
      ExpectNear(got, Reference(p).Run(), kTolerance);
      EXPECT_EQ(got.velocity, Run(p, kMaxSquarings, true).velocity);
      p.momentum = 0;
      EXPECT_NE(got.velocity, Run(p).velocity);
    }
  }
}

TEST_P(DemonsIterationTest, EveryNumberOfSquarings) {
  for (const float amplitude : {0.0f, 0.7f, 1.5f, 3.0f, 6.0f, 12.0f}) {
    SCOPED_TRACE(amplitude);
    Problem p = OfSize({45, 38, 19});
    p.amplitude = amplitude;
    p.iterations = 1;
    ExpectNear(Run(p), Reference(p).Run(), kTolerance);
  }
}

TEST_P(DemonsIterationTest, FieldsInFloat16LoseLittle) {
  // A rounding of the reference's displacements of up to 12 voxels is up to 2^-9, and more with every squaring.
  for (const float amplitude : {0.7f, 3.0f, 12.0f}) {
    SCOPED_TRACE(amplitude);
    Problem p = OfSize({45, 38, 19});
    p.amplitude = amplitude;
    p.iterations = 1;
    const Outcome expected = Reference(p).Run();
    p.half_fields = true;
    const Outcome half = Run(p);
    double sum = 0;
    for (size_t i = 0; i < half.velocity.size(); ++i) sum += std::abs(half.velocity[i] - expected.velocity[i]);
    EXPECT_LT(sum / half.velocity.size(), 2e-3);
    EXPECT_NEAR(half.state.value, expected.state.value, 0.01 * expected.state.value);
    EXPECT_EQ(half.velocity, Run(p).velocity);
  }
}

TEST_P(DemonsIterationTest, RecordedIsTheSameBits) {
  Problem p = OfSize({66, 81, 18});
  p.iterations = 5;
  const Outcome direct = Run(p), again = Run(p), recorded = Run(p, kMaxSquarings, true);
  EXPECT_EQ(direct.velocity, again.velocity);
  EXPECT_EQ(direct.velocity, recorded.velocity);
  EXPECT_EQ(direct.state.value, recorded.state.value);
  EXPECT_EQ(direct.state.iterations, 5);
  EXPECT_EQ(recorded.state.iterations, 5);
}

TEST_P(DemonsIterationTest, WantOfSquaringsStopsAndGoesOn) {
  if (!ctx().is_cuda()) GTEST_SKIP() << "the CPU makes as many as it takes";
  Problem p = OfSize({45, 38, 19});
  p.amplitude = 6;  // three squarings
  p.iterations = 3;
  const Outcome enough = Run(p, 3);
  EXPECT_EQ(enough.velocity, Run(p).velocity);
  EXPECT_EQ(enough.state.iterations, 3);

  Loaded l = Load(p);
  const float largest = Download(l.fields.state, 1)[0].largest;
  ASSERT_OK(BeginDemonsIterations(ctx(), p.velocity_size, &l.fields));
  for (int i = 0; i < 2; ++i) ASSERT_OK(IterateDemons(ctx(), l.step, 2, l.fields));
  const DemonsState stopped = Download(l.fields.state, 1)[0];
  EXPECT_EQ(stopped.done, 1);
  EXPECT_EQ(stopped.status, DemonsStatus::kRunning);
  EXPECT_EQ(stopped.iterations, 0);
  EXPECT_EQ(stopped.largest, largest);
  ASSERT_OK(device().Fill(&l.fields.state->done, 0, sizeof(int), ctx().stream()));
  for (int i = 0; i < p.iterations; ++i) ASSERT_OK(IterateDemons(ctx(), l.step, 3, l.fields));
  ASSERT_OK(EndDemonsIterations(ctx(), p.velocity_size, &l.fields));
  EXPECT_EQ(Unload(l).velocity, enough.velocity);
}

TEST_P(DemonsIterationTest, NothingHappensOnceDone) {
  const Problem p = OfSize({40, 33, 11});
  Loaded l = Load(p);
  const std::vector<float> before = Download(l.fields.velocity, 3 * Voxels(p.velocity_size));
  ASSERT_OK(device().Fill(&l.fields.state->done, 1, sizeof(int), ctx().stream()));
  const float largest = Download(l.fields.state, 1)[0].largest;
  ASSERT_OK(BeginDemonsIterations(ctx(), p.velocity_size, &l.fields));
  ASSERT_OK(IterateDemons(ctx(), l.step, kMaxSquarings, l.fields));
  ASSERT_OK(EndDemonsIterations(ctx(), p.velocity_size, &l.fields));
  const Outcome after = Unload(l);
  EXPECT_EQ(after.velocity, before);
  EXPECT_EQ(after.state.largest, largest);
  EXPECT_EQ(after.state.iterations, 0);
}

}  // namespace
}  // namespace intrawarp
