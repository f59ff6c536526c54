// SPDX-License-Identifier: Apache-2.0
#include "engine/metric/mind.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/feature/descriptor.h"
#include "tests/engine/metric/ffd_objective_fixture.h"

namespace intrawarp::ffd_objective_test {
namespace {

class MindTest : public FfdObjectiveTest {
 protected:
  // The channels of an image as the device describes it, one volume behind the other, in [0, 1].
  std::vector<float> Channels(const HostVolume& image, double stddev, const ChannelOrder& order = {}) {
    ArenaScope scope(owned_.context().arena());
    const ConstVolumeView volume{Upload(image.data), image.geometry};
    ConstMaskView mask;
    if (!image.mask.empty()) mask = {Upload(image.mask), image.geometry};
    const auto described = DescribeImage(ctx(), volume, mask, stddev, order);
    EXPECT_OK(described) << described.status();
    if (!described.ok()) return {};
    const int64_t voxels = image.geometry.voxels();
    const std::vector<Descriptor> descriptors = Download(*described, voxels);
    std::vector<float> channels;
    for (int c = 0; c < kDescriptorChannels; ++c) {
      for (const Descriptor& d : descriptors) channels.push_back(d.channel[c] / kChannelSteps);
    }
    return channels;
  }

  // The sum of the references of twelve pairs of images with SSD.
  Reference SumOfChannels(const HostProblem& p) {
    const ChannelOrder order = OrderOfChannels(p.fixed.geometry, p.moving.geometry, p.affine);
    const std::vector<float> fixed = Channels(p.fixed, p.fixed_stddev),
                             moving = Channels(p.moving, p.moving_stddev, order);
    Reference sum;
    for (int c = 0; c < kDescriptorChannels; ++c) {
      const Reference one = EvaluateReference(Channel(p, fixed, moving, c));
      sum.value += one.value;
      sum.samples = one.samples;
      sum.gradient.resize(one.gradient.size());
      sum.uncertainty.resize(one.gradient.size());
      for (size_t i = 0; i < one.gradient.size(); ++i) {
        sum.gradient[i] += one.gradient[i];
        sum.uncertainty[i] += one.uncertainty[i];
      }
    }
    return sum;
  }

