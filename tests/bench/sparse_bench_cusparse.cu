// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "tests/bench/cusparse_library.h"
#include "tests/bench/sparse_bench_cusparse.h"

namespace intrawarp {
namespace {

// Device memory that only grows.
class Bytes {
 public:
  ~Bytes() { (void)cudaFree(data_); }
  absl::Status Reserve(size_t bytes) {
    if (bytes <= bytes_) return absl::OkStatus();
    (void)cudaFree(data_);
    data_ = nullptr;
    bytes_ = 0;
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaMalloc(&data_, bytes));
    bytes_ = bytes;
    return absl::OkStatus();
  }
  void* get() const { return data_; }
  int64_t bytes() const { return static_cast<int64_t>(bytes_); }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

__global__ void NarrowKernel(const int64_t* from, int32_t* to, int64_t count) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    to[i] = static_cast<int32_t>(from[i]);
  }
}

struct Matrix {
  cusparseSpMatDescr_t descriptor = nullptr;
  Bytes offsets;
  ~Matrix() {
    auto* const destroy = CusparseLibrary().Function<decltype(cusparseDestroySpMat)>("cusparseDestroySpMat");
    if (descriptor != nullptr) (void)destroy(descriptor);
  }
  absl::Status Create(int64_t rows, int64_t columns, int64_t entries, void* indices, void* values, ValueType type) {
    INTRAWARP_CUSPARSE(cusparseCreateCsr, &descriptor, rows, columns, entries, offsets.get(), indices, values,
                       CUSPARSE_INDEX_32I, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO,
                       type == ValueType::kFloat32 ? CUDA_R_32F : CUDA_R_64F);
    return absl::OkStatus();
  }
  // A view of the same memory, with offsets of 32 bits.
  absl::Status View(const ConstCsrView& m) {
    INTRAWARP_RETURN_IF_ERROR(offsets.Reserve((m.rows + int64_t{1}) * sizeof(int32_t)));
    NarrowKernel<<<1024, 256>>>(m.row_offsets, static_cast<int32_t*>(offsets.get()), m.rows + int64_t{1});
    return Create(m.rows, m.columns, m.entries, const_cast<int32_t*>(m.column_indices), const_cast<void*>(m.values),
                  m.type);
  }
};

// A description of one product, which remembers where it stands.
struct Descriptor {
  cusparseSpGEMMDescr_t get = nullptr;
  absl::Status Create() {
    INTRAWARP_CUSPARSE(cusparseSpGEMM_createDescr, &get);
    return absl::OkStatus();
  }
  ~Descriptor() {
    auto* const destroy =
        CusparseLibrary().Function<decltype(cusparseSpGEMM_destroyDescr)>("cusparseSpGEMM_destroyDescr");
    if (get != nullptr) (void)destroy(get);
  }
};

constexpr cusparseOperation_t kAsIs = CUSPARSE_OPERATION_NON_TRANSPOSE;

struct Product {
  cusparseHandle_t handle;
  cusparseSpMatDescr_t a, b;
  ConstCsrView a_view, b_view;
  cudaDataType type;
  double one_double = 1, zero_double = 0;
  float one_float = 1, zero_float = 0;
  const void* one() const { return type == CUDA_R_64F ? static_cast<const void*>(&one_double) : &one_float; }
  const void* zero() const { return type == CUDA_R_64F ? static_cast<const void*>(&zero_double) : &zero_float; }

  Bytes work, compute, offsets, indices, values;

