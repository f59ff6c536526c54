// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/metric/ffd_objective_fixture.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "engine/geometry/geometry.h"
#include "tests/engine/device_test.h"
#include "tests/engine/metric/lncc_window.h"
#include "tests/engine/metric/references.h"

namespace intrawarp::ffd_objective_test {
namespace {

// The derivative of a linear interpolation jumps where cells meet, and samples come and go at the edges of the domain
// and of masked voxels: where float32 may decide otherwise.
constexpr double kCellRounding = 1e-4;

// Calls visit(node, weight) for the control points that weigh on physical point p.
template <typename Visit>
void ForEachNode(const Geometry& grid, Vec3d p, const Visit& visit) {
  const Vec3d x = PhysicalToIndex(grid)(p);
  Int3 begin, end;
  for (int a = 0; a < 3; ++a) {
    begin[a] = grid.size[a] == 1 ? 0 : std::max(0, static_cast<int>(std::ceil(x[a] - 2)));
    end[a] = grid.size[a] == 1 ? 1 : std::min(grid.size[a], static_cast<int>(std::floor(x[a] + 2)) + 1);
  }
  const auto weight = [&](int a, int k) { return grid.size[a] == 1 ? 1.0 : CubicSpline(x[a] - k); };
  for (int k = begin.z; k < end.z; ++k)
    for (int j = begin.y; j < end.y; ++j)
      for (int i = begin.x; i < end.x; ++i)
        visit((static_cast<size_t>(k) * grid.size.y + j) * grid.size.x + i, weight(0, i) * weight(1, j) * weight(2, k));
}

MetricReference SsdReference(const HostProblem& problem, const std::vector<Sample>& samples) {
  MetricReference r;
  r.voxel_gradient.resize(samples.size());
  r.uncertainty.resize(samples.size());
  double sum = 0, weight = 0;
  for (const Sample& s : samples) {
    r.samples += s.counts;
    weight += s.counts ? s.weight : 0;
  }
  const double s2 = problem.intensity_scale * problem.intensity_scale;
  for (size_t i = 0; i < samples.size(); ++i) {
    if (!samples[i].counts) continue;
    const double f = problem.fixed.data[i], m = samples[i].value, w = samples[i].weight;
    sum += w * s2 * (m - f) * (m - f);
    r.voxel_gradient[i] = 2 * w * s2 * (m - f) / weight;
    r.uncertainty[i] = 2 * w * s2 * 3e-5 * (std::abs(m) + std::abs(f)) / weight;
  }
  if (r.samples > 0) r.value = sum / weight;
  return r;
}

// `unit` as in NmiReference.
MetricReference NmiGradient(const HostProblem& problem, const std::vector<Sample>& samples, double unit) {
  MetricReference r;
  r.voxel_gradient.resize(samples.size());
  r.uncertainty.resize(samples.size());
  const auto range = [](double low, double high) { return high > low ? 1 / (high - low) : 0; };
  const double fixed_scale = 64 * range(problem.fixed_minimum, problem.fixed_maximum);
  const double moving_scale = 61 * range(problem.moving_minimum, problem.moving_maximum);
  const auto place = [&](size_t i) {
    const double f = (problem.fixed.data[i] - problem.fixed_minimum) * fixed_scale;
    const double m = std::clamp((samples[i].value - problem.moving_minimum) * moving_scale, 0.0, 61.0);
    const int cell = std::min(static_cast<int>(m), 60);
    return NmiPlace{static_cast<int>(std::clamp(f, 0.0, 63.0)), cell, m - cell, samples[i].weight};
  };
  std::vector<NmiPlace> places;
  for (size_t i = 0; i < samples.size(); ++i) {
    if (samples[i].counts) places.push_back(place(i));
  }
  const NmiReference nmi(places, unit);
  r.samples = nmi.samples();
  r.value = nmi.value();
  for (size_t i = 0; i < samples.size(); ++i) {
    if (!samples[i].counts) continue;
    const NmiReference::Derivative d = nmi.DerivativeAt(place(i));
    r.voxel_gradient[i] = moving_scale * d.value;
    r.uncertainty[i] = 2e-3 * moving_scale * samples[i].weight * d.largest_slope / nmi.weight();
  }
  return r;
}

// The window of LNCC over boxes, as a product of three.
std::vector<double> GaussianWindow(double sigma) {
  sigma = SigmaOverBoxes(sigma);
  const int radius = static_cast<int>(std::ceil(3 * sigma));
  std::vector<double> w(2 * radius + 1);
  for (int i = -radius; i <= radius; ++i) w[i + radius] = std::exp(-0.5 * i * i / (sigma * sigma));
  return w;
}

MetricReference LnccReference(const HostProblem& problem, const std::vector<Sample>& samples) {
  MetricReference r;
  r.voxel_gradient.resize(samples.size());
  r.uncertainty.resize(samples.size());
  for (const Sample& s : samples) r.samples += s.counts;
  if (r.samples == 0) return r;
  const Int3 n = problem.fixed.geometry.size;
  const std::vector<double> window = GaussianWindow(problem.lncc_sigma);
  const int radius = static_cast<int>(window.size() / 2);
  // The samples around a box, by the window's weight times their own.
  const auto for_window = [&](Int3 c, const auto& visit) {
    const auto first = [&](int at) { return std::max(0, 2 * (at - radius)); };
    const auto last = [&](int at, int count) { return std::min(count - 1, 2 * (at + radius) + 1); };
    for (int z = first(c.z); z <= last(c.z, n.z); ++z)
      for (int y = first(c.y); y <= last(c.y, n.y); ++y)
        for (int x = first(c.x); x <= last(c.x, n.x); ++x) {
          const size_t j = problem.fixed.Offset({x, y, z});
          const double weight =
              window[x / 2 - c.x + radius] * window[y / 2 - c.y + radius] * window[z / 2 - c.z + radius];
          if (!samples[j].counts) continue;
          visit(j, weight * samples[j].weight, static_cast<double>(problem.fixed.data[j]), samples[j].value);
        }
  };
  std::vector<double> weights(samples.size());
  for (size_t i = 0; i < samples.size(); ++i) weights[i] = samples[i].counts ? samples[i].weight : 0;
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  weights = SumBoxes(weights, n);
  double sum = 0;
  ForEachVoxel(BoxesOf(n), [&](size_t box, Int3 c) {
    if (weights[box] == 0) return;
    double w = 0, f = 0, m = 0, ff = 0, mm = 0, fm = 0;
    for_window(c, [&](size_t, double weight, double a, double b) {
      w += weight;
      f += weight * a;
      m += weight * b;
    });
    f /= w;
    m /= w;
    for_window(c, [&](size_t, double weight, double a, double b) {
      ff += weight * (a - f) * (a - f) / w;
      mm += weight * (b - m) * (b - m) / w;
      fm += weight * (a - f) * (b - m) / w;
    });
    if (ff < 1e-6 * problem.fixed_stddev * problem.fixed_stddev ||
        mm < 1e-6 * problem.moving_stddev * problem.moving_stddev) {
      return;
    }
    sum += weights[box] * fm * fm / (ff * mm);
    for_window(c, [&](size_t j, double weight, double a, double b) {
      const double outer = 2 * weights[box] * fm / (ff * mm) * weight / w / total;
      r.voxel_gradient[j] -= outer * (a - f - fm / mm * (b - m));
      r.uncertainty[j] += 2e-3 * std::abs(outer) * (std::abs(a - f) + std::abs(fm / mm * (b - m)));
    });
  });
  r.value = 1 - sum / total;
  return r;
}

MetricReference NgfReference(const HostProblem& problem, const std::vector<Sample>& samples) {
  MetricReference r;
  r.voxel_gradient.resize(samples.size());
  r.uncertainty.resize(samples.size());
  const Geometry& g = problem.fixed.geometry;
  struct Term {
    size_t plus[3], minus[3];
    Vec3d slope;  // of the term by the moving gradient
    double size = 0, uncertainty = 3e-4;
  };
  std::vector<Term> terms;
  double sum = 0, weight = 0;
  ForEachVoxel(g.size, [&](size_t i, Int3 p) {
    if (!samples[i].counts) return;
    Term term;
    Vec3d gm, gf;
    for (int a = 0; a < 3; ++a) {
      term.plus[a] = term.minus[a] = i;
      if (g.size[a] == 1) continue;
      if (p[a] == 0 || p[a] == g.size[a] - 1) return;
      Int3 q = p;
      q[a] = p[a] + 1;
      term.plus[a] = problem.fixed.Offset(q);
      q[a] = p[a] - 1;
      term.minus[a] = problem.fixed.Offset(q);
      if (!samples[term.plus[a]].counts || !samples[term.minus[a]].counts) return;
      gm[a] = (samples[term.plus[a]].value - samples[term.minus[a]].value) / (2 * g.spacing[a]);
      gf[a] = (static_cast<double>(problem.fixed.data[term.plus[a]]) - problem.fixed.data[term.minus[a]]) /
              (2 * g.spacing[a]);
    }
    const double norm_m = std::sqrt(Dot(gm, gm) + problem.moving_edge * problem.moving_edge);
    const double norm_f = std::sqrt(Dot(gf, gf) + problem.fixed_edge * problem.fixed_edge);
    const Vec3d u = (1 / norm_m) * gm, v = (1 / norm_f) * gf;
    const double uv = Dot(u, v), w = samples[i].weight;
    sum += w * (Dot(v, v) - uv * uv);
    weight += w * Dot(v, v);
    r.samples += 1;
    term.slope = (-2 * w * uv / norm_m) * (v - uv * u);
    term.size = 2 * w * std::sqrt(Dot(v, v)) / norm_m;
    if (samples[i].ambiguous) term.uncertainty = 0.1;
    terms.push_back(term);
  });
  if (r.samples == 0) return r;
  r.value = weight > 0 ? sum / weight : r.value;
  for (const Term& t : terms) {
    for (int a = 0; a < 3; ++a) {
      const double factor = weight > 0 ? 1 / (2 * g.spacing[a] * weight) : 0;
      r.voxel_gradient[t.plus[a]] += factor * t.slope[a];
      r.voxel_gradient[t.minus[a]] -= factor * t.slope[a];
      r.uncertainty[t.plus[a]] += t.uncertainty * factor * t.size;
      r.uncertainty[t.minus[a]] += t.uncertainty * factor * t.size;
    }
  }
  return r;
}

// A mask with some holes.
void SetMask(uint32_t seed, HostVolume* v) {
  for (float h : RandomFloats(v->geometry.voxels(), seed + 1000)) v->mask.push_back(h < 0.04f ? 0 : h < 0.5f ? 1 : 255);
}

// Makes the masks' bytes weights.
void SetWeights(uint32_t seed, HostProblem* p) {
  const std::vector<float> bytes = RandomFloats(p->fixed.mask.size(), seed + 2000, 1, 256);
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (p->fixed.mask[i] != 0) p->fixed.mask[i] = static_cast<uint8_t>(bytes[i]);
  }
  ForEachVoxel(p->moving.geometry.size, [&](size_t i, Int3 v) {
    if (!p->moving.mask.empty() && p->moving.mask[i] != 0) p->moving.mask[i] = SlowWeight(v, seed);
  });
  p->fixed.weight_per_unit = p->moving.weight_per_unit = kWeightPerUnit;
}

HostVolume MakeVolume(Int3 size, uint32_t seed, Content content, bool left_handed) {
  HostVolume v;
  v.geometry = ObliqueGeometry(size, left_handed);
  const std::vector<float> noise = RandomFloats(v.geometry.voxels(), seed, -0.3f, 0.3f);
  v.data.resize(noise.size());
  const double phase = seed % 7;
  ForEachVoxel(size, [&](size_t i, Int3 p) {
    const double wave =
        std::sin(0.31 * p.x + 0.13 * p.y + phase) + std::cos(0.27 * p.y - 0.36 * p.z) + std::sin(0.4 * p.z + 0.2 * p.x);
    v.data[i] = static_cast<float>(wave) + (content == Content::kNoisy ? noise[i] : 0);
  });
  return v;
}

// Takes the fixed grid onto the moving grid, centre on centre, and then rotates, scales and shifts by voxels.
AffineMap MakeAffine(const Geometry& fixed, const Geometry& moving, const Options& options) {
  AffineMap center = AffineMap::Identity(), scale, shift = AffineMap::Identity();
  for (int a = 0; a < 3; ++a) {
    const int nf = fixed.size[a], nm = moving.size[a];
    center.m[a][3] = -0.5 * (nf - 1);
    scale.m[a][a] = options.scale * (nf > 1 && nm > 1 ? (nm - 1.0) / (nf - 1) : 0.9 / std::max(nf, nm));
    shift.m[a][3] = 0.5 * (nm - 1) + options.shift[a];
  }
  const AffineMap index_map = Compose(shift, Compose(Rotation(options.degrees), Compose(scale, center)));
  return Compose(IndexToPhysical(moving), Compose(index_map, PhysicalToIndex(fixed)));
}

double Stddev(const std::vector<float>& v) {
  double sum = 0, squares = 0;
  for (float x : v) sum += x, squares += static_cast<double>(x) * x;
  return std::sqrt(std::max(0.0, squares / v.size() - sum * sum / v.size() / v.size()));
}

}  // namespace

