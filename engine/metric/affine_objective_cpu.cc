// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "engine/device/parallel.h"
#include "engine/image/sample.h"
#include "engine/metric/affine_objective.h"

namespace intrawarp::cpu {
namespace {

constexpr int64_t kRowsPerPiece = 16;

class Evaluator {
 public:
  Evaluator(const AffineObjective& objective, const AffineMap& w)
      : o_(objective), size_(o_.fixed.geometry.size), moving_size_(o_.moving.geometry.size) {
    const AffineMap normalized = IndexToNormalized(o_.fixed.geometry);
    to_moving_ = Compose(w, normalized);
    for (int a = 0; a < 3; ++a) {
      q_step_[a] = normalized.m[a][a];
      q_base_[a] = normalized.m[a][3];
    }
  }

  NormalEquations Row(int y, int z) const {
    NormalEquations sums;
    for (int x = 0; x < size_.x; ++x) {
      if (o_.metric == MetricKind::kSsd) {
        AddSsd({x, y, z}, &sums);
      } else {
        AddNgf({x, y, z}, &sums);
      }
    }
    return sums;
  }

 private:
  struct Sample {
    float value;
    Vec3f gradient;
  };

  size_t FixedOffset(Int3 p) const { return (static_cast<size_t>(p.z) * size_.y + p.y) * size_.x + p.x; }

  bool SampleAt(Int3 p, Sample* sample) const {
    const Vec3d index = to_moving_({double(p.x), double(p.y), double(p.z)});
    const Vec3f f{static_cast<float>(index.x), static_cast<float>(index.y), static_cast<float>(index.z)};
    if (!IsInside(moving_size_, f)) return false;
    if (o_.moving_mask.data != nullptr && o_.moving_mask.data[NearestOffset(moving_size_, f)] == 0) return false;
    sample->value = SampleLinearGradient(o_.moving.data, moving_size_, f, &sample->gradient);
    return true;
  }

  // Row r, column c of the derivative of something by W, for a moving index that depends on W as W (q, 1).
  void AddOuter(Vec3d g, Int3 p, double factor, double j[kAffineParameters]) const {
    for (int r = 0; r < 3; ++r) {
      for (int c = 0; c < 3; ++c) j[4 * r + c] += factor * g[r] * (q_base_[c] + q_step_[c] * p[c]);
      j[4 * r + 3] += factor * g[r];
    }
  }

  static void AddSquare(const double j[kAffineParameters], double weight, double* hessian) {
    for (int r = 0; r < kAffineParameters; ++r) {
      for (int c = r; c < kAffineParameters; ++c) *hessian++ += weight * j[r] * j[c];
    }
  }

  void AddSsd(Int3 p, NormalEquations* sums) const {
    Sample t;
    if (o_.fixed_mask.data != nullptr && o_.fixed_mask.data[FixedOffset(p)] == 0) return;
    if (!SampleAt(p, &t)) return;
    const double residual = o_.intensity_scale * (double{t.value} - o_.fixed.data[FixedOffset(p)]);
    double j[kAffineParameters] = {};
    AddOuter({t.gradient.x, t.gradient.y, t.gradient.z}, p, o_.intensity_scale, j);
    sums->value += 0.5 * residual * residual;
    sums->samples += 1;
    for (int i = 0; i < kAffineParameters; ++i) sums->gradient[i] += residual * j[i];
    AddSquare(j, 1, sums->hessian);
  }

  void AddNgf(Int3 p, NormalEquations* sums) const {
    Sample center;
    if (o_.fixed_mask.data != nullptr && o_.fixed_mask.data[FixedOffset(p)] == 0) return;
    if (!SampleAt(p, &center)) return;
    Vec3d gt, gr;
    double dg[3][kAffineParameters] = {};
    for (int a = 0; a < 3; ++a) {
      if (size_[a] == 1) continue;
      if (p[a] == 0 || p[a] == size_[a] - 1) return;
      Int3 plus = p, minus = p;
      ++plus[a];
      --minus[a];
      Sample tp, tm;
      if (!SampleAt(plus, &tp) || !SampleAt(minus, &tm)) return;
      const double f = 1 / (2 * o_.fixed.geometry.spacing[a]);
      gt[a] = f * (double{tp.value} - tm.value);
      gr[a] = f * (double{o_.fixed.data[FixedOffset(plus)]} - o_.fixed.data[FixedOffset(minus)]);
      AddOuter({tp.gradient.x, tp.gradient.y, tp.gradient.z}, plus, f, dg[a]);
      AddOuter({tm.gradient.x, tm.gradient.y, tm.gradient.z}, minus, -f, dg[a]);
    }
    const double nt = 1 / std::sqrt(std::max(Dot(gt, gt) + o_.moving_edge * o_.moving_edge, 1e-30));
    const double nr = 1 / std::sqrt(std::max(Dot(gr, gr) + o_.fixed_edge * o_.fixed_edge, 1e-30));
    const Vec3d u = nt * gt, v = nr * gr;
    const double uv = Dot(u, v);
    double du[3][kAffineParameters];
    for (int i = 0; i < kAffineParameters; ++i) {
      const double u_dg = u.x * dg[0][i] + u.y * dg[1][i] + u.z * dg[2][i];
      for (int a = 0; a < 3; ++a) du[a][i] = nt * (dg[a][i] - u[a] * u_dg);
      sums->gradient[i] -= 2 * uv * (v.x * du[0][i] + v.y * du[1][i] + v.z * du[2][i]);
    }
    for (int a = 0; a < 3; ++a) {
      const int b = (a + 1) % 3, c = (a + 2) % 3;
      double j[kAffineParameters];
      for (int i = 0; i < kAffineParameters; ++i) j[i] = v[b] * du[c][i] - v[c] * du[b][i];
      AddSquare(j, 2, sums->hessian);
    }
    sums->value += 1 - uv * uv;
    sums->samples += 1;
  }

  const AffineObjective& o_;
  Int3 size_, moving_size_;
  AffineMap to_moving_;
  Vec3d q_step_, q_base_;
};

void Add(NormalEquations& total, const NormalEquations& part) {
  total.value += part.value;
  total.samples += part.samples;
  for (int i = 0; i < kAffineParameters; ++i) total.gradient[i] += part.gradient[i];
  for (int i = 0; i < kAffineHessianEntries; ++i) total.hessian[i] += part.hessian[i];
}

}  // namespace

void EvaluateAffineObjective(const AffineObjective& objective, const AffineMap& w, NormalEquations* sums) {
  const Evaluator evaluator(objective, w);
  const Int3 size = objective.fixed.geometry.size;
  const int64_t rows = int64_t{size.y} * size.z;
  *sums = OrderedReduce(
      (rows + kRowsPerPiece - 1) / kRowsPerPiece, NormalEquations{},
      [&](int64_t piece) {
        NormalEquations part;
        for (int64_t row = piece * kRowsPerPiece; row < std::min(rows, (piece + 1) * kRowsPerPiece); ++row) {
          Add(part, evaluator.Row(row % size.y, row / size.y));
        }
        return part;
      },
      Add);
}

}  // namespace intrawarp::cpu
