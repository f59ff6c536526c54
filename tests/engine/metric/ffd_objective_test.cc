// SPDX-License-Identifier: Apache-2.0
#include "engine/metric/ffd_objective.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "engine/metric/ffd_plan.h"
#include "engine/metric/nmi.h"
#include "hwy/targets.h"
#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

// ---- The reference: float64, one voxel after the other. ----

struct HostVolume {
  Geometry geometry;
  std::vector<float> data;
  std::vector<uint8_t> mask;  // empty: everything counts

  size_t Offset(Int3 p) const { return (static_cast<size_t>(p.z) * geometry.size.y + p.y) * geometry.size.x + p.x; }
  double At(Int3 p) const { return data[Offset(p)]; }
  bool InMask(Int3 p) const { return mask.empty() || mask[Offset(p)] != 0; }
};

struct HostProblem {
  MetricKind metric = MetricKind::kSsd;
  HostVolume fixed, moving;
  AffineMap affine = AffineMap::Identity();
  Geometry grid;
  std::vector<float> coefficients;
  double intensity_scale = 1;
  float fixed_minimum = 0, fixed_maximum = 1, moving_minimum = 0, moving_maximum = 1;
  double fixed_stddev = 1, moving_stddev = 1;
  double lncc_sigma = 1.5;
  double fixed_edge = 0.03, moving_edge = 0.05;
};

// The derivative of a linear interpolation jumps where cells meet, and samples come and go at the edges of the domain
// and of masked voxels: where float32 may decide otherwise.
constexpr double kCellRounding = 1e-4;

struct Sample {
  bool counts = false;
  // Within kCellRounding of a neighbouring cell.
  bool ambiguous = false;
  double value = 0;
  Vec3d gradient;  // by the moving index
};

Sample SampleReference(const HostVolume& v, Vec3d index) {
  const Int3 n = v.geometry.size;
  Int3 lower, nearest;
  Vec3d weight;
  bool interior[3];
  Sample s;
  for (int a = 0; a < 3; ++a) {
    if (!(index[a] >= -0.5 && index[a] <= n[a] - 0.5)) return s;
    const double clamped = std::clamp(index[a], 0.0, n[a] - 1.0);
    interior[a] = clamped == index[a] && n[a] > 1;
    lower[a] = std::max(0, std::min(static_cast<int>(std::floor(clamped)), n[a] - 2));
    weight[a] = clamped - lower[a];
    nearest[a] = std::clamp(static_cast<int>(std::floor(index[a] + 0.5)), 0, n[a] - 1);
    s.ambiguous |= n[a] > 1 && std::abs(index[a] - std::round(index[a])) < kCellRounding;
  }
  if (!v.InMask(nearest)) return s;
  s.counts = true;
  for (int corner = 0; corner < 8; ++corner) {
    Int3 p;
    double w[3], dw[3];
    for (int a = 0; a < 3; ++a) {
      const int bit = corner >> a & 1;
      p[a] = std::min(lower[a] + bit, n[a] - 1);
      w[a] = bit ? weight[a] : 1 - weight[a];
      dw[a] = interior[a] ? (bit ? 1 : -1) : 0;
    }
    s.value += w[0] * w[1] * w[2] * v.At(p);
    s.gradient = s.gradient + v.At(p) * Vec3d{dw[0] * w[1] * w[2], w[0] * dw[1] * w[2], w[0] * w[1] * dw[2]};
  }
  return s;
}

// The centred cubic B-spline.
double CubicSpline(double x) {
  x = std::abs(x);
  if (x >= 2) return 0;
  return x < 1 ? (4 - 6 * x * x + 3 * x * x * x) / 6 : (2 - x) * (2 - x) * (2 - x) / 6;
}

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

template <typename Visit>
void ForEachVoxel(Int3 n, const Visit& visit) {
  size_t i = 0;
  for (int z = 0; z < n.z; ++z)
    for (int y = 0; y < n.y; ++y)
      for (int x = 0; x < n.x; ++x, ++i) visit(i, Int3{x, y, z});
}

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
    samples[i] = SampleReference(problem.moving, to_moving(moved));
  });
  return samples;
}

// A metric of the samples and its derivative in each sample's value. `uncertainty`: what float32 may make of the
// derivative.
struct MetricReference {
  double value = std::numeric_limits<double>::quiet_NaN();
  double samples = 0;
  std::vector<double> voxel_gradient, uncertainty;
};

