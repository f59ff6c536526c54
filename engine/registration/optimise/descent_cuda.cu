// SPDX-License-Identifier: Apache-2.0
// The passes of Descent over its vectors on CUDA, three launches a round. For an accepted step the first reads up to 14
// vectors, the second reads 15 and writes 6, the third reads two and writes one; for a refused step the first two
// return at once. The last block of a reduction sums the blocks in their order and advances the state.
#include "engine/device/cuda_device.h"
#include "engine/device/reduce.cuh"
#include "engine/registration/optimise/descent_kernels.h"

namespace intrawarp::cuda {
namespace {

constexpr int kThreads = kDescentThreads;
constexpr int kWarps = kThreads / 32;
static_assert(kThreads == kReduceThreads);

// Whether this block is the last to arrive at the ticket, which it then resets. All threads call it.
__device__ bool IsLastBlock(unsigned* ticket) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(ticket, 1u) == gridDim.x - 1;
    if (last) *ticket = 0;
  }
  __syncthreads();
  __threadfence();
  return last;
}

__device__ float4 Load(const float* vector, int64_t i) { return reinterpret_cast<const float4*>(vector)[i]; }
__device__ void Store(float* vector, int64_t i, float4 value) { reinterpret_cast<float4*>(vector)[i] = value; }
__device__ float4 Difference(float4 a, float4 b) { return {a.x - b.x, a.y - b.y, a.z - b.z, a.w - b.w}; }
__device__ double Dot(float4 a, float4 b) { return a.x * b.x + a.y * b.y + (a.z * b.z + a.w * b.w); }
__device__ void AddScaled(float c, float4 from, float4& to) {
  to.x = fmaf(c, from.x, to.x);
  to.y = fmaf(c, from.y, to.y);
  to.z = fmaf(c, from.z, to.z);
  to.w = fmaf(c, from.w, to.w);
}

__device__ int64_t Quads(const DescentVectors& v) { return (v.n + 3) / 4; }

// Adds the inner products of the quads of this thread.
__device__ void SumDots(const DescentVectors& v, const DescentState& state, double (&dots)[kDescentDots]) {
  const float *steps[kDescentOlder], *changes[kDescentOlder];
#pragma unroll
  for (int j = 0; j < kDescentOlder; ++j) {
    steps[j] = v.steps + descent_internal::Slot(state, j) * v.stride;
    changes[j] = v.changes + descent_internal::Slot(state, j) * v.stride;
  }
  const int stored = state.stored;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < Quads(v); i += int64_t{gridDim.x} * kThreads) {
    const float4 g = Load(v.trial_gradient, i);
    const float4 s = Difference(Load(v.trial, i), Load(v.position, i)), y = Difference(g, Load(v.gradient, i));
    dots[kDotSS] += Dot(s, s);
    dots[kDotSY] += Dot(s, y);
    dots[kDotSG] += Dot(s, g);
    dots[kDotYY] += Dot(y, y);
    dots[kDotYG] += Dot(y, g);
    dots[kDotGG] += Dot(g, g);
#pragma unroll
    for (int j = 0; j < kDescentOlder; ++j) {
      if (j >= stored) continue;
      const float4 step = Load(steps[j], i), change = Load(changes[j], i);
      constexpr int kPer = kDotsPerOlder;
      dots[kDotOlder + j * kPer + kDotSStep] += Dot(s, step);
      dots[kDotOlder + j * kPer + kDotSChange] += Dot(s, change);
      dots[kDotOlder + j * kPer + kDotYStep] += Dot(y, step);
      dots[kDotOlder + j * kPer + kDotYChange] += Dot(y, change);
      dots[kDotOlder + j * kPer + kDotGStep] += Dot(g, step);
      dots[kDotOlder + j * kPer + kDotGChange] += Dot(g, change);
    }
  }
}