  // One full product. `ask` calls for the sizes of buffers first and allocates them.
  absl::Status Run(bool ask, int64_t* entries) {
    Matrix c;
    INTRAWARP_RETURN_IF_ERROR(offsets.Reserve((a_view.rows + int64_t{1}) * sizeof(int32_t)));
    INTRAWARP_CUSPARSE(cusparseCreateCsr, &c.descriptor, a_view.rows, b_view.columns, 0, offsets.get(), nullptr,
                       nullptr, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO, type);
    Descriptor d;
    INTRAWARP_RETURN_IF_ERROR(d.Create());
    constexpr cusparseSpGEMMAlg_t kAlgorithm = CUSPARSE_SPGEMM_DEFAULT;
    size_t size = work.bytes();
    if (ask) {
      INTRAWARP_CUSPARSE(cusparseSpGEMM_workEstimation, handle, kAsIs, kAsIs, one(), a, b, zero(), c.descriptor, type,
                         kAlgorithm, d.get, &size, nullptr);
      INTRAWARP_RETURN_IF_ERROR(work.Reserve(size));
    }
    INTRAWARP_CUSPARSE(cusparseSpGEMM_workEstimation, handle, kAsIs, kAsIs, one(), a, b, zero(), c.descriptor, type,
                       kAlgorithm, d.get, &size, work.get());
    size = compute.bytes();
    if (ask) {
      INTRAWARP_CUSPARSE(cusparseSpGEMM_compute, handle, kAsIs, kAsIs, one(), a, b, zero(), c.descriptor, type,
                         kAlgorithm, d.get, &size, nullptr);
      INTRAWARP_RETURN_IF_ERROR(compute.Reserve(size));
    }
    INTRAWARP_CUSPARSE(cusparseSpGEMM_compute, handle, kAsIs, kAsIs, one(), a, b, zero(), c.descriptor, type,
                       kAlgorithm, d.get, &size, compute.get());
    INTRAWARP_RETURN_IF_ERROR(PlaceResult(c.descriptor, entries));
    INTRAWARP_CUSPARSE(cusparseSpGEMM_copy, handle, kAsIs, kAsIs, one(), a, b, zero(), c.descriptor, type, kAlgorithm,
                       d.get);
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaDeviceSynchronize());
    return absl::OkStatus();
  }

  absl::Status PlaceResult(cusparseSpMatDescr_t c, int64_t* entries) {
    int64_t rows = 0, columns = 0;
    INTRAWARP_CUSPARSE(cusparseSpMatGetSize, c, &rows, &columns, entries);
    INTRAWARP_RETURN_IF_ERROR(indices.Reserve(*entries * sizeof(int32_t)));
    INTRAWARP_RETURN_IF_ERROR(values.Reserve(*entries * (type == CUDA_R_64F ? 8 : 4)));
    INTRAWARP_CUSPARSE(cusparseCsrSetPointers, c, offsets.get(), indices.get(), values.get());
    return absl::OkStatus();
  }

  int64_t ResultBytes() const { return offsets.bytes() + indices.bytes() + values.bytes(); }
};

double Median(std::vector<double> times) {
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

template <typename Call>
absl::StatusOr<double> MedianSeconds(int repeats, const Call& call) {
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    INTRAWARP_RETURN_IF_ERROR(call());
    times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return Median(times);
}

absl::Status TimeReuse(Product& p, int repeats, CusparseResult* result) {
  Matrix c;
  INTRAWARP_CUSPARSE(cusparseCreateCsr, &c.descriptor, p.a_view.rows, p.b_view.columns, 0, p.offsets.get(), nullptr,
                     nullptr, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO, p.type);
  Descriptor d;
  INTRAWARP_RETURN_IF_ERROR(d.Create());
  constexpr cusparseSpGEMMAlg_t kAlgorithm = CUSPARSE_SPGEMM_DEFAULT;
  Bytes buffers[5];
  size_t sizes[5] = {};
  INTRAWARP_CUSPARSE(cusparseSpGEMMreuse_workEstimation, p.handle, kAsIs, kAsIs, p.a, p.b, c.descriptor, kAlgorithm,
                     d.get, &sizes[0], nullptr);
  INTRAWARP_RETURN_IF_ERROR(buffers[0].Reserve(sizes[0]));
  INTRAWARP_CUSPARSE(cusparseSpGEMMreuse_workEstimation, p.handle, kAsIs, kAsIs, p.a, p.b, c.descriptor, kAlgorithm,
                     d.get, &sizes[0], buffers[0].get());
  INTRAWARP_CUSPARSE(cusparseSpGEMMreuse_nnz, p.handle, kAsIs, kAsIs, p.a, p.b, c.descriptor, kAlgorithm, d.get,
                     &sizes[1], nullptr, &sizes[2], nullptr, &sizes[3], nullptr);
  for (int i = 1; i < 4; ++i) INTRAWARP_RETURN_IF_ERROR(buffers[i].Reserve(sizes[i]));
  INTRAWARP_CUSPARSE(cusparseSpGEMMreuse_nnz, p.handle, kAsIs, kAsIs, p.a, p.b, c.descriptor, kAlgorithm, d.get,
                     &sizes[1], buffers[1].get(), &sizes[2], buffers[2].get(), &sizes[3], buffers[3].get());
  int64_t entries = 0;
  INTRAWARP_RETURN_IF_ERROR(p.PlaceResult(c.descriptor, &entries));
  INTRAWARP_CUSPARSE(cusparseSpGEMMreuse_copy, p.handle, kAsIs, kAsIs, p.a, p.b, c.descriptor, kAlgorithm, d.get,
                     &sizes[4], nullptr);
  INTRAWARP_RETURN_IF_ERROR(buffers[4].Reserve(sizes[4]));
  INTRAWARP_CUSPARSE(cusparseSpGEMMreuse_copy, p.handle, kAsIs, kAsIs, p.a, p.b, c.descriptor, kAlgorithm, d.get,
                     &sizes[4], buffers[4].get());
  const auto execute = [&]() -> absl::Status {
    INTRAWARP_CUSPARSE(cusparseSpGEMMreuse_compute, p.handle, kAsIs, kAsIs, p.one(), p.a, p.b, p.zero(), c.descriptor,
                       p.type, kAlgorithm, d.get);
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaDeviceSynchronize());
    return absl::OkStatus();
  };
  INTRAWARP_RETURN_IF_ERROR(execute());
  INTRAWARP_ASSIGN_OR_RETURN(result->reuse_seconds, MedianSeconds(repeats, execute));
  result->reuse_bytes = p.ResultBytes();
  for (const Bytes& b : buffers) result->reuse_bytes += b.bytes();
  return absl::OkStatus();
}

