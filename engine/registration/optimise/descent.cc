// SPDX-License-Identifier: Apache-2.0
#include "engine/registration/optimise/descent.h"

#include "engine/base/status_macros.h"
#include "engine/registration/optimise/descent_kernels.h"

namespace intrawarp {
namespace {

constexpr int64_t kPadding = 64;
constexpr int kVectors = 5 + 2 * kDescentMemory;

int64_t Stride(int64_t n) { return (n + kPadding - 1) / kPadding * kPadding; }

// Everything but the vectors.
struct Scalars {
  alignas(256) DescentState state;
  alignas(256) MetricValue value;
  double penalty = 0;
  unsigned ticket = 0;
  alignas(256) double partial[kMaxDescentBlocks * kDescentDots];
  float partial_largest[kMaxDescentBlocks];
};

}  // namespace

int64_t Descent::Bytes(int64_t n) {
  return Arena::Rounded(sizeof(float) * kVectors * Stride(n)) + Arena::Rounded(sizeof(Scalars));
}

absl::StatusOr<Descent> Descent::Create(const ExecContext& ctx, const DescentProblem& problem, const float* start,
                                        int64_t n) {
  const int64_t stride = Stride(n);
  INTRAWARP_ASSIGN_OR_RETURN(float* data, ctx.arena().Allocate<float>(kVectors * stride));
  INTRAWARP_ASSIGN_OR_RETURN(Scalars * scalars, ctx.arena().Allocate<Scalars>(1));
  Descent descent;
  DescentVectors& v = descent.vectors_;
  v = {n,
       stride,
       data,
       data + stride,
       data + 2 * stride,
       data + 3 * stride,
       data + 4 * stride,
       data + 5 * stride,
       data + (5 + kDescentMemory) * stride,
       &scalars->state,
       &scalars->value,
       &scalars->penalty,
       scalars->partial,
       scalars->partial_largest,
       &scalars->ticket};
  DescentState state;
  state.problem = problem;
  Device& device = ctx.device();
  INTRAWARP_RETURN_IF_ERROR(device.Fill(data, 0, sizeof(float) * kVectors * stride, ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(device.Fill(scalars, 0, sizeof(Scalars), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(device.Copy(v.state, &state, sizeof(state), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(device.Copy(v.trial, start, sizeof(float) * n, ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(device.Copy(v.position, start, sizeof(float) * n, ctx.stream()));
  return descent;
}

absl::Status Descent::Descend(const ExecContext& ctx) const { return INTRAWARP_DISPATCH(ctx, Descend, vectors_); }

absl::StatusOr<DescentState> Descent::State(const ExecContext& ctx) const {
  DescentState state;
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(&state, vectors_.state, sizeof(state), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
  return state;
}

}  // namespace intrawarp