 private:
  static HostProblem Channel(const HostProblem& p, const std::vector<float>& fixed, const std::vector<float>& moving,
                             int c) {
    HostProblem channel = p;
    channel.metric = MetricKind::kSsd;
    channel.intensity_scale = 1;
    const int64_t n = p.fixed.geometry.voxels(), m = p.moving.geometry.voxels();
    channel.fixed.data.assign(fixed.begin() + c * n, fixed.begin() + (c + 1) * n);
    channel.moving.data.assign(moving.begin() + c * m, moving.begin() + (c + 1) * m);
    return channel;
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(MindTest);

TEST_P(MindTest, FfdIsTheSumOverTheChannels) {
  uint32_t seed = 40;
  for (Int3 size : {Int3{33, 9, 13}, Int3{40, 37, 1}, Int3{2, 30, 9}, Int3{21, 18, 16}}) {
    for (int masks : {0, 1, 2}) {
      Options o;
      o.fixed = size;
      o.moving = {31, 35, size.z == 1 ? 1 : 14};
      o.seed = ++seed;
      o.fixed_mask = o.moving_mask = o.left_handed = masks > 0;
      o.soft = masks == 2;
      if (size.z == 1) o.degrees = {0, 0, 2.1};
      const HostProblem p = MakeProblem(MetricKind::kMind, o);
      SCOPED_TRACE(Describe(p));
      const Reference want = SumOfChannels(p);
      EXPECT_GT(want.samples, 100);
      EXPECT_GT(want.value, 0.1);
      ExpectClose(Evaluate(p), want);
    }
  }
}

// The descriptors see edges, whatever the intensities on their sides are.
TEST_P(MindTest, InvertedIntensitiesAreTheSame) {
  Options o;
  o.fixed = o.moving = {24, 22, 18};
  o.content = Content::kSmooth;
  HostProblem p = MakeProblem(MetricKind::kMind, o);
  const Evaluation plain = Evaluate(p);
  for (float& v : p.moving.data) v = 1000 - v;
  const Evaluation inverted = Evaluate(p);
  EXPECT_GT(plain.value.metric, 0);
  EXPECT_NEAR(inverted.value.metric, plain.value.metric, 0.02 * plain.value.metric);
}

TEST_P(MindTest, NoSampleGivesNoValueAndNoGradient) {
  Options o;
  o.shift = {1000, 0, 0};
  const HostProblem p = MakeProblem(MetricKind::kMind, o);
  const Evaluation e = Evaluate(p);
  EXPECT_TRUE(std::isnan(e.value.metric));
  EXPECT_EQ(e.value.samples, 0);
  for (float g : e.gradient) ASSERT_EQ(g, 0);
}

TEST_P(MindTest, EvaluationsRepeatAndAddToTheGradient) {
  Options o;
  const HostProblem p = MakeProblem(MetricKind::kMind, o);
  ArenaScope scope(owned_.context().arena());
  const auto evaluator = Make(UploadProblem(p));
  ASSERT_NE(evaluator, nullptr);
  const Evaluation first = Evaluate(*evaluator, p.coefficients), second = Evaluate(*evaluator, p.coefficients);
  EXPECT_EQ(first.value.metric, second.value.metric);
  EXPECT_EQ(first.gradient, second.gradient);

  MetricValue* const value = Poisoned<MetricValue>(1);
  float* const sum = Upload(first.gradient);
  ASSERT_OK(evaluator->Measure(ctx(), Upload(p.coefficients), nullptr, /*wants_gradient=*/true, value));
  ASSERT_OK(evaluator->AddGradient(ctx(), nullptr, value, sum));
  const std::vector<float> twice = Download(sum, first.gradient.size());
  for (size_t i = 0; i < twice.size(); ++i) ASSERT_EQ(twice[i], 2 * first.gradient[i]);
  // The value only.
  ASSERT_OK(evaluator->Evaluate(ctx(), Upload(p.coefficients), nullptr, nullptr, value));
  EXPECT_EQ(Download(value, 1)[0].metric, first.value.metric);
}

TEST_P(MindTest, NothingIsWrittenWhenSkipped) {
  const HostProblem p = MakeProblem(MetricKind::kMind, Options());
  ArenaScope scope(owned_.context().arena());
  const auto evaluator = Make(UploadProblem(p));
  ASSERT_NE(evaluator, nullptr);
  MetricValue* const value = Poisoned<MetricValue>(1);
  float* const gradient = Poisoned<float>(p.coefficients.size());
  ASSERT_OK(evaluator->Evaluate(ctx(), Upload(p.coefficients), Upload(std::vector<int>{1}), gradient, value));
  EXPECT_TRUE(std::isnan(Download(value, 1)[0].metric));
  for (float g : Download(gradient, p.coefficients.size())) ASSERT_TRUE(std::isnan(g));
}

// An image is described with the distance and the floor of MIND, its noise seen within the mask.
TEST_P(MindTest, DescribesWithItsDistanceAndFloor) {
  Options o;
  o.fixed = {21, 13, 9};
  o.fixed_mask = true;
  const HostProblem p = MakeProblem(MetricKind::kMind, o);
  const std::vector<float> got = Channels(p.fixed, 0.4);
  const int64_t voxels = p.fixed.geometry.voxels();
  auto* const descriptors = Poisoned<Descriptor>(voxels);
  float* const noise = Poisoned<float>(1);
  const ConstVolumeView volume{Upload(p.fixed.data), p.fixed.geometry};
  ASSERT_OK(
      ComputeDescriptors(ctx(), volume, Upload(p.fixed.mask), kMindDistance, DescriptorFloor(0.4), descriptors, noise));
  const std::vector<Descriptor> want = Download(descriptors, voxels);
  ASSERT_EQ(got.size(), 12 * want.size());
  for (int64_t i = 0; i < 12 * voxels; ++i) {
    ASSERT_EQ(std::lround(255 * got[i]), want[i % voxels].channel[i / voxels]) << i;
  }
}

// The announced memory suffices, whichever image is larger.
TEST_P(MindTest, MemoryIsAsAnnounced) {
  for (Int3 moving : {Int3{12, 11, 9}, Int3{44, 39, 31}}) {
    Options o;
    o.moving = moving;
    const HostProblem p = MakeProblem(MetricKind::kMind, o);
    const FfdObjective objective = UploadProblem(p);
    OwnedContext owned = *OwnedContext::Create(
        device(), FfdEvaluatorBytes(device(), MetricKind::kMind, p.fixed.geometry, p.moving.geometry, p.grid));
    const auto evaluator = MakeFfdEvaluator(owned.context(), objective);
    ASSERT_OK(evaluator) << evaluator.status();
    float* const gradient = Poisoned<float>(p.coefficients.size());
    EXPECT_OK(
        (*evaluator)->Evaluate(owned.context(), Upload(p.coefficients), nullptr, gradient, Poisoned<MetricValue>(1)));
    EXPECT_OK(device().Synchronize(owned.context().stream()));
  }
}

}  // namespace
}  // namespace intrawarp::ffd_objective_test
