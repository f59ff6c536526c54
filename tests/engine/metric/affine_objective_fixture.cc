// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/metric/affine_objective_fixture.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "engine/geometry/geometry.h"
#include "tests/engine/device_test.h"
#include "tests/engine/metric/lncc_window.h"
#include "tests/engine/metric/references.h"

namespace intrawarp::affine_objective_test {
namespace {

// The derivative of a linear interpolation jumps where cells meet: a voxel that lands this close to there may be given
// the other cell's by float32, and so all of what it adds, and more, is tolerated.
constexpr double kCellRounding = 1e-5;
constexpr double kAmbiguousWeight = 4 / kTolerance;

// float32 may take the weight of another moving voxel.
bool WeightIsAmbiguous(const HostVolume& moving, Vec3d index) {
  if (moving.mask.empty() || !(moving.weight_per_unit < 1)) return false;
  for (int a = 0; a < 3; ++a) {
    const double up = index[a] + 0.5;
    if (moving.geometry.size[a] > 1 && std::abs(up - std::round(up)) < kCellRounding) return true;
  }
  return false;
}

Vec3d NormalizedReference(const Geometry& g, Int3 p) {
  Vec3d q;
  for (int a = 0; a < 3; ++a) q[a] = (p[a] - 0.5 * (g.size[a] - 1)) / (0.5 * std::max(g.size[a] - 1, 1));
  return q;
}

// Entries of a derivative by W, and the magnitudes of what they are sums of.
struct Derivative {
  double value[12] = {}, magnitude[12] = {};
};

// The derivative of the moving image at the fixed voxel p by W, times a factor, added to j.
void AddDerivative(Vec3d gradient, Vec3d q, double factor, Derivative* j) {
  for (int r = 0; r < 3; ++r) {
    for (int c = 0; c < 4; ++c) {
      const double term = factor * gradient[r] * (c < 3 ? q[c] : 1.0);
      j->value[4 * r + c] += term;
      j->magnitude[4 * r + c] += std::abs(term);
    }
  }
}

void AddScaled(const Derivative& term, double factor, Derivative* j) {
  for (int i = 0; i < 12; ++i) {
    j->value[i] += factor * term.value[i];
    j->magnitude[i] += std::abs(factor) * term.magnitude[i];
  }
}

void AddSquare(const Derivative& j, double weight, double magnitude_weight, Reference* reference) {
  int k = 0;
  for (int r = 0; r < 12; ++r) {
    for (int c = r; c < 12; ++c, ++k) {
      reference->sums.hessian[k] += weight * j.value[r] * j.value[c];
      reference->magnitudes.hessian[k] += magnitude_weight * weight * j.magnitude[r] * j.magnitude[c];
    }
  }
}

void AddGradient(const Derivative& j, double factor, double magnitude_weight, Reference* reference) {
  for (int i = 0; i < 12; ++i) {
    reference->sums.gradient[i] += factor * j.value[i];
    reference->magnitudes.gradient[i] += magnitude_weight * std::abs(factor) * j.magnitude[i];
  }
}

void AddSsdReference(const HostProblem& problem, const AffineMap& w, Int3 p, Reference* reference) {
  const Vec3d q = NormalizedReference(problem.fixed.geometry, p);
  const Sample t = SampleReference(problem.moving, w(q), kCellRounding);
  if (!problem.fixed.InMask(p) || !t.counts) return;
  const double difference = problem.intensity_scale * (t.value - problem.fixed.At(p));
  const double weight = problem.fixed.Weight(p) * t.weight;
  const bool is_uncertain = WeightIsAmbiguous(problem.moving, w(q));
  const double magnitude_weight = t.ambiguous || is_uncertain ? kAmbiguousWeight / weight : 1;
  if (is_uncertain) {
    reference->magnitudes.value += kAmbiguousWeight * 0.5 * difference * difference;
    reference->magnitudes.weight += kAmbiguousWeight;
  }
  Derivative j;
  AddDerivative(t.gradient, q, problem.intensity_scale, &j);
  reference->sums.value += weight * 0.5 * difference * difference;
  reference->sums.weight += weight;
  reference->sums.samples += 1;
  AddGradient(j, weight * difference, magnitude_weight, reference);
  AddSquare(j, weight, magnitude_weight, reference);
}

void AddNgfReference(const HostProblem& problem, const AffineMap& w, Int3 p, Reference* reference) {
  const Geometry& g = problem.fixed.geometry;
  const Sample center = SampleReference(problem.moving, w(NormalizedReference(g, p)), kCellRounding);
  if (!problem.fixed.InMask(p) || !center.counts) return;
  Vec3d gt, gr;
  Derivative dg[3];
  double magnitude_weight = center.ambiguous ? kAmbiguousWeight : 1;
  for (int a = 0; a < 3; ++a) {
    if (g.size[a] == 1) continue;
    if (p[a] == 0 || p[a] == g.size[a] - 1) return;
    for (int sign = -1; sign <= 1; sign += 2) {
      Int3 neighbour = p;
      neighbour[a] += sign;
      const Vec3d q = NormalizedReference(g, neighbour);
      const Sample t = SampleReference(problem.moving, w(q), kCellRounding);
      if (!t.counts) return;
      if (t.ambiguous) magnitude_weight = kAmbiguousWeight;
      const double factor = sign / (2 * g.spacing[a]);
      gt[a] += factor * t.value;
      gr[a] += factor * problem.fixed.At(neighbour);
      AddDerivative(t.gradient, q, factor, &dg[a]);
    }
  }
  const double norm_t = std::sqrt(Dot(gt, gt) + problem.moving_edge * problem.moving_edge);
  const double norm_r = std::sqrt(Dot(gr, gr) + problem.fixed_edge * problem.fixed_edge);
  const Vec3d u = (1 / norm_t) * gt, v = (1 / norm_r) * gr;
  const double uv = Dot(u, v);
  // du = (I - u u^T) / |g(T)|_eta dg.
  Derivative du[3], u_dg, v_du;
  for (int a = 0; a < 3; ++a) AddScaled(dg[a], u[a], &u_dg);
  for (int a = 0; a < 3; ++a) {
    AddScaled(dg[a], 1 / norm_t, &du[a]);
    AddScaled(u_dg, -u[a] / norm_t, &du[a]);
    AddScaled(du[a], v[a], &v_du);
  }
  const double weight = problem.fixed.Weight(p) * center.weight;
  const bool is_uncertain = WeightIsAmbiguous(problem.moving, w(NormalizedReference(g, p)));
  if (is_uncertain) {
    magnitude_weight = kAmbiguousWeight / weight;
    reference->magnitudes.value += kAmbiguousWeight * Dot(v, v);
    reference->magnitudes.weight += kAmbiguousWeight * Dot(v, v);
  }
  AddGradient(v_du, weight * -2 * uv, magnitude_weight, reference);
  const double v2 = Dot(v, v);
  for (int a = 0; a < 3; ++a) {
    const int b = (a + 1) % 3, c = (a + 2) % 3;
    Derivative cross;
    AddScaled(du[c], v[b], &cross);
    AddScaled(du[b], -v[c], &cross);
    AddSquare(cross, v2 > 0 ? weight * 2 * uv * uv / v2 : 0, magnitude_weight, reference);
  }
  reference->sums.value += weight * (Dot(v, v) - uv * uv);
  reference->sums.weight += weight * Dot(v, v);
  reference->sums.samples += 1;
}

// ---- NMI and LNCC: D, and its derivative by each sample's moving value and the curvature in it. ----

// The derivative, the curvature and what rounding may make of them, for every fixed voxel; 0 where there is no sample.
struct VoxelTerms {
  explicit VoxelTerms(size_t voxels) : derivative(voxels), uncertainty(voxels), curvature(voxels) {}
  double value = std::numeric_limits<double>::quiet_NaN();
  double samples = 0;
  // The sum of the samples' weights.
  double weight = 0;
  std::vector<double> derivative, uncertainty, curvature;
  double curvature_tolerance = 0;
};

struct WarpedVoxel {
  Vec3d q;
  Sample sample;
  bool counts = false;
  double weight = 0;
  bool is_uncertain = false;
};

std::vector<WarpedVoxel> WarpReference(const HostProblem& problem, const AffineMap& w) {
  std::vector<WarpedVoxel> warped;
  const Int3 n = problem.fixed.geometry.size;
  for (int z = 0; z < n.z; ++z) {
    for (int y = 0; y < n.y; ++y) {
      for (int x = 0; x < n.x; ++x) {
        WarpedVoxel v;
        v.q = NormalizedReference(problem.fixed.geometry, {x, y, z});
        v.sample = SampleReference(problem.moving, w(v.q), kCellRounding);
        v.counts = problem.fixed.InMask({x, y, z}) && v.sample.counts;
        v.weight = problem.fixed.Weight({x, y, z}) * v.sample.weight;
        v.is_uncertain = WeightIsAmbiguous(problem.moving, w(v.q));
        warped.push_back(v);
      }
    }
  }
  return warped;
}

// `unit` as in NmiReference.
VoxelTerms NmiTerms(const HostProblem& problem, const std::vector<WarpedVoxel>& warped, double unit) {
  const Intensities f = IntensitiesOf(problem.fixed), m = IntensitiesOf(problem.moving);
  const auto inverse = [](double range) { return range > 0 ? 1 / range : 0; };
  // In float32 as the operator has it: a fixed value that lies on the edge of a bin must fall to the same side.
  const float fixed_scale = static_cast<float>(problem.nmi_bins * inverse(double{f.maximum} - f.minimum));
  const double moving_scale = (problem.nmi_bins - 3) * inverse(double{m.maximum} - m.minimum);
  std::vector<NmiPlace> places(warped.size()), counted;
  VoxelTerms terms(warped.size());
  for (size_t i = 0; i < warped.size(); ++i) {
    if (!warped[i].counts) continue;
    NmiPlace& p = places[i];
    p.bin = std::min(63, static_cast<int>((problem.fixed.data[i] - f.minimum) * fixed_scale));
    const double position = std::clamp((warped[i].sample.value - m.minimum) * moving_scale, 0.0, 61.0);
    p.cell = std::min(static_cast<int>(position), 60);
    p.t = position - p.cell;
    p.weight = warped[i].weight;
    counted.push_back(p);
  }
  const NmiReference nmi(counted, unit);
  terms.samples = nmi.samples();
  terms.weight = nmi.weight();
  terms.value = nmi.value();
  if (counted.empty()) return terms;
  double curvature[NmiReference::kBins] = {};
  for (int bin = 0; bin < NmiReference::kBins; ++bin) {
    for (int k = 1; k < NmiReference::kBins - 1 && nmi.fixed(bin) > 0; ++k) {
      const double score = 0.5 * moving_scale * (nmi.Slope(bin, k + 1) - nmi.Slope(bin, k - 1));
      curvature[bin] += nmi.joint_entropy() * nmi.joint(bin, k) / nmi.fixed(bin) * score * score / nmi.weight();
    }
  }
  for (size_t i = 0; i < warped.size(); ++i) {
    if (!warped[i].counts) continue;
    const NmiReference::Derivative d = nmi.DerivativeAt(places[i]);
    terms.derivative[i] = moving_scale * d.value;
    terms.uncertainty[i] = 2e-3 * moving_scale * places[i].weight * d.largest_slope / nmi.weight();
    terms.curvature[i] = places[i].weight * curvature[places[i].bin];
  }
  terms.curvature_tolerance = 1e-2;
  return terms;
}

VoxelTerms LnccReference(const HostProblem& problem, const std::vector<WarpedVoxel>& warped) {
  const size_t voxels = warped.size();
  const Intensities f = IntensitiesOf(problem.fixed), m = IntensitiesOf(problem.moving);
  const Int3 n = problem.fixed.geometry.size;
  VoxelTerms terms(voxels);
  const auto window_sums = [&](const auto& of) {
    std::vector<double> q(voxels, 0.0);
    for (size_t i = 0; i < voxels; ++i) {
      if (!warped[i].counts) continue;
      q[i] = warped[i].weight * of(problem.fixed.data[i] - f.minimum, warped[i].sample.value - m.minimum);
    }
    return SumWindows(SumBoxes(q, n), n, problem.lncc_sigma);
  };
  const auto w = window_sums([](double, double) { return 1.0; }), sf = window_sums([](double a, double) { return a; }),
             sm = window_sums([](double, double b) { return b; }),
             sff = window_sums([](double a, double) { return a * a; }),
             smm = window_sums([](double, double b) { return b * b; }),
             sfm = window_sums([](double a, double b) { return a * b; });
  // A window's weight, the regression of f on m that it gives, and the magnitudes of what cancels in it.
  std::vector<double> weights(voxels);
  double total = 0;
  for (size_t i = 0; i < voxels; ++i) {
    terms.samples += warped[i].counts;
    weights[i] = warped[i].counts ? warped[i].weight : 0;
    total += weights[i];
  }
  weights = SumBoxes(weights, n);
  std::vector<double> one(weights.size()), slope = one, offset = one, magnitude = one, h = one;
  double sum = 0;
  for (size_t j = 0; j < weights.size(); ++j) {
    if (weights[j] == 0) continue;
    const double fj = sf[j] / w[j], mj = sm[j] / w[j];
    const double ff = sff[j] / w[j] - fj * fj, mm = smm[j] / w[j] - mj * mj, fm = sfm[j] / w[j] - fj * mj;
    if (!(ff > 1e-6 * f.stddev * f.stddev && mm > 1e-6 * m.stddev * m.stddev)) continue;
    sum += weights[j] * fm * fm / (ff * mm);
    const double outer = 2 * weights[j] * fm / (ff * mm) / w[j];
    one[j] = outer;
    slope[j] = outer * fm / mm;
    offset[j] = outer * (fm / mm * mj - fj);
    magnitude[j] = std::abs(outer) * (std::sqrt(ff) + std::abs(fm / mm) * std::sqrt(mm));
    h[j] = 2 * weights[j] * fm * fm / (ff * mm) / mm / w[j];
  }
  // The operator multiplies D by the number of samples.
  terms.weight = terms.samples;
  if (terms.samples == 0) return terms;
  terms.value = 1 - sum / total;
  one = SumWindows(one, n, problem.lncc_sigma);
  slope = SumWindows(slope, n, problem.lncc_sigma);
  offset = SumWindows(offset, n, problem.lncc_sigma);
  magnitude = SumWindows(magnitude, n, problem.lncc_sigma);
  h = SumWindows(h, n, problem.lncc_sigma);
  const std::vector<int64_t> box = BoxOfVoxels(n);
  for (size_t i = 0; i < voxels; ++i) {
    if (!warped[i].counts) continue;
    const int64_t j = box[i];
    const double a = problem.fixed.data[i] - f.minimum, b = warped[i].sample.value - m.minimum;
    const double share = warped[i].weight / total;
    terms.derivative[i] = -(a * one[j] - b * slope[j] + offset[j]) * share;
    terms.uncertainty[i] = 4e-3 * magnitude[j] * share;
    terms.curvature[i] = h[j] * share;
  }
  terms.curvature_tolerance = 2e-3;
  return terms;
}

Reference SumTerms(const std::vector<WarpedVoxel>& warped, const VoxelTerms& terms) {
  Reference reference;
  reference.sums.samples = terms.samples;
  if (!(terms.value < 1 - 1e-9)) return reference;
  reference.sums.weight = terms.weight;
  reference.sums.value = terms.weight * terms.value;
  reference.magnitudes.value = 10 * terms.weight;
  for (size_t i = 0; i < warped.size(); ++i) {
    if (!warped[i].counts) continue;
    const bool is_uncertain = warped[i].is_uncertain;
    const double ambiguous = warped[i].sample.ambiguous || is_uncertain ? kAmbiguousWeight / warped[i].weight : 0;
    if (is_uncertain) reference.magnitudes.weight += kAmbiguousWeight;
    Derivative j;
    AddDerivative(warped[i].sample.gradient, warped[i].q, 1, &j);
    const double r = terms.weight * terms.derivative[i], h = terms.weight * terms.curvature[i];
    AddGradient(j, r, 1 + ambiguous, &reference);
    AddSquare(j, h, terms.curvature_tolerance / kTolerance + ambiguous, &reference);
    for (int k = 0; k < 12; ++k) {
      reference.magnitudes.gradient[k] += terms.weight * terms.uncertainty[i] / kTolerance * j.magnitude[k];
    }
  }
  return reference;
}

HostVolume MakeVolume(Int3 size, uint32_t seed, Content content, bool with_mask = false, bool left_handed = false) {
  HostVolume v;
  v.geometry = ObliqueGeometry(size, left_handed);
  const std::vector<float> noise = RandomFloats(v.geometry.voxels(), seed);
  v.data.resize(noise.size());
  const double phase = seed % 7;
  size_t i = 0;
  for (int z = 0; z < size.z; ++z) {
    for (int y = 0; y < size.y; ++y) {
      for (int x = 0; x < size.x; ++x, ++i) {
        const double wave = std::sin(0.21 * x + 0.13 * y + phase) + std::cos(0.17 * y - 0.26 * z) + std::sin(0.3 * z);
        v.data[i] = static_cast<float>(wave) + (content == Content::kNoisy ? noise[i] : 0);
      }
    }
  }
  if (with_mask) {
    const std::vector<float> holes = RandomFloats(v.geometry.voxels(), seed + 1000);
    for (float h : holes) v.mask.push_back(h < 0.04f ? 0 : h < 0.5f ? 1 : 255);
  }
  return v;
}

}  // namespace

Intensities IntensitiesOf(const HostVolume& v) {
  Intensities all;
  double count = 0, sum = 0, squares = 0;
  for (float value : v.data) {
    if (std::isnan(value)) continue;
    all.minimum = std::min(all.minimum, value);
    all.maximum = std::max(all.maximum, value);
    count += 1;
    sum += value;
    squares += double{value} * value;
  }
  all.stddev = std::sqrt(std::max(0.0, squares / count - sum / count * (sum / count)));
  return all;
}

Reference EvaluateReference(const HostProblem& problem, const AffineMap& w, double unit) {
  if (problem.metric == MetricKind::kNmi) {
    const std::vector<WarpedVoxel> warped = WarpReference(problem, w);
    return SumTerms(warped, NmiTerms(problem, warped, unit));
  }
  if (problem.metric == MetricKind::kLncc) {
    const std::vector<WarpedVoxel> warped = WarpReference(problem, w);
    return SumTerms(warped, LnccReference(problem, warped));
  }
  Reference reference;
  const Int3 n = problem.fixed.geometry.size;
  for (int z = 0; z < n.z; ++z) {
    for (int y = 0; y < n.y; ++y) {
      for (int x = 0; x < n.x; ++x) {
        if (problem.metric == MetricKind::kSsd) {
          AddSsdReference(problem, w, {x, y, z}, &reference);
        } else {
          AddNgfReference(problem, w, {x, y, z}, &reference);
        }
      }
    }
  }
  reference.magnitudes.value += std::abs(reference.sums.value);
  return reference;
}

AffineMap MakeMap(const HostProblem& problem, const MapOptions& options) {
  AffineMap scale, shift = AffineMap::Identity();
  for (int a = 0; a < 3; ++a) {
    const int nf = problem.fixed.geometry.size[a], nm = problem.moving.geometry.size[a];
    // W takes normalised coordinates, of radius (nf - 1) / 2 voxels.
    const double fit = nf > 1 && nm > 1 ? 0.5 * (nm - 1) : 0.5 * std::max(nf - 1, 1);
    scale.m[a][a] = options.scale[a] * fit;
    shift.m[a][3] = 0.5 * (nm - 1) + options.shift[a];
  }
  return Compose(shift, Compose(Rotation(options.degrees), scale));
}

void SetSlowWeights(uint32_t seed, HostVolume* volume) {
  volume->weight_per_unit = kWeightPerUnit;
  volume->mask.clear();
  const Int3 n = volume->geometry.size;
  for (int z = 0; z < n.z; ++z)
    for (int y = 0; y < n.y; ++y)
      for (int x = 0; x < n.x; ++x) volume->mask.push_back(SlowWeight({x, y, z}, seed));
}

std::string Describe(const HostProblem& p) {
  return std::string(MetricName(p.metric)) + " fixed " + SizeString(p.fixed.geometry) + " moving " +
         SizeString(p.moving.geometry);
}

HostProblem MakeProblem(MetricKind metric, Int3 fixed, Int3 moving, uint32_t seed, Content content, bool fixed_mask,
                        bool moving_mask) {
  HostProblem p;
  p.metric = metric;
  p.fixed = MakeVolume(fixed, seed, content, fixed_mask);
  p.moving = MakeVolume(moving, seed + 1, content, moving_mask, true);
  p.moving.geometry.spacing = {0.9, 1.1, 1.7};
  return p;
}

}  // namespace intrawarp::affine_objective_test
