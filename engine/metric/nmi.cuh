// SPDX-License-Identifier: Apache-2.0
// NMI (nmi.h) on CUDA: the count of a joint histogram in shared memory, and the kernel that makes the metric and its
// tables of one. The passes over the images are in nmi_ffd.cuh and nmi_affine.cuh.
#ifndef INTRAWARP_ENGINE_METRIC_NMI_CUH_
#define INTRAWARP_ENGINE_METRIC_NMI_CUH_

#include <cstdint>

#include "engine/image/bspline.h"
#include "engine/metric/metric.h"
#include "engine/metric/nmi.h"

namespace intrawarp::cuda {

// ---- The joint histogram ----

template <int kCopies>
constexpr int HistogramWords() {
  return kNmiBins * kNmiBins * kCopies;
}
// Voxels that a 32-bit bin is sure to hold.
inline constexpr int kVoxelsBetweenFlushes = 1 << (31 - kNmiFractionBits);

// The counts of a thread for four bins of one row.
template <int kCopies>
class BinRun {
 public:
  __device__ explicit BinRun(unsigned* histogram) : copy_(histogram + threadIdx.x % kCopies) {}

  __device__ void Add(int bin, const NmiWindow& window) {
    float w[4];
    uint32_t counts[4];
    BsplineWeights(window.t, w);
    NmiCounts(w, counts);
    Add(bin * kNmiBins + window.cell, counts);
  }
  // The same of a sample of this weight, from 0 to 1.
  __device__ void Add(int bin, const NmiWindow& window, float weight) {
    float w[4];
    uint32_t counts[4];
    BsplineWeights(window.t, w);
#pragma unroll
    for (int k = 0; k < 4; ++k) w[k] *= weight;
    NmiCounts(w, counts, NmiFixedPoint(weight));
    Add(bin * kNmiBins + window.cell, counts);
  }
  __device__ void Flush() {
    if (key_ < 0) return;
    unsigned* const bins = copy_ + key_ * kCopies;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      atomicAdd(bins + k * kCopies, counts_[k]);
      counts_[k] = 0;
    }
  }

 private:
  __device__ void Add(int key, const uint32_t (&counts)[4]) {
    if (key != key_) {
      Flush();
      key_ = key;
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) counts_[k] += counts[k];
  }

  unsigned* copy_;
  int key_ = -1;
  unsigned counts_[4] = {0, 0, 0, 0};
};

// Adds a block's counts to `sums`, and sets them to 0; all threads call it.
template <int kCopies>
__device__ inline void FlushHistogram(unsigned* histogram, unsigned long long* sums) {
  __syncthreads();
  for (int i = threadIdx.x; i < kNmiBins * kNmiBins; i += blockDim.x) {
    unsigned long long sum = 0;
#pragma unroll
    for (int k = 0; k < kCopies; ++k) {
      sum += histogram[i * kCopies + k];
      histogram[i * kCopies + k] = 0;
    }
    if (sum != 0) atomicAdd(sums + i, sum);
  }
  __syncthreads();
}

// ---- The metric and its tables ----

inline constexpr int kNmiThreads = 1024;
inline constexpr int kBinsPerThread = kNmiBins * kNmiBins / kNmiThreads;
inline constexpr int kThreadsPerRow = kNmiBins / kBinsPerThread;

template <typename T>
__device__ inline T NmiBlockSum(T value, T* scratch) {
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  T sum = 0;
  for (int w = 0; w < kNmiThreads / 32; ++w) sum += scratch[w];
  return sum;
}

__device__ inline double EntropyTerm(double p, double log_p) { return p > 0 ? -p * log_p : 0; }

// The arguments of NmiKernel, in device memory.
struct NmiArgs {
  const int* skip;
  unsigned long long* histogram;
  NmiScale moving_bins;
  MetricValue* value;
  float* derivative;
  // May be null: a curvature a fixed bin, as NmiFromHistogram.
  float* curvature;
  // May be null: a counter that is set to 0.
  unsigned* next_piece;
  // The number of weighted samples, which is set to 0 for the next evaluation; null where all weigh 1.
  unsigned long long* samples = nullptr;
};