std::vector<Sample> WarpReference(const HostProblem& problem, const std::vector<double>& coefficients) {
  const Geometry& fixed = problem.fixed.geometry;
  const AffineMap to_physical = IndexToPhysical(fixed);
  const AffineMap to_moving = Compose(PhysicalToIndex(problem.moving.geometry), problem.affine);
  std::vector<Sample> samples(fixed.voxels());
  ForEachVoxel(fixed.size, [&](size_t i, Int3 v) {
    if (!problem.fixed.InMask(v)) return;
    const Vec3d p = to_physical({static_cast<double>(v.x), static_cast<double>(v.y), static_cast<double>(v.z)});
    Vec3d moved = p;
    ForEachNode(problem.grid, p, [&](size_t node, double w) {
      for (int c = 0; c < 3; ++c) moved[c] += w * coefficients[3 * node + c];
    });
    samples[i] = SampleReference(problem.moving, to_moving(moved), kCellRounding);
    samples[i].weight *= problem.fixed.Weight(v);
  });
  return samples;
}

MetricReference EvaluateMetric(const HostProblem& problem, const std::vector<Sample>& samples, double unit) {
  switch (problem.metric) {
    case MetricKind::kSsd:
      return SsdReference(problem, samples);
    case MetricKind::kNmi:
      return NmiGradient(problem, samples, unit);
    case MetricKind::kLncc:
      return LnccReference(problem, samples);
    case MetricKind::kNgf:
      return NgfReference(problem, samples);
    case MetricKind::kMind:
      break;
  }
  return {};
}