// The block's sums into its row of `partial`.
__device__ void StoreBlockDots(const double (&dots)[kDescentDots], double* partial) {
  __shared__ double warps[kWarps][kDescentDots];
#pragma unroll
  for (int d = 0; d < kDescentDots; ++d) {
    const double sum = WarpSum(dots[d]);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32][d] = sum;
  }
  __syncthreads();
  if (threadIdx.x >= kDescentDots) return;
  double sum = 0;
  for (int w = 0; w < kWarps; ++w) sum += warps[w][threadIdx.x];
  partial[blockIdx.x * kDescentDots + threadIdx.x] = sum;
}

// Sums all blocks in the last one: a thread adds up one product over every kParts-th block, so that neighbouring
// threads read neighbouring addresses.
__device__ void SumBlockDots(const double* partial, double* total) {
  constexpr int kParts = kThreads / kDescentDots;
  __shared__ double parts[kParts][kDescentDots];
  const int part = threadIdx.x / kDescentDots, d = threadIdx.x % kDescentDots;
  if (part < kParts) {
    double sum = 0;
#pragma unroll 8
    for (int block = part; block < gridDim.x; block += kParts) sum += __ldcg(partial + block * kDescentDots + d);
    parts[part][d] = sum;
  }
  __syncthreads();
  if (threadIdx.x < kDescentDots) {
    double sum = 0;
#pragma unroll
    for (int p = 0; p < kParts; ++p) sum += parts[p][threadIdx.x];
    total[threadIdx.x] = sum;
  }
  __syncthreads();
}

// Calls advance(state) in one thread on a copy in shared memory. All threads call it.
template <typename Advance>
__device__ void AdvanceShared(DescentState* state, const Advance& advance) {
  __shared__ DescentState local;
  static_assert(sizeof(DescentState) % sizeof(int) == 0);
  constexpr int kWords = sizeof(DescentState) / sizeof(int);
  for (int i = threadIdx.x; i < kWords; i += kThreads) {
    reinterpret_cast<int*>(&local)[i] = reinterpret_cast<const int*>(state)[i];
  }
  __syncthreads();
  if (threadIdx.x == 0) advance(local);
  __syncthreads();
  for (int i = threadIdx.x; i < kWords; i += kThreads) {
    reinterpret_cast<int*>(state)[i] = reinterpret_cast<const int*>(&local)[i];
  }
}

__global__ void __launch_bounds__(kThreads) AdvanceKernel(DescentVectors v) {
  __shared__ double total[kDescentDots];
  const DescentState& state = *v.state;
  if (state.done) {
    if (blockIdx.x == 0 && threadIdx.x == 0) v.state->action = DescentAction::kNothing;
    return;
  }
  const double value = v.value->metric + *v.penalty, samples = v.value->samples;
  const bool acceptable = IsAcceptable(state, value, samples);
  if (acceptable) {
    double dots[kDescentDots] = {};
    SumDots(v, state, dots);
    StoreBlockDots(dots, v.partial);
  }
  // No block writes the state before every block has read it.
  if (!IsLastBlock(v.ticket)) return;
  if (acceptable) SumBlockDots(v.partial, total);
  AdvanceShared(v.state, [&](DescentState& s) { AdvanceDescent(s, value, samples, total); });
}

__device__ float Largest(float4 p) {
  const float largest = fmaxf(fmaxf(fabsf(p.x), fabsf(p.y)), fmaxf(fabsf(p.z), fabsf(p.w)));
  const float nan = (p.x - p.x) + (p.y - p.y) + (p.z - p.z) + (p.w - p.w);
  return nan == 0 ? largest : INFINITY;
}