// The metric and its tables, as NmiFromHistogram; one block. Leaves the histogram at 0.
static __global__ void __launch_bounds__(kNmiThreads) NmiKernel(const NmiArgs a) {
  if (a.skip != nullptr && *a.skip != 0) return;
  __shared__ unsigned long long columns[kNmiThreads / kNmiBins][kNmiBins];
  __shared__ unsigned long long rows[kNmiBins];
  __shared__ double column_logs[kNmiBins];
  __shared__ unsigned long long integer_scratch[kNmiThreads / 32];
  __shared__ double scratch[kNmiThreads / 32];
  const int t = threadIdx.x;
  unsigned long long row_sum = 0;
  unsigned long long counts[kBinsPerThread];
#pragma unroll
  for (int k = 0; k < kBinsPerThread; ++k) row_sum += counts[k] = a.histogram[t * kBinsPerThread + k];
  const double total = static_cast<double>(NmiBlockSum(row_sum, integer_scratch));
  unsigned long long column_sum = 0;
  for (int f = t / kNmiBins; f < kNmiBins; f += kNmiThreads / kNmiBins) {
    column_sum += a.histogram[f * kNmiBins + t % kNmiBins];
  }
  columns[t / kNmiBins][t % kNmiBins] = column_sum;
  for (int offset = kThreadsPerRow / 2; offset > 0; offset /= 2) {
    row_sum += __shfl_xor_sync(0xffffffffu, row_sum, offset);
  }
  if (t % kThreadsPerRow == 0) rows[t / kThreadsPerRow] = row_sum;
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kBinsPerThread; ++k) a.histogram[t * kBinsPerThread + k] = 0;
  if (t == 0 && a.next_piece != nullptr) *a.next_piece = 0;
  const double weight = total / kNmiOne, samples = a.samples == nullptr ? weight : static_cast<double>(*a.samples);
  if (a.samples != nullptr) {
    __syncthreads();
    if (t == 0) *a.samples = 0;
  }
  if (total == 0) {
#pragma unroll
    for (int k = 0; k < kBinsPerThread; ++k) a.derivative[t * kBinsPerThread + k] = 0;
    if (a.curvature != nullptr && t < kNmiBins) a.curvature[t] = 0;
    if (t == 0) *a.value = {nan(""), samples};
    return;
  }
  const double floor = 0.5 / total;
  double marginal = 0;
  if (t < kNmiBins) {
    unsigned long long sum = 0;
    for (int w = 0; w < kNmiThreads / kNmiBins; ++w) sum += columns[w][t];
    const double p = static_cast<double>(sum) / total;
    column_logs[t] = log(fmax(p, floor));
    marginal = EntropyTerm(p, column_logs[t]);
  } else if (t < 2 * kNmiBins) {
    const double p = static_cast<double>(rows[t - kNmiBins]) / total;
    marginal = EntropyTerm(p, log(fmax(p, floor)));
  }
  const double marginals = NmiBlockSum(marginal, scratch);
  double term = 0;
  double logs[kBinsPerThread];
#pragma unroll
  for (int k = 0; k < kBinsPerThread; ++k) {
    const double p = static_cast<double>(counts[k]) / total;
    logs[k] = log(fmax(p, floor));
    term += EntropyTerm(p, logs[k]);
  }
  const double joint = NmiBlockSum(term, scratch);
  const double scale = a.moving_bins.scale / (weight * joint * joint);
#pragma unroll
  for (int k = 0; k < kBinsPerThread; ++k) {
    const int i = t * kBinsPerThread + k;
    a.derivative[i] = static_cast<float>(scale * (joint * column_logs[i % kNmiBins] - marginals * logs[k]));
  }
  if (t == 0) *a.value = {2 - marginals / joint, samples};
  if (a.curvature == nullptr) return;
  // The table is the block's own: the barrier makes it visible.
  __syncthreads();
  double squares = 0;
#pragma unroll
  for (int k = 0; k < kBinsPerThread; ++k) {
    const int i = t * kBinsPerThread + k, m = i % kNmiBins;
    if (m == 0 || m == kNmiBins - 1) continue;
    const double score = 0.5 * (static_cast<double>(a.derivative[i + 1]) - a.derivative[i - 1]);
    squares += static_cast<double>(counts[k]) * score * score;
  }
  for (int offset = kThreadsPerRow / 2; offset > 0; offset /= 2) {
    squares += __shfl_xor_sync(0xffffffffu, squares, offset);
  }
  if (t % kThreadsPerRow != 0) return;
  const int f = t / kThreadsPerRow;
  a.curvature[f] = rows[f] == 0 ? 0.0f : static_cast<float>(joint * weight * squares / static_cast<double>(rows[f]));
}

// d(weights)/dt of the window against four bins of the derivative table.
__device__ inline float NmiVoxelGradient(const float* table, const NmiWindow& window) {
  float d[4];
  BsplineDerivatives(window.t, d);
  const float* const e = table + window.cell;
  return window.inside ? e[0] * d[0] + e[1] * d[1] + e[2] * d[2] + e[3] * d[3] : 0.0f;
}

}  // namespace intrawarp::cuda

#endif  // INTRAWARP_ENGINE_METRIC_NMI_CUH_
