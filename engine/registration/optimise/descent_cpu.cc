// SPDX-License-Identifier: Apache-2.0
// The passes of Descent over its vectors on the CPU: tiles that stay in the first cache, loops that the compiler turns
// into SIMD, memory-bound.
#include <algorithm>
#include <array>
#include <cmath>

#include "engine/device/parallel.h"
#include "engine/registration/optimise/descent_kernels.h"

namespace intrawarp::cpu {
namespace {

// Vectors are padded with zeros to a multiple of 64, so a tile's count may be rounded up to kLanes.
constexpr int kLanes = 16;
constexpr int64_t kTile = 512;
constexpr int64_t kPiece = 32 * kTile;

using Dots = std::array<double, kDescentDots>;

double Dot(const float* a, const float* b, int64_t count) {
  float sum[kLanes] = {};
  for (int64_t i = 0; i < count; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) sum[lane] += a[i + lane] * b[i + lane];
  double total = 0;
  for (float s : sum) total += s;
  return total;
}

void AddTileDots(const DescentVectors& v, int64_t begin, int64_t count, int older, Dots& dots) {
  float s[kTile], y[kTile];
  for (int64_t i = 0; i < count; ++i) {
    s[i] = v.trial[begin + i] - v.position[begin + i];
    y[i] = v.trial_gradient[begin + i] - v.gradient[begin + i];
  }
  const float* g = v.trial_gradient + begin;
  dots[kDotSS] += Dot(s, s, count);
  dots[kDotSY] += Dot(s, y, count);
  dots[kDotSG] += Dot(s, g, count);
  dots[kDotYY] += Dot(y, y, count);
  dots[kDotYG] += Dot(y, g, count);
  dots[kDotGG] += Dot(g, g, count);
  for (int j = 0; j < older; ++j) {
    const int64_t slot = descent_internal::Slot(*v.state, j);
    const float* steps = v.steps + slot * v.stride + begin;
    const float* changes = v.changes + slot * v.stride + begin;
    double* d = dots.data() + kDotOlder + j * kDotsPerOlder;
    d[kDotSStep] += Dot(s, steps, count);
    d[kDotSChange] += Dot(s, changes, count);
    d[kDotYStep] += Dot(y, steps, count);
    d[kDotYChange] += Dot(y, changes, count);
    d[kDotGStep] += Dot(g, steps, count);
    d[kDotGChange] += Dot(g, changes, count);
  }
}

// Calls tile(begin, count) for the tiles of a piece; counts are multiples of kLanes.
template <typename Tile>
void ForTiles(const DescentVectors& v, int64_t piece, const Tile& tile) {
  const int64_t padded = (v.n + kLanes - 1) / kLanes * kLanes;
  const int64_t end = std::min(padded, (piece + 1) * kPiece);
  for (int64_t begin = piece * kPiece; begin < end; begin += kTile) tile(begin, std::min(kTile, end - begin));
}

int64_t Pieces(const DescentVectors& v) { return (v.n + kPiece - 1) / kPiece; }

Dots SumDots(const DescentVectors& v) {
  const int older = std::min(v.state->stored, kDescentOlder);
  return OrderedReduce<Dots>(
      Pieces(v), Dots{},
      [&](int64_t piece) {
        Dots dots{};
        ForTiles(v, piece, [&](int64_t begin, int64_t count) { AddTileDots(v, begin, count, older, dots); });
        return dots;
      },
      [](Dots& total, const Dots& part) {
        for (int i = 0; i < kDescentDots; ++i) total[i] += part[i];
      });
}

// Position and gradient become those of the trial; a kept pair is stored.
void MoveTile(const DescentVectors& v, bool keep, int64_t begin, int64_t count) {
  float* position = v.position + begin;
  float* gradient = v.gradient + begin;
  const float* trial = v.trial + begin;
  const float* trial_gradient = v.trial_gradient + begin;
  if (keep) {
    float* step = v.steps + v.state->newest * v.stride + begin;
    float* change = v.changes + v.state->newest * v.stride + begin;
    for (int64_t i = 0; i < count; ++i) step[i] = trial[i] - position[i];
    for (int64_t i = 0; i < count; ++i) change[i] = trial_gradient[i] - gradient[i];
  }
  std::copy_n(trial, count, position);
  std::copy_n(trial_gradient, count, gradient);
}

void AddScaled(float c, const float* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) to[i] += c * from[i];
}

// Sums the new direction; returns its largest component.
float CombineTile(const DescentVectors& v, int64_t begin, int64_t count) {
  using namespace descent_internal;
  const DescentState& state = *v.state;
  const float old = static_cast<float>(state.coefficients[kOldDirection]);
  const float g = static_cast<float>(state.coefficients[kGradient]);
  float* p = v.direction + begin;
  for (int64_t i = 0; i < count; ++i) p[i] = g * v.gradient[begin + i] + old * p[i];
  for (int age = 0; age < state.stored; ++age) {
    const int slot = Slot(state, age);
    AddScaled(static_cast<float>(state.coefficients[slot]), v.steps + slot * v.stride + begin, count, p);
    AddScaled(static_cast<float>(state.coefficients[kDescentMemory + slot]), v.changes + slot * v.stride + begin, count,
              p);
  }
  float largest = 0;
  bool finite = true;
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::abs(p[i]));
    finite &= p[i] - p[i] == 0;
  }
  return finite ? largest : HUGE_VALF;
}

void ApplyAction(const DescentVectors& v) {
  DescentState& state = *v.state;
  if (state.action == DescentAction::kNothing || state.action == DescentAction::kRefuse) return;
  const bool moves = state.action != DescentAction::kRestart, turns = state.action != DescentAction::kAcceptLast;
  const float largest = OrderedReduce<float>(
      Pieces(v), 0.f,
      [&](int64_t piece) {
        float part = 0;
        ForTiles(v, piece, [&](int64_t begin, int64_t count) {
          if (moves) MoveTile(v, state.keep && turns, begin, count);
          if (turns) part = std::max(part, CombineTile(v, begin, count));
        });
        return part;
      },
      [](float& total, float part) { total = std::max(total, part); });
  if (turns) FinishDirection(state, largest);
}

void WriteTrial(const DescentVectors& v) {
  if (v.state->done || v.state->action == DescentAction::kNothing) return;
  const float alpha = static_cast<float>(v.state->alpha);
  ParallelFor(Pieces(v), [&](int64_t piece) {
    ForTiles(v, piece, [&](int64_t begin, int64_t count) {
      for (int64_t i = begin; i < begin + count; ++i) v.trial[i] = v.position[i] + alpha * v.direction[i];
    });
  });
}

}  // namespace

absl::Status Descend(const ExecContext&, const DescentVectors& v) {
  if (v.state->done) return absl::OkStatus();
  const double value = v.value->metric + *v.penalty, samples = v.value->samples;
  const Dots dots = IsAcceptable(*v.state, value, samples) ? SumDots(v) : Dots{};
  AdvanceDescent(*v.state, value, samples, dots.data());
  ApplyAction(v);
  WriteTrial(v);
  return absl::OkStatus();
}

}  // namespace intrawarp::cpu
