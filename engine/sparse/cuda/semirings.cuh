// SPDX-License-Identifier: Apache-2.0
// The arithmetic of each semiring: Add(sum, a, b) adds the product a b to a sum, Join adds two sums. Internal to
// engine/sparse/cuda.
#ifndef INTRAWARP_ENGINE_SPARSE_CUDA_SEMIRINGS_CUH_
#define INTRAWARP_ENGINE_SPARSE_CUDA_SEMIRINGS_CUH_

#include <cmath>

namespace intrawarp::cuda::spgemm {

template <typename T>
struct PlusTimes {
  static __device__ T Identity() { return 0; }
  static __device__ T Add(T sum, T a, T b) { return fma(a, b, sum); }
  static __device__ T Join(T x, T y) { return x + y; }
};
template <typename T>
struct OrAnd {
  static __device__ T Identity() { return 0; }
  static __device__ T Add(T sum, T a, T b) { return sum != 0 || (a != 0 && b != 0); }
  static __device__ T Join(T x, T y) { return x != 0 || y != 0; }
};
template <typename T>
struct MinPlus {
  static __device__ T Identity() { return static_cast<T>(INFINITY); }
  static __device__ T Add(T sum, T a, T b) { return fmin(sum, a + b); }
  static __device__ T Join(T x, T y) { return fmin(x, y); }
};

}  // namespace intrawarp::cuda::spgemm

#endif  // INTRAWARP_ENGINE_SPARSE_CUDA_SEMIRINGS_CUH_
