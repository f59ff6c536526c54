// SPDX-License-Identifier: Apache-2.0
#include "engine/metric/affine_objective.h"

#include <tbb/global_control.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "hwy/targets.h"
#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

// ---- The reference: float64, one voxel after the other. ----

struct HostVolume {
  Geometry geometry;
  std::vector<float> data;
  std::vector<uint8_t> mask;  // empty: everything counts

  double At(Int3 p) const { return data[(static_cast<size_t>(p.z) * geometry.size.y + p.y) * geometry.size.x + p.x]; }
  bool InMask(Int3 p) const {
    return mask.empty() || mask[(static_cast<size_t>(p.z) * geometry.size.y + p.y) * geometry.size.x + p.x] != 0;
  }
};

struct HostProblem {
  MetricKind metric = MetricKind::kSsd;
  HostVolume fixed, moving;
  double fixed_edge = 0.03, moving_edge = 0.05;
  double intensity_scale = 1;
  int nmi_bins = 32;
  double lncc_sigma = 2;
};

struct Intensities {
  float minimum = std::numeric_limits<float>::infinity(), maximum = -std::numeric_limits<float>::infinity();
  double stddev = 0;
};
// The voxels that are numbers count.
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

// Relative to the magnitudes of the terms.
constexpr double kTolerance = 1e-5;
// The derivative of a linear interpolation jumps where cells meet: a voxel that lands this close to there may be given
// the other cell's by float32, and so all of what it adds, and more, is tolerated.
constexpr double kCellRounding = 1e-5;
constexpr double kAmbiguousWeight = 4 / kTolerance;

// The reference's results: the sums, and the sums of the magnitudes that went into them, which scale the tolerance.
struct Reference {
  NormalEquations sums, magnitudes;
};

struct Sample {
  double value = 0;
  Vec3d gradient;
  // Within kCellRounding of a neighbouring cell.
  bool ambiguous = false;
};

bool SampleReference(const HostVolume& v, Vec3d index, Sample* sample) {
  const Int3 n = v.geometry.size;
  Int3 lower, nearest;
  Vec3d weight;
  bool interior[3];
  for (int a = 0; a < 3; ++a) {
    if (!(index[a] >= -0.5 && index[a] <= n[a] - 0.5)) return false;
    const double clamped = std::clamp(index[a], 0.0, n[a] - 1.0);
    interior[a] = clamped == index[a] && n[a] > 1;
    lower[a] = std::max(0, std::min(static_cast<int>(std::floor(clamped)), n[a] - 2));
    weight[a] = clamped - lower[a];
    nearest[a] = std::clamp(static_cast<int>(std::floor(index[a] + 0.5)), 0, n[a] - 1);
  }
  if (!v.InMask(nearest)) return false;
  *sample = {};
  for (int a = 0; a < 3; ++a)
    sample->ambiguous |= n[a] > 1 && std::abs(index[a] - std::round(index[a])) < kCellRounding;
  for (int corner = 0; corner < 8; ++corner) {
    Int3 p;
    double w[3], dw[3];
    for (int a = 0; a < 3; ++a) {
      const int bit = corner >> a & 1;
      p[a] = std::min(lower[a] + bit, n[a] - 1);
      w[a] = bit ? weight[a] : 1 - weight[a];
      dw[a] = interior[a] ? (bit ? 1 : -1) : 0;
    }
    sample->value += w[0] * w[1] * w[2] * v.At(p);
    sample->gradient =
        sample->gradient + v.At(p) * Vec3d{dw[0] * w[1] * w[2], w[0] * dw[1] * w[2], w[0] * w[1] * dw[2]};
  }
  return true;
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
  Sample t;
  if (!problem.fixed.InMask(p) || !SampleReference(problem.moving, w(q), &t)) return;
  const double difference = problem.intensity_scale * (t.value - problem.fixed.At(p));
  const double magnitude_weight = t.ambiguous ? kAmbiguousWeight : 1;
  Derivative j;
  AddDerivative(t.gradient, q, problem.intensity_scale, &j);
  reference->sums.value += 0.5 * difference * difference;
  reference->sums.weight += 1;
  reference->sums.samples += 1;
  AddGradient(j, difference, magnitude_weight, reference);
  AddSquare(j, 1, magnitude_weight, reference);
}