MetricReference SsdReference(const HostProblem& problem, const std::vector<Sample>& samples) {
  MetricReference r;
  r.voxel_gradient.resize(samples.size());
  r.uncertainty.resize(samples.size());
  double sum = 0;
  for (const Sample& s : samples) r.samples += s.counts;
  const double s2 = problem.intensity_scale * problem.intensity_scale;
  for (size_t i = 0; i < samples.size(); ++i) {
    if (!samples[i].counts) continue;
    const double f = problem.fixed.data[i], m = samples[i].value;
    sum += s2 * (m - f) * (m - f);
    r.voxel_gradient[i] = 2 * s2 * (m - f) / r.samples;
    r.uncertainty[i] = 2 * s2 * 3e-5 * (std::abs(m) + std::abs(f)) / r.samples;
  }
  if (r.samples > 0) r.value = sum / r.samples;
  return r;
}

double Log(double p, double floor = 1e-300) { return std::log(std::max(p, floor)); }

// `unit`: weights are counted in multiples of it, as the operator does; 0: exactly.
MetricReference NmiReference(const HostProblem& problem, const std::vector<Sample>& samples, double unit) {
  MetricReference r;
  r.voxel_gradient.resize(samples.size());
  r.uncertainty.resize(samples.size());
  const auto range = [](double low, double high) { return high > low ? 1 / (high - low) : 0; };
  const double fixed_scale = 64 * range(problem.fixed_minimum, problem.fixed_maximum);
  const double moving_scale = 61 * range(problem.moving_minimum, problem.moving_maximum);
  struct Place {
    int bin, cell;
    double t;
  };
  const auto place = [&](size_t i) {
    const double f = (problem.fixed.data[i] - problem.fixed_minimum) * fixed_scale;
    const double m = std::clamp((samples[i].value - problem.moving_minimum) * moving_scale, 0.0, 61.0);
    const int cell = std::min(static_cast<int>(m), 60);
    return Place{static_cast<int>(std::clamp(f, 0.0, 63.0)), cell, m - cell};
  };
  std::vector<double> joint(64 * 64), fixed(64), moving(64);
  for (size_t i = 0; i < samples.size(); ++i) {
    if (!samples[i].counts) continue;
    const Place p = place(i);
    double w[4], sum = 0;
    for (int k = 0; k < 4; ++k) w[k] = CubicSpline(p.t + 1 - k);
    if (unit > 0) {
      for (int k : {0, 1, 3}) sum += w[k] = unit * std::nearbyint(w[k] / unit);
      w[2] = 1 - sum;
    }
    for (int k = 0; k < 4; ++k) joint[64 * p.bin + p.cell + k] += w[k];
    r.samples += 1;
  }
  if (r.samples == 0) return r;
  double h_fixed = 0, h_moving = 0, h_joint = 0;
  for (int i = 0; i < 64 * 64; ++i) {
    joint[i] /= r.samples;
    fixed[i / 64] += joint[i];
    moving[i % 64] += joint[i];
    h_joint -= joint[i] * Log(joint[i]);
  }
  for (int i = 0; i < 64; ++i) {
    h_fixed -= fixed[i] * Log(fixed[i]);
    h_moving -= moving[i] * Log(moving[i]);
  }
  r.value = 2 - (h_fixed + h_moving) / h_joint;
  for (size_t i = 0; i < samples.size(); ++i) {
    if (!samples[i].counts) continue;
    const Place p = place(i);
    const double t = p.t, s = 1 - t;
    const double d[4] = {-s * s / 2, t * (3 * t - 4) / 2, s * (4 - 3 * s) / 2, t * t / 2};
    double largest = 0;
    for (int k = 0; k < 4; ++k) {
      const int m = p.cell + k;
      // -d/dp of each entropy is log p + 1, and the ones cancel. Bins that rounding left empty count as half a unit.
      const double floor = 0.5 * unit / r.samples + 1e-300;
      const double slope =
          (h_joint * Log(moving[m], floor) - (h_fixed + h_moving) * Log(joint[64 * p.bin + m], floor)) /
          (h_joint * h_joint);
      r.voxel_gradient[i] += moving_scale * slope * d[k] / r.samples;
      largest = std::max(largest, std::abs(slope));
    }
    r.uncertainty[i] = 2e-3 * moving_scale * largest / r.samples;
  }
  return r;
}

