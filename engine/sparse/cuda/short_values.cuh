// SPDX-License-Identifier: Apache-2.0
// The columns and values of short rows (short_rows.h). Internal to engine/sparse/cuda.
#ifndef INTRAWARP_ENGINE_SPARSE_CUDA_SHORT_VALUES_CUH_
#define INTRAWARP_ENGINE_SPARSE_CUDA_SHORT_VALUES_CUH_

#include "absl/status/status.h"
#include "engine/sparse/cuda/launcher.cuh"
#include "engine/sparse/cuda/merge.cuh"
#include "engine/sparse/cuda/row_bins.h"

namespace intrawarp::cuda::spgemm {

// Launches the kernels that write the columns of the short rows of C, their values times alpha, or both. Without values
// T is int32_t, and the values of the operands are not read. Where only values are made, the columns are known.
// Instantiated for the semirings over float and double, and for PlusTimes<int32_t>.
template <typename T, typename Ring>
absl::Status LaunchShortRows(Launcher& launcher, const RowBins& bins, const ConstCsrView& a, const ConstCsrView& b,
                             const ConstPatternView& c, MergeOutput make, T alpha, T* values);

}  // namespace intrawarp::cuda::spgemm

#endif  // INTRAWARP_ENGINE_SPARSE_CUDA_SHORT_VALUES_CUH_