// Moves the quads of this thread: position and gradient become those of the trial, a kept pair is stored, and the new
// direction is summed. Returns the direction's largest component in these quads.
template <bool kTurns>
__device__ float Move(const DescentVectors& v, const DescentState& state, bool moves) {
  using namespace descent_internal;
  const bool keep = kTurns && state.keep;
  const int stored = kTurns ? state.stored : 0;
  float step_coefficient[kDescentMemory], change_coefficient[kDescentMemory];
  int64_t offset[kDescentMemory];
#pragma unroll
  for (int age = 0; age < kDescentMemory; ++age) {
    const int slot = Slot(state, age);
    offset[age] = slot * v.stride;
    step_coefficient[age] = static_cast<float>(state.coefficients[slot]);
    change_coefficient[age] = static_cast<float>(state.coefficients[kDescentMemory + slot]);
  }
  const float old = static_cast<float>(state.coefficients[kOldDirection]);
  const float steepest = static_cast<float>(state.coefficients[kGradient]);
  float largest = 0;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < Quads(v); i += int64_t{gridDim.x} * kThreads) {
    float4 g = Load(v.gradient, i), step = {}, change = {};
    if (moves) {
      const float4 trial = Load(v.trial, i), trial_gradient = Load(v.trial_gradient, i);
      step = Difference(trial, Load(v.position, i));
      change = Difference(trial_gradient, g);
      g = trial_gradient;
      Store(v.position, i, trial);
      Store(v.gradient, i, g);
      if (keep) Store(v.steps + offset[0], i, step);
      if (keep) Store(v.changes + offset[0], i, change);
    }
    if (!kTurns) continue;
    float4 p = {};
    if (old != 0) AddScaled(old, Load(v.direction, i), p);
    AddScaled(steepest, g, p);
#pragma unroll
    for (int age = 0; age < kDescentMemory; ++age) {
      if (age >= stored) continue;
      const bool fresh = age == 0 && keep;
      AddScaled(step_coefficient[age], fresh ? step : Load(v.steps + offset[age], i), p);
      AddScaled(change_coefficient[age], fresh ? change : Load(v.changes + offset[age], i), p);
    }
    Store(v.direction, i, p);
    largest = fmaxf(largest, Largest(p));
  }
  return largest;
}

__global__ void __launch_bounds__(kThreads) MoveKernel(DescentVectors v) {
  __shared__ float scratch[kThreads];
  const DescentState& state = *v.state;
  const DescentAction action = state.action;
  if (action == DescentAction::kNothing || action == DescentAction::kRefuse) return;
  if (action == DescentAction::kAcceptLast) {
    Move<false>(v, state, true);
    return;
  }
  const auto larger = [](float& a, float b) { a = fmaxf(a, b); };
  const float mine = BlockReduce(Move<true>(v, state, action == DescentAction::kAccept), scratch, larger);
  if (threadIdx.x == 0) v.partial_largest[blockIdx.x] = mine;
  if (!IsLastBlock(v.ticket)) return;
  const float largest =
      BlockReduce(threadIdx.x < gridDim.x ? __ldcg(v.partial_largest + threadIdx.x) : 0.f, scratch, larger);
  if (threadIdx.x == 0) FinishDirection(*v.state, largest);
}
static_assert(kMaxDescentBlocks <= kThreads);

__global__ void __launch_bounds__(kThreads) TrialKernel(DescentVectors v) {
  if (v.state->done || v.state->action == DescentAction::kNothing) return;
  const float alpha = static_cast<float>(v.state->alpha);
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i >= Quads(v)) return;
  float4 x = Load(v.position, i);
  AddScaled(alpha, Load(v.direction, i), x);
  Store(v.trial, i, x);
}

}  // namespace

absl::Status Descend(const ExecContext& ctx, const DescentVectors& v) {
  const cudaStream_t stream = CudaStream(ctx);
  const int blocks = DescentBlocks(v.n);
  AdvanceKernel<<<blocks, kThreads, 0, stream>>>(v);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  MoveKernel<<<blocks, kThreads, 0, stream>>>(v);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  const int64_t quads = (v.n + 3) / 4;
  TrialKernel<<<static_cast<unsigned>((quads + kThreads - 1) / kThreads), kThreads, 0, stream>>>(v);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace intrawarp::cuda