Reference EvaluateReference(const HostProblem& problem) {
  const std::vector<Sample> samples = WarpReference(problem, Doubles(problem.coefficients));
  const MetricReference metric = EvaluateMetric(problem, samples, 1.0 / 4096);
  Reference r;
  r.value = metric.value;
  r.samples = metric.samples;
  r.gradient.resize(problem.coefficients.size());
  r.uncertainty.resize(problem.coefficients.size());
  const AffineMap to_physical = IndexToPhysical(problem.fixed.geometry);
  const AffineMap to_moving = Compose(PhysicalToIndex(problem.moving.geometry), problem.affine);
  ForEachVoxel(problem.fixed.geometry.size, [&](size_t i, Int3 v) {
    const Sample& s = samples[i];
    if (!s.counts) return;
    const Vec3d p = to_physical({static_cast<double>(v.x), static_cast<double>(v.y), static_cast<double>(v.z)});
    const Vec3d force = metric.voxel_gradient[i] * to_moving.LinearTransposed(s.gradient);
    Vec3d size;
    for (int c = 0; c < 3; ++c) {
      for (int d = 0; d < 3; ++d) size[c] += std::abs(to_moving.m[d][c] * s.gradient[d]);
    }
    // In the other cell, all of it may be different.
    const double relative = s.ambiguous ? 4 : 2e-5;
    ForEachNode(problem.grid, p, [&](size_t node, double w) {
      for (int c = 0; c < 3; ++c) {
        r.gradient[3 * node + c] += w * force[c];
        r.uncertainty[3 * node + c] +=
            w * size[c] * (metric.uncertainty[i] + relative * std::abs(metric.voxel_gradient[i]));
      }
    });
  });
  return r;
}