// The window of LNCC, as a product of three.
std::vector<double> GaussianWindow(double sigma) {
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
  const auto for_window = [&](Int3 c, const auto& visit) {
    for (int z = std::max(0, c.z - radius); z <= std::min(n.z - 1, c.z + radius); ++z)
      for (int y = std::max(0, c.y - radius); y <= std::min(n.y - 1, c.y + radius); ++y)
        for (int x = std::max(0, c.x - radius); x <= std::min(n.x - 1, c.x + radius); ++x) {
          const size_t j = problem.fixed.Offset({x, y, z});
          if (samples[j].counts) {
            visit(j, window[x - c.x + radius] * window[y - c.y + radius] * window[z - c.z + radius],
                  static_cast<double>(problem.fixed.data[j]), samples[j].value);
          }
        }
  };
  double sum = 0;
  ForEachVoxel(n, [&](size_t i, Int3 c) {
    if (!samples[i].counts) return;
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
    sum += fm * fm / (ff * mm);
    for_window(c, [&](size_t j, double weight, double a, double b) {
      const double outer = 2 * fm / (ff * mm) * weight / w / r.samples;
      r.voxel_gradient[j] -= outer * (a - f - fm / mm * (b - m));
      r.uncertainty[j] += 2e-3 * std::abs(outer) * (std::abs(a - f) + std::abs(fm / mm * (b - m)));
    });
  });
  r.value = 1 - sum / r.samples;
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
    double size = 0;
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
    const double uv = Dot(u, v);
    sum += Dot(v, v) - uv * uv;
    weight += Dot(v, v);
    r.samples += 1;
    term.slope = (-2 * uv / norm_m) * (v - uv * u);
    term.size = 2 * std::sqrt(Dot(v, v)) / norm_m;
    terms.push_back(term);
  });
  if (r.samples == 0) return r;
  r.value = weight > 0 ? sum / weight : r.value;
  for (const Term& t : terms) {
    for (int a = 0; a < 3; ++a) {
      const double factor = weight > 0 ? 1 / (2 * g.spacing[a] * weight) : 0;
      r.voxel_gradient[t.plus[a]] += factor * t.slope[a];
      r.voxel_gradient[t.minus[a]] -= factor * t.slope[a];
      r.uncertainty[t.plus[a]] += 3e-4 * factor * t.size;
      r.uncertainty[t.minus[a]] += 3e-4 * factor * t.size;
    }
  }
  return r;
}

MetricReference EvaluateMetric(const HostProblem& problem, const std::vector<Sample>& samples, double unit) {
  switch (problem.metric) {
    case MetricKind::kSsd:
      return SsdReference(problem, samples);
    case MetricKind::kNmi:
      return NmiReference(problem, samples, unit);
    case MetricKind::kLncc:
      return LnccReference(problem, samples);
    case MetricKind::kNgf:
      return NgfReference(problem, samples);
    case MetricKind::kMind:
      break;
  }
  return {};
}

struct Reference {
  double value = 0, samples = 0;
  std::vector<double> gradient, uncertainty;
};

std::vector<double> Doubles(const std::vector<float>& v) { return {v.begin(), v.end()}; }

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

// ---- Problems. ----

// Node 1 on the lower corner of the image's domain, `spacing` in voxels; what MakeControlGrid lays out.
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

enum class Content { kNoisy, kSmooth };

HostVolume MakeVolume(Int3 size, uint32_t seed, Content content, bool with_mask, bool left_handed) {
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
  if (with_mask) {
    for (float h : RandomFloats(v.geometry.voxels(), seed + 1000)) v.mask.push_back(h < 0.04f ? 0 : h < 0.5f ? 1 : 255);
  }
  return v;
}

