// SPDX-License-Identifier: Apache-2.0
// cuSPARSE's SpGEMM by each of its algorithms, and SpGEMMreuse, called as its documentation says.
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "tests/bench/baselines/sparse_primitives.h"
#include "tests/bench/baselines/sparse_variants.h"
#include "tests/bench/cusparse_library.h"

namespace intrawarp::baselines::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 1024;
constexpr cusparseOperation_t kAsIs = CUSPARSE_OPERATION_NON_TRANSPOSE;
constexpr float kOne = 1, kZero = 0;

template <typename To, typename From>
__global__ void CastKernel(const From* from, int64_t count, To* to) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += int64_t{gridDim.x} * kThreads) {
    to[i] = static_cast<To>(from[i]);
  }
}

template <typename To, typename From>
absl::Status CastItems(const ExecContext& ctx, const From* from, int64_t count, To* to) {
  CastKernel<<<kBlocks, kThreads, 0, CudaStream(ctx)>>>(from, count, to);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

// Made once and never destroyed; for one thread.
absl::StatusOr<cusparseHandle_t> Handle(const ExecContext& ctx) {
  static cusparseHandle_t handle = nullptr;
  if (!CusparseLibrary().found()) return absl::NotFoundError("no cuSPARSE");
  if (handle == nullptr) INTRAWARP_CUSPARSE(cusparseCreate, &handle);
  INTRAWARP_CUSPARSE(cusparseSetStream, handle, CudaStream(ctx));
  return handle;
}

// Only grows.
absl::Status Reserve(const ExecContext& ctx, size_t bytes, Buffer& buffer) {
  if (bytes <= buffer.bytes() && !buffer.empty()) return absl::OkStatus();
  buffer = Buffer();
  INTRAWARP_ASSIGN_OR_RETURN(buffer, ctx.device().Allocate(bytes, ctx.stream()));
  return absl::OkStatus();
}

class Matrix {
 public:
  Matrix() = default;
  Matrix(const Matrix&) = delete;
  ~Matrix() { Destroy(); }
  absl::Status Create(int64_t rows, int64_t columns, int64_t entries, void* offsets, void* indices, void* values) {
    Destroy();
    INTRAWARP_CUSPARSE(cusparseCreateCsr, &descriptor_, rows, columns, entries, offsets, indices, values,
                       CUSPARSE_INDEX_32I, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO, CUDA_R_32F);
    return absl::OkStatus();
  }
  cusparseSpMatDescr_t get() const { return descriptor_; }

 private:
  void Destroy() {
    if (descriptor_ == nullptr) return;
    auto* const f = CusparseLibrary().Function<decltype(cusparseDestroySpMat)>("cusparseDestroySpMat");
    (void)f(std::exchange(descriptor_, nullptr));
  }
  cusparseSpMatDescr_t descriptor_ = nullptr;
};

// The state of one product.
class Descriptor {
 public:
  Descriptor() = default;
  Descriptor(const Descriptor&) = delete;
  ~Descriptor() { Destroy(); }
  absl::Status Create() {
    Destroy();
    INTRAWARP_CUSPARSE(cusparseSpGEMM_createDescr, &descriptor_);
    return absl::OkStatus();
  }
  cusparseSpGEMMDescr_t get() const { return descriptor_; }

 private:
  void Destroy() {
    if (descriptor_ == nullptr) return;
    auto* const f = CusparseLibrary().Function<decltype(cusparseSpGEMM_destroyDescr)>("cusparseSpGEMM_destroyDescr");
    (void)f(std::exchange(descriptor_, nullptr));
  }
  cusparseSpGEMMDescr_t descriptor_ = nullptr;
};

class CusparseProduct : public SparseProduct {
 public:
  CusparseProduct(const ExecContext& ctx, const ConstCsrView& a, const ConstCsrView& b)
      : ctx_(ctx), a_view_(a), b_view_(b) {}

  // It takes row offsets of 32 bits; A's and B's are not part of any time.
  absl::Status Begin() {
    INTRAWARP_ASSIGN_OR_RETURN(handle_, Handle(ctx_));
    INTRAWARP_RETURN_IF_ERROR(Narrow(a_view_, a_offsets_, a_));
    INTRAWARP_RETURN_IF_ERROR(Narrow(b_view_, b_offsets_, b_));
    return ctx_.device().Synchronize(ctx_.stream());
  }

  absl::StatusOr<CsrMatrix> Result() override {
    INTRAWARP_ASSIGN_OR_RETURN(CsrMatrix c, CsrMatrix::Allocate(ctx_.device(), ctx_.stream(), a_view_.rows,
                                                                b_view_.columns, entries_, ValueType::kFloat32));
    INTRAWARP_RETURN_IF_ERROR(CastItems(ctx_, c_offsets_.as<int32_t>(), a_view_.rows + int64_t{1}, c.row_offsets()));
    INTRAWARP_RETURN_IF_ERROR(
        ctx_.device().Copy(c.column_indices(), c_indices_.as<void>(), entries_ * sizeof(int32_t), ctx_.stream()));
    INTRAWARP_RETURN_IF_ERROR(
        ctx_.device().Copy(c.values(), c_values_.as<void>(), entries_ * sizeof(float), ctx_.stream()));
    return c;
  }

 protected:
  absl::Status BeginResult() {
    INTRAWARP_RETURN_IF_ERROR(Reserve(ctx_, (a_view_.rows + int64_t{1}) * sizeof(int32_t), c_offsets_));
    INTRAWARP_RETURN_IF_ERROR(c_.Create(a_view_.rows, b_view_.columns, 0, c_offsets_.as<void>(), nullptr, nullptr));
    // The last run may still use its buffers; the run before has ended.
    turn_ = 1 - turn_;
    return descriptors_[turn_].Create();
  }

  absl::Status PlaceResult() {
    int64_t rows = 0, columns = 0;
    INTRAWARP_CUSPARSE(cusparseSpMatGetSize, c_.get(), &rows, &columns, &entries_);
    INTRAWARP_RETURN_IF_ERROR(Reserve(ctx_, entries_ * sizeof(int32_t), c_indices_));
    INTRAWARP_RETURN_IF_ERROR(Reserve(ctx_, entries_ * sizeof(float), c_values_));
    INTRAWARP_CUSPARSE(cusparseCsrSetPointers, c_.get(), c_offsets_.as<void>(), c_indices_.as<void>(),
                       c_values_.as<void>());
    return absl::OkStatus();
  }

  cusparseSpGEMMDescr_t Current() const { return descriptors_[turn_].get(); }

  void FreeResult() {
    c_offsets_ = Buffer();
    c_indices_ = Buffer();
    c_values_ = Buffer();
  }

  const ExecContext& ctx_;
  cusparseHandle_t handle_ = nullptr;
  const ConstCsrView a_view_, b_view_;
  Buffer a_offsets_, b_offsets_;
  Matrix a_, b_;
  Buffer c_offsets_, c_indices_, c_values_;
  Matrix c_;
  int64_t entries_ = 0;

 private:
  absl::Status Narrow(const ConstCsrView& m, Buffer& offsets, Matrix& matrix) {
    INTRAWARP_RETURN_IF_ERROR(CheckCount(m.entries));
    INTRAWARP_ASSIGN_OR_RETURN(offsets, AllocateItems<int32_t>(ctx_, m.rows + int64_t{1}));
    INTRAWARP_RETURN_IF_ERROR(CastItems(ctx_, m.row_offsets, m.rows + int64_t{1}, offsets.as<int32_t>()));
    return matrix.Create(m.rows, m.columns, m.entries, offsets.as<void>(), const_cast<int32_t*>(m.column_indices),
                         const_cast<void*>(m.values));
  }

  Descriptor descriptors_[2];
  int turn_ = 0;
};

class FullProduct : public CusparseProduct {
 public:
  FullProduct(const ExecContext& ctx, cusparseSpGEMMAlg_t algorithm, float chunk_fraction, const ConstCsrView& a,
              const ConstCsrView& b)
      : CusparseProduct(ctx, a, b), algorithm_(algorithm), chunk_fraction_(chunk_fraction) {}

  absl::Status Prepare() override {
    FreeResult();
    work_ = Buffer();
    compute_ = Buffer();
    estimate_bytes_ = 0;
    sizes_known_ = false;
    return absl::OkStatus();
  }

  absl::Status Run() override {
    if (!sizes_known_ || must_ask_ || InPieces()) return MultiplyAndAsk();
    const int64_t before = entries_;
    if (Multiply(false).ok() && entries_ == before) return absl::OkStatus();
    // The documentation does not say whether the size queries can be left out. Where they cannot, they are part of the
    // product.
    must_ask_ = true;
    return MultiplyAndAsk();
  }

 private:
  bool InPieces() const { return algorithm_ == CUSPARSE_SPGEMM_ALG2 || algorithm_ == CUSPARSE_SPGEMM_ALG3; }

  absl::Status MultiplyAndAsk() {
    INTRAWARP_RETURN_IF_ERROR(Multiply(true));
    sizes_known_ = true;
    return absl::OkStatus();
  }

  absl::Status Multiply(bool ask) {
    INTRAWARP_RETURN_IF_ERROR(BeginResult());
    INTRAWARP_RETURN_IF_ERROR(EstimateWork(ask));
    if (InPieces()) INTRAWARP_RETURN_IF_ERROR(EstimateMemory(ask));
    INTRAWARP_RETURN_IF_ERROR(Compute(ask && !InPieces()));
    INTRAWARP_RETURN_IF_ERROR(PlaceResult());
    INTRAWARP_CUSPARSE(cusparseSpGEMM_copy, handle_, kAsIs, kAsIs, &kOne, a_.get(), b_.get(), &kZero, c_.get(),
                       CUDA_R_32F, algorithm_, Current());
    return absl::OkStatus();
  }

  absl::Status EstimateWork(bool ask) {
    const auto call = [&](size_t* bytes, void* buffer) -> absl::Status {
      INTRAWARP_CUSPARSE(cusparseSpGEMM_workEstimation, handle_, kAsIs, kAsIs, &kOne, a_.get(), b_.get(), &kZero,
                         c_.get(), CUDA_R_32F, algorithm_, Current(), bytes, buffer);
      return absl::OkStatus();
    };
    return Call(ask, work_, call);
  }

  // The size of compute_ follows from it.
  absl::Status EstimateMemory(bool ask) {
    size_t compute = 0;
    const auto call = [&](size_t* bytes, void* buffer) -> absl::Status {
      INTRAWARP_CUSPARSE(cusparseSpGEMM_estimateMemory, handle_, kAsIs, kAsIs, &kOne, a_.get(), b_.get(), &kZero,
                         c_.get(), CUDA_R_32F, algorithm_, Current(), chunk_fraction_, bytes, buffer,
                         buffer == nullptr ? nullptr : &compute);
      return absl::OkStatus();
    };
    // Released before compute_ is allocated.
    Buffer scratch;
    INTRAWARP_RETURN_IF_ERROR(Reserve(ctx_, estimate_bytes_, scratch));
    INTRAWARP_RETURN_IF_ERROR(Call(ask, scratch, call));
    estimate_bytes_ = scratch.bytes();
    scratch = Buffer();
    return Reserve(ctx_, compute, compute_);
  }

  absl::Status Compute(bool ask) {
    const auto call = [&](size_t* bytes, void* buffer) -> absl::Status {
      INTRAWARP_CUSPARSE(cusparseSpGEMM_compute, handle_, kAsIs, kAsIs, &kOne, a_.get(), b_.get(), &kZero, c_.get(),
                         CUDA_R_32F, algorithm_, Current(), bytes, buffer);
      return absl::OkStatus();
    };
    return Call(ask, compute_, call);
  }

  template <typename F>
  absl::Status Call(bool ask, Buffer& buffer, const F& call) {
    size_t bytes = buffer.bytes();
    if (ask) {
      bytes = 0;
      INTRAWARP_RETURN_IF_ERROR(call(&bytes, nullptr));
      INTRAWARP_RETURN_IF_ERROR(Reserve(ctx_, bytes, buffer));
    }
    return call(&bytes, buffer.as<void>());
  }

  const cusparseSpGEMMAlg_t algorithm_;
  const float chunk_fraction_;
  Buffer work_, compute_;
  size_t estimate_bytes_ = 0;
  bool sizes_known_ = false;
  bool must_ask_ = false;
};

class ReusedProduct : public CusparseProduct {
 public:
  using CusparseProduct::CusparseProduct;

  absl::Status Prepare() override {
    FreeResult();
    for (Buffer& buffer : buffers_) buffer = Buffer();
    INTRAWARP_RETURN_IF_ERROR(BeginResult());
    size_t bytes[5] = {};
    INTRAWARP_RETURN_IF_ERROR(EstimateWork(bytes));
    INTRAWARP_RETURN_IF_ERROR(Reserve(ctx_, bytes[0], buffers_[0]));
    INTRAWARP_RETURN_IF_ERROR(EstimateWork(bytes));
    INTRAWARP_RETURN_IF_ERROR(Count(bytes));
    for (int i = 1; i < 4; ++i) INTRAWARP_RETURN_IF_ERROR(Reserve(ctx_, bytes[i], buffers_[i]));
    INTRAWARP_RETURN_IF_ERROR(Count(bytes));
    buffers_[0] = Buffer();
    buffers_[1] = Buffer();
    INTRAWARP_RETURN_IF_ERROR(PlaceResult());
    INTRAWARP_RETURN_IF_ERROR(CopyPattern(bytes));
    INTRAWARP_RETURN_IF_ERROR(Reserve(ctx_, bytes[4], buffers_[4]));
    INTRAWARP_RETURN_IF_ERROR(CopyPattern(bytes));
    buffers_[2] = Buffer();
    return absl::OkStatus();
  }

  absl::Status Run() override {
    INTRAWARP_CUSPARSE(cusparseSpGEMMreuse_compute, handle_, kAsIs, kAsIs, &kOne, a_.get(), b_.get(), &kZero, c_.get(),
                       CUDA_R_32F, kAlgorithm, Current());
    return absl::OkStatus();
  }

 private:
  static constexpr cusparseSpGEMMAlg_t kAlgorithm = CUSPARSE_SPGEMM_DEFAULT;

  // Each asks for sizes while its buffers are empty.
  absl::Status EstimateWork(size_t* bytes) {
    INTRAWARP_CUSPARSE(cusparseSpGEMMreuse_workEstimation, handle_, kAsIs, kAsIs, a_.get(), b_.get(), c_.get(),
                       kAlgorithm, Current(), &bytes[0], buffers_[0].as<void>());
    return absl::OkStatus();
  }
  absl::Status Count(size_t* bytes) {
    INTRAWARP_CUSPARSE(cusparseSpGEMMreuse_nnz, handle_, kAsIs, kAsIs, a_.get(), b_.get(), c_.get(), kAlgorithm,
                       Current(), &bytes[1], buffers_[1].as<void>(), &bytes[2], buffers_[2].as<void>(), &bytes[3],
                       buffers_[3].as<void>());
    return absl::OkStatus();
  }
  absl::Status CopyPattern(size_t* bytes) {
    INTRAWARP_CUSPARSE(cusparseSpGEMMreuse_copy, handle_, kAsIs, kAsIs, a_.get(), b_.get(), c_.get(), kAlgorithm,
                       Current(), &bytes[4], buffers_[4].as<void>());
    return absl::OkStatus();
  }

  Buffer buffers_[5];
};

cusparseSpGEMMAlg_t AlgorithmOf(SparseMethod method) {
  switch (method) {
    case SparseMethod::kCusparse1:
      return CUSPARSE_SPGEMM_ALG1;
    case SparseMethod::kCusparse2:
      return CUSPARSE_SPGEMM_ALG2;
    case SparseMethod::kCusparse3:
      return CUSPARSE_SPGEMM_ALG3;
    default:
      return CUSPARSE_SPGEMM_DEFAULT;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<SparseProduct>> MakeCusparseProduct(const ExecContext& ctx, SparseMethod method,
                                                                   const ConstCsrView& a, const ConstCsrView& b,
                                                                   float chunk_fraction) {
  std::unique_ptr<CusparseProduct> product;
  if (method == SparseMethod::kCusparseReuse) {
    product = std::make_unique<ReusedProduct>(ctx, a, b);
  } else {
    product = std::make_unique<FullProduct>(ctx, AlgorithmOf(method), chunk_fraction, a, b);
  }
  INTRAWARP_RETURN_IF_ERROR(product->Begin());
  return product;
}

}  // namespace intrawarp::baselines::cuda