Geometry MakeGrid(const Geometry& image, Vec3d spacing) {
  Geometry grid = image;
  Vec3d corner;
  for (int a = 0; a < 3; ++a) {
    if (image.size[a] == 1) continue;
    grid.spacing[a] = spacing[a] * image.spacing[a];
    grid.size[a] = static_cast<int>(std::ceil(image.size[a] / spacing[a])) + 3;
    corner[a] = -0.5 - spacing[a];
  }
  grid.origin = IndexToPhysical(image)(corner);
  return grid;
}

HostProblem MakeProblem(MetricKind metric, const Options& o) {
  HostProblem p;
  p.metric = metric;
  p.fixed = MakeVolume(o.fixed, o.seed, o.content, false);
  p.moving = MakeVolume(o.moving, o.seed + 1, o.content, o.left_handed);
  if (o.fixed_mask) SetMask(o.seed, &p.fixed);
  if (o.moving_mask) SetMask(o.seed + 1, &p.moving);
  if (o.soft) SetWeights(o.seed, &p);
  p.moving.geometry.spacing = {0.9, 1.1, 1.7};
  p.affine = MakeAffine(p.fixed.geometry, p.moving.geometry, o);
  p.grid = MakeGrid(p.fixed.geometry, o.spacing);
  const bool flat = p.fixed.geometry.is_2d() || p.moving.geometry.is_2d();
  p.coefficients = RandomFloats(3 * p.grid.voxels(), o.seed + 7, -1, 1);
  // A plane stays in its plane.
  const AffineMap to_physical = IndexToPhysical(p.fixed.geometry);
  for (int64_t k = 0; k < p.grid.voxels(); ++k) {
    float* const c = p.coefficients.data() + 3 * k;
    Vec3d u{o.amplitude * c[0], o.amplitude * c[1], flat ? 0 : o.amplitude * c[2]};
    u = to_physical.Linear(u);
    for (int a = 0; a < 3; ++a) c[a] = static_cast<float>(u[a]);
  }
  p.intensity_scale = 0.7;
  const auto [fixed_low, fixed_high] = std::minmax_element(p.fixed.data.begin(), p.fixed.data.end());
  const auto [moving_low, moving_high] = std::minmax_element(p.moving.data.begin(), p.moving.data.end());
  p.fixed_minimum = *fixed_low;
  p.fixed_maximum = *fixed_high;
  p.moving_minimum = *moving_low;
  p.moving_maximum = *moving_high;
  p.fixed_stddev = Stddev(p.fixed.data);
  p.moving_stddev = Stddev(p.moving.data);
  return p;
}

std::string Describe(const HostProblem& p) {
  return std::string(MetricName(p.metric)) + " fixed " + SizeString(p.fixed.geometry) + " moving " +
         SizeString(p.moving.geometry) + " grid " + SizeString(p.grid);
}

}  // namespace intrawarp::ffd_objective_test