struct Options {
  Int3 fixed{33, 17, 12};
  Int3 moving{31, 19, 14};
  Vec3d spacing{5, 5, 5};  // voxels
  uint32_t seed = 1;
  Content content = Content::kNoisy;
  bool fixed_mask = false, moving_mask = false, left_handed = false;
  Vec3d degrees{1.3, -2.2, 2.9};
  double scale = 0.93;
  Vec3d shift;             // moving voxels
  double amplitude = 0.8;  // of u, in voxels of the fixed image
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

HostProblem MakeProblem(MetricKind metric, const Options& o) {
  HostProblem p;
  p.metric = metric;
  p.fixed = MakeVolume(o.fixed, o.seed, o.content, o.fixed_mask, false);
  p.moving = MakeVolume(o.moving, o.seed + 1, o.content, o.moving_mask, o.left_handed);
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

constexpr MetricKind kMetrics[] = {MetricKind::kSsd, MetricKind::kNmi, MetricKind::kLncc, MetricKind::kNgf};
std::string Describe(const HostProblem& p) {
  return std::string(MetricName(p.metric)) + " fixed " + SizeString(p.fixed.geometry) + " moving " +
         SizeString(p.moving.geometry) + " grid " + SizeString(p.grid);
}

struct Evaluation {
  MetricValue value;
  std::vector<float> gradient;
};

class FfdObjectiveTest : public DeviceTest {
 protected:
  FfdObjective UploadProblem(const HostProblem& p) {
    FfdObjective o;
    o.metric = p.metric;
    o.fixed = {Upload(p.fixed.data), p.fixed.geometry};
    o.moving = {Upload(p.moving.data), p.moving.geometry};
    if (!p.fixed.mask.empty()) o.fixed_mask = {Upload(p.fixed.mask), p.fixed.geometry};
    if (!p.moving.mask.empty()) o.moving_mask = {Upload(p.moving.mask), p.moving.geometry};
    o.affine = p.affine;
    o.grid = p.grid;
    o.intensity_scale = p.intensity_scale;
    o.fixed_minimum = p.fixed_minimum;
    o.fixed_maximum = p.fixed_maximum;
    o.moving_minimum = p.moving_minimum;
    o.moving_maximum = p.moving_maximum;
    o.fixed_stddev = p.fixed_stddev;
    o.moving_stddev = p.moving_stddev;
    o.lncc_sigma = p.lncc_sigma;
    o.fixed_edge = p.fixed_edge;
    o.moving_edge = p.moving_edge;
    return o;
  }

  std::unique_ptr<FfdEvaluator> Make(const FfdObjective& objective) {
    auto evaluator = MakeFfdEvaluator(ctx(), objective);
    EXPECT_TRUE(evaluator.ok()) << evaluator.status();
    return evaluator.ok() ? *std::move(evaluator) : nullptr;
  }

  Evaluation Evaluate(FfdEvaluator& evaluator, const std::vector<float>& coefficients) {
    MetricValue* const value = Poisoned<MetricValue>(1);
    float* const gradient = Poisoned<float>(coefficients.size());
    const absl::Status status = evaluator.Evaluate(ctx(), Upload(coefficients), nullptr, gradient, value);
    EXPECT_TRUE(status.ok()) << status;
    return {Download(value, 1)[0], Download(gradient, coefficients.size())};
  }

  Evaluation Evaluate(const HostProblem& p) {
    ArenaScope scope(owned_.context().arena());
    const auto evaluator = Make(UploadProblem(p));
    if (evaluator == nullptr) return {};
    return Evaluate(*evaluator, p.coefficients);
  }

  static void ExpectClose(const Evaluation& e, const Reference& r) {
    EXPECT_EQ(e.value.samples, r.samples);
    if (std::isnan(r.value)) {
      EXPECT_TRUE(std::isnan(e.value.metric));
    } else {
      EXPECT_NEAR(e.value.metric, r.value, 2e-5 * std::max(1.0, std::abs(r.value)));
    }
    ASSERT_EQ(e.gradient.size(), r.gradient.size());
    double largest = 0;
    for (double g : r.gradient) largest = std::max(largest, std::abs(g));
    int wrong = 0;
    for (size_t i = 0; i < r.gradient.size() && wrong < 5; ++i) {
      const double tolerance = r.uncertainty[i] + 1e-5 * largest + 1e-30;
      // Written so that NaN is wrong.
      if (std::abs(e.gradient[i] - r.gradient[i]) <= tolerance) continue;
      ++wrong;
      ADD_FAILURE() << "gradient " << i << ": " << e.gradient[i] << ", must be " << r.gradient[i] << " to within "
                    << tolerance << "; the largest is " << largest;
    }
  }

  // Returns the number of samples, so that a test can see that it tested something.
  double Check(const HostProblem& problem) {
    const Reference reference = EvaluateReference(problem);
    ExpectClose(Evaluate(problem), reference);
    return reference.samples;
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(FfdObjectiveTest);

TEST_P(FfdObjectiveTest, MatchesReferenceAtManySizes) {
  const Int3 sizes[] = {{7, 6, 5},   {32, 8, 6},  {31, 7, 12}, {33, 9, 13},  {64, 16, 7}, {65, 17, 6}, {5, 33, 40},
                        {70, 35, 3}, {40, 37, 1}, {9, 80, 1},  {100, 12, 2}, {2, 40, 9},  {1, 20, 15}, {12, 1, 14}};
  uint32_t seed = 1;
  for (MetricKind metric : kMetrics) {
    for (Int3 size : sizes) {
      Options o;
      o.fixed = o.moving = size;
      o.seed = seed += 17;
      if (size.z == 1) o.degrees = {0, 0, 2.1};
      // Axes of one voxel: turning would leave them.
      if (size.x == 1 || size.y == 1) o.degrees = {0, 0, 0};
      const HostProblem p = MakeProblem(metric, o);
      SCOPED_TRACE(Describe(p));
      const double samples = Check(p);
      EXPECT_GT(samples, metric == MetricKind::kNgf ? -1 : 0.3 * p.fixed.geometry.voxels());
    }
  }
}

TEST_P(FfdObjectiveTest, MatchesReferenceForAnySpacing) {
  const Vec3d spacings[] = {{1, 1, 1}, {1.37, 2.9, 3.3}, {7.77, 1.01, 5}, {40, 3, 2.5}, {3, 40, 100}, {4, 4.5, 1.2}};
  uint32_t seed = 300;
  for (MetricKind metric : kMetrics) {
    for (const Vec3d& spacing : spacings) {
      Options o;
      o.fixed = {45, 21, 18};
      o.moving = {37, 25, 16};
      o.spacing = spacing;
      o.seed = seed += 5;
      const HostProblem p = MakeProblem(metric, o);
      SCOPED_TRACE(Describe(p));
      EXPECT_GT(Check(p), 1000);
    }
  }
}

TEST_P(FfdObjectiveTest, MatchesReferenceWithMasksAndLeftHandedGrids) {
  for (MetricKind metric : kMetrics) {
    for (int which = 1; which < 4; ++which) {
      for (Int3 size : {Int3{40, 19, 17}, Int3{50, 35, 1}}) {
        Options o;
        o.fixed = size;
        o.moving = {37, 24, size.z};
        o.seed = 400 + which;
        o.fixed_mask = which & 1;
        o.moving_mask = which & 2;
        o.left_handed = true;
        o.degrees = size.z == 1 ? Vec3d{0, 0, 3.1} : Vec3d{11.3, -14.4, 8.1};
        const HostProblem p = MakeProblem(metric, o);
        SCOPED_TRACE(Describe(p) + " masks " + std::to_string(which));
        EXPECT_GT(Check(p), 100);
      }
    }
  }
}

TEST_P(FfdObjectiveTest, MatchesReferenceOnEveryInstructionSet) {
  if (ctx().is_cuda()) GTEST_SKIP() << "for the CPU alone";
  const int64_t supported = hwy::SupportedTargets();
  for (int64_t rest = supported; rest != 0; rest &= rest - 1) {
    hwy::SetSupportedTargetsForTest(rest & -rest);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    for (MetricKind metric : kMetrics) {
      for (Int3 size : {Int3{43, 19, 14}, Int3{50, 35, 1}}) {
        Options o;
        o.fixed = size;
        o.moving = {37, 24, size.z};
        o.seed = 450;
        o.fixed_mask = o.moving_mask = true;
        if (size.z == 1) o.degrees = {0, 0, 3.1};
        const HostProblem p = MakeProblem(metric, o);
        SCOPED_TRACE(Describe(p) + " on " + hwy::TargetName(rest & -rest));
        EXPECT_GT(Check(p), 100);
      }
    }
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

// Runs along z of more than one piece, several tiles of x and y.
TEST_P(FfdObjectiveTest, MatchesReferenceForACube) {
  for (MetricKind metric : {MetricKind::kSsd, MetricKind::kNmi, MetricKind::kNgf}) {
    Options o;
    o.fixed = {67, 43, 71};
    o.moving = {61, 52, 66};
    o.seed = 500;
    const HostProblem p = MakeProblem(metric, o);
    SCOPED_TRACE(Describe(p));
    EXPECT_GT(Check(p), 100000);
  }
}

TEST_P(FfdObjectiveTest, LeavesTheImagePartlyAndWholly) {
  for (MetricKind metric : kMetrics) {
    Options o;
    o.seed = 600;
    o.shift = {13.3, -4.2, 2.1};
    const HostProblem part = MakeProblem(metric, o);
    SCOPED_TRACE(Describe(part));
    EXPECT_GT(Check(part), 100);
    for (double far : {1e2, 1e9, -1e30, std::numeric_limits<double>::quiet_NaN()}) {
      HostProblem none = part;
      none.affine.m[1][3] += far;
      const Evaluation e = Evaluate(none);
      EXPECT_TRUE(std::isnan(e.value.metric));
      EXPECT_EQ(e.value.samples, 0);
      for (float g : e.gradient) ASSERT_EQ(g, 0);
    }
  }
}

TEST_P(FfdObjectiveTest, DifferentThicknessesMeet) {
  const Int3 pairs[][2] = {{{40, 21, 1}, {33, 30, 9}}, {{40, 21, 9}, {35, 27, 1}}, {{20, 20, 20}, {2, 2, 2}}};
  for (MetricKind metric : {MetricKind::kSsd, MetricKind::kNmi, MetricKind::kLncc}) {
    for (const auto& pair : pairs) {
      Options o;
      o.fixed = pair[0];
      o.moving = pair[1];
      o.seed = 650;
      o.degrees = {0, 0, 3};
      const HostProblem p = MakeProblem(metric, o);
      SCOPED_TRACE(Describe(p));
      EXPECT_GT(Check(p), 100);
    }
  }
}

// Far from the origin of the indices the positions are as good as near it.
TEST_P(FfdObjectiveTest, LongImages) {
  Options o;
  o.fixed = o.moving = {3000, 4, 3};
  o.seed = 670;
  o.degrees = {0, 0, 0};
  const HostProblem p = MakeProblem(MetricKind::kSsd, o);
  EXPECT_GT(Check(p), 10000);
}

// Against central differences of the reference's value, in float64, where no sample enters or leaves.
TEST_P(FfdObjectiveTest, GradientMatchesFiniteDifferences) {
  for (MetricKind metric : kMetrics) {
    for (int nz : {1, 12}) {
      Options o;
      o.fixed = {23, 18, nz};
      o.moving = {44, 39, nz == 1 ? 1 : 27};
      o.seed = 800 + nz;
      o.content = Content::kSmooth;
      o.scale = 0.6;
      if (nz == 1) o.degrees = {0, 0, 4};
      const HostProblem p = MakeProblem(metric, o);
      SCOPED_TRACE(Describe(p));
      const Evaluation e = Evaluate(p);
      double scale = 0;
      for (float g : e.gradient) scale = std::max<double>(scale, std::abs(g));
      EXPECT_GT(scale, 0);
      const std::vector<float> picks = RandomFloats(8, 810);
      for (float pick : picks) {
        const size_t node = static_cast<size_t>(pick * p.grid.voxels());
        for (int c = 0; c < 3; ++c) {
          const double h = 1e-5;
          std::vector<double> plus = Doubles(p.coefficients), minus = plus;
          plus[3 * node + c] += h;
          minus[3 * node + c] -= h;
          const MetricReference a = EvaluateMetric(p, WarpReference(p, plus), 0),
                                b = EvaluateMetric(p, WarpReference(p, minus), 0);
          ASSERT_EQ(a.samples, b.samples);
          // NMI's counts are rounded, its reference's here are not.
          EXPECT_NEAR(e.gradient[3 * node + c], (a.value - b.value) / (2 * h),
                      (metric == MetricKind::kNmi ? 1e-2 : 2e-3) * scale)
              << node << " " << c;
        }
      }
    }
  }
}

TEST_P(FfdObjectiveTest, EqualImagesMatchPerfectly) {
  for (Int3 size : {Int3{33, 17, 9}, Int3{35, 18, 1}, Int3{128, 6, 5}}) {
    Options o;
    o.fixed = o.moving = size;
    o.seed = 900;
    HostProblem p = MakeProblem(MetricKind::kSsd, o);
    p.moving = p.fixed;
    p.affine = AffineMap::Identity();
    std::fill(p.coefficients.begin(), p.coefficients.end(), 0.0f);
    const Evaluation e = Evaluate(p);
    EXPECT_EQ(e.value.samples, p.fixed.geometry.voxels());
    EXPECT_LE(e.value.metric, 1e-9);
    for (float g : e.gradient) ASSERT_LE(std::abs(g), 1e-6);
  }
}

TEST_P(FfdObjectiveTest, ConstantImages) {
  for (MetricKind metric : kMetrics) {
    for (int which = 1; which < 4; ++which) {
      Options o;
      o.seed = 950;
      HostProblem p = MakeProblem(metric, o);
      SCOPED_TRACE(Describe(p) + " constant " + std::to_string(which));
      if (which & 1) {
        std::fill(p.fixed.data.begin(), p.fixed.data.end(), 3.0f);
        p.fixed_minimum = p.fixed_maximum = 3;
        p.fixed_stddev = 0.1;
      }
      if (which & 2) {
        std::fill(p.moving.data.begin(), p.moving.data.end(), -2.0f);
        p.moving_minimum = p.moving_maximum = -2;
        p.moving_stddev = 0.1;
      }
      const Evaluation e = Evaluate(p);
      EXPECT_GT(e.value.samples, 1000);
      EXPECT_FALSE(std::isinf(e.value.metric));
      if (metric == MetricKind::kNmi || metric == MetricKind::kLncc) {
        EXPECT_NEAR(e.value.metric, 1, 1e-9);
      }
      for (float g : e.gradient) {
        ASSERT_TRUE(std::isfinite(g));
        // Nothing of the moving image changes.
        const bool flat = (which & 2) != 0;
        ASSERT_LE(std::abs(g), flat ? 0 : metric == MetricKind::kSsd ? 1e9 : 1e-7);
      }
    }
  }
}

TEST_P(FfdObjectiveTest, NotANumberOutsideTheMasksDoesNotCount) {
  for (MetricKind metric : {MetricKind::kSsd, MetricKind::kNmi}) {
    Options o;
    o.fixed = o.moving = {24, 22, 20};
    o.seed = 960;
    HostProblem p = MakeProblem(metric, o);
    p.fixed.mask.assign(p.fixed.data.size(), 1);
    p.moving.mask.assign(p.moving.data.size(), 1);
    // The corner octant of each image has no data; the mask leaves a margin for what neighbours reach.
    ForEachVoxel(o.fixed, [&](size_t i, Int3 v) {
      if (v.x < 6 && v.y < 6 && v.z < 6) p.fixed.data[i] = p.moving.data[i] = NAN;
      if (v.x < 9 && v.y < 9 && v.z < 9) p.fixed.mask[i] = p.moving.mask[i] = 0;
    });
    SCOPED_TRACE(Describe(p));
    EXPECT_GT(Check(p), 3000);
  }
}

TEST_P(FfdObjectiveTest, RepeatedEvaluationsAreBitIdentical) {
  for (MetricKind metric : kMetrics) {
    Options o;
    o.fixed = {70, 41, 50};
    o.moving = {66, 45, 47};
    o.seed = 970;
    const HostProblem p = MakeProblem(metric, o);
    SCOPED_TRACE(Describe(p));
    ArenaScope scope(owned_.context().arena());
    const auto evaluator = Make(UploadProblem(p));
    ASSERT_NE(evaluator, nullptr);
    const Evaluation first = Evaluate(*evaluator, p.coefficients);
    std::vector<float> other = p.coefficients;
    for (float& c : other) c *= -0.5f;
    EXPECT_NE(Evaluate(*evaluator, other).value.metric, first.value.metric);
    for (int run = 0; run < 3; ++run) {
      const Evaluation again = Evaluate(*evaluator, p.coefficients);
      EXPECT_EQ(std::memcmp(&first.value, &again.value, sizeof(MetricValue)), 0);
      EXPECT_EQ(first.gradient, again.gradient);
    }
    // The value alone.
    MetricValue* const value = Poisoned<MetricValue>(1);
    ASSERT_OK(evaluator->Evaluate(ctx(), Upload(p.coefficients), nullptr, nullptr, value));
    const MetricValue alone = Download(value, 1)[0];
    EXPECT_EQ(std::memcmp(&first.value, &alone, sizeof(MetricValue)), 0);
  }
}

TEST_P(FfdObjectiveTest, SkippedEvaluationsWriteNothing) {
  for (MetricKind metric : kMetrics) {
    const HostProblem p = MakeProblem(metric, {});
    SCOPED_TRACE(Describe(p));
    ArenaScope scope(owned_.context().arena());
    const auto evaluator = Make(UploadProblem(p));
    ASSERT_NE(evaluator, nullptr);
    const float* const grid = Upload(p.coefficients);
    const std::vector<double> before_value = {17, 18};
    const std::vector<float> before_gradient(p.coefficients.size(), 19.0f);
    MetricValue* const value = reinterpret_cast<MetricValue*>(Upload(before_value));
    float* const gradient = Upload(before_gradient);
    ASSERT_OK(evaluator->Evaluate(ctx(), grid, Upload(std::vector<int>{5}), gradient, value));
    EXPECT_EQ(Download(value, 1)[0].metric, 17);
    EXPECT_EQ(Download(value, 1)[0].samples, 18);
    EXPECT_EQ(Download(gradient, before_gradient.size()), before_gradient);
    // And a skipped one leaves the next as it would have been.
    ASSERT_OK(evaluator->Evaluate(ctx(), grid, Upload(std::vector<int>{0}), gradient, value));
    const Evaluation fresh = Evaluate(p);
    EXPECT_EQ(Download(value, 1)[0].metric, fresh.value.metric);
    EXPECT_EQ(Download(gradient, before_gradient.size()), fresh.gradient);
  }
}

TEST_P(FfdObjectiveTest, TakesTheMemoryThatItSays) {
  for (MetricKind metric : kMetrics) {
    for (Int3 size : {Int3{33, 17, 12}, Int3{50, 30, 1}, Int3{70, 40, 60}}) {
      Options o;
      o.fixed = size;
      o.degrees = {0, 0, 0};
      const HostProblem p = MakeProblem(metric, o);
      SCOPED_TRACE(Describe(p));
      const int64_t bytes = FfdEvaluatorBytes(device(), metric, p.fixed.geometry, p.grid);
      OwnedContext owned = *OwnedContext::Create(device(), bytes);
      const ExecContext context = owned.context();
      auto evaluator = MakeFfdEvaluator(context, UploadProblem(p));
      ASSERT_TRUE(evaluator.ok()) << evaluator.status();
      MetricValue* const value = Poisoned<MetricValue>(1);
      float* const gradient = Poisoned<float>(p.coefficients.size());
      const absl::Status status = (*evaluator)->Evaluate(context, Upload(p.coefficients), nullptr, gradient, value);
      EXPECT_TRUE(status.ok()) << status;
      EXPECT_OK(device().Synchronize(context.stream()));
    }
  }
}

TEST_P(FfdObjectiveTest, RefusesWhatDoesNotFit) {
  Options options;
  options.fixed_mask = options.moving_mask = true;
  const HostProblem p = MakeProblem(MetricKind::kSsd, options);
  const FfdObjective good = UploadProblem(p);
  const auto message = [&](const FfdObjective& o) {
    const auto evaluator = MakeFfdEvaluator(ctx(), o);
    EXPECT_EQ(evaluator.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(evaluator.status().message());
  };
  EXPECT_OK(MakeFfdEvaluator(ctx(), good).status());
  FfdObjective o = good;
  o.fixed_mask.geometry.size.x -= 1;
  EXPECT_THAT(message(o), testing::StartsWith("fixed_mask: "));
  o = good;
  o.moving_mask.geometry.origin.y += 1;
  EXPECT_THAT(message(o), testing::StartsWith("moving_mask: "));
  for (int a = 0; a < 3; ++a) {
    o = good;
    o.grid.size[a] -= 2;
    EXPECT_THAT(message(o), testing::StartsWith("grid: "));
    o = good;
    o.grid.origin = IndexToPhysical(good.grid)({a == 0 ? 1.0 : 0, a == 1 ? 1.0 : 0, a == 2 ? 1.0 : 0});
    EXPECT_THAT(message(o), testing::StartsWith("grid: "));
  }
  o = good;
  o.grid.origin.x = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(message(o), testing::StartsWith("grid: "));
  o = good;
  const AffineMap turn = Rotation({0, 0, 2});
  for (int c = 0; c < 3; ++c) {
    const Vec3d d = turn.Linear({o.grid.direction[0][c], o.grid.direction[1][c], o.grid.direction[2][c]});
    for (int r = 0; r < 3; ++r) o.grid.direction[r][c] = d[r];
  }
  EXPECT_THAT(message(o), testing::StartsWith("grid: "));
  o = good;
  o.grid = MakeGrid(p.fixed.geometry, {0.5, 5, 5});
  EXPECT_THAT(message(o), testing::StartsWith("grid: "));
}

// ---- The plan. ----

TEST(NmiHistogram, MatchesEntropiesAndTheirDerivative) {
  std::vector<int64_t> counts(kNmiBins * kNmiBins);
  const std::vector<float> random = RandomFloats(counts.size(), 1000);
  int64_t total = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    counts[i] = random[i] < 0.3f ? 0 : static_cast<int64_t>(random[i] * 4000 * (i % 7));
    total += counts[i];
  }
  counts[0] += kNmiOne - total % kNmiOne;
  total += kNmiOne - total % kNmiOne;
  std::vector<float> derivative(counts.size());
  const MetricValue value = NmiFromHistogram(counts.data(), {0, 2.5f}, derivative.data());
  EXPECT_EQ(value.samples, static_cast<double>(total / kNmiOne));
  // Moving weight from one bin of a row to another changes the metric as the table says.
  const double step = 64;
  for (int f : {0, 17, 63}) {
    for (int m : {0, 30, 62}) {
      const int i = f * kNmiBins + m;
      if (counts[i] < 1000 || counts[i + 1] < 1000) continue;
      std::vector<int64_t> plus = counts, minus = counts;
      plus[i] += static_cast<int64_t>(step), plus[i + 1] -= static_cast<int64_t>(step);
      minus[i] -= static_cast<int64_t>(step), minus[i + 1] += static_cast<int64_t>(step);
      const double change = NmiFromHistogram(plus.data(), {0, 2.5f}, nullptr).metric -
                            NmiFromHistogram(minus.data(), {0, 2.5f}, nullptr).metric;
      const double expected = 2 * step / kNmiOne * (derivative[i] - derivative[i + 1]) / 2.5;
      EXPECT_NEAR(change, expected, 1e-2 * std::abs(expected) + 1e-12) << f << " " << m;
    }
  }
}

TEST(NmiWindow, CountsSumToOneUnit) {
  const NmiScale scale{-3.0f, 61 / 7.0f};
  for (float m : RandomFloats(1000, 1001, -4, 5)) {
    const NmiWindow window = MakeNmiWindow(scale, m);
    ASSERT_GE(window.cell, 0);
    ASSERT_LE(window.cell + 3, kNmiBins - 1);
    ASSERT_EQ(window.inside, m >= -3 && (m + 3) * scale.scale <= 61);
    float w[4];
    for (int k = 0; k < 4; ++k) w[k] = static_cast<float>(CubicSpline(window.t + 1.0 - k));
    uint32_t counts[4];
    NmiCounts(w, counts);
    ASSERT_EQ(counts[0] + counts[1] + counts[2] + counts[3], uint32_t{kNmiOne});
    for (int k = 0; k < 4; ++k) ASSERT_NEAR(counts[k], w[k] * kNmiOne, 2.01);
  }
}

}  // namespace
}  // namespace intrawarp