void AddNgfReference(const HostProblem& problem, const AffineMap& w, Int3 p, Reference* reference) {
  const Geometry& g = problem.fixed.geometry;
  Sample center;
  if (!problem.fixed.InMask(p) || !SampleReference(problem.moving, w(NormalizedReference(g, p)), &center)) return;
  Vec3d gt, gr;
  Derivative dg[3];
  double magnitude_weight = 1;
  for (int a = 0; a < 3; ++a) {
    if (g.size[a] == 1) continue;
    if (p[a] == 0 || p[a] == g.size[a] - 1) return;
    for (int sign = -1; sign <= 1; sign += 2) {
      Int3 neighbour = p;
      neighbour[a] += sign;
      const Vec3d q = NormalizedReference(g, neighbour);
      Sample t;
      if (!SampleReference(problem.moving, w(q), &t)) return;
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
  AddGradient(v_du, -2 * uv, magnitude_weight, reference);
  const double v2 = Dot(v, v);
  for (int a = 0; a < 3; ++a) {
    const int b = (a + 1) % 3, c = (a + 2) % 3;
    Derivative cross;
    AddScaled(du[c], v[b], &cross);
    AddScaled(du[b], -v[c], &cross);
    AddSquare(cross, v2 > 0 ? 2 * uv * uv / v2 : 0, magnitude_weight, reference);
  }
  reference->sums.value += Dot(v, v) - uv * uv;
  reference->sums.weight += Dot(v, v);
  reference->sums.samples += 1;
}

// ---- NMI and LNCC: D, and its derivative by each sample's moving value and the curvature in it. ----

// The derivative, the curvature and what rounding may make of them, for every fixed voxel; 0 where there is no sample.
struct VoxelTerms {
  explicit VoxelTerms(size_t voxels) : derivative(voxels), uncertainty(voxels), curvature(voxels) {}
  double value = std::numeric_limits<double>::quiet_NaN();
  double samples = 0;
  std::vector<double> derivative, uncertainty, curvature;
  double curvature_tolerance = 0;
};

struct WarpedVoxel {
  Vec3d q;
  Sample sample;
  bool counts = false;
};

std::vector<WarpedVoxel> WarpReference(const HostProblem& problem, const AffineMap& w) {
  std::vector<WarpedVoxel> warped;
  const Int3 n = problem.fixed.geometry.size;
  for (int z = 0; z < n.z; ++z) {
    for (int y = 0; y < n.y; ++y) {
      for (int x = 0; x < n.x; ++x) {
        WarpedVoxel v;
        v.q = NormalizedReference(problem.fixed.geometry, {x, y, z});
        v.counts = problem.fixed.InMask({x, y, z}) && SampleReference(problem.moving, w(v.q), &v.sample);
        warped.push_back(v);
      }
    }
  }
  return warped;
}

double LogOf(double p, double floor) { return std::log(std::max(p, floor)); }

// `unit`: windows are counted in multiples of it, as the operator does; 0: exactly.
VoxelTerms NmiReference(const HostProblem& problem, const std::vector<WarpedVoxel>& warped, double unit) {
  const Intensities f = IntensitiesOf(problem.fixed), m = IntensitiesOf(problem.moving);
  const auto inverse = [](double range) { return range > 0 ? 1 / range : 0; };
  // In float32 as the operator has it: a fixed value that lies on the edge of a bin must fall to the same side.
  const float fixed_scale = static_cast<float>(problem.nmi_bins * inverse(double{f.maximum} - f.minimum));
  const double moving_scale = (problem.nmi_bins - 3) * inverse(double{m.maximum} - m.minimum);
  struct Place {
    int bin = 0, cell = 0;
    double t = 0;
  };
  std::vector<Place> places(warped.size());
  std::vector<double> joint(64 * 64), fixed(64), moving(64);
  VoxelTerms terms(warped.size());
  for (size_t i = 0; i < warped.size(); ++i) {
    if (!warped[i].counts) continue;
    Place& p = places[i];
    p.bin = std::min(63, static_cast<int>((problem.fixed.data[i] - f.minimum) * fixed_scale));
    const double position = std::clamp((warped[i].sample.value - m.minimum) * moving_scale, 0.0, 61.0);
    p.cell = std::min(static_cast<int>(position), 60);
    p.t = position - p.cell;
    const double t = p.t, s = 1 - t;
    double w[4] = {s * s * s / 6, (4 - 6 * t * t + 3 * t * t * t) / 6, (4 - 6 * s * s + 3 * s * s * s) / 6,
                   t * t * t / 6};
    if (unit > 0) {
      for (int k : {0, 1, 3}) w[k] = unit * std::nearbyint(w[k] / unit);
      w[2] = 1 - w[0] - w[1] - w[3];
    }
    for (int k = 0; k < 4; ++k) joint[64 * p.bin + p.cell + k] += w[k];
    terms.samples += 1;
  }
  if (terms.samples == 0) return terms;
  double marginals = 0, together = 0;
  const auto entropy = [](double p) { return p > 0 ? -p * std::log(p) : 0; };
  for (int i = 0; i < 64 * 64; ++i) {
    joint[i] /= terms.samples;
    fixed[i / 64] += joint[i];
    moving[i % 64] += joint[i];
    together += entropy(joint[i]);
  }
  for (int i = 0; i < 64; ++i) marginals += entropy(fixed[i]) + entropy(moving[i]);
  terms.value = 2 - marginals / together;
  // dD/dp up to a constant; bins that rounding left empty count as half a unit.
  const double floor = 0.5 * unit / terms.samples + 1e-300;
  const auto slope = [&](int bin, int k) {
    return (together * LogOf(moving[k], floor) - marginals * LogOf(joint[64 * bin + k], floor)) / (together * together);
  };
  double curvature[64] = {};
  for (int bin = 0; bin < 64; ++bin) {
    for (int k = 1; k < 63 && fixed[bin] > 0; ++k) {
      const double score = 0.5 * moving_scale * (slope(bin, k + 1) - slope(bin, k - 1));
      curvature[bin] += together * joint[64 * bin + k] / fixed[bin] * score * score / terms.samples;
    }
  }
  for (size_t i = 0; i < warped.size(); ++i) {
    if (!warped[i].counts) continue;
    const Place& p = places[i];
    const double t = p.t, s = 1 - t;
    const double d[4] = {-s * s / 2, t * (3 * t - 4) / 2, s * (4 - 3 * s) / 2, t * t / 2};
    double largest = 0;
    for (int k = 0; k < 4; ++k) {
      terms.derivative[i] += moving_scale * slope(p.bin, p.cell + k) * d[k] / terms.samples;
      largest = std::max(largest, std::abs(slope(p.bin, p.cell + k)));
    }
    terms.uncertainty[i] = 2e-3 * moving_scale * largest / terms.samples;
    terms.curvature[i] = curvature[p.bin];
  }
  terms.curvature_tolerance = 1e-2;
  return terms;
}

// Sums over the Gaussian window around every voxel, axis by axis; the window is symmetric: its own transpose.
std::vector<double> WindowSums(const std::vector<double>& in, Int3 n, double sigma) {
  const int r = static_cast<int>(std::ceil(3 * sigma));
  const int64_t stride[3] = {1, n.x, int64_t{n.x} * n.y};
  std::vector<double> from = in, to(in.size());
  for (int axis = 0; axis < 3; ++axis) {
    for (int64_t i = 0; i < static_cast<int64_t>(in.size()); ++i) {
      const int at = static_cast<int>(i / stride[axis] % n[axis]);
      double sum = 0;
      for (int k = std::max(-r, -at); k <= std::min(r, n[axis] - 1 - at); ++k) {
        sum += std::exp(-0.5 * k * k / (sigma * sigma)) * from[i + k * stride[axis]];
      }
      to[i] = sum;
    }
    std::swap(from, to);
  }
  return from;
}

VoxelTerms LnccReference(const HostProblem& problem, const std::vector<WarpedVoxel>& warped) {
  const size_t voxels = warped.size();
  const Intensities f = IntensitiesOf(problem.fixed), m = IntensitiesOf(problem.moving);
  VoxelTerms terms(voxels);
  const auto window_sums = [&](const auto& of) {
    std::vector<double> q(voxels, 0.0);
    for (size_t i = 0; i < voxels; ++i) {
      if (warped[i].counts) q[i] = of(problem.fixed.data[i] - f.minimum, warped[i].sample.value - m.minimum);
    }
    return WindowSums(q, problem.fixed.geometry.size, problem.lncc_sigma);
  };
  const auto w = window_sums([](double, double) { return 1.0; }), sf = window_sums([](double a, double) { return a; }),
             sm = window_sums([](double, double b) { return b; }),
             sff = window_sums([](double a, double) { return a * a; }),
             smm = window_sums([](double, double b) { return b * b; }),
             sfm = window_sums([](double a, double b) { return a * b; });
  // A window's weights, the regression of f on m that it gives, and the magnitudes of what cancels in it.
  std::vector<double> one(voxels), slope(voxels), offset(voxels), magnitude(voxels), h(voxels);
  double sum = 0;
  for (size_t j = 0; j < voxels; ++j) {
    if (!warped[j].counts) continue;
    terms.samples += 1;
    const double fj = sf[j] / w[j], mj = sm[j] / w[j];
    const double ff = sff[j] / w[j] - fj * fj, mm = smm[j] / w[j] - mj * mj, fm = sfm[j] / w[j] - fj * mj;
    if (!(ff > 1e-6 * f.stddev * f.stddev && mm > 1e-6 * m.stddev * m.stddev)) continue;
    sum += fm * fm / (ff * mm);
    const double outer = 2 * fm / (ff * mm) / w[j];
    one[j] = outer;
    slope[j] = outer * fm / mm;
    offset[j] = outer * (fm / mm * mj - fj);
    magnitude[j] = std::abs(outer) * (std::sqrt(ff) + std::abs(fm / mm) * std::sqrt(mm));
    h[j] = 2 * fm * fm / (ff * mm) / mm / w[j];
  }
  if (terms.samples == 0) return terms;
  terms.value = 1 - sum / terms.samples;
  const Int3 n = problem.fixed.geometry.size;
  one = WindowSums(one, n, problem.lncc_sigma);
  slope = WindowSums(slope, n, problem.lncc_sigma);
  offset = WindowSums(offset, n, problem.lncc_sigma);
  magnitude = WindowSums(magnitude, n, problem.lncc_sigma);
  h = WindowSums(h, n, problem.lncc_sigma);
  for (size_t i = 0; i < voxels; ++i) {
    if (!warped[i].counts) continue;
    const double a = problem.fixed.data[i] - f.minimum, b = warped[i].sample.value - m.minimum;
    terms.derivative[i] = -(a * one[i] - b * slope[i] + offset[i]) / terms.samples;
    terms.uncertainty[i] = 4e-3 * magnitude[i] / terms.samples;
    terms.curvature[i] = h[i] / terms.samples;
  }
  terms.curvature_tolerance = 2e-3;
  return terms;
}

Reference SumTerms(const std::vector<WarpedVoxel>& warped, const VoxelTerms& terms) {
  Reference reference;
  reference.sums.samples = terms.samples;
  if (!(terms.value < 1 - 1e-9)) return reference;
  reference.sums.weight = terms.samples;
  reference.sums.value = terms.samples * terms.value;
  reference.magnitudes.value = 10 * terms.samples;
  for (size_t i = 0; i < warped.size(); ++i) {
    if (!warped[i].counts) continue;
    const double ambiguous = warped[i].sample.ambiguous ? kAmbiguousWeight : 0;
    Derivative j;
    AddDerivative(warped[i].sample.gradient, warped[i].q, 1, &j);
    const double r = terms.samples * terms.derivative[i], h = terms.samples * terms.curvature[i];
    AddGradient(j, r, 1 + ambiguous, &reference);
    AddSquare(j, h, terms.curvature_tolerance / kTolerance + ambiguous, &reference);
    for (int k = 0; k < 12; ++k) {
      reference.magnitudes.gradient[k] += terms.samples * terms.uncertainty[i] / kTolerance * j.magnitude[k];
    }
  }
  return reference;
}

// `unit` as in NmiReference.
Reference EvaluateReference(const HostProblem& problem, const AffineMap& w, double unit = 1.0 / 4096) {
  if (problem.metric == MetricKind::kNmi) {
    const std::vector<WarpedVoxel> warped = WarpReference(problem, w);
    return SumTerms(warped, NmiReference(problem, warped, unit));
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
  reference.magnitudes.value = std::abs(reference.sums.value);
  return reference;
}

// ---- Problems. ----

enum class Content { kNoisy, kSmooth };

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

struct MapOptions {
  Vec3d degrees{0, 0, 0};
  Vec3d scale{1, 1, 1};
  Vec3d shift{0, 0, 0};  // moving voxels
};

AffineMap Rotation(Vec3d degrees) {
  AffineMap all = AffineMap::Identity();
  for (int a = 0; a < 3; ++a) {
    const double t = degrees[a] * M_PI / 180;
    const int b = (a + 1) % 3, c = (a + 2) % 3;
    AffineMap one = AffineMap::Identity();
    one.m[b][b] = one.m[c][c] = std::cos(t);
    one.m[b][c] = -std::sin(t);
    one.m[c][b] = std::sin(t);
    all = Compose(one, all);
  }
  return all;
}

// Takes the fixed grid onto the moving grid, centre on centre, and then rotates, scales and shifts by voxels.
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

class AffineObjectiveTest : public DeviceTest {
 protected:
  AffineObjective UploadProblem(const HostProblem& problem) {
    AffineObjective o;
    o.metric = problem.metric;
    o.fixed = {Upload(problem.fixed.data), problem.fixed.geometry};
    o.moving = {Upload(problem.moving.data), problem.moving.geometry};
    if (!problem.fixed.mask.empty()) o.fixed_mask = {Upload(problem.fixed.mask), problem.fixed.geometry};
    if (!problem.moving.mask.empty()) o.moving_mask = {Upload(problem.moving.mask), problem.moving.geometry};
    o.fixed_edge = problem.fixed_edge;
    o.moving_edge = problem.moving_edge;
    o.intensity_scale = problem.intensity_scale;
    const Intensities f = IntensitiesOf(problem.fixed), m = IntensitiesOf(problem.moving);
    o.fixed_minimum = f.minimum;
    o.fixed_maximum = f.maximum;
    o.moving_minimum = m.minimum;
    o.moving_maximum = m.maximum;
    o.fixed_stddev = f.stddev;
    o.moving_stddev = m.stddev;
    o.nmi_bins = problem.nmi_bins;
    o.lncc_sigma = problem.lncc_sigma;
    return o;
  }

  NormalEquations Evaluate(const AffineObjective& objective, const AffineMap& w) {
    NormalEquations sums;
    // The earlier content must not matter.
    std::memset(static_cast<void*>(&sums), 0xff, sizeof(sums));
    const absl::Status status = EvaluateAffineObjective(ctx(), objective, w, &sums);
    EXPECT_TRUE(status.ok()) << status;
    return sums;
  }

  static void ExpectClose(const NormalEquations& sums, const Reference& reference) {
    const NormalEquations &r = reference.sums, &m = reference.magnitudes;
    EXPECT_EQ(sums.samples, r.samples);
    EXPECT_NEAR(sums.weight, r.weight, kTolerance * r.weight);
    EXPECT_NEAR(sums.value, r.value, kTolerance * m.value + 1e-30);
    for (int i = 0; i < kAffineParameters; ++i) {
      EXPECT_NEAR(sums.gradient[i], r.gradient[i], kTolerance * m.gradient[i] + 1e-30) << "gradient " << i;
    }
    // NGF of a single row has no second derivatives, but for the rounding errors of contracted cross products.
    const double rounding = 1e-12 * r.samples + 1e-30;
    for (int i = 0; i < kAffineHessianEntries; ++i) {
      EXPECT_NEAR(sums.hessian[i], r.hessian[i], kTolerance * m.hessian[i] + rounding) << "Hessian " << i;
    }
  }

  // Returns the number of samples, so that a test can see that it tested something.
  double Check(const HostProblem& problem, const AffineMap& w) {
    const Reference reference = EvaluateReference(problem, w);
    ExpectClose(Evaluate(UploadProblem(problem), w), reference);
    return reference.sums.samples;
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(AffineObjectiveTest);

constexpr MetricKind kMetrics[] = {MetricKind::kSsd, MetricKind::kNgf, MetricKind::kNmi, MetricKind::kLncc};

std::string Describe(const HostProblem& p) {
  return std::string(MetricName(p.metric)) + " fixed " + SizeString(p.fixed.geometry) + " moving " +
         SizeString(p.moving.geometry);
}

// A 2-D image stays in its plane.
bool IsFlat(const HostProblem& p) { return p.fixed.geometry.is_2d() || p.moving.geometry.is_2d(); }

HostProblem MakeProblem(MetricKind metric, Int3 fixed, Int3 moving, uint32_t seed, Content content = Content::kNoisy,
                        bool fixed_mask = false, bool moving_mask = false) {
  HostProblem p;
  p.metric = metric;
  p.fixed = MakeVolume(fixed, seed, content, fixed_mask);
  p.moving = MakeVolume(moving, seed + 1, content, moving_mask, true);
  p.moving.geometry.spacing = {0.9, 1.1, 1.7};
  return p;
}

TEST_P(AffineObjectiveTest, MatchesReferenceAtManySizes) {
  const Int3 sizes[] = {{1, 1, 1},  {2, 3, 1},  {3, 3, 3},   {17, 33, 1}, {16, 16, 1}, {1, 9, 7},   {9, 1, 7},
                        {64, 5, 4}, {31, 8, 5}, {33, 17, 9}, {15, 4, 3},  {129, 7, 6}, {7, 35, 34}, {67, 66, 3}};
  uint32_t seed = 1;
  for (MetricKind metric : kMetrics) {
    for (Int3 size : sizes) {
      const HostProblem p = MakeProblem(metric, size, size, seed += 17);
      SCOPED_TRACE(Describe(p));
      MapOptions map;
      map.degrees = IsFlat(p) ? Vec3d{0, 0, 2.1} : Vec3d{1.3, -2.2, 2.9};
      map.scale = {0.98, 1.01, 0.97};
      map.shift = {0.113, -0.171, IsFlat(p) ? 0.0 : 0.093};
      Check(p, MakeMap(p, map));
    }
  }
}

TEST_P(AffineObjectiveTest, MatchesReferenceForACube) {
  for (MetricKind metric : kMetrics) {
    const HostProblem p = MakeProblem(metric, {64, 64, 64}, {64, 64, 64}, 90);
    SCOPED_TRACE(Describe(p));
    MapOptions map;
    map.degrees = {3.3, 1.2, -4.9};
    map.scale = {1.013, 0.991, 0.987};
    map.shift = {1.37, -0.61, 0.77};
    EXPECT_GT(Check(p, MakeMap(p, map)), 150000);
  }
}

// Steps along a row from -1.9 to 2 voxels, and rows that run across the moving image: every way to fetch.
TEST_P(AffineObjectiveTest, MatchesReferenceForLargeMaps) {
  const MapOptions maps[] = {{{0, 0, 90}, {1, 1, 1}, {0.2, 0.3, 0.4}},   {{0, 90, 0}, {1, 1, 1}, {0.2, 0.3, 0.4}},
                             {{20, 31, 44}, {1, 1, 1}, {0.2, 0.3, 0.4}}, {{0, 0, 180}, {1, 1, 1}, {0.2, 0.3, 0.4}},
                             {{3, 2, 1}, {-1, 1, 1}, {0.2, 0.3, 0.4}},   {{3, 2, 1}, {1, -0.9, -1.1}, {0.2, 0.3, 0.4}},
                             {{4, 3, 5}, {1.9, 1.7, 1.6}, {0.1, 0, 3}},  {{4, 3, 5}, {0.3, 0.4, 0.45}, {0.1, 0, 3}},
                             {{4, 8, 9}, {-1.4, 1.1, 1.2}, {2.1, 0, 1}}, {{0, 0, 7}, {0.6, -0.7, 0.8}, {4.1, 5, 2}}};
  for (MetricKind metric : kMetrics) {
    for (bool masked : {false, true}) {
      const HostProblem p =
          MakeProblem(metric, {45, 37, 19}, {45, 37, 19}, 200 + masked, Content::kNoisy, masked, masked);
      for (const MapOptions& map : maps) {
        SCOPED_TRACE(Describe(p) + (masked ? " masked " : " ") + std::to_string(&map - maps));
        EXPECT_GT(Check(p, MakeMap(p, map)), 300);
      }
    }
  }
}

TEST_P(AffineObjectiveTest, MatchesReferenceWhenGridsDiffer) {
  const Int3 pairs[][2] = {{{31, 8, 5}, {17, 33, 9}}, {{33, 17, 9}, {64, 12, 30}}, {{40, 21, 1}, {19, 57, 1}},
                           {{12, 11, 10}, {1, 9, 8}}, {{12, 11, 10}, {9, 1, 8}},   {{12, 11, 10}, {8, 9, 1}},
                           {{12, 11, 1}, {8, 9, 6}},  {{20, 20, 20}, {2, 2, 2}},   {{12, 1, 1}, {30, 1, 1}}};
  uint32_t seed = 300;
  for (MetricKind metric : kMetrics) {
    for (const auto& pair : pairs) {
      HostProblem p = MakeProblem(metric, pair[0], pair[1], seed += 5);
      p.intensity_scale = 2.5;
      SCOPED_TRACE(Describe(p));
      MapOptions map;
      map.degrees = IsFlat(p) ? Vec3d{0, 0, -2.6} : Vec3d{2.3, 1.4, -2.6};
      map.scale = {0.93, 0.96, 0.91};
      map.shift = {0.07, 0.11, IsFlat(p) ? 0.0 : -0.13};
      // An axis of one moving voxel takes fixed voxels only within half a voxel.
      for (int a = 0; a < 3; ++a) {
        if (pair[1][a] == 1 && pair[0][a] > 1) map.scale[a] = 0.05;
      }
      EXPECT_GT(Check(p, MakeMap(p, map)), 0);
    }
  }
}

// A slice at any angle in a volume.
TEST_P(AffineObjectiveTest, MatchesReferenceForASliceOfAVolume) {
  const Int3 slices[] = {{45, 37, 1}, {17, 33, 1}, {64, 9, 1}, {130, 70, 1}, {11, 8, 1}, {9, 1, 1}};
  const Vec3d angles[] = {{31, -22, 14}, {90, 0, 0}, {0, 87, 3}, {170, 12, -40}};
  uint32_t seed = 1300;
  for (MetricKind metric : kMetrics) {
    for (Int3 slice : slices) {
      for (const Vec3d& degrees : angles) {
        const bool masked = ++seed % 2 == 0;
        const HostProblem p = MakeProblem(metric, slice, {41, 39, 27}, seed, Content::kNoisy, masked, masked);
        SCOPED_TRACE(Describe(p) + (masked ? " masked" : "") + " seed " + std::to_string(seed));
        MapOptions map;
        map.degrees = degrees;
        map.scale = {0.71, 0.63, 0.9};
        map.shift = {0.31, -0.27, 0.17};
        EXPECT_GE(Check(p, MakeMap(p, map)), slice.x > 8 ? 1 : 0);
      }
    }
  }
}

// No point of a slice shows column 2 of W, and every row does something.
TEST_P(AffineObjectiveTest, SliceHasNoDerivativesAcrossItsPlane) {
  for (MetricKind metric : kMetrics) {
    const HostProblem p = MakeProblem(metric, {50, 41, 1}, {47, 45, 33}, 1500);
    MapOptions map;
    map.degrees = {24, -31, 12};
    const NormalEquations sums = Evaluate(UploadProblem(p), MakeMap(p, map));
    EXPECT_GT(sums.samples, 500);
    int k = 0;
    for (int r = 0; r < 12; ++r) {
      for (int c = r; c < 12; ++c, ++k) {
        EXPECT_EQ(sums.hessian[k] == 0, r % 4 == 2 || c % 4 == 2) << MetricName(metric) << " " << r << " " << c;
      }
      EXPECT_EQ(sums.gradient[r] == 0, r % 4 == 2) << MetricName(metric) << " " << r;
    }
  }
}

TEST_P(AffineObjectiveTest, GradientOfASliceMatchesFiniteDifferences) {
  for (MetricKind metric : kMetrics) {
    const HostProblem p = MakeProblem(metric, {34, 30, 1}, {40, 36, 31}, 1600, Content::kSmooth);
    MapOptions map;
    map.degrees = {21, -17, 33};
    map.scale = {0.6, 0.55, 0.5};
    map.shift = {0.13, 0.24, 0.35};
    const AffineMap w = MakeMap(p, map);
    const NormalEquations sums = Evaluate(UploadProblem(p), w);
    double scale = 0;
    for (double g : sums.gradient) scale = std::max(scale, std::abs(g));
    for (int i = 0; i < kAffineParameters; ++i) {
      const double h = 1e-5;
      AffineMap plus = w, minus = w;
      plus.m[i / 4][i % 4] += h;
      minus.m[i / 4][i % 4] -= h;
      const Reference a = EvaluateReference(p, plus, 0), b = EvaluateReference(p, minus, 0);
      ASSERT_EQ(a.sums.samples, b.sums.samples);
      const double tolerance = metric == MetricKind::kNmi ? 1e-2 : 1e-3;
      EXPECT_NEAR(sums.gradient[i], (a.sums.value - b.sums.value) / (2 * h), tolerance * scale)
          << MetricName(metric) << " " << i;
    }
  }
}

TEST_P(AffineObjectiveTest, MatchesReferenceWithMasks) {
  for (MetricKind metric : kMetrics) {
    for (int which = 1; which < 4; ++which) {
      for (Int3 size : {Int3{33, 17, 9}, Int3{40, 35, 1}, Int3{70, 6, 5}}) {
        const HostProblem p =
            MakeProblem(metric, size, {37, 19, size.z}, 400 + which, Content::kNoisy, which & 1, which & 2);
        SCOPED_TRACE(Describe(p) + " masks " + std::to_string(which));
        MapOptions map;
        map.degrees = IsFlat(p) ? Vec3d{0, 0, 3.1} : Vec3d{1.3, -1.4, 3.1};
        map.shift = {0.31, -0.27, IsFlat(p) ? 0.0 : 0.17};
        EXPECT_GT(Check(p, MakeMap(p, map)), 50);
      }
    }
  }
}

TEST_P(AffineObjectiveTest, NotANumberOutsideTheMasksDoesNotCount) {
  // LNCC takes fixed images that are finite everywhere (lncc.h).
  for (MetricKind metric : {MetricKind::kSsd, MetricKind::kNgf, MetricKind::kNmi}) {
    HostProblem p = MakeProblem(metric, {24, 22, 20}, {24, 22, 20}, 450);
    p.fixed.mask.assign(p.fixed.data.size(), 1);
    p.moving.mask.assign(p.moving.data.size(), 1);
    size_t i = 0;
    // The corner octant of each image has no data; the mask leaves a margin for what neighbours reach.
    for (int z = 0; z < 20; ++z) {
      for (int y = 0; y < 22; ++y) {
        for (int x = 0; x < 24; ++x, ++i) {
          if (x < 6 && y < 6 && z < 6) p.fixed.data[i] = p.moving.data[i] = NAN;
          if (x < 9 && y < 9 && z < 9) p.fixed.mask[i] = p.moving.mask[i] = 0;
        }
      }
    }
    SCOPED_TRACE(Describe(p));
    MapOptions map;
    map.degrees = {2.1, 1.2, -1.9};
    map.shift = {0.41, 0.32, 0.23};
    EXPECT_GT(Check(p, MakeMap(p, map)), 4000);
  }
}

TEST_P(AffineObjectiveTest, LeavesTheImagePartlyAndWholly) {
  for (MetricKind metric : kMetrics) {
    const HostProblem p = MakeProblem(metric, {33, 17, 9}, {31, 18, 11}, 500);
    SCOPED_TRACE(Describe(p));
    MapOptions map;
    map.degrees = {2.1, 3.2, -1.9};
    map.shift = {14.3, -5.2, 2.1};
    EXPECT_GT(Check(p, MakeMap(p, map)), 100);
    for (int axis = 0; axis < 3; ++axis) {
      for (double far : {-1e2, 1e2, 1e9, -1e30}) {
        MapOptions away;
        away.shift[axis] = far;
        EXPECT_EQ(Check(p, MakeMap(p, away)), 0);
      }
    }
  }
}

TEST_P(AffineObjectiveTest, MapThatIsNotANumberCountsNothing) {
  for (MetricKind metric : kMetrics) {
    const HostProblem p = MakeProblem(metric, {33, 17, 9}, {33, 17, 9}, 550);
    const AffineObjective o = UploadProblem(p);
    for (double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
      for (int r = 0; r < 3; ++r) {
        AffineMap w = MakeMap(p, {});
        w.m[r][3] = bad;
        const NormalEquations sums = Evaluate(o, w);
        EXPECT_EQ(sums.samples, 0);
        EXPECT_EQ(sums.value, 0);
        for (double h : sums.hessian) EXPECT_EQ(h, 0);
      }
    }
  }
}

// On the same grid the identity lands on voxel centres: images that are equal have distance 0 and gradient 0.
TEST_P(AffineObjectiveTest, IdentityOnEqualImages) {
  for (Int3 size : {Int3{33, 17, 9}, Int3{35, 18, 1}, Int3{128, 6, 5}}) {
    HostProblem p = MakeProblem(MetricKind::kSsd, size, size, 600);
    p.moving.data = p.fixed.data;
    SCOPED_TRACE(Describe(p));
    const NormalEquations sums = Evaluate(UploadProblem(p), NormalizedToIndex(p.fixed.geometry));
    EXPECT_EQ(sums.samples, p.fixed.geometry.voxels());
    EXPECT_LE(sums.value, 1e-9 * sums.samples);
    double scale = 0;
    for (double h : sums.hessian) scale = std::max(scale, std::abs(h));
    EXPECT_GT(scale, 0);
    for (double g : sums.gradient) EXPECT_LE(std::abs(g), 1e-5 * scale);
  }
}

TEST_P(AffineObjectiveTest, FlatFixedImagesWeighNothing) {
  for (double edge : {0.0, 1e-25, 0.1}) {
    HostProblem p = MakeProblem(MetricKind::kNgf, {20, 11, 7}, {20, 11, 7}, 650);
    p.fixed_edge = p.moving_edge = edge;
    std::fill(p.fixed.data.begin(), p.fixed.data.end(), 3.0f);
    HostProblem both = p;
    std::fill(both.moving.data.begin(), both.moving.data.end(), 2.0f);
    for (const HostProblem& problem : {p, both}) {
      const NormalEquations sums = Evaluate(UploadProblem(problem), NormalizedToIndex(p.fixed.geometry));
      EXPECT_EQ(sums.samples, 18 * 9 * 5);
      EXPECT_EQ(sums.value, 0);
      EXPECT_EQ(sums.weight, 0);
      for (double g : sums.gradient) EXPECT_EQ(g, 0);
      for (double h : sums.hessian) EXPECT_EQ(h, 0);
    }
  }
}

TEST_P(AffineObjectiveTest, IntensitiesOfAComputedTomography) {
  for (MetricKind metric : kMetrics) {
    HostProblem p = MakeProblem(metric, {41, 23, 12}, {39, 26, 13}, 700);
    for (float& v : p.fixed.data) v = 1000 * v - 500;
    for (float& v : p.moving.data) v = 800 * v + 200;
    p.fixed_edge = 30;
    p.moving_edge = 50;
    p.intensity_scale = 1e-3;
    SCOPED_TRACE(Describe(p));
    MapOptions map;
    map.degrees = {2.1, 1.2, -1.9};
    map.shift = {0.41, 0.32, 0.23};
    EXPECT_GT(Check(p, MakeMap(p, map)), 4000);
  }
}

// The gradient is the derivative of the value: against central differences of the reference's value, where no sample
// enters or leaves.
TEST_P(AffineObjectiveTest, GradientMatchesFiniteDifferences) {
  for (MetricKind metric : kMetrics) {
    for (int nz : {1, 12}) {
      const HostProblem p = MakeProblem(metric, {24, 20, nz}, {40, 36, nz == 1 ? 1 : 26}, 800 + nz, Content::kSmooth);
      SCOPED_TRACE(Describe(p));
      MapOptions map;
      map.degrees = nz == 1 ? Vec3d{0, 0, 3.3} : Vec3d{2.1, 1.7, 3.3};
      map.scale = {0.6, 0.55, 0.5};
      map.shift = {0.13, 0.24, nz == 1 ? 0.0 : 0.35};
      const AffineMap w = MakeMap(p, map);
      const NormalEquations sums = Evaluate(UploadProblem(p), w);
      double scale = 0;
      for (double g : sums.gradient) scale = std::max(scale, std::abs(g));
      for (int i = 0; i < kAffineParameters; ++i) {
        const double h = 1e-5;
        AffineMap plus = w, minus = w;
        plus.m[i / 4][i % 4] += h;
        minus.m[i / 4][i % 4] -= h;
        const Reference a = EvaluateReference(p, plus, 0), b = EvaluateReference(p, minus, 0);
        ASSERT_EQ(a.sums.samples, b.sums.samples);
        // NMI's counts are rounded, its reference's here are not.
        const double tolerance = metric == MetricKind::kNmi ? 1e-2 : 1e-3;
        EXPECT_NEAR(sums.gradient[i], (a.sums.value - b.sums.value) / (2 * h), tolerance * scale) << i;
      }
    }
  }
}

// A 2-D image says nothing along z, and the derivatives along z are zero.
TEST_P(AffineObjectiveTest, PlaneHasNoDerivativesAcross) {
  for (MetricKind metric : kMetrics) {
    const HostProblem p = MakeProblem(metric, {50, 41, 1}, {47, 45, 1}, 900);
    MapOptions map;
    map.degrees = {0, 0, 4};
    const NormalEquations sums = Evaluate(UploadProblem(p), MakeMap(p, map));
    EXPECT_GT(sums.samples, 1000);
    int k = 0;
    for (int r = 0; r < 12; ++r) {
      for (int c = r; c < 12; ++c, ++k) {
        const bool across = r / 4 == 2 || c / 4 == 2 || r % 4 == 2 || c % 4 == 2;
        EXPECT_EQ(sums.hessian[k] == 0, across) << r << " " << c;
      }
      EXPECT_EQ(sums.gradient[r] == 0, r / 4 == 2 || r % 4 == 2) << r;
    }
  }
}

TEST_P(AffineObjectiveTest, BitIdenticalForAnyNumberOfCores) {
  for (MetricKind metric : kMetrics) {
    for (Int3 size : {Int3{70, 66, 40}, Int3{150, 141, 1}}) {
      const HostProblem p = MakeProblem(metric, size, size, 950);
      const AffineObjective o = UploadProblem(p);
      MapOptions map;
      map.degrees = IsFlat(p) ? Vec3d{0, 0, 3} : Vec3d{1, 2, 3};
      const AffineMap w = MakeMap(p, map);
      const NormalEquations first = Evaluate(o, w);
      for (size_t cores : {1, 2, 3, 8}) {
        const tbb::global_control control(tbb::global_control::max_allowed_parallelism, cores);
        for (int run = 0; run < 3; ++run) {
          const NormalEquations again = Evaluate(o, w);
          EXPECT_EQ(std::memcmp(&first, &again, sizeof(first)), 0) << Describe(p) << " cores " << cores;
        }
      }
    }
  }
}

// Every instruction set that this processor has.
TEST_P(AffineObjectiveTest, MatchesReferenceOnEveryVectorTarget) {
  if (ctx().is_cuda()) GTEST_SKIP() << "for the CPU alone";
  const int64_t supported = hwy::SupportedTargets();
  for (int64_t rest = supported; rest != 0; rest &= rest - 1) {
    hwy::SetSupportedTargetsForTest(rest & -rest);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    for (MetricKind metric : kMetrics) {
      for (int nz : {1, 14}) {
        const HostProblem p =
            MakeProblem(metric, {45, 37, nz}, {41, 39, nz}, 960 + nz, Content::kNoisy, nz == 1, nz == 1);
        for (double degrees : {2.9, 28.1}) {
          SCOPED_TRACE(Describe(p) + " target " + hwy::TargetName(rest & -rest) + " " + std::to_string(degrees));
          MapOptions map;
          map.degrees = IsFlat(p) ? Vec3d{0, 0, degrees} : Vec3d{1.3, -2.2, degrees};
          map.shift = {0.113, -0.171, IsFlat(p) ? 0.0 : 0.093};
          EXPECT_GT(Check(p, MakeMap(p, map)), 100);
        }
      }
    }
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

TEST_P(AffineObjectiveTest, RefusesAMaskOfAnotherSize) {
  HostProblem p = MakeProblem(MetricKind::kSsd, {9, 8, 7}, {9, 8, 7}, 970, Content::kNoisy, true, true);
  AffineObjective o = UploadProblem(p);
  const AffineMap w = MakeMap(p, {});
  NormalEquations sums;
  o.fixed_mask.geometry.size.x = 8;
  EXPECT_EQ(EvaluateAffineObjective(ctx(), o, w, &sums).code(), absl::StatusCode::kInvalidArgument);
  o = UploadProblem(p);
  o.moving_mask.geometry.size.z = 8;
  EXPECT_EQ(EvaluateAffineObjective(ctx(), o, w, &sums).code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(AffineObjectiveTest, RefusesParametersOutOfRange) {
  HostProblem p = MakeProblem(MetricKind::kNmi, {9, 8, 7}, {9, 8, 7}, 980);
  const AffineMap w = MakeMap(p, {});
  AffineObjective o = UploadProblem(p);
  NormalEquations sums;
  for (int bins : {-1, 3, 65}) {
    o.nmi_bins = bins;
    EXPECT_EQ(EvaluateAffineObjective(ctx(), o, w, &sums).code(), absl::StatusCode::kInvalidArgument) << bins;
  }
  o = UploadProblem(p);
  o.metric = MetricKind::kLncc;
  for (double sigma : {0.0, 6.0}) {
    o.lncc_sigma = sigma;
    EXPECT_EQ(EvaluateAffineObjective(ctx(), o, w, &sums).code(), absl::StatusCode::kInvalidArgument) << sigma;
  }
}

// A constant says nothing of any image.
TEST_P(AffineObjectiveTest, ConstantImagesWeighNothing) {
  for (MetricKind metric : {MetricKind::kNmi, MetricKind::kLncc}) {
    const HostProblem varied = MakeProblem(metric, {20, 11, 7}, {20, 11, 7}, 990);
    for (int constant = 1; constant < 4; ++constant) {
      HostProblem p = varied;
      if (constant & 1) std::fill(p.fixed.data.begin(), p.fixed.data.end(), 3.0f);
      if (constant & 2) std::fill(p.moving.data.begin(), p.moving.data.end(), -2.0f);
      SCOPED_TRACE(Describe(p) + " constant " + std::to_string(constant));
      const NormalEquations sums = Evaluate(UploadProblem(p), MakeMap(p, {}));
      EXPECT_EQ(sums.samples, 20 * 11 * 7);
      EXPECT_EQ(sums.value, 0);
      EXPECT_EQ(sums.weight, 0);
      for (double g : sums.gradient) EXPECT_EQ(g, 0);
      for (double h : sums.hessian) EXPECT_EQ(h, 0);
    }
  }
}

// The Hessian is positive semi-definite: no direction has a negative curvature.
TEST_P(AffineObjectiveTest, CurvatureIsNeverNegative) {
  for (MetricKind metric : kMetrics) {
    const HostProblem p = MakeProblem(metric, {33, 30, 21}, {33, 30, 21}, 995);
    MapOptions map;
    map.degrees = {1.3, -1.4, 3.1};
    const NormalEquations sums = Evaluate(UploadProblem(p), MakeMap(p, map));
    for (uint32_t seed = 1; seed < 40; ++seed) {
      const std::vector<float> v = RandomFloats(kAffineParameters, seed);
      double product = 0, scale = 0;
      for (int r = 0; r < kAffineParameters; ++r) {
        for (int c = 0; c < kAffineParameters; ++c) {
          const double term = sums.hessian[HessianEntry(std::min(r, c), std::max(r, c))] * v[r] * v[c];
          product += term;
          scale += std::abs(term);
        }
      }
      EXPECT_GE(product, -1e-6 * scale) << MetricName(metric) << " " << seed;
      EXPECT_GT(scale, 0);
    }
  }
}

TEST(AffineNormalization, TakesTheGridToTheUnitCube) {
  for (Int3 size : {Int3{1, 1, 1}, Int3{2, 3, 1}, Int3{31, 8, 5}}) {
    Geometry g;
    g.size = size;
    const Vec3d low = IndexToNormalized(g)({0, 0, 0});
    const Vec3d high = IndexToNormalized(g)({size.x - 1.0, size.y - 1.0, size.z - 1.0});
    const AffineMap round_trip = Compose(NormalizedToIndex(g), IndexToNormalized(g));
    for (int a = 0; a < 3; ++a) {
      EXPECT_NEAR(low[a], size[a] == 1 ? 0 : -1, 1e-15);
      EXPECT_NEAR(high[a], size[a] == 1 ? 0 : 1, 1e-15);
      for (int c = 0; c < 4; ++c) EXPECT_NEAR(round_trip.m[a][c], a == c ? 1 : 0, 1e-13);
    }
  }
}

}  // namespace
}  // namespace intrawarp