absl::StatusOr<cudaMemPool_t> Pool() {
  int device = 0;
  cudaMemPool_t pool = nullptr;
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetDevice(&device));
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaDeviceGetDefaultMemPool(&pool, device));
  return pool;
}

int64_t PoolAttribute(cudaMemPoolAttr attribute) {
  uint64_t bytes = 0;
  if (const auto pool = Pool(); pool.ok()) (void)cudaMemPoolGetAttribute(*pool, attribute, &bytes);
  return static_cast<int64_t>(bytes);
}

}  // namespace

void ResetPoolPeak() {
  uint64_t zero = 0;
  if (const auto pool = Pool(); pool.ok()) (void)cudaMemPoolSetAttribute(*pool, cudaMemPoolAttrUsedMemHigh, &zero);
}
int64_t PoolPeakBytes() { return PoolAttribute(cudaMemPoolAttrUsedMemHigh); }
int64_t PoolUsedBytes() { return PoolAttribute(cudaMemPoolAttrUsedMemCurrent); }

absl::StatusOr<CusparseResult> TimeCusparse(const ConstCsrView& a, const ConstCsrView& b, int repeats) {
  if (!CusparseLibrary().found()) return absl::NotFoundError("no cuSPARSE");
  static cusparseHandle_t handle = nullptr;
  if (handle == nullptr) INTRAWARP_CUSPARSE(cusparseCreate, &handle);
  Matrix a_matrix, b_matrix;
  INTRAWARP_RETURN_IF_ERROR(a_matrix.View(a));
  INTRAWARP_RETURN_IF_ERROR(b_matrix.View(b));
  Product p = {
      handle, a_matrix.descriptor, b_matrix.descriptor, a, b, a.type == ValueType::kFloat32 ? CUDA_R_32F : CUDA_R_64F};
  CusparseResult result;
  INTRAWARP_RETURN_IF_ERROR(p.Run(true, &result.entries));
  // The calls that ask for sizes are left out where the library lets us.
  int64_t entries = 0;
  const bool ask = !p.Run(false, &entries).ok() || entries != result.entries;
  INTRAWARP_ASSIGN_OR_RETURN(result.product_seconds, MedianSeconds(repeats, [&] { return p.Run(ask, &entries); }));
  result.product_bytes = p.work.bytes() + p.compute.bytes() + p.ResultBytes();
  // Some shapes are refused; the product's figures stand.
  (void)TimeReuse(p, repeats, &result);
  return result;
}

}  // namespace intrawarp
